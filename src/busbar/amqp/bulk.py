"""Messages and events of a tap in bulk: the rows of a page, in one binary value of a reply.

Integers are big-endian; every row begins with its length, without these four bytes.

    message row                                     event row
    u32  length                                     u32  length
    i64  number in the fragment                     i64  position
    i64  position among the dead-lettered, or 0     i64  number of the message
    i64  enqueued, ms since 1970                    u8   outcome (model/effects.py)
    i64  time to live in ms, 0: for ever            i64  when, ms since 1970
    u32  deliveries so far                          i64  when the message was enqueued
    u8   lane (model/message.py)                    u32  its deliveries
    u32  length of the overlay                           reason: UTF-8 to the end of the row
         overlay: a map from text to value, or nothing
         content (envelope.py), to the end of the row

Encoding copies no content. Decoding trusts nothing: what does not hold is a DecodeError.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i16_be, read_i64_be, write_i64_be
from mypy_extensions import i64

from busbar.amqp.arrival import DURABLE, ENQUEUED, PRIORITY, VERSION
from busbar.amqp.codec import DecodeError, decode_value, encode_value, read_u32, write_u32
from busbar.model.effects import MessageEvent
from busbar.model.errors import InternalError
from busbar.model.message import Overlay, Record

MESSAGE_HEAD: Final = 41  # of a row behind its length
EVENT_HEAD: Final = 37
CONTENT_HEAD: Final = 8
ENQUEUED_SIZE: Final = 40  # of the annotation with the enqueued sequence number

_ANNOTATIONS: Final = b"\x00\x53\x72"
_HEADER: Final = b"\x00\x53\x70\xc0"


@final
class MessageRow:
    """A message of a page. `overlay` is encoded (`properties_of` reads it), `content` as the broker keeps it."""

    def __init__(
        self,
        n: i64,
        dead: i64,
        enqueued: i64,
        ttl: i64,
        deliveries: i64,
        lane: i64,
        overlay: bytes,
        content: bytes,
    ) -> None:
        self.n = n
        self.dead = dead
        self.enqueued = enqueued
        self.ttl = ttl
        self.deliveries = deliveries
        self.lane = lane
        self.overlay = overlay
        self.content = content


def encode_messages(records: list[Record], lanes: list[int]) -> list[bytes]:
    """The rows of messages, each with its lane, in pieces that follow one another: the contents are not copied."""
    parts: list[bytes] = []
    w = BytesWriter()
    for i, record in enumerate(records):
        content = record.content
        if content is None:
            raise InternalError(f"message {record.n} is to be shown without its content")
        overlay = b"" if record.overlay is None else _overlay_bytes(record.overlay)
        w.truncate(0)
        write_u32(w, MESSAGE_HEAD + len(overlay) + len(content))
        write_i64_be(w, record.n)
        write_i64_be(w, record.dead)
        write_i64_be(w, record.enqueued)
        write_i64_be(w, record.ttl)
        write_u32(w, record.deliveries)
        w.append(lanes[i])
        write_u32(w, len(overlay))
        if overlay:
            w.write(overlay)
        parts.append(w.getvalue())
        parts.append(content)
    return parts


def decode_messages(rows: bytes) -> list[MessageRow]:
    """Raises DecodeError."""
    found: list[MessageRow] = []
    end: i64 = len(rows)
    pos: i64 = 0
    while pos < end:
        stop = _row_end(rows, pos, end, MESSAGE_HEAD + CONTENT_HEAD)
        pos += 4
        overlay_size = read_u32(rows, pos + 37)
        content = pos + MESSAGE_HEAD + overlay_size
        if content + CONTENT_HEAD > stop:
            raise DecodeError(f"the overlay of the row at byte {pos - 4} is longer than the row")
        found.append(
            MessageRow(
                read_i64_be(rows, pos),
                read_i64_be(rows, pos + 8),
                read_i64_be(rows, pos + 16),
                read_i64_be(rows, pos + 24),
                read_u32(rows, pos + 32),
                rows[pos + 36],
                rows[pos + MESSAGE_HEAD : content],
                rows[content:stop],
            )
        )
        pos = stop
    return found


def properties_of(overlay: bytes) -> dict[str, object]:
    """The application properties that an encoded overlay sets. Raises DecodeError."""
    if not overlay:
        return {}
    value, end = decode_value(overlay, 0, len(overlay))
    if not isinstance(value, dict) or end != len(overlay):
        raise DecodeError("an overlay is not a map")
    return {str(name): given for name, given in value.items()}


def encode_events(events: list[MessageEvent]) -> bytes:
    w = BytesWriter()
    for event in events:
        reason = event.reason.encode("utf-8", "replace")
        write_u32(w, EVENT_HEAD + len(reason))
        write_i64_be(w, event.at)
        write_i64_be(w, event.n)
        w.append(event.outcome)
        write_i64_be(w, event.time)
        write_i64_be(w, event.enqueued)
        write_u32(w, event.deliveries)
        if reason:
            w.write(reason)
    return w.getvalue()


def decode_events(rows: bytes) -> list[MessageEvent]:
    """Raises DecodeError."""
    found: list[MessageEvent] = []
    end: i64 = len(rows)
    pos: i64 = 0
    while pos < end:
        stop = _row_end(rows, pos, end, EVENT_HEAD)
        pos += 4
        try:
            reason = rows[pos + EVENT_HEAD : stop].decode("utf-8")
        except UnicodeDecodeError:
            raise DecodeError(f"the reason in the row at byte {pos - 4} is not UTF-8") from None
        found.append(
            MessageEvent(
                read_i64_be(rows, pos),
                read_i64_be(rows, pos + 8),
                rows[pos + 16],
                read_i64_be(rows, pos + 17),
                read_i64_be(rows, pos + 25),
                read_u32(rows, pos + 33),
                reason,
            )
        )
        pos = stop
    return found


def raw_message(content: bytes) -> bytes:
    """The message of a content as a client would send it: header (durable and priority, if they were set), the kept message
    annotations without a number that a topic gave, and properties to footer as they came. Raises DecodeError."""
    size: i64 = len(content)
    if size < CONTENT_HEAD or content[0] & 0xF0 != VERSION:
        raise DecodeError("a content of an unknown format")
    kept = read_u32(content, 4)
    behind = CONTENT_HEAD + kept
    if behind > size:
        raise DecodeError("a content that is shorter than its annotations")
    flags: i64 = content[0]
    first: i64 = CONTENT_HEAD
    count: i64 = i64(read_i16_be(content, 2)) & 0xFFFF
    if flags & ENQUEUED:
        if kept < ENQUEUED_SIZE or count < 2:
            raise DecodeError("a content without the number that it announces")
        first += ENQUEUED_SIZE
        kept -= ENQUEUED_SIZE
        count -= 2
    if kept == 0 and not flags & (DURABLE | PRIORITY):
        return content[behind:]
    w = BytesWriter()
    if flags & PRIORITY:
        w.write(_HEADER)
        w.append(4)
        w.append(2)
        w.append(0x41 if flags & DURABLE else 0x42)
        w.append(0x50)
        w.append(content[1])
    elif flags & DURABLE:
        w.write(_HEADER)
        w.append(2)
        w.append(1)
        w.append(0x41)
    if kept > 0:
        w.write(_ANNOTATIONS)
        w.append(0xD1)
        write_u32(w, kept + 4)
        write_u32(w, count)
        w.write(content[first:behind])
    return w.getvalue() + content[behind:]


def _row_end(rows: bytes, pos: i64, end: i64, least: i64) -> i64:
    """Where the row at `pos` ends."""
    if pos + 4 > end:
        raise DecodeError(f"the row at byte {pos} has no length")
    size = read_u32(rows, pos)
    if size < least or size > end - pos - 4:
        raise DecodeError(f"the row at byte {pos} says that it has {size} bytes; {end - pos - 4} are left")
    return pos + 4 + size


def _overlay_bytes(overlay: Overlay) -> bytes:
    """A map whose values are encoded already."""
    if not overlay:
        return b""
    parts = [encode_value(name) + encoded for name, encoded in overlay.items()]
    pairs = b"".join(parts)
    w = BytesWriter()
    w.append(0xD1)
    write_u32(w, len(pairs) + 4)
    write_u32(w, 2 * len(parts))
    w.write(pairs)
    return w.getvalue()
