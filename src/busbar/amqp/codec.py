"""AMQP 1.0 values to bytes and back.

Decoding trusts nothing. Every length and count is compared with the bytes that are there before anything is
allocated; a compound must end exactly where its length says; values nest at most 32 deep; elements that take
no bytes (an array of nulls) are limited to 65,536 in one call; a descriptor is a ulong or a symbol; a map has
pairs, with keys that are scalars and differ. Whatever breaks a rule is a DecodeError; nothing else escapes.

Every encoding of a type is understood. For output there is one per value, the smallest, with the exceptions
on which SDKs depend: a long always takes 8 bytes and an int 4, and array elements have a fixed width.
"""

from __future__ import annotations

import struct
from typing import Final, final
from uuid import UUID

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

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


class DecodeError(Exception):
    """The bytes are not an AMQP value; the text says what is wrong and where."""


class EncodeError(ValueError):
    """A Python value that no AMQP value can carry."""


# How long a value is, by its constructor: the bytes after it, or one of these marks.
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


def write_u32(w: BytesWriter, value: i64) -> None:
    # The writers are signed; the interpreted ones refuse what does not fit.
    if value > 0x7FFFFFFF:
        value -= 0x100000000
    write_i32_be(w, i32(value))


def skip_value(buf: bytes, pos: i64, end: i64) -> i64:
    """The position after the value at `pos`. Looks at constructors and lengths only, not inside compounds."""
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


def decode_value(buf: bytes, pos: i64, end: i64) -> tuple[object, int]:
    """The value at `pos` and the position after it."""
    if pos < 0 or end > len(buf):
        raise DecodeError(f"bytes {pos} to {end} are not inside a buffer of {len(buf)}")
    reader = _Reader(buf, pos)
    value = reader.value(end, 0)
    return value, reader.pos


@final
class _Reader:
    """A position in a buffer, and how many elements without bytes may still be made."""

    def __init__(self, buf: bytes, pos: i64) -> None:
        self.buf = buf
        self.pos: i64 = pos
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
        """What follows the constructor `code`."""
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
        if length < count_width:
            raise DecodeError(f"the compound at byte {pos} has no count")
        count: i64 = buf[start] if count_width == 1 else read_u32(buf, start)
        self.pos = start + count_width
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
        i: i64 = 0
        while i < count:
            at = self.pos
            key = self.value(stop, depth)
            if isinstance(key, (list, dict, Array, Described)):
                raise DecodeError(f"a map key at byte {at} is not a scalar")
            if key in entries:
                raise DecodeError(f"a map has the key at byte {at} twice")
            entries[key] = self.value(stop, depth)
            i += 2
        return entries

    def elements(self, count: i64, stop: i64, depth: i64) -> object:
        if count == 0 and self.pos == stop:
            return Array(0x40, [])  # some encoders leave out the constructor of nothing
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
    """A value of fixed width; the caller has made sure that its bytes are there."""
    if code < 0x50:
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
    if code < 0x60:
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


# The element code of each Python type: the constructor with which an array carries it.
_CODES: Final[dict[type, int]] = {
    type(None): 0x40,
    bool: 0x56,
    UByte: 0x50,
    UShort: 0x60,
    UInt: 0x70,
    ULong: 0x80,
    Byte: 0x51,
    Short: 0x61,
    Int: 0x71,
    int: 0x81,
    Timestamp: 0x83,
    Float32: 0x72,
    float: 0x82,
    Char: 0x73,
    UUID: 0x98,
    bytes: 0xA0,
    bytearray: 0xA0,
    memoryview: 0xA0,
    str: 0xA1,
    Symbol: 0xA3,
    list: 0xC0,
    tuple: 0xC0,
    dict: 0xC1,
    Array: 0xE0,
    Described: 0x00,
}

_RANGES: Final[dict[int, tuple[int, int]]] = {
    0x50: (0, 0xFF),
    0x51: (-0x80, 0x7F),
    0x60: (0, 0xFFFF),
    0x61: (-0x8000, 0x7FFF),
    0x70: (0, 0xFFFFFFFF),
    0x71: (-0x80000000, 0x7FFFFFFF),
    0x80: (0, (1 << 64) - 1),
    0x81: (-(1 << 63), (1 << 63) - 1),
    0x83: (-(1 << 63), (1 << 63) - 1),
}


