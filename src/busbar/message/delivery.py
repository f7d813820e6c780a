"""Encodes a delivery: the broker's header and annotations in front of the content (its format: __init__.py).

Clients cast these values without checks, so the types are fixed. They are long for sequence numbers, timestamp for times,
short for a partition id, int for a state, uuid for a lock token. The header is always present, with the number of earlier
deliveries.

Delivery annotations are present in every delivery: with the lock token if the message is locked, and with those that the
sender set. A peek has only the sender's.

Properties that were changed after the send (the record's overlay) are merged into the application properties pair by pair.
Pairs that are not replaced keep their bytes.

Neighbours mostly differ in three things alone: lock token, number, and time of enqueuing. So what stands between these is
encoded once for all of them (`_Outline`). What is behind a head is not copied: it goes out from the content.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i16_be, read_i64_be, write_i16_be, write_i64_be
from mypy_extensions import i16, i64, u8

from busbar.amqp.codec import encode_value, read_u32, skip_value, write_u32
from busbar.message.lock_token import uuid_of_tag, write_tag, write_uuid
from busbar.message.parsing import DELIVERY, DURABLE, ENQUEUED, PRIORITY, VERSION
from busbar.message.sections import find_sections, open_compound
from busbar.model.errors import InternalError
from busbar.model.message import Overlay, Record

STATE_ACTIVE: Final = 0
STATE_DEFERRED: Final = 1
STATE_SCHEDULED: Final = 2

_HEADER: Final = b"\x00\x53\x70\xc0"
_DELIVERY: Final = b"\x00\x53\x71"
_NO_PAIRS: Final = b"\xc1\x01\x00"
_TOKEN_KEY: Final = b"\xa3\x10x-opt-lock-token\x98"
_LOCK_TOKEN: Final = _DELIVERY + b"\xc1\x24\x02" + _TOKEN_KEY  # a map of this one pair: the 16 bytes follow
_UNLOCKED: Final = _DELIVERY + _NO_PAIRS
_ANNOTATIONS: Final = b"\x00\x53\x72"
_SEQUENCE_NUMBER: Final = b"\xa3\x15x-opt-sequence-number\x81"
_ENQUEUED_TIME: Final = b"\xa3\x13x-opt-enqueued-time\x83"
_NOT_ENQUEUED: Final = b"\xa3\x1dx-opt-enqueue-sequence-number\x81" + bytes(8)  # by a topic: its number is 0
_LOCKED_UNTIL: Final = b"\xa3\x12x-opt-locked-until\x83"
_PARTITION_ID: Final = b"\xa3\x12x-opt-partition-id\x61"
_MESSAGE_STATE: Final = b"\xa3\x13x-opt-message-state\x71"
_EMPTY_DATA: Final = b"\x00\x53\x75\xa0\x00"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"

# The size of the annotations of every delivery, and what each of the others adds.
_OWN_COUNT: Final = 6
_OWN_SIZE: Final = 24 + 8 + 22 + 8 + 22 + 4
_NOT_ENQUEUED_SIZE: Final = 40
_LOCKED_SIZE: Final = 21 + 8
_PARTITION_SIZE: Final = 21 + 2

CONTENT_HEAD: Final = 8
"""Bytes in front of the kept annotations and the sections of a content: they are for the broker, and for no receiver."""
_NOTHING_BEHIND: Final = bytes(CONTENT_HEAD)


def encode_deliveries(
    records: list[Record], fragment: i64, index: i64, nonce: i64, locked_until: i64, partition_id: i64
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The tags and the heads of messages for one receiver, and contents: what is in these from CONTENT_HEAD on goes out
    behind the heads. On the wire a sequence number has the index of its fragment: index << 48 | n."""
    tags: list[bytes] = []
    heads: list[bytes] = []
    contents: list[bytes] = []
    base = index << 48
    locked = locked_until > 0
    outline = _Outline()
    w = BytesWriter()
    for record in records:
        n = record.n
        content = _content(record)
        w.truncate(0)
        write_tag(w, fragment, n, nonce)
        tag = w.getvalue()
        tags.append(tag)
        if record.overlay or content[0] & DELIVERY:
            shown = tag if locked else b""
            heads.append(encode_delivery(record, base | n, locked_until, partition_id, shown))
            contents.append(_NOTHING_BEHIND)
            continue
        if not outline.fits(record, content):
            outline.draw(record, content, locked_until, partition_id)
        w.truncate(0)
        w.write(outline.before_token)
        if locked:
            write_uuid(w, fragment, n, nonce)
            w.write(outline.behind_token)
        write_i64_be(w, base | n)
        w.write(_ENQUEUED_TIME)
        write_i64_be(w, record.enqueued)
        w.write(outline.end)
        heads.append(w.getvalue())
        contents.append(content)
    return tags, heads, contents


