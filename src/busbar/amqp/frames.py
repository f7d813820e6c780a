"""Frames: reads and writes the fields of the three hot performatives by hand.

A frame is size (4 bytes, itself included), data offset in words (1), type (1: 0 AMQP, 1 SASL), channel (2), body. The
performatives transfer, disposition and flow come once or more per message, so their fields are read in place, without
building values. Every reader gets the end of its list and checks it before each access; a field that does not fit is an
amqp:decode-error. Integers are written in their smallest form and descriptors as smallulong, because some clients read them
at fixed offsets.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, u8

from busbar.amqp.errors import DECODE_ERROR, ProtocolError

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

# A transfer's bytes around its payload, at most: frame header 8, descriptor 3, list32 9, and the fields handle 5,
# delivery-id 5, delivery-tag 2, message-format 5, settled 1, more 1, rcv-settle-mode 1. Tag and state come on top.
TRANSFER_OVERHEAD: Final = 40


def u32(buf: bytes, pos: i64) -> i64:
    return i64(read_i32_be(buf, pos)) & 0xFFFFFFFF


def u16(buf: bytes, pos: i64) -> i64:
    return i64(read_i16_be(buf, pos)) & 0xFFFF


def _misread(what: str, buf: bytes, pos: i64, end: i64) -> ProtocolError:
    if pos >= end or end > len(buf):
        return ProtocolError(DECODE_ERROR, f"{what} is cut off at byte {pos}")
    return ProtocolError(DECODE_ERROR, f"{what} should stand at byte {pos}, not constructor 0x{buf[pos]:02x}")


def uint_at(buf: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """The uint at `pos` (-1 for null) and the position after it."""
    if pos < end:
        code: i64 = buf[pos]
        if code == 0x52:
            if pos + 2 <= end:
                small: i64 = buf[pos + 1]
                return small, pos + 2
        elif code == 0x43:
            return 0, pos + 1
        elif code == 0x70:
            if pos + 5 <= end:
                return u32(buf, pos + 1), pos + 5
        elif code == 0x40:
            return -1, pos + 1
    raise _misread("a uint", buf, pos, end)


def bool_at(buf: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """The boolean at `pos` (1, 0, or -1 for null) and the position after it."""
    if pos < end:
        code: i64 = buf[pos]
        if code == 0x42:
            return 0, pos + 1
        if code == 0x41:
            return 1, pos + 1
        if code == 0x40:
            return -1, pos + 1
        if code == 0x56 and pos + 2 <= end:
            octet: i64 = buf[pos + 1]
            if octet <= 1:
                return octet, pos + 2
    raise _misread("a boolean", buf, pos, end)


def binary_at(buf: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Where the binary at `pos` starts (-1 for null) and the position after it."""
    if pos < end:
        code: i64 = buf[pos]
        if code == 0xA0:
            if pos + 2 <= end:
                length: i64 = buf[pos + 1]
                if pos + 2 + length <= end:
                    return pos + 2, pos + 2 + length
        elif code == 0x40:
            return -1, pos + 1
        elif code == 0xB0 and pos + 5 <= end:
            wide = u32(buf, pos + 1)
            if pos + 5 + wide <= end:
                return pos + 5, pos + 5 + wide
    raise _misread("a binary", buf, pos, end)


def list_at(buf: bytes, pos: i64, end: i64) -> tuple[i64, i64, i64]:
    """The count, the first element and the end of the list at `pos`."""
    if pos < end:
        code: i64 = buf[pos]
        if code == 0xC0:
            if pos + 3 <= end:
                size: i64 = buf[pos + 1]
                count: i64 = buf[pos + 2]
                stop = pos + 2 + size
                if size >= 1 and stop <= end and count < size:
                    return count, pos + 3, stop
        elif code == 0x45:
            return 0, pos + 1, pos + 1
        elif code == 0xD0 and pos + 9 <= end:
            size = u32(buf, pos + 1)
            count = u32(buf, pos + 5)
            stop = pos + 5 + size
            if size >= 4 and stop <= end and count <= size - 4:
                return count, pos + 9, stop
    raise _misread("a list", buf, pos, end)


def write_u32(w: BytesWriter, value: i64) -> None:
    # The writers are signed; the interpreted ones refuse values that do not fit.
    if value > 0x7FFFFFFF:
        value -= 0x100000000
    write_i32_be(w, i32(value))


def uint_size(value: i64) -> i64:
    if value == 0:
        return 1
    return 2 if value < 256 else 5


