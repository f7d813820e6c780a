"""Decodes bytes to AMQP values; the rules are in codec.py."""

from __future__ import annotations

import struct
from typing import Final, final
from uuid import UUID

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from busbar.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

MAX_NESTING: Final = 32
MAX_EMPTY_ELEMENTS: Final = 65_536
# Of all compounds of a value that a peer sent: an element of one byte takes 64 bytes of memory.
MAX_ELEMENTS: Final = 65_536
# Keys of one map that are neither text nor binary. A peer can choose numbers and uuids whose hashes collide, so that each
# key costs a comparison with all before it; the hashes of text and binary depend on a secret of the process.
MAX_NUMBER_KEYS: Final = 1_024
UUID_COST: Final = 16  # of a uuid, in such keys: it is compared by code of Python


class DecodeError(Exception):
    """The bytes are not an AMQP value; the text states what is wrong and where."""


# The length of a value, by its constructor: the bytes after it, or one of these marks.
_LENGTH8: Final = 0xFE
_LENGTH32: Final = 0xFD
_DESCRIBED: Final = 0xFC
_UNKNOWN: Final = 0xFF


def _width_table() -> bytes:
    table = bytearray([_UNKNOWN]) * 256
    table[0x00] = _DESCRIBED
    widths = {
        0: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45),
        1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56),
        2: (0x60, 0x61),
        4: (0x70, 0x71, 0x72, 0x73, 0x74),
        8: (0x80, 0x81, 0x82, 0x83, 0x84),
        16: (0x94, 0x98),
        _LENGTH8: (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0),
        _LENGTH32: (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0),
    }
    for width, codes in widths.items():
        for code in codes:
            table[code] = width
    return bytes(table)


_WIDTHS: Final = _width_table()


def read_u32(buf: bytes, pos: i64) -> i64:
    return i64(read_i32_be(buf, pos)) & 0xFFFFFFFF


def skip_value(buf: bytes, pos: i64, end: i64) -> i64:
    """The position after the value at `pos`. Reads constructors and lengths only, not the inside of compounds."""
    if pos < 0 or end > len(buf):
        raise DecodeError(f"bytes {pos} to {end} are not inside a buffer of {len(buf)}")
    while True:
        if pos >= end:
            raise DecodeError(f"a value is missing at byte {pos}")
        width: i64 = _WIDTHS[buf[pos]]
        if width <= 16:
            after: i64 = pos + 1 + width
        elif width == _LENGTH8:
            if pos + 2 > end:
                raise DecodeError(f"the value at byte {pos} is cut off")
            length: i64 = buf[pos + 1]
            after = pos + 2 + length
        elif width == _LENGTH32:
            if pos + 5 > end:
                raise DecodeError(f"the value at byte {pos} is cut off")
            after = pos + 5 + read_u32(buf, pos + 1)
        elif width == _DESCRIBED:
            pos = skip_descriptor(buf, pos + 1, end)
            continue
        else:
            raise DecodeError(f"unknown constructor 0x{buf[pos]:02x} at byte {pos}")
        if after > end:
            raise DecodeError(f"the value at byte {pos} is cut off")
        return after


def skip_descriptor(buf: bytes, pos: i64, end: i64) -> i64:
    """The position after the descriptor at `pos` (the byte after 0x00)."""
    if pos < end:
        code: i64 = buf[pos]
        if code == 0x53 or code == 0x80 or code == 0x44 or code == 0xA3 or code == 0xB3:
            return skip_value(buf, pos, end)
    raise DecodeError(f"a descriptor at byte {pos} is neither a ulong nor a symbol")


def decode_value(buf: bytes, pos: i64, end: i64, most: i64 = 0) -> tuple[object, int]:
    """The value at `pos` and the position after it. `most`: the maximum number of elements in all its compounds; 0 for no
    limit."""
    if pos < 0 or end > len(buf):
        raise DecodeError(f"bytes {pos} to {end} are not inside a buffer of {len(buf)}")
    reader = _Reader(buf, pos, most)
    value = reader.value(end, 0)
    return value, reader.pos


