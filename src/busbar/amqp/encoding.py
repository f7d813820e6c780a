"""Encodes AMQP values to bytes; the rules are in codec.py."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64, u8

from busbar.amqp.decoding import MAX_EMPTY_ELEMENTS, MAX_NESTING
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


class EncodeError(ValueError):
    """A Python value cannot be encoded as an AMQP value."""


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


_DECIMAL_WIDTHS: Final[dict[int, int]] = {0x74: 4, 0x84: 8, 0x94: 16}


def write_u32(w: BytesWriter, value: i64) -> None:
    # The writers are signed; the interpreted ones refuse values that do not fit.
    if value > 0x7FFFFFFF:
        value -= 0x100000000
    write_i32_be(w, i32(value))


def encode_value(value: object) -> bytes:
    w = BytesWriter()
    write_value(w, value)
    return w.getvalue()


def write_value(w: BytesWriter, value: object) -> None:
    """Append the encoding of `value`. After an EncodeError the writer holds a part of it: discard the writer."""
    _write(w, value, 0)


def _code_of(value: object) -> i64:
    code = _CODES.get(type(value))
    if code is not None:
        return code
    if isinstance(value, Decimal):
        return value.code
    # Subclasses (enums and the like) are encoded as the type they extend.
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
        w.append(u8(octet))
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
        if not isinstance(value, Decimal) or value.code != code or len(value.raw) != _DECIMAL_WIDTHS[code]:
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
        w.append(u8(count))
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
        w.append(u8(code + 0x10 if wide else code))
        for raw in raws:
            if wide:
                write_u32(w, len(raw))
            else:
                w.append(len(raw))
            w.write(raw)
    elif code in (0xC0, 0xC1, 0xE0):
        parts = [_compound(code, item, depth) for item in array.items]
        wide = any(len(data) > 254 or count > 255 for count, data in parts)
        w.append(u8(code + 0x10 if wide else code))
        for count, data in parts:
            _write_compound(w, count, data, wide)
    else:
        if code == 0x40 and len(array.items) > MAX_EMPTY_ELEMENTS:
            raise EncodeError(f"an array of {len(array.items)} nulls")
        if not 0x40 <= code <= 0x98:
            raise EncodeError(f"0x{code:02x} is not an element code")
        w.append(u8(code))
        for item in array.items:
            _write_fixed(w, code, item)
