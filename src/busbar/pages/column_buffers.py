"""The buffers of Arrow arrays, filled value by value: bitmaps, offsets, data.

A value is added with the number of its row; rows in between without a value are null. Most columns of a page have a value in
every row or in none. So a null costs nothing until both occur: a column without values stays empty. For every other column
the number of rows must be set before it is read (`skip_to`).

Integers are little-endian, as in Arrow; a bitmap has the first row in its lowest bit. The top of columns.py describes what
happens to an AMQP value that does not fit its column exactly.
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
from busbar.model.errors import MalformedMessage

MAX_MICROSECONDS: Final = 9_223_372_036_854_775
"""The range of times, in ms, that a long of µs can hold."""

_HIGH_BITS: Final = -0x7F7F7F7F7F7F7F80  # of eight bytes: the bits that no ASCII character has

# Constructors by name; several encode one type. Missing ones are compound or unknown.
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
_TYPE_OF: Final = [_TYPE_NAMES.get(code, b"described") for code in range(256)]


@final
class Bits:
    """A bitmap."""

    def __init__(self) -> None:
        self.writer = BytesWriter()
        self.pending: i64 = 0
        self.count: i64 = 0

    def add(self, bit: i64) -> None:
        self.pending |= bit << (self.count & 7)
        self.count += 1
        if self.count & 7 == 0:
            self.writer.append(self.pending)
            self.pending = 0

    def value(self) -> bytes:
        if self.count & 7:
            return self.writer.getvalue() + bytes([int(self.pending)])
        return self.writer.getvalue()


@final
class Valid:
    """Which rows have a value. Bits are written from the first row that differs from those before it."""

    def __init__(self) -> None:
        self.bits = Bits()
        self.count: i64 = 0
        self.there: i64 = 0

    def add(self) -> None:
        """Record that the next row has a value."""
        if self.there < self.count:
            while self.bits.count < self.count:
                self.bits.add(0)  # until now, no row had one
            self.bits.add(1)
        self.count += 1
        self.there += 1

    def skip_to(self, row: i64) -> None:
        """Record that the rows before this one have none."""
        if self.there > 0 and row > self.count:
            while self.bits.count < self.count:
                self.bits.add(1)  # until now, all rows had one
            while self.bits.count < row:
                self.bits.add(0)
        if row > self.count:
            self.count = row


@final
class Texts:
    """A column of text or binary."""

    def __init__(self) -> None:
        self.data = BytesWriter()
        self.offsets = BytesWriter()
        self.valid = Valid()
        write_i32_le(self.offsets, 0)

    def add(self, row: i64, value: bytes) -> None:
        if self.valid.count < row:
            self.skip_to(row)
        self.data.write(value)
        write_i32_le(self.offsets, i32(len(self.data)))
        self.valid.add()

    def skip_to(self, row: i64) -> None:
        missing = row - self.valid.count
        while missing > 0:
            write_i32_le(self.offsets, i32(len(self.data)))
            missing -= 1
        self.valid.skip_to(row)


@final
class Cuts:
    """A column of large binaries inside a page. It has their positions, so that they are copied once, all together.

    `bounds` are rising positions in the page: 0, and for each piece its begin and its end. From an even bound to the next,
    bytes are skipped; from an odd one to the next, they are part of the column. `offsets` has the end of each value in the
    joined bytes.
    """

    def __init__(self) -> None:
        self.page = b""
        self.bounds = BytesWriter()
        self.pieces: i64 = 0
        self.size: i64 = 0
        self.offsets = BytesWriter()
        self.valid = Valid()
        self._last: i64 = 0
        write_i32_le(self.bounds, 0)
        write_i32_le(self.offsets, 0)

    def add(self, row: i64, begin: i64, end: i64) -> None:
        """Add a value that is in one piece."""
        self.open(row)
        self.piece(begin, end)
        self.close()

    def open(self, row: i64) -> None:
        """Begin a value of any number of pieces; `close` ends it."""
        if self.valid.count < row:
            self.skip_to(row)

    def piece(self, begin: i64, end: i64) -> None:
        """Add a piece. Raises MalformedMessage."""
        if begin < self._last or end < begin:
            # Bounds are not checked again before memory is read by them.
            raise MalformedMessage(f"bytes {begin} to {end} of a page stand behind byte {self._last}")
        write_i32_le(self.bounds, i32(begin))
        write_i32_le(self.bounds, i32(end))
        self._last = end
        self.pieces += 1
        self.size += end - begin

    def close(self) -> None:
        write_i32_le(self.offsets, i32(self.size))
        self.valid.add()

    def skip_to(self, row: i64) -> None:
        missing = row - self.valid.count
        while missing > 0:
            write_i32_le(self.offsets, i32(self.size))
            missing -= 1
        self.valid.skip_to(row)


@final
class Longs:
    """A column of longs, times in µs among them."""

    def __init__(self) -> None:
        self.data = BytesWriter()
        self.valid = Valid()

    def add(self, row: i64, value: i64) -> None:
        if self.valid.count < row:
            self.skip_to(row)
        write_i64_le(self.data, value)
        self.valid.add()

    def skip_to(self, row: i64) -> None:
        missing = row - self.valid.count
        while missing > 0:
            write_i64_le(self.data, 0)
            missing -= 1
        self.valid.skip_to(row)

    def time(self, row: i64, ms: i64) -> None:
        """Add a time in ms; 0, and a time that µs cannot hold, is null."""
        if ms != 0 and -MAX_MICROSECONDS <= ms <= MAX_MICROSECONDS:
            self.add(row, ms * 1000)


@final
class Doubles:
    """A column of doubles."""

    def __init__(self) -> None:
        self.data = BytesWriter()
        self.valid = Valid()

    def add(self, row: i64, value: float) -> None:
        if self.valid.count < row:
            self.skip_to(row)
        write_f64_le(self.data, value)
        self.valid.add()

    def skip_to(self, row: i64) -> None:
        missing = row - self.valid.count
        while missing > 0:
            write_f64_le(self.data, 0.0)
            missing -= 1
        self.valid.skip_to(row)


@final
class Booleans:
    """A column of booleans."""

    def __init__(self) -> None:
        self.data = Bits()
        self.valid = Valid()

    def add(self, row: i64, value: i64) -> None:
        if self.valid.count < row:
            self.skip_to(row)
        self.data.add(value)
        self.valid.add()

    def skip_to(self, row: i64) -> None:
        missing = row - self.valid.count
        while missing > 0:
            self.data.add(0)
            missing -= 1
        self.valid.skip_to(row)


@final
class Properties:
    """A column of maps from names to properties: the end of each row's entries, and the entries themselves."""

    def __init__(self) -> None:
        self.offsets = BytesWriter()
        self.count: i64 = 0
        self.names = Texts()
        self.types = Texts()
        self.texts = Texts()
        self.longs = Longs()
        self.doubles = Doubles()
        self.booleans = Booleans()
        self.times = Longs()
        self.binaries = Texts()
        write_i32_le(self.offsets, 0)

    def close(self) -> None:
        """End the entries of a row."""
        write_i32_le(self.offsets, i32(self.count))

    def add(self, name: bytes, buf: bytes, pos: i64, end: i64) -> None:
        """Add the value at buf[pos:end] under a name."""
        entry = self.count
        code: i64 = buf[pos]
        self.count += 1
        self.names.add(entry, name)
        self.types.add(entry, _TYPE_OF[code])
        if code == 0xA1 or code == 0xA3:
            self.texts.add(entry, utf8(buf, pos + 2, end))
        elif code == 0xB1 or code == 0xB3:
            self.texts.add(entry, utf8(buf, pos + 5, end))
        elif code == 0x41 or code == 0x42 or code == 0x56:
            self.booleans.add(entry, 1 if code == 0x41 or (code == 0x56 and buf[pos + 1] == 1) else 0)
        elif code == 0x72:
            self.doubles.add(entry, read_f32_be(buf, pos + 1))
        elif code == 0x82:
            self.doubles.add(entry, read_f64_be(buf, pos + 1))
        elif code == 0x83:
            ms = read_i64_be(buf, pos + 1)
            if -MAX_MICROSECONDS <= ms <= MAX_MICROSECONDS:
                self.times.add(entry, ms * 1000)
            else:
                self.longs.add(entry, ms)
        elif code == 0x80 and buf[pos + 1] > 127:
            self.texts.add(entry, str(int.from_bytes(buf[pos + 1 : end], "big")).encode())
        elif is_integer(code):
            self.longs.add(entry, integer(buf, pos))
        elif code == 0x98:
            self.texts.add(entry, str(UUID(bytes=buf[pos + 1 : end])).encode())
        elif code == 0x73:
            self.texts.add(entry, _char(read_u32(buf, pos + 1)))
        elif code == 0xA0:
            self.binaries.add(entry, buf[pos + 2 : end])
        elif code == 0xB0:
            self.binaries.add(entry, buf[pos + 5 : end])
        elif code == 0x74 or code == 0x84 or code == 0x94:
            self.binaries.add(entry, buf[pos + 1 : end])
        elif code != 0x40:
            self.binaries.add(entry, buf[pos:end])


def utf8(buf: bytes, pos: i64, end: i64) -> bytes:
    """The text buf[pos:end] as UTF-8, with invalid bytes replaced."""
    at = pos
    while at + 8 <= end:
        if read_i64_be(buf, at) & _HIGH_BITS != 0:
            return clean(buf[pos:end])
        at += 8
    while at < end:
        if buf[at] > 127:
            return clean(buf[pos:end])
        at += 1
    return buf[pos:end]


def clean(text: bytes) -> bytes:
    """The text as UTF-8, with invalid bytes replaced."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode("utf-8")
    return text


def text_of(buf: bytes, pos: i64, end: i64) -> bytes | None:
    """The string or symbol at buf[pos:end]; None if it is of another type."""
    if pos >= end:
        return None
    code: i64 = buf[pos]
    if code == 0xA1 or code == 0xA3:
        return utf8(buf, pos + 2, end)
    if code == 0xB1 or code == 0xB3:
        return utf8(buf, pos + 5, end)
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
    """The integer at `pos`, which must have an integer's constructor; a ulong above the largest long wraps."""
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
