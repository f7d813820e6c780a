"""Parses a sent message: the fields that the broker acts on, and the content that it keeps (its format: __init__.py).

Errors of a sender:
- MalformedMessage: bytes that are not sections in their order, fields of another type than theirs, counts that do not hold.
- ArgumentOutOfRange: an id, a session id or a partition key beyond the limit.

A received message can be sent again as it is. SDKs then write some annotations in another type than they were received
in: Python has bytes for a text and an integer for a time. The broker reads the partition keys and the scheduled time in
these types too. It keeps them in the type that receivers expect: a symbol for the key, a string or a timestamp for the
value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from librt.strings import BytesWriter, read_i64_be, write_i16_be
from mypy_extensions import i16, i64

from busbar.amqp.codec import DecodeError, decode_value, encode_value, read_u32, skip_value, write_u32
from busbar.amqp.types import Timestamp
from busbar.message.sections import (
    DATA,
    Sections,
    check_pairs,
    find_sections,
    find_sections_again,
    next_data,
    open_compound,
    value_of,
    with_plain_descriptors,
)
from busbar.model.errors import ArgumentOutOfRange, MalformedMessage, MessageSizeExceeded
from busbar.model.message import Draft

message_format_batch: Final = 0x80013700
MAX_HEADER_SIZE: Final = 64 * 1024
"""The documented limit; a namespace may have another."""

# The first byte of a content.
VERSION: Final = 0x10
DURABLE: Final = 1
PRIORITY: Final = 2
ENQUEUED: Final = 4
DELIVERY: Final = 8

NO_TTL: Final = 0xFFFFFFFF
"""A header.ttl of this value counts as absent."""

# The beginning of nearly all contents: they have no annotations.
_PLAIN_HEAD: Final = b"\x10" + bytes(7)
_DURABLE_HEAD: Final = b"\x11" + bytes(7)

# The same with one annotation, which is a partition key nearly always, by its length.
_PAIR_HEADS: Final = [b"\x10\x00\x00\x02\x00\x00\x00" + bytes((length,)) for length in range(256)]

# The constructors of integers; those of long stand with the timestamp's.
_INTEGERS: Final = frozenset((0x43, 0x44, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x60, 0x61, 0x70, 0x71, 0x80))

# The dates that a .NET DateTime can hold. A time outside is read as the nearest of them.
_FIRST_DATE: Final = -62_135_596_800_000
_LAST_DATE: Final = 253_402_300_799_999

_PARTITION_KEY: Final = b"x-opt-partition-key"
_VIA_PARTITION_KEY: Final = b"x-opt-via-partition-key"
_SCHEDULED: Final = b"x-opt-scheduled-enqueue-time"
FORCE_PERSISTENCE: Final = b"x-opt-force-persistence"
"""The annotation that stands for header.durable, for clients that do not set the header. Both mean ForcePersistence."""
_LOCK_TOKEN: Final = b"x-opt-lock-token"
_DELIVERY_ANNOTATIONS: Final = b"\x00\x53\x71"
_BROKER_KEYS: Final = frozenset(
    {
        b"x-opt-sequence-number",
        b"x-opt-enqueued-time",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-locked-until",
        b"x-opt-message-state",
        b"x-opt-partition-id",
        _LOCK_TOKEN,
        b"x-opt-deadletter-source",
    }
)


def parse_message(
    payload: bytes,
    start: i64,
    end: i64,
    fresh_id: str,
    max_id_length: i64,
    max_header_size: i64 = MAX_HEADER_SIZE,
) -> Draft:
    """The message in payload[start:end], with `fresh_id` if it has no id. Raises MalformedMessage, ArgumentOutOfRange for a
    long id, or MessageSizeExceeded when all that is not the body is too large together."""
    return _parse_message(Sections(), payload, start, end, fresh_id, None, max_id_length, max_header_size)


def parse_incoming(
    payload: bytes,
    start: i64,
    end: i64,
    fresh_ids: Callable[[], str],
    max_id_length: i64,
    max_header_size: i64,
) -> Draft:
    """The message as parse_message has it, with a new id if it has none: only then one is made."""
    return _parse_message(Sections(), payload, start, end, "", fresh_ids, max_id_length, max_header_size)


def _parse_message(
    found: Sections,
    payload: bytes,
    start: i64,
    end: i64,
    fresh_id: str,
    fresh_ids: Callable[[], str] | None,
    max_id_length: i64,
    max_header_size: i64,
) -> Draft:
    find_sections_again(found, payload, start, end)
    if not found.plain:
        payload = with_plain_descriptors(payload, start, end)
        find_sections_again(found, payload, 0, len(payload))
    around = found.whole - found.header - (found.footer - found.body)
    if around > max_header_size:
        raise MessageSizeExceeded(
            f"Properties, annotations and header take {around} bytes; at most {max_header_size} are allowed."
        )
    try:
        return _parse(payload, found, fresh_id, fresh_ids, max_id_length)
    except DecodeError as error:
        raise MalformedMessage(str(error)) from None


def parse_batch(
    payload: bytes,
    fresh_ids: Callable[[], str],
    max_id_length: i64,
    max_header_size: i64 = MAX_HEADER_SIZE,
) -> list[Draft]:
    """The messages of a batch (message-format 0x80013700): one in each data section. The other sections, which clients copy
    from their first message, are not read."""
    found = find_sections(payload, 0, len(payload))
    if found.body_code != DATA:
        raise MalformedMessage("the batch is empty: it has no data sections")
    drafts: list[Draft] = []
    pos = found.body
    stop = found.footer
    while pos < stop:
        start, pos = next_data(payload, pos, stop)
        drafts.append(
            _parse_message(found, payload, start, pos, "", fresh_ids, max_id_length, max_header_size)
        )
    return drafts


def _parse(
    buf: bytes, found: Sections, fresh_id: str, fresh_ids: Callable[[], str] | None, max_id_length: i64
) -> Draft:
    flags: i64 = VERSION
    priority: i64 = 0
    ttl: i64 = -1
    if found.header < found.delivery_annotations:
        flags, priority, ttl = _read_header(buf, found.header, found.delivery_annotations)
    kept = b""
    kept_count: i64 = 0
    scheduled: i64 = 0
    partition_key: str | None = None
    via_key: str | None = None
    if found.annotations < found.properties:
        kept_count, kept, scheduled, partition_key, via_key, is_forced = _read_annotations(
            buf, found.annotations, found.properties, max_id_length
        )
        if is_forced:
            flags |= DURABLE
    message_id = ""
    session_id: str | None = None
    lifetime: i64 = 0
    is_ttl_given = ttl >= 0 and ttl != NO_TTL
    if found.properties < found.application:
        message_id, session_id, lifetime = _read_properties(
            buf, found.properties, found.application, not is_ttl_given, max_id_length
        )
    if found.application < found.body:
        check_pairs(buf, found.application, found.body)
    if found.footer < found.end:
        check_pairs(buf, found.footer, found.end)
    if message_id:
        rest = buf[found.properties : found.end]
    else:
        message_id = fresh_id if fresh_ids is None else fresh_ids()
        rest = (
            _properties_with_id(buf, found.properties, found.application, message_id)
            + buf[found.application : found.end]
        )
    passed_on = _delivery_annotations(buf, found)
    if passed_on:
        flags |= DELIVERY
        rest += passed_on
    draft = Draft(
        _head(flags, priority, kept_count, kept) + rest,
        message_id,
        session_id,
        partition_key,
        ttl if is_ttl_given else lifetime,
        scheduled,
        forced=flags & DURABLE != 0,
    )
    if via_key:
        draft.via_key = via_key
    return draft


def _head(flags: i64, priority: i64, kept_count: i64, kept: bytes) -> bytes:
    """The beginning of a content."""
    if kept_count == 0 and priority == 0:
        if flags == VERSION:
            return _PLAIN_HEAD
        if flags == VERSION | DURABLE:
            return _DURABLE_HEAD
    if kept_count == 2 and priority == 0 and flags == VERSION and len(kept) < 256:
        return _PAIR_HEADS[len(kept)] + kept
    w = BytesWriter()
    w.append(flags)
    w.append(priority)
    write_u16(w, kept_count)
    write_u32(w, len(kept))
    if kept_count > 0:
        w.write(kept)
    return w.getvalue()


def _read_header(buf: bytes, section: i64, end: i64) -> tuple[i64, i64, i64]:
    """The flags of the content, the priority (0 without one) and the ttl (-1 without one)."""
    flags: i64 = VERSION
    priority: i64 = 0
    ttl: i64 = -1
    count, pos = open_compound(buf, section + 3, end)
    if count > 5:
        raise MalformedMessage(f"the header has {count} fields, not at most 5")
    i: i64 = 0
    while i < count:
        if pos < end and buf[pos] != 0x40:
            if i == 0:
                if _read_bool(buf, pos, "header.durable"):
                    flags |= DURABLE
            elif i == 1:
                if buf[pos] != 0x50 or pos + 2 > end:
                    raise MalformedMessage(f"header.priority at byte {pos} is not a ubyte")
                flags |= PRIORITY
                priority = buf[pos + 1]
            elif i == 2:
                ttl = _read_uint(buf, pos, end)
        pos = skip_value(buf, pos, end)
        i += 1
    if pos != end:
        raise MalformedMessage("the header is longer than its fields")
    return flags, priority, ttl


def _read_annotations(
    buf: bytes, section: i64, end: i64, max_id_length: i64
) -> tuple[i64, bytes, i64, str | None, str | None, bool]:
    """The message annotations to keep (their number and bytes), the scheduled time, the two partition keys, and whether the
    message is to be written at once.

    The bytes are those of the sender, unless they have a key of the broker or a value in another type than its own.
    """
    partition_key: str | None = None
    via_key: str | None = None
    scheduled: i64 = 0
    is_forced = False
    count, first = open_compound(buf, section + 3, end)
    if count > 0xFFFF:
        raise MalformedMessage(f"{count} values in the message annotations are more than 65,535")
    if count & 1:
        raise MalformedMessage(f"{count} values in the message annotations are not pairs")
    as_sent = True
    pos = first
    i: i64 = 0
    while i < count:
        value = skip_value(buf, pos, end)
        if _is_broker_like(buf, pos, value):
            key = _key(buf, pos, value)
            if key == _PARTITION_KEY:
                partition_key = _read_key(buf, value, end, "x-opt-partition-key", max_id_length)
                as_sent = as_sent and _is_exact(buf, pos, value, 0xA1, 0xB1)
            elif key in _BROKER_KEYS:
                as_sent = False
            elif key == _VIA_PARTITION_KEY:
                via_key = _read_key(buf, value, end, "x-opt-via-partition-key", max_id_length)
                as_sent = as_sent and _is_exact(buf, pos, value, 0xA1, 0xB1)
            elif key == _SCHEDULED:
                scheduled = _read_time(buf, value, end, "x-opt-scheduled-enqueue-time")
                as_sent = as_sent and _is_exact(buf, pos, value, 0x83, 0x83)
            elif key == FORCE_PERSISTENCE and value < end and buf[value] != 0x40:
                is_forced = _read_bool(buf, value, "x-opt-force-persistence")
        pos = skip_value(buf, value, end)
        i += 2
    if pos != end:
        raise MalformedMessage("the message annotations are longer than their pairs")
    if as_sent:
        return count, buf[first:end], scheduled, partition_key, via_key, is_forced
    count, kept = _normalized(buf, first, end)
    return count, kept, scheduled, partition_key, via_key, is_forced


def _read_properties(
    buf: bytes, section: i64, end: i64, wants_lifetime: bool, max_id_length: i64
) -> tuple[str, str | None, i64]:
    """The message id ("" without one), the session id, and the time from creation to expiry (0 without both).

    The two times are read only if the lifetime is asked for: a header with a ttl takes precedence.
    """
    message_id = ""
    session_id: str | None = None
    creation: i64 = 0
    expiry: i64 = 0
    times: i64 = 0
    count, pos = open_compound(buf, section + 3, end)
    if count > 13:
        raise MalformedMessage(f"the properties have {count} fields, not at most 13")
    i: i64 = 0
    while i < count:
        if pos < end and buf[pos] != 0x40:
            if i == 0:
                message_id = _read_id(buf, pos, end, max_id_length)
            elif i == 10:
                session_id = _read_text(buf, pos, end, "group-id (session id)", max_id_length)
            elif wants_lifetime and i == 8:
                expiry = _read_time(buf, pos, end, "absolute-expiry-time")
                times += 1
            elif wants_lifetime and i == 9:
                creation = _read_time(buf, pos, end, "creation-time")
                times += 1
        pos = skip_value(buf, pos, end)
        i += 1
    if pos != end:
        raise MalformedMessage("the properties are longer than their fields")
    lifetime: i64 = 0
    if times == 2 and expiry > creation:
        lifetime = expiry - creation
    return message_id, session_id, lifetime


def read_draft(content: bytes, ttl: i64 = 0, hops: i64 = 0) -> Draft:
    """The draft of a content that was kept before: its fields are read again, and not checked against any limit."""
    pos: i64 = 8
    stop: i64 = pos + read_u32(content, 4)
    limit: i64 = len(content)
    partition_key: str | None = None
    scheduled: i64 = 0
    while pos < stop:
        value = skip_value(content, pos, stop)
        if _is_broker_like(content, pos, value):
            key = _key(content, pos, value)
            if key == _PARTITION_KEY:
                partition_key = _read_key(content, value, stop, "x-opt-partition-key", limit)
            elif key == _SCHEDULED:
                scheduled = _read_time(content, value, stop, "x-opt-scheduled-enqueue-time")
        pos = skip_value(content, value, stop)
    found = find_sections(content, stop, len(content))
    message_id = ""
    session_id: str | None = None
    if found.properties < found.application:
        message_id, session_id, _ = _read_properties(
            content, found.properties, found.application, False, limit
        )
    return Draft(content, message_id, session_id, partition_key, ttl, scheduled, hops)


def _is_broker_like(buf: bytes, pos: i64, end: i64) -> bool:
    """Whether the key at `pos` may be one that the broker reads or sets. They start with "x-opt-"."""
    kind: i64 = buf[pos]
    if kind == 0xA3 or kind == 0xA1:
        return end > pos + 8 and buf[pos + 2] == 0x78 and buf[pos + 3] == 0x2D and buf[pos + 4] == 0x6F
    return kind == 0xB3 or kind == 0xB1


def _key(buf: bytes, pos: i64, end: i64) -> bytes:
    kind: i64 = buf[pos]
    return buf[pos + 2 : end] if kind == 0xA3 or kind == 0xA1 else buf[pos + 5 : end]


def _is_exact(buf: bytes, key: i64, value: i64, kind: i64, long_kind: i64) -> bool:
    """Whether an annotation has a symbol for its key, and a value of its type or null."""
    given: i64 = buf[value]
    return (buf[key] == 0xA3 or buf[key] == 0xB3) and given in (kind, long_kind, 0x40)


def _normalized(buf: bytes, pos: i64, end: i64) -> tuple[i64, bytes]:
    """Annotations without the broker's keys, and with those that it reads in their own types."""
    w = BytesWriter()
    count: i64 = 0
    while pos < end:
        value = skip_value(buf, pos, end)
        after = skip_value(buf, value, end)
        key = _key(buf, pos, value) if _is_broker_like(buf, pos, value) else b""
        if key not in _BROKER_KEYS:
            if key in (_PARTITION_KEY, _VIA_PARTITION_KEY):
                w.write(_symbol(key))
                w.write(encode_value(_read_key(buf, value, end, "", after - value)))
            elif key == _SCHEDULED and buf[value] != 0x40:
                w.write(_symbol(key))
                w.write(encode_value(Timestamp(_read_time(buf, value, end, ""))))
            else:
                w.write(buf[pos:after])
            count += 2
        pos = after
    return count, w.getvalue()


