"""Encodes messages as a client sends them: sections written directly from their fields, and batches of them.

Sections come in the order of the specification (3.2) and only if they have content. They are header (durable, ttl), message
annotations (scheduled time, partition key), properties up to the last field that is set, application properties, one data
section. A batch is a delivery of the format BATCH_FORMAT: each message is in a data section of its own.

A message that is already encoded is sent unchanged; only its id can be replaced.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64, u8

from busbar.amqp.codec import EncodeError, skip_value, write_u32, write_value
from busbar.message.sections import Sections, find_sections, open_compound, value_of

BATCH_FORMAT: Final = 0x80013700
BATCH_OVERHEAD: Final = 8  # of each message in a batch
LONGEST_TTL: Final = 0xFFFFFFFE  # that fits into a header; one more means "for ever"

_SCHEDULED: Final = b"\xa3\x1cx-opt-scheduled-enqueue-time\x83"
_PARTITION_KEY: Final = b"\xa3\x13x-opt-partition-key"
_EXPIRY_AT: Final = 8


def compose(
    body: bytes,
    message_id: str | None = None,
    session_id: str | None = None,
    partition_key: str | None = None,
    correlation_id: str | None = None,
    subject: str | None = None,
    content_type: str | None = None,
    to: str | None = None,
    reply_to: str | None = None,
    reply_to_session_id: str | None = None,
    time_to_live: i64 = 0,
    scheduled_enqueue_time: i64 = 0,
    application_properties: dict[str, object] | None = None,
    created: i64 = 0,
    forced: bool = False,
) -> bytes:
    """Encode a message. Times are ms (0: not set). `created`, a time since 1970, is needed for a time to live above
    LONGEST_TTL, which is then written as the time of its end. `forced` is ForcePersistence."""
    w = BytesWriter()
    expiry: i64 = 0
    if time_to_live > LONGEST_TTL:
        if created <= 0:
            raise EncodeError(f"a time to live of {time_to_live} ms needs the time of creation")
        expiry = created + time_to_live
    elif time_to_live > 0:
        w.write(
            b"\x00\x53\x70\xc0\x08\x03\x41\x40\x70" if forced else b"\x00\x53\x70\xc0\x08\x03\x40\x40\x70"
        )
        write_u32(w, time_to_live)
    if forced and (expiry > 0 or time_to_live <= 0):
        w.write(b"\x00\x53\x70\xc0\x02\x01\x41")
    if scheduled_enqueue_time > 0 or partition_key is not None:
        _write_annotations(w, scheduled_enqueue_time, partition_key)
    texts = [message_id, None, to, subject, reply_to, correlation_id, content_type, None, None, None]
    texts += [session_id, None, reply_to_session_id]
    _write_properties(w, texts, created, expiry)
    if application_properties:
        w.write(b"\x00\x53\x74")
        write_value(w, application_properties)
    w.write(b"\x00\x53\x75")
    _write_binary(w, body)
    return w.getvalue()


def pack_batch(messages: list[bytes], start: i64, stop: i64, limit: i64) -> tuple[bytes, i64]:
    """Encode as many of messages[start:stop] as fit into `limit` bytes, at least one, as a batch; returns it and the index
    behind the last."""
    w = BytesWriter()
    i = start
    while i < stop:
        message = messages[i]
        if i > start and len(w) + len(message) + BATCH_OVERHEAD > limit:
            break
        w.write(b"\x00\x53\x75\xb0")
        write_u32(w, len(message))
        w.write(message)
        i += 1
    return w.getvalue(), i


def has_message_id(message: bytes) -> bool:
    """Whether an encoded message has a non-empty id. Raises MalformedMessage."""
    sections = find_sections(message, 0, len(message))
    count, first = _property_list(message, sections)
    if count == 0:
        return False
    code: i64 = message[first]
    empty = (code == 0xA1 or code == 0xA0) and message[first + 1] == 0
    return code != 0x40 and not empty


def with_message_id(message: bytes, message_id: str) -> bytes:
    """An encoded message with this id instead of its own; everything else is unchanged. Raises MalformedMessage,
    EncodeError."""
    sections = find_sections(message, 0, len(message))
    count, first = _property_list(message, sections)
    fields = BytesWriter()
    _write_text(fields, message_id)
    if count > 0:
        fields.write(message[skip_value(message, first, sections.application) : sections.application])
    w = BytesWriter()
    w.write(message[: sections.properties])
    w.write(b"\x00\x53\x73")
    write_compound(w, 0xC0, count if count > 0 else 1, fields.getvalue())
    w.write(message[sections.application :])
    return w.getvalue()


def _property_list(message: bytes, sections: Sections) -> tuple[i64, i64]:
    """The number of properties of a message, and the position of the first."""
    end = sections.application
    if sections.properties == end:
        return 0, end
    return open_compound(message, value_of(message, sections.properties, end), end)


def _write_annotations(w: BytesWriter, scheduled: i64, partition_key: str | None) -> None:
    pairs = BytesWriter()
    count: i64 = 0
    if scheduled > 0:
        pairs.write(_SCHEDULED)
        write_i64_be(pairs, scheduled)
        count += 2
    if partition_key is not None:
        pairs.write(_PARTITION_KEY)
        _write_text(pairs, partition_key)
        count += 2
    w.write(b"\x00\x53\x72")
    write_compound(w, 0xC1, count, pairs.getvalue())


def _write_properties(w: BytesWriter, texts: list[str | None], created: i64, expiry: i64) -> None:
    last: i64 = len(texts) - 1
    while last >= 0 and texts[last] is None:
        last -= 1
    if expiry > 0 and last < _EXPIRY_AT + 1:
        last = _EXPIRY_AT + 1
    if last < 0:
        return
    fields = BytesWriter()
    i: i64 = 0
    while i <= last:
        text = texts[i]
        if text is not None:
            _write_text(fields, text)
        elif expiry > 0 and (i == _EXPIRY_AT or i == _EXPIRY_AT + 1):
            fields.append(0x83)
            write_i64_be(fields, expiry if i == _EXPIRY_AT else created)
        else:
            fields.append(0x40)
        i += 1
    w.write(b"\x00\x53\x73")
    write_compound(w, 0xC0, last + 1, fields.getvalue())


def write_compound(w: BytesWriter, code: i64, count: i64, data: bytes) -> None:
    if len(data) <= 254:
        w.append(u8(code))
        w.append(len(data) + 1)
        w.append(u8(count))
    else:
        w.append(u8(code + 0x10))
        write_u32(w, len(data) + 4)
        write_u32(w, count)
    w.write(data)


def _write_text(w: BytesWriter, text: str) -> None:
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError:
        raise EncodeError(f"text with a lone surrogate: {text!r}") from None
    if len(raw) <= 255:
        w.append(0xA1)
        w.append(len(raw))
    else:
        w.append(0xB1)
        write_u32(w, len(raw))
    w.write(raw)


def _write_binary(w: BytesWriter, data: bytes) -> None:
    if len(data) <= 255:
        w.append(0xA0)
        w.append(len(data))
    else:
        w.append(0xB0)
        write_u32(w, len(data))
    w.write(data)