@final
class _Reader:
    """A position in a buffer, and how many elements, and how many without bytes, may still be decoded."""

    def __init__(self, buf: bytes, pos: i64, most: i64) -> None:
        self.buf = buf
        self.pos: i64 = pos
        self.most: i64 = most
        self.left: i64 = most
        self.empty_left: i64 = MAX_EMPTY_ELEMENTS

    def value(self, end: i64, depth: i64) -> object:
        pos = self.pos
        if pos >= end:
            raise DecodeError(f"a value is missing at byte {pos}")
        code: i64 = self.buf[pos]
        self.pos = pos + 1
        if code != 0x00:
            return self.body(code, end, depth)
        if depth >= MAX_NESTING:
            raise DecodeError(f"values nest deeper than {MAX_NESTING} at byte {pos}")
        descriptor = self.descriptor(end)
        return Described(descriptor, self.value(end, depth + 1))

    def descriptor(self, end: i64) -> object:
        skip_descriptor(self.buf, self.pos, end)
        code: i64 = self.buf[self.pos]
        self.pos += 1
        return self.body(code, end, 0)

    def body(self, code: i64, end: i64, depth: i64) -> object:
        """The value after the constructor `code`."""
        buf = self.buf
        pos = self.pos
        width: i64 = _WIDTHS[code]
        if width <= 16:
            if pos + width > end:
                raise DecodeError(f"the value at byte {pos} is cut off")
            self.pos = pos + width
            if code == 0x45 and depth >= MAX_NESTING:
                raise DecodeError(f"values nest deeper than {MAX_NESTING} at byte {pos}")
            return _fixed(code, buf, pos)
        if width == _LENGTH8:
            if pos + 1 > end:
                raise DecodeError(f"the value at byte {pos} is cut off")
            length: i64 = buf[pos]
            start = pos + 1
        elif width == _LENGTH32:
            if pos + 4 > end:
                raise DecodeError(f"the value at byte {pos} is cut off")
            length = read_u32(buf, pos)
            start = pos + 4
        else:
            raise DecodeError(f"unknown constructor 0x{code:02x} at byte {pos - 1}")
        stop = start + length
        if stop > end:
            raise DecodeError(f"the value at byte {pos} is cut off: {length} bytes, {end - start} are there")
        if code < 0xC0:
            self.pos = stop
            return _text_or_binary(code, buf, start, stop)
        if depth >= MAX_NESTING:
            raise DecodeError(f"values nest deeper than {MAX_NESTING} at byte {pos}")
        count_width: i64 = 1 if width == _LENGTH8 else 4
        return self._compound(code, pos, start, count_width, stop, depth)

    def _compound(self, code: i64, pos: i64, start: i64, count_width: i64, stop: i64, depth: i64) -> object:
        """A list, map or array: the count at `start`, then its values, up to `stop`."""
        buf = self.buf
        if stop - start < count_width:
            raise DecodeError(f"the compound at byte {pos} has no count")
        count: i64 = buf[start] if count_width == 1 else read_u32(buf, start)
        self.pos = start + count_width
        if self.most > 0:
            self.left -= count
            if self.left < 0:
                raise DecodeError(f"a value has more than {self.most} elements at byte {pos}")
        kind = code & 0x0F
        value: object
        if code >= 0xE0:
            value = self.elements(count, stop, depth + 1)
        elif count > stop - self.pos:
            raise DecodeError(
                f"the compound at byte {pos} announces {count} values in {stop - self.pos} bytes"
            )
        elif kind == 0:
            value = self.values(count, stop, depth + 1)
        else:
            value = self.pairs(count, stop, depth + 1)
        if self.pos != stop:
            raise DecodeError(f"the compound at byte {pos} is {stop - self.pos} bytes longer than its values")
        return value

    def values(self, count: i64, stop: i64, depth: i64) -> object:
        items: list[object] = []
        i: i64 = 0
        while i < count:
            items.append(self.value(stop, depth))
            i += 1
        return items

    def pairs(self, count: i64, stop: i64, depth: i64) -> object:
        if count & 1:
            raise DecodeError(f"a map at byte {self.pos} has {count} values, which are not pairs")
        entries: dict[object, object] = {}
        left: i64 = MAX_NUMBER_KEYS
        i: i64 = 0
        while i < count:
            at = self.pos
            key = self.value(stop, depth)
            if isinstance(key, (list, dict, Array, Described)):
                raise DecodeError(f"a map key at byte {at} is not a scalar")
            if not isinstance(key, (str, bytes)):
                left -= UUID_COST if isinstance(key, UUID) else 1
                if left < 0:
                    raise DecodeError(f"a map has too many keys that are not text, the last one at byte {at}")
            if key in entries:
                raise DecodeError(f"a map has the key at byte {at} twice")
            entries[key] = self.value(stop, depth)
            i += 2
        return entries

    def elements(self, count: i64, stop: i64, depth: i64) -> object:
        if count == 0 and self.pos == stop:
            return Array(0x40, [])  # some encoders leave out the constructor of an empty array
        descriptors: list[object] = []
        while True:
            at = self.pos
            if at >= stop:
                raise DecodeError(f"the array at byte {at} has no element constructor")
            code: i64 = self.buf[at]
            self.pos = at + 1
            if code != 0x00:
                break
            depth += 1
            if depth > MAX_NESTING:
                raise DecodeError(f"values nest deeper than {MAX_NESTING} at byte {at}")
            descriptors.append(self.descriptor(stop))
        width: i64 = _WIDTHS[code]
        if width == _UNKNOWN:
            raise DecodeError(f"unknown constructor 0x{code:02x} at byte {at}")
        if width == 0:
            self.empty_left -= count
            if self.empty_left < 0:
                raise DecodeError(f"the array at byte {at} has {count} elements without bytes")
        else:
            least: i64 = width if width <= 16 else 1 if width == _LENGTH8 else 4
            # Not count * least: the product of two hostile numbers is not a bound.
            if count > (stop - self.pos) // least:
                raise DecodeError(
                    f"the array at byte {at} announces {count} elements in {stop - self.pos} bytes"
                )
        items: list[object] = []
        i: i64 = 0
        while i < count:
            items.append(self.body(code, stop, depth))
            i += 1
        return Array(code, items, tuple(descriptors))