def _symbol(key: bytes) -> bytes:
    return b"\xa3" + bytes((len(key),)) + key


def _delivery_annotations(buf: bytes, found: Sections) -> bytes:
    """A section with the sender's delivery annotations, which may stand at either place; empty if there are none."""
    section, end = found.delivery_annotations, found.annotations
    if section == end:
        section, end = found.end, found.whole
    if section == end:
        return b""
    check_pairs(buf, section, end)
    count, pos = open_compound(buf, value_of(buf, section, end), end)
    pairs = BytesWriter()
    while pos < end:
        value = skip_value(buf, pos, end)
        after = skip_value(buf, value, end)
        if _is_broker_like(buf, pos, value) and _key(buf, pos, value) == _LOCK_TOKEN:
            count -= 2
        else:
            pairs.write(buf[pos:after])
        pos = after
    if count == 0:
        return b""
    w = BytesWriter()
    w.write(_DELIVERY_ANNOTATIONS)
    w.append(0xD1)
    write_u32(w, len(pairs) + 4)
    write_u32(w, count)
    w.write(pairs.getvalue())
    return w.getvalue()


def _properties_with_id(buf: bytes, section: i64, end: i64, fresh_id: str) -> bytes:
    """A properties section with the fresh id in front of the other fields, if there are any."""
    fields = encode_value(fresh_id)
    count: i64 = 0
    if section < end:
        count, first = open_compound(buf, section + 3, end)
        if count > 0:
            fields += buf[skip_value(buf, first, end) : end]
    if count == 0:
        count = 1
    w = BytesWriter()
    w.append(0)
    w.append(0x53)
    w.append(0x73)
    if len(fields) < 255:
        w.append(0xC0)
        w.append(len(fields) + 1)
        w.append(count)
    else:
        w.append(0xD0)
        write_u32(w, len(fields) + 4)
        write_u32(w, count)
    w.write(fields)
    return w.getvalue()