@final
class _Outline:
    """The head of a delivery but for its lock token, its number and its time of enqueuing."""

    def __init__(self) -> None:
        self.before_token = b""
        """Without a lock: all that is before the number."""
        self.behind_token = b""
        self.end = b""
        self._content_head: i64 = -1
        self._ttl: i64 = -1
        self._deliveries: i64 = -1

    def fits(self, record: Record, content: bytes) -> bool:
        """Whether it is that of a message, too: of the same receiver, and without annotations for the delivery."""
        return (
            read_i64_be(content, 0) == self._content_head
            and record.ttl == self._ttl
            and record.deliveries == self._deliveries
        )

    def draw(self, record: Record, content: bytes, locked_until: i64, partition_id: i64) -> None:
        self._content_head = read_i64_be(content, 0)
        self._ttl = record.ttl
        self._deliveries = record.deliveries
        w = BytesWriter()
        _write_header(w, content, record.ttl, record.deliveries)
        if locked_until > 0:
            w.write(_LOCK_TOKEN)
            self.before_token = w.getvalue()
            w.truncate(0)
        else:
            w.write(_UNLOCKED)
        _write_annotations_start(w, content, locked_until, partition_id)
        if locked_until > 0:
            self.behind_token = w.getvalue()
        else:
            self.before_token = w.getvalue()
        w.truncate(0)
        _write_annotations_end(w, content, locked_until, partition_id, STATE_ACTIVE)
        self.end = w.getvalue()


def encode_delivery(
    record: Record,
    number: i64,
    locked_until: i64,
    partition_id: i64,
    tag: bytes = b"",
    state: i64 = STATE_ACTIVE,
) -> bytes:
    """The message as a receiver gets it; `locked_until` 0 and no `tag`: without a lock, `partition_id` below 0:
    without one."""
    content = _content(record)
    w = BytesWriter()
    _write_header(w, content, record.ttl, record.deliveries)
    _write_delivery_annotations(w, content, tag)
    _write_annotations(w, record, content, number, locked_until, partition_id, state)
    return w.getvalue() + _behind(record, content, False)


def encode_peeked(
    record: Record, number: i64, partition_id: i64, state: i64, omit_body: bool, locked_until: i64 = 0
) -> bytes:
    """The message as a peek shows it, with its state. Without its body it has an empty data section in that place. If
    `locked_until` is not 0, it is the end of the lock that some receiver has."""
    content = _content(record)
    w = BytesWriter()
    _write_header(w, content, record.ttl, record.deliveries)
    if content[0] & DELIVERY:
        _write_delivery_annotations(w, content, b"")
    _write_annotations(w, record, content, number, locked_until, partition_id, state)
    return w.getvalue() + _behind(record, content, omit_body)


def _content(record: Record) -> bytes:
    content = record.content
    if content is None:
        raise InternalError(f"message {record.n} is to be sent without its content")
    if len(content) < CONTENT_HEAD or content[0] & 0xF0 != VERSION:
        raise InternalError(f"message {record.n} has a content of an unknown format")
    return content


def _write_delivery_annotations(w: BytesWriter, content: bytes, tag: bytes) -> None:
    """Write the lock token, if there is a tag, and then the annotations that the sender set."""
    pairs = BytesWriter()
    count: i64 = 0
    if tag:
        pairs.write(_TOKEN_KEY)
        pairs.write(uuid_of_tag(tag))
        count = 2
    if content[0] & DELIVERY:
        found = find_sections(content, CONTENT_HEAD + read_u32(content, 4), len(content))
        given, first = open_compound(content, found.end + 3, found.whole)
        pairs.write(content[first : found.whole])
        count += given
    w.write(_DELIVERY)
    _write_map(w, count, pairs.getvalue())


def _write_map(w: BytesWriter, count: i64, pairs: bytes) -> None:
    if len(pairs) <= 254:  # then the count, two bytes a pair at least, is small too
        w.append(0xC1)
        w.append(len(pairs) + 1)
        w.append(u8(count))
    else:
        w.append(0xD1)
        write_u32(w, len(pairs) + 4)
        write_u32(w, count)
    w.write(pairs)


def _write_annotations(
    w: BytesWriter,
    record: Record,
    content: bytes,
    number: i64,
    locked_until: i64,
    partition_id: i64,
    state: i64,
) -> None:
    """Write the message annotations up to where the kept ones follow."""
    _write_annotations_start(w, content, locked_until, partition_id)
    write_i64_be(w, number)
    w.write(_ENQUEUED_TIME)
    write_i64_be(w, record.enqueued)
    _write_annotations_end(w, content, locked_until, partition_id, state)


