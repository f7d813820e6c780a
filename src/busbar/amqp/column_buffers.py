"""The buffers that Arrow's arrays are made of, filled value by value: bitmaps, offsets, data.

Integers are little-endian, as Arrow's are; a bitmap has the first row in its lowest bit. What becomes of an AMQP value
that has no exact place in a column is said at the top of columns.py.
"""

from __future__ import annotations

from typing import Final, final
from uuid import UUID

from librt.strings import (
    BytesWriter,
    read_f32_be,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_le,
    write_i32_le,
    write_i64_le,
)
from mypy_extensions import i32, i64

from busbar.amqp.codec import read_u32

MAX_MICROSECONDS: Final = 9_223_372_036_854_775
"""The times, in ms, that a long of µs can hold."""

# Constructors by name; several encode one type. Those that are missing are compound or unknown.
_TYPE_NAMES: Final[dict[int, bytes]] = {
    0x40: b"null",
    0x41: b"boolean",
    0x42: b"boolean",
    0x56: b"boolean",
    0x50: b"ubyte",
    0x60: b"ushort",
    0x43: b"uint",
    0x52: b"uint",
    0x70: b"uint",
    0x44: b"ulong",
    0x53: b"ulong",
    0x80: b"ulong",
    0x51: b"byte",
    0x61: b"short",
    0x54: b"int",
    0x71: b"int",
    0x55: b"long",
    0x81: b"long",
    0x72: b"float",
    0x82: b"double",
    0x74: b"decimal32",
    0x84: b"decimal64",
    0x94: b"decimal128",
    0x73: b"char",
    0x83: b"timestamp",
    0x98: b"uuid",
    0xA0: b"binary",
    0xB0: b"binary",
    0xA1: b"string",
    0xB1: b"string",
    0xA3: b"symbol",
    0xB3: b"symbol",
    0x45: b"list",
    0xC0: b"list",
    0xD0: b"list",
    0xC1: b"map",
    0xD1: b"map",
    0xE0: b"array",
    0xF0: b"array",
    0x00: b"described",
}


@final
class Bits:
    """A bitmap: which values are there, or booleans."""

    def __init__(self) -> None:
        self.writer = BytesWriter()
        self.pending: i64 = 0
        self.count: i64 = 0
        self.unset: i64 = 0

    def add(self, bit: i64) -> None:
        self.pending |= bit << (self.count & 7)
        self.unset += 1 - bit
        self.count += 1
        if self.count & 7 == 0:
            self.writer.append(self.pending)
            self.pending = 0

    def value(self) -> bytes:
        if self.count & 7:
            return self.writer.getvalue() + bytes([int(self.pending)])
        return self.writer.getvalue()


@final
class Texts:
    """A column of text or binary."""

    def __init__(self) -> None:
        self.data = BytesWriter()
        self.offsets = BytesWriter()
        self.valid = Bits()
        write_i32_le(self.offsets, 0)

    def add(self, value: bytes) -> None:
        self.data.write(value)
        write_i32_le(self.offsets, i32(len(self.data)))
        self.valid.add(1)

    def null(self) -> None:
        write_i32_le(self.offsets, i32(len(self.data)))
        self.valid.add(0)


