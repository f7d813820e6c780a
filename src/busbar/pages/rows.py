"""Messages and events of a tap in bulk: the rows of a page, in one binary value of a reply.

Integers are big-endian. Messages come in runs: the heads of all, then what belongs to each in the same order. An event is a
row by itself.

    run of messages                                 event row
    u32  how many                                   u32  length, without these four bytes
    for each, its head:                             i64  position
    i64  number in the fragment                     i64  number of the message
    i64  position among the dead-lettered, or 0     u8   outcome (model/effects.py)
    i64  enqueued, ms since 1970                    i64  when, ms since 1970
    i64  time to live in ms, 0: for ever            i64  when the message was enqueued
    u32  deliveries so far                          u32  its deliveries
    u8   lane (model/message.py)                         reason: UTF-8 to the end of the row
    u32  length of the overlay
    u32  length of the content
    for each:
         overlay: a map from text to value, or nothing
         content (message/__init__.py)

Encoding copies no content. Decoding trusts nothing: what does not hold is a DecodeError.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i16_be, read_i64_be, write_i64_be
from mypy_extensions import i64

from busbar.amqp.codec import DecodeError, decode_value, encode_value, read_u32, write_u32
from busbar.message.parsing import DELIVERY, DURABLE, ENQUEUED, PRIORITY, VERSION
from busbar.message.sections import find_sections
from busbar.model.effects import MessageEvent
from busbar.model.errors import MalformedMessage
from busbar.model.message import Overlay
from busbar.model.tap_page import CONTENT_SIZE, HEAD, OVERLAY_SIZE

EVENT_HEAD: Final = 37  # of a row behind its length
CONTENT_HEAD: Final = 8
ENQUEUED_SIZE: Final = 40  # of the annotation with the enqueued sequence number

_ANNOTATIONS: Final = b"\x00\x53\x72"
_HEADER: Final = b"\x00\x53\x70\xc0"


@final
class TapMessageRow:
    """A message of a page. `overlay` is encoded (`properties_of` reads it); `content` is as the broker stores it."""

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


def encode_messages(heads: bytes, contents: list[bytes], overlays: dict[int, Overlay]) -> list[bytes]:
    """Encode packed messages (model/tap_page.py) as a run, in consecutive pieces. Without messages there are no bytes."""
    if not heads:
        return []
    count = BytesWriter()
    write_u32(count, len(heads) // HEAD)
    if not overlays:
        return [count.getvalue(), heads, *contents]
    parts: list[bytes] = [count.getvalue(), b""]
    w = BytesWriter()
    piece = b""
    taken: i64 = 0  # pieces in the last one
    at: i64 = 0  # in the last one
    pos: i64 = 0
    end: i64 = len(heads)
    while pos < end:
        size = read_u32(heads, pos + CONTENT_SIZE)
        if at == len(piece) and size > 0:
            piece = contents[taken]
            taken += 1
            at = 0
        overlay = overlays.get(read_i64_be(heads, pos))
        encoded = b"" if overlay is None else _overlay_bytes(overlay)
        w.write(heads[pos : pos + OVERLAY_SIZE])
        write_u32(w, len(encoded))
        write_u32(w, size)
        if encoded:
            parts.append(encoded)
        parts.append(piece if size == len(piece) else piece[at : at + size])
        at += size
        pos += HEAD
    parts[1] = w.getvalue()
    return parts


def decode_messages(rows: bytes) -> list[TapMessageRow]:
    """Decode the messages of a page. Raises DecodeError."""
    found: list[TapMessageRow] = []
    end: i64 = len(rows)
    start: i64 = 0
    while start < end:
        pos = start + 4
        at = run_heads_end(rows, start)
        heads_end = at
        while pos < heads_end:
            overlay = at
            content = overlay + read_u32(rows, pos + OVERLAY_SIZE)
            size = read_u32(rows, pos + CONTENT_SIZE)
            at = content + size
            if size < CONTENT_HEAD or at > end:
                raise DecodeError(
                    f"the message at byte {pos} cannot have {size} of the {end - content} bytes left"
                )
            found.append(
                TapMessageRow(
                    read_i64_be(rows, pos),
                    read_i64_be(rows, pos + 8),
                    read_i64_be(rows, pos + 16),
                    read_i64_be(rows, pos + 24),
                    read_u32(rows, pos + 32),
                    rows[pos + 36],
                    rows[overlay:content],
                    rows[content:at],
                )
            )
            pos += HEAD
        start = at
    return found


def run_heads_end(rows: bytes, start: i64) -> i64:
    """Where the heads of the run at `start` end, and the parts of its messages begin. Raises DecodeError."""
    left = len(rows) - start - 4
    if left < 0:
        raise DecodeError(f"the run at byte {start} does not say how many messages it has")
    count = read_u32(rows, start)
    if count == 0 or count * HEAD > left:
        raise DecodeError(f"the run at byte {start} says that it has {count} messages; {left} bytes are left")
    return start + 4 + count * HEAD


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
    """Decode the events of a page. Raises DecodeError."""
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
    """The message of a content as a client would send it. It has the header (durable and priority, if they were set), the
    kept message annotations, and properties to footer as they came. A number that a topic assigned is left out. Delivery
    annotations were for one hop, and are left out. Raises DecodeError."""
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
    if flags & DELIVERY:
        size = _sections_end(content, behind)
    if kept == 0 and not flags & (DURABLE | PRIORITY):
        return content[behind:size]
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
    return w.getvalue() + content[behind:size]


def _sections_end(content: bytes, start: i64) -> i64:
    """Where delivery annotations begin that are behind everything else."""
    try:
        return find_sections(content, start, len(content)).end
    except MalformedMessage as error:
        raise DecodeError(str(error)) from None


def _row_end(rows: bytes, pos: i64, end: i64, least: i64) -> i64:
    """Where the row at `pos` ends."""
    if pos + 4 > end:
        raise DecodeError(f"the row at byte {pos} has no length")
    size = read_u32(rows, pos)
    if size < least or size > end - pos - 4:
        raise DecodeError(f"the row at byte {pos} says that it has {size} bytes; {end - pos - 4} are left")
    return pos + 4 + size


def _overlay_bytes(overlay: Overlay) -> bytes:
    """A map with values that are already encoded."""
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