def _write_annotations_start(w: BytesWriter, content: bytes, locked_until: i64, partition_id: i64) -> None:
    """Write what is before the number."""
    count: i64 = _OWN_COUNT + (i64(read_i16_be(content, 2)) & 0xFFFF)
    size: i64 = _OWN_SIZE + read_u32(content, 4)
    if content[0] & ENQUEUED == 0:
        count += 2
        size += _NOT_ENQUEUED_SIZE
    if locked_until > 0:
        count += 2
        size += _LOCKED_SIZE
    if partition_id >= 0:
        count += 2
        size += _PARTITION_SIZE
    w.write(_ANNOTATIONS)
    if size <= 254:  # then the count, two bytes a pair at least, is small too
        w.append(0xC1)
        w.append(u8(size + 1))
        w.append(u8(count))
    else:
        w.append(0xD1)
        write_u32(w, size + 4)
        write_u32(w, count)
    w.write(_SEQUENCE_NUMBER)


def _write_annotations_end(
    w: BytesWriter, content: bytes, locked_until: i64, partition_id: i64, state: i64
) -> None:
    """Write what is behind the time of enqueuing."""
    if content[0] & ENQUEUED == 0:  # else the topic it came through has set it, among the kept annotations
        w.write(_NOT_ENQUEUED)
    if locked_until > 0:
        w.write(_LOCKED_UNTIL)
        write_i64_be(w, locked_until)
    if partition_id >= 0:
        w.write(_PARTITION_ID)
        write_i16_be(w, i16(partition_id))
    w.write(_MESSAGE_STATE)
    write_u32(w, state)


def _write_header(w: BytesWriter, content: bytes, ttl: i64, deliveries: i64) -> None:
    flags: i64 = content[0]
    has_ttl = 0 < ttl < 0xFFFFFFFF  # the highest uint means "for ever"
    size: i64 = 5
    if flags & PRIORITY:
        size += 1
    if has_ttl:
        size += 4
    if deliveries > 255:
        size += 4
    elif deliveries > 0:
        size += 1
    w.write(_HEADER)
    w.append(u8(size + 1))
    w.append(5)
    w.append(0x41 if flags & DURABLE else 0x40)
    if flags & PRIORITY:
        w.append(0x50)
        w.append(content[1])
    else:
        w.append(0x40)
    if has_ttl:
        w.append(0x70)
        write_u32(w, ttl)
    else:
        w.append(0x40)
    w.append(0x40)
    if deliveries > 255:
        w.append(0x70)
        write_u32(w, deliveries)
    elif deliveries > 0:
        w.append(0x52)
        w.append(u8(deliveries))
    else:
        w.append(0x43)


def _behind(record: Record, content: bytes, omit_body: bool) -> bytes:
    """The kept annotations and the sections behind them."""
    overlay = record.overlay
    if not overlay and not omit_body and not content[0] & DELIVERY:
        return content[CONTENT_HEAD:]
    start: i64 = CONTENT_HEAD + read_u32(content, 4)
    found = find_sections(content, start, len(content))
    parts = [content[CONTENT_HEAD : found.application]]
    if overlay:
        parts.append(merged_properties(content, found.application, found.body, overlay))
    else:
        parts.append(content[found.application : found.body])
    parts.append(_EMPTY_DATA if omit_body else content[found.body : found.footer])
    parts.append(content[found.footer : found.end])
    return b"".join(parts)


def merged_properties(content: bytes, section: i64, end: i64, overlay: Overlay) -> bytes:
    """The application properties with those of the overlay in place of, or behind, the sender's."""
    w = BytesWriter()
    count: i64 = 0
    if section < end:
        left, pos = open_compound(content, section + 3, end)
        while left > 0:
            value = skip_value(content, pos, end)
            after = skip_value(content, value, end)
            if _name(content, pos, value) not in overlay:
                w.write(content[pos:after])
                count += 2
            pos = after
            left -= 2
    for name, encoded in overlay.items():
        w.write(encode_value(name))
        w.write(encoded)
        count += 2
    out = BytesWriter()
    out.write(_APPLICATION_PROPERTIES)
    _write_map(out, count, w.getvalue())
    return out.getvalue()


def _name(content: bytes, pos: i64, end: i64) -> str:
    """The key at `pos`; empty if it is not text."""
    kind: i64 = content[pos]
    if kind == 0xA1 or kind == 0xA3:
        return content[pos + 2 : end].decode("utf-8", "replace")
    if kind == 0xB1 or kind == 0xB3:
        return content[pos + 5 : end].decode("utf-8", "replace")
    return ""