def encode_value(value: object) -> bytes:
    w = BytesWriter()
    write_value(w, value)
    return w.getvalue()


def write_value(w: BytesWriter, value: object) -> None:
    """Append the encoding of `value`. After an EncodeError the writer holds a part of it: throw it away."""
    _write(w, value, 0)


def _code_of(value: object) -> i64:
    code = _CODES.get(type(value))
    if code is not None:
        return code
    if isinstance(value, Decimal):
        return value.code
    # Subclasses (enums and the like) go as the type they extend.
    for kind in (Symbol, str, int, float, bytes, list, dict):
        if isinstance(value, kind):
            return _CODES[kind]
    raise EncodeError(f"{type(value).__name__} has no AMQP encoding: {value!r}")


def _write(w: BytesWriter, value: object, depth: i64) -> None:
    code = _code_of(value)
    if code == 0xA1 or code == 0xA3 or code == 0xA0:
        raw = _octets(code, value)
        if len(raw) <= 255:
            w.append(code)
            w.append(len(raw))
        else:
            w.append(code + 0x10)
            write_u32(w, len(raw))
        w.write(raw)
    elif code == 0x40:
        w.append(0x40)
    elif code == 0x56:
        w.append(0x41 if value else 0x42)
    elif code == 0x70 or code == 0x80:
        number = _number(code, value)
        if number == 0:
            w.append(0x43 if code == 0x70 else 0x44)
        elif number <= 255:
            w.append(0x52 if code == 0x70 else 0x53)
            w.append(number)
        else:
            w.append(code)
            _write_fixed(w, code, value)
    elif code == 0x00:
        assert isinstance(value, Described)
        _check_depth(depth)
        _write_descriptor(w, value.descriptor)
        _write(w, value.value, depth + 1)
    elif code >= 0xC0:
        count, data = _compound(code, value, depth)
        if code == 0xC0 and count == 0:
            w.append(0x45)
        elif len(data) <= 254 and count <= 255:
            w.append(code)
            _write_compound(w, count, data, False)
        else:
            w.append(code + 0x10)
            _write_compound(w, count, data, True)
    else:
        w.append(code)
        _write_fixed(w, code, value)


def _write_descriptor(w: BytesWriter, descriptor: object) -> None:
    w.append(0x00)
    if isinstance(descriptor, str):
        _write(w, Symbol(descriptor), 0)
    elif isinstance(descriptor, int):
        number = _number(0x80, descriptor)
        if number <= 255:  # zero too: clients read the code of a section at a fixed offset
            w.append(0x53)
            w.append(number)
        else:
            w.append(0x80)
            _write_fixed(w, 0x80, descriptor)
    else:
        raise EncodeError(f"a descriptor is a ulong or a symbol, not {descriptor!r}")


def _check_depth(depth: i64) -> None:
    if depth >= MAX_NESTING:
        raise EncodeError(f"values nest deeper than {MAX_NESTING}")


def _number(code: i64, value: object) -> int:
    if not isinstance(value, int):
        raise EncodeError(f"an array element should be an integer: {value!r}")
    low, high = _RANGES[code]
    if value < low or value > high:
        raise EncodeError(f"{value} is not in the range {low} to {high}")
    return value


def _octets(code: i64, value: object) -> bytes:
    if code == 0xA0:
        if isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
    elif isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise EncodeError(f"text with a lone surrogate: {value!r}") from None
    raise EncodeError(f"text and binary do not mix in an array: {value!r}")