def _fixed(code: i64, buf: bytes, pos: i64) -> object:
    """A value of fixed width; the caller has checked that its bytes are there."""
    if code < 0x50:
        return _without_bytes(code)
    if code < 0x60:
        return _of_one_byte(code, buf, pos)
    if code == 0x70:
        return UInt(read_u32(buf, pos))
    if code == 0x71:
        return Int(read_i32_be(buf, pos))
    if code == 0x81:
        return int(read_i64_be(buf, pos))
    if code == 0x83:
        return Timestamp(read_i64_be(buf, pos))
    if code == 0x80:
        number = int(read_i64_be(buf, pos))
        return ULong(number if number >= 0 else number + (1 << 64))
    if code == 0x98:
        return UUID(bytes=buf[pos : pos + 16])
    if code == 0x82:
        double: float = struct.unpack_from(">d", buf, int(pos))[0]
        return double
    if code == 0x72:
        single: float = struct.unpack_from(">f", buf, int(pos))[0]
        return Float32(single)
    if code == 0x60:
        return UShort(i64(read_i16_be(buf, pos)) & 0xFFFF)
    if code == 0x61:
        return Short(read_i16_be(buf, pos))
    if code == 0x73:
        point = read_u32(buf, pos)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise DecodeError(f"the char at byte {pos} is not a Unicode character: 0x{point:x}")
        return Char(chr(point))
    width: i64 = _WIDTHS[code]
    return Decimal(code, buf[pos : pos + width])


def _without_bytes(code: i64) -> object:
    if code == 0x40:
        return None
    if code == 0x41:
        return True
    if code == 0x42:
        return False
    if code == 0x43:
        return UInt(0)
    if code == 0x44:
        return ULong(0)
    empty: list[object] = []
    return empty


def _of_one_byte(code: i64, buf: bytes, pos: i64) -> object:
    octet: i64 = buf[pos]
    if code == 0x52:
        return UInt(octet)
    if code == 0x53:
        return ULong(octet)
    if code == 0x50:
        return UByte(octet)
    if code == 0x56:
        if octet > 1:
            raise DecodeError(f"the boolean at byte {pos} is {octet}, neither 0 nor 1")
        return octet == 1
    signed: i64 = octet - 256 if octet > 127 else octet
    if code == 0x54:
        return Int(signed)
    if code == 0x55:
        return int(signed)
    return Byte(signed)


def _text_or_binary(code: i64, buf: bytes, start: i64, stop: i64) -> object:
    raw = buf[start:stop]
    kind = code & 0x0F
    if kind == 0:
        return raw
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise DecodeError(f"the text at byte {start} is not UTF-8") from None
    return text if kind == 1 else Symbol(text)