@final
class Blobs:
    """A column of large binaries: their pieces are joined at the end, copied once more and not twice."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size: i64 = 0
        self.offsets = BytesWriter()
        self.valid = Bits()
        write_i32_le(self.offsets, 0)

    def add(self, value: bytes) -> None:
        self.part(value)
        self.close()

    def part(self, value: bytes) -> None:
        """A piece of the next value; `close` ends it."""
        self.parts.append(value)
        self.size += len(value)

    def close(self) -> None:
        write_i32_le(self.offsets, i32(self.size))
        self.valid.add(1)

    def null(self) -> None:
        write_i32_le(self.offsets, i32(self.size))
        self.valid.add(0)

    def value(self) -> bytes:
        return b"".join(self.parts)


@final
class Longs:
    """A column of longs, times in µs among them."""

    def __init__(self) -> None:
        self.data = BytesWriter()
        self.valid = Bits()

    def add(self, value: i64) -> None:
        write_i64_le(self.data, value)
        self.valid.add(1)

    def null(self) -> None:
        write_i64_le(self.data, 0)
        self.valid.add(0)

    def time(self, ms: i64) -> None:
        """A time in ms; 0, and what µs cannot hold, is none."""
        if ms == 0 or ms > MAX_MICROSECONDS or ms < -MAX_MICROSECONDS:
            self.null()
        else:
            self.add(ms * 1000)


@final
class Properties:
    """A column of maps from names to properties: for each row where its entries end, and the entries side by side."""

    def __init__(self) -> None:
        self.offsets = BytesWriter()
        self.count: i64 = 0
        self.names = Texts()
        self.types = Texts()
        self.texts = Texts()
        self.longs = Longs()
        self.doubles = BytesWriter()
        self.doubles_valid = Bits()
        self.booleans = Bits()
        self.booleans_valid = Bits()
        self.times = Longs()
        self.binaries = Texts()
        write_i32_le(self.offsets, 0)

    def close(self) -> None:
        """The row has no more entries."""
        write_i32_le(self.offsets, i32(self.count))

    def add(self, name: bytes, buf: bytes, pos: i64, end: i64) -> None:
        """The value at buf[pos:end] under a name."""
        code: i64 = buf[pos]
        self.count += 1
        self.names.add(name)
        kind = _TYPE_NAMES.get(int(code))
        self.types.add(b"described" if kind is None else kind)
        filled: i64 = 0
        if code == 0xA1 or code == 0xA3:
            self.texts.add(clean(buf[pos + 2 : end]))
            filled = 1
        elif code == 0xB1 or code == 0xB3:
            self.texts.add(clean(buf[pos + 5 : end]))
            filled = 1
        elif code == 0x41 or code == 0x42 or code == 0x56:
            self.booleans.add(1 if code == 0x41 or (code == 0x56 and buf[pos + 1] == 1) else 0)
            self.booleans_valid.add(1)
            filled = 4
        elif code == 0x72 or code == 0x82:
            write_f64_le(
                self.doubles, read_f32_be(buf, pos + 1) if code == 0x72 else read_f64_be(buf, pos + 1)
            )
            self.doubles_valid.add(1)
            filled = 3
        elif code == 0x83:
            ms = read_i64_be(buf, pos + 1)
            if -MAX_MICROSECONDS <= ms <= MAX_MICROSECONDS:
                self.times.add(ms * 1000)
                filled = 5
            else:
                self.longs.add(ms)
                filled = 2
        elif code == 0x80 and buf[pos + 1] > 127:
            self.texts.add(str(int.from_bytes(buf[pos + 1 : end], "big")).encode())
            filled = 1
        elif is_integer(code):
            self.longs.add(integer(buf, pos))
            filled = 2
        elif code == 0x98:
            self.texts.add(str(UUID(bytes=buf[pos + 1 : end])).encode())
            filled = 1
        elif code == 0x73:
            self.texts.add(_char(read_u32(buf, pos + 1)))
            filled = 1
        elif code == 0xA0:
            self.binaries.add(buf[pos + 2 : end])
            filled = 6
        elif code == 0xB0:
            self.binaries.add(buf[pos + 5 : end])
            filled = 6
        elif code == 0x74 or code == 0x84 or code == 0x94:
            self.binaries.add(buf[pos + 1 : end])
            filled = 6
        elif code != 0x40:
            self.binaries.add(buf[pos:end])
            filled = 6
        if filled != 1:
            self.texts.null()
        if filled != 2:
            self.longs.null()
        if filled != 3:
            write_f64_le(self.doubles, 0.0)
            self.doubles_valid.add(0)
        if filled != 4:
            self.booleans.add(0)
            self.booleans_valid.add(0)
        if filled != 5:
            self.times.null()
        if filled != 6:
            self.binaries.null()


def clean(text: bytes) -> bytes:
    """The text as UTF-8, whatever it was."""
    if text.isascii():
        return text
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode("utf-8")
    return text


def text_of(buf: bytes, pos: i64, end: i64) -> bytes | None:
    """The string or symbol at buf[pos:end]; None if it is something else."""
    if pos >= end:
        return None
    code: i64 = buf[pos]
    if code == 0xA1 or code == 0xA3:
        return clean(buf[pos + 2 : end])
    if code == 0xB1 or code == 0xB3:
        return clean(buf[pos + 5 : end])
    return None


def is_integer(code: i64) -> bool:
    return (
        0x50 <= code <= 0x55
        or code == 0x60
        or code == 0x61
        or code == 0x70
        or code == 0x71
        or code == 0x80
        or code == 0x81
        or code == 0x43
        or code == 0x44
    )


def integer(buf: bytes, pos: i64) -> i64:
    """The integer at `pos`, whose constructor is one; a ulong above the largest long wraps."""
    code: i64 = buf[pos]
    if code == 0x43 or code == 0x44:
        return 0
    if code < 0x60:
        octet: i64 = buf[pos + 1]
        if code == 0x51 or code == 0x54 or code == 0x55:
            return octet - 256 if octet > 127 else octet
        return octet
    if code == 0x60:
        return i64(read_i16_be(buf, pos + 1)) & 0xFFFF
    if code == 0x61:
        return i64(read_i16_be(buf, pos + 1))
    if code == 0x70:
        return read_u32(buf, pos + 1)
    if code == 0x71:
        return i64(read_i32_be(buf, pos + 1))
    return read_i64_be(buf, pos + 1)


def _char(point: i64) -> bytes:
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        return b"\xef\xbf\xbd"
    return chr(point).encode("utf-8")