def _write_fixed(w: BytesWriter, code: i64, value: object) -> None:
    """The bytes after a fixed-width constructor; the widest one of the type."""
    if code == 0x81 or code == 0x83:
        write_i64_be(w, i64(_number(code, value)))
    elif code == 0x80:
        number = _number(code, value)
        write_i64_be(w, i64(number if number < 1 << 63 else number - (1 << 64)))
    elif code == 0x70:
        write_u32(w, i64(_number(code, value)))
    elif code == 0x71:
        write_i32_be(w, i32(_number(code, value)))
    elif code == 0x98:
        if not isinstance(value, UUID):
            raise EncodeError(f"not a UUID: {value!r}")
        w.write(value.bytes)
    elif code == 0x56:
        w.append(1 if value else 0)
    elif code == 0x50 or code == 0x51:
        octet: i64 = i64(_number(code, value)) & 0xFF
        w.append(octet)
    elif code == 0x60 or code == 0x61:
        short: i64 = i64(_number(code, value))
        write_i16_be(w, i16(short - 0x10000 if short > 0x7FFF else short))
    elif code == 0x72 or code == 0x82:
        _write_float(w, code, value)
    elif code == 0x73:
        if not isinstance(value, str) or len(value) != 1 or 0xD800 <= ord(value) <= 0xDFFF:
            raise EncodeError(f"a char is one Unicode character: {value!r}")
        write_u32(w, ord(value))
    elif code == 0x74 or code == 0x84 or code == 0x94:
        if not isinstance(value, Decimal) or value.code != code or len(value.raw) != _WIDTHS[code]:
            raise EncodeError(f"not a decimal of constructor 0x{code:02x}: {value!r}")
        w.write(value.raw)
    elif code != 0x40 or value is not None:
        raise EncodeError(f"0x{code:02x} is not the element code of {value!r}")


def _write_float(w: BytesWriter, code: i64, value: object) -> None:
    if not isinstance(value, (float, int)):
        raise EncodeError(f"not a number: {value!r}")
    try:
        w.write(struct.pack(">f" if code == 0x72 else ">d", value))
    except (OverflowError, struct.error):
        raise EncodeError(f"{value!r} does not fit into a float") from None


def _compound(code: i64, value: object, depth: i64) -> tuple[int, bytes]:
    """The count and the elements of a list, a map or an array."""
    _check_depth(depth)
    w = BytesWriter()
    if code == 0xC0 and isinstance(value, (list, tuple)):
        for item in value:
            _write(w, item, depth + 1)
        return len(value), w.getvalue()
    if code == 0xC1 and isinstance(value, dict):
        for key, item in value.items():
            _write(w, key, depth + 1)
            _write(w, item, depth + 1)
        return 2 * len(value), w.getvalue()
    if code == 0xE0 and isinstance(value, Array):
        _write_elements(w, value, depth + 1)
        return len(value.items), w.getvalue()
    raise EncodeError(f"0x{code:02x} is not the element code of {value!r}")


def _write_compound(w: BytesWriter, count: i64, data: bytes, wide: bool) -> None:
    if wide:
        write_u32(w, len(data) + 4)
        write_u32(w, count)
    else:
        w.append(len(data) + 1)
        w.append(count)
    w.write(data)


def _write_elements(w: BytesWriter, array: Array, depth: i64) -> None:
    """The constructor of an array and its elements, all with the same width."""
    code: i64 = array.code
    for descriptor in array.descriptors:
        _check_depth(depth)
        depth += 1
        _write_descriptor(w, descriptor)
    if code in (0xA0, 0xA1, 0xA3):
        raws = [_octets(code, item) for item in array.items]
        wide = any(len(raw) > 255 for raw in raws)
        w.append(code + 0x10 if wide else code)
        for raw in raws:
            if wide:
                write_u32(w, len(raw))
            else:
                w.append(len(raw))
            w.write(raw)
    elif code in (0xC0, 0xC1, 0xE0):
        parts = [_compound(code, item, depth) for item in array.items]
        wide = any(len(data) > 254 or count > 255 for count, data in parts)
        w.append(code + 0x10 if wide else code)
        for count, data in parts:
            _write_compound(w, count, data, wide)
    else:
        if code == 0x40 and len(array.items) > MAX_EMPTY_ELEMENTS:
            raise EncodeError(f"an array of {len(array.items)} nulls")
        if not 0x40 <= code <= 0x98:
            raise EncodeError(f"0x{code:02x} is not an element code")
        w.append(code)
        for item in array.items:
            _write_fixed(w, code, item)