def write_uint(w: BytesWriter, value: i64) -> None:
    if value == 0:
        w.append(0x43)
    elif value < 256:
        w.append(0x52)
        w.append(u8(value))
    else:
        w.append(0x70)
        write_u32(w, value)


def write_frame(w: BytesWriter, kind: i64, channel: i64, body: bytes) -> None:
    """Write a whole frame around an encoded performative."""
    write_u32(w, 8 + len(body))
    write_u32(w, 0x02000000 | (kind << 16) | channel)
    w.write(body)


def _write_list_head(w: BytesWriter, channel: i64, code: i64, count: i64, fields: i64, payload: i64) -> None:
    """Write frame header, descriptor and list header for `fields` bytes of fields and `payload` bytes behind them."""
    if fields <= 254:
        write_i64_be(w, (14 + fields + payload) << 32 | 0x02000000 | channel)
        write_i32_be(w, i32(0x00530000 | (code << 8) | 0xC0))
        w.append(u8(fields + 1))
        w.append(u8(count))
    else:
        write_u32(w, 20 + fields + payload)
        write_u32(w, 0x02000000 | channel)
        write_u32(w, 0x00530000 | (code << 8) | 0xD0)
        write_u32(w, fields + 4)
        write_u32(w, count)


def write_payload(w: BytesWriter, payload: bytes, content: bytes, skip: i64) -> None:
    """Write a payload, and behind it what is in `content` from `skip` on. A slice of the content would be a copy. So all of
    it is written over the last bytes of the payload, and these are restored."""
    w.write(payload)
    if len(content) <= skip:
        return
    if len(payload) < skip:
        w.write(content[skip:])
        return
    start = len(w) - skip
    w.truncate(start)
    w.write(content)
    last = len(payload) - skip
    i: i64 = 0
    while i < skip:
        w[start + i] = u8(payload[last + i])
        i += 1


def write_transfer_head(
    w: BytesWriter,
    channel: i64,
    handle: i64,
    delivery_id: i64,
    tag: bytes,
    format: i64,
    settled: bool,
    more: bool,
    state: bytes,
    size: i64,
) -> None:
    """Write what is in front of a payload of `size` bytes in the first frame of a delivery."""
    tag_length: i64 = len(tag)
    fields: i64 = uint_size(handle) + uint_size(delivery_id) + 2 + tag_length + uint_size(format) + 2
    if state:
        fields += 1 + len(state)
        _write_list_head(w, channel, 0x14, 8, fields, size)
    else:
        _write_list_head(w, channel, 0x14, 6, fields, size)
    write_uint(w, handle)
    write_uint(w, delivery_id)
    w.append(0xA0)
    w.append(u8(tag_length))
    w.write(tag)
    write_uint(w, format)
    w.append(0x41 if settled else 0x42)
    w.append(0x41 if more else 0x42)
    if state:
        w.append(0x40)
        w.write(state)


def write_continuation(
    w: BytesWriter, channel: i64, handle: i64, settled: bool, more: bool, size: i64
) -> None:
    """Write what is in front of a payload of `size` bytes in a further frame of a delivery. Id and tag are null: the Python
    SDK treats a frame with an id as a first one."""
    _write_list_head(w, channel, 0x14, 6, uint_size(handle) + 5, size)
    write_uint(w, handle)
    w.append(0x40)
    w.append(0x40)
    w.append(0x40)
    w.append(0x41 if settled else 0x42)
    w.append(0x41 if more else 0x42)


def write_disposition(
    w: BytesWriter, channel: i64, receiver: bool, first: i64, last: i64, settled: bool, state: bytes
) -> None:
    fields: i64 = 2 + uint_size(first) + uint_size(last) + len(state)
    _write_list_head(w, channel, 0x15, 5, fields, 0)
    w.append(0x41 if receiver else 0x42)
    write_uint(w, first)
    write_uint(w, last)
    w.append(0x41 if settled else 0x42)
    w.write(state)


def write_dispositions(
    w: BytesWriter, channel: i64, receiver: bool, ids: list[int], settled: bool, state: bytes
) -> None:
    """Write dispositions for all `ids`; consecutive ones share a frame."""
    count: i64 = len(ids)
    if count == 0:
        return
    first: i64 = ids[0]
    last = first
    i: i64 = 1
    while i < count:
        number: i64 = ids[i]
        if number != ((last + 1) & 0xFFFFFFFF):
            write_disposition(w, channel, receiver, first, last, settled, state)
            first = number
        last = number
        i += 1
    write_disposition(w, channel, receiver, first, last, settled, state)