def _read_bool(buf: bytes, pos: i64, what: str) -> bool:
    kind: i64 = buf[pos]
    if kind == 0x41:
        return True
    if kind == 0x42:
        return False
    if kind == 0x56 and pos + 1 < len(buf):
        return buf[pos + 1] == 1
    raise MalformedMessage(f"{what} at byte {pos} is not a boolean")


def _read_uint(buf: bytes, pos: i64, end: i64) -> i64:
    kind: i64 = buf[pos]
    if kind == 0x43:
        return 0
    if kind == 0x52 and pos + 2 <= end:
        return buf[pos + 1]
    if kind == 0x70 and pos + 5 <= end:
        return read_u32(buf, pos + 1)
    raise MalformedMessage(f"header.ttl at byte {pos} is not a uint")


def _read_time(buf: bytes, pos: i64, end: i64, field: str) -> i64:
    """A timestamp, or the integer that some clients make of one. Null is 0."""
    if pos < end and buf[pos] == 0x40:
        return 0
    if pos + 9 <= end and (buf[pos] == 0x83 or buf[pos] == 0x81):
        time = read_i64_be(buf, pos + 1)
    elif pos < end and buf[pos] in _INTEGERS:
        given, _ = decode_value(buf, pos, end)
        time = min(int(given), _LAST_DATE) if isinstance(given, int) else 0
    else:
        raise MalformedMessage(f"{field} at byte {pos} is not a timestamp")
    if time < _FIRST_DATE:
        return _FIRST_DATE
    if time > _LAST_DATE:
        return _LAST_DATE
    return time


def _read_text(buf: bytes, pos: i64, end: i64, field: str, limit: i64) -> str | None:
    after = skip_value(buf, pos, end)
    kind: i64 = buf[pos]
    if kind == 0x40:
        return None
    if kind == 0xA1 or kind == 0xA3:
        return _text(buf, pos, pos + 2, after, field, limit)
    if kind == 0xB1 or kind == 0xB3:
        return _text(buf, pos, pos + 5, after, field, limit)
    raise MalformedMessage(f"{field} at byte {pos} is not a string")


def _read_key(buf: bytes, pos: i64, end: i64, field: str, limit: i64) -> str | None:
    """A partition key: a text, or the bytes that some clients make of one."""
    after = skip_value(buf, pos, end)
    kind: i64 = buf[pos]
    if kind == 0xA1 or kind == 0xA0:
        return _text(buf, pos, pos + 2, after, field, limit)
    if kind == 0xB0:
        return _text(buf, pos, pos + 5, after, field, limit)
    return _read_text(buf, pos, end, field, limit)


def _text(buf: bytes, pos: i64, first: i64, after: i64, field: str, limit: i64) -> str:
    raw = buf[first:after]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedMessage(f"{field} at byte {pos} is not UTF-8") from None
    if after - first > limit and len(text) > limit:
        raise ArgumentOutOfRange(f"{field} has {len(text)} characters; the limit is {limit}.")
    return text


def _read_id(buf: bytes, pos: i64, end: i64, limit: i64) -> str:
    """A message-id as text: a string as it is, a uuid and a ulong as they are written, a binary as `binary_id` has it."""
    kind: i64 = buf[pos]
    if kind == 0xA1 or kind == 0xB1:
        text = _read_text(buf, pos, end, "message-id", limit)
        return "" if text is None else text
    after = skip_value(buf, pos, end)
    if kind == 0x98:
        return str(UUID(bytes=buf[pos + 1 : after]))
    if kind == 0x44 or kind == 0x53 or kind == 0x80:
        return str(int.from_bytes(buf[pos + 1 : after], "big"))
    if kind == 0xA0 or kind == 0xB0:
        raw = buf[pos + (2 if kind == 0xA0 else 5) : after]
        if len(raw) > limit:
            raise ArgumentOutOfRange(f"message-id has {len(raw)} bytes; the limit is {limit}.")
        return binary_id(raw)
    raise MalformedMessage(f"message-id at byte {pos} is not a string, uuid, ulong or binary")


def binary_id(raw: bytes) -> str:
    """A binary id as text. Clients make bytes of a text that they received: printable UTF-8 is that text. Anything
    else is written in hexadecimal."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.hex()
    return text if text.isprintable() else raw.hex()


def write_u16(w: BytesWriter, value: i64) -> None:
    write_i16_be(w, i16(value - 0x10000 if value > 0x7FFF else value))
