"""AMQP 1.0 values that Python's own types cannot distinguish.

| AMQP                     | Python                          | AMQP              | Python        |
|--------------------------|---------------------------------|-------------------|---------------|
| null, boolean            | None, bool                      | double            | float         |
| long                     | int (a plain int is a long)     | float             | Float32       |
| ubyte ushort uint ulong  | UByte UShort UInt ULong         | decimal32/64/128  | Decimal       |
| byte short int           | Byte Short Int                  | char, symbol      | Char, Symbol  |
| timestamp                | Timestamp (ms since 1970 UTC)   | string, binary    | str, bytes    |
| list, map                | list, dict                      | uuid              | uuid.UUID     |
| array                    | Array                           | described         | Described     |

The classes here compare like the Python values they extend (`Symbol("a") == "a"`, `UInt(1) == 1`), so that a
lookup works for both; `type()` distinguishes them. Ranges are checked on encoding.
This module stays uncompiled: mypyc has no native subclasses of int, str and float.
"""

from __future__ import annotations

from typing import Final


class Symbol(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str.__repr__(self)})"


class Char(str):
    """One Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str.__repr__(self)})"


class _Integer(int):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int.__repr__(self)})"

    __str__ = int.__repr__


class UByte(_Integer):
    __slots__ = ()


class UShort(_Integer):
    __slots__ = ()


class UInt(_Integer):
    __slots__ = ()


class ULong(_Integer):
    __slots__ = ()


class Byte(_Integer):
    __slots__ = ()


class Short(_Integer):
    __slots__ = ()


class Int(_Integer):
    __slots__ = ()


class Timestamp(_Integer):
    """Milliseconds since 1970 UTC."""

    __slots__ = ()


class Float32(float):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float32({float.__repr__(self)})"

    __str__ = float.__repr__


class Decimal:
    """A decimal32, decimal64 or decimal128 (codes 0x74, 0x84, 0x94): carried, never computed with."""

    __slots__ = ("code", "raw")

    def __init__(self, code: int, raw: bytes) -> None:
        self.code = code
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decimal) and self.code == other.code and self.raw == other.raw

    def __hash__(self) -> int:
        return hash((self.code, self.raw))

    def __repr__(self) -> str:
        return f"Decimal(0x{self.code:02x}, {self.raw!r})"


class Described:
    """A value with a descriptor: a ULong (any int is encoded as one) or a Symbol."""

    __slots__ = ("descriptor", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Described) and self.descriptor == other.descriptor and self.value == other.value
        )

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


# Several constructors encode one type; an Array remembers the type, the encoder picks the constructor.
_ELEMENT_CODE: Final[dict[int, int]] = {
    0x41: 0x56,
    0x42: 0x56,
    0x43: 0x70,
    0x52: 0x70,
    0x44: 0x80,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0xB0: 0xA0,
    0xB1: 0xA1,
    0xB3: 0xA3,
    0x45: 0xC0,
    0xD0: 0xC0,
    0xD1: 0xC1,
    0xF0: 0xE0,
}


class Array:
    """Values of one type.

    `code` names the type by its fixed-width or one-byte-length constructor (long 0x81, timestamp 0x83, uuid
    0x98, string 0xA1, symbol 0xA3); `descriptors`, outermost first, describe every element.
    """

    __slots__ = ("code", "descriptors", "items")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, code: int, items: list[object], descriptors: tuple[object, ...] = ()) -> None:
        self.code = _ELEMENT_CODE.get(code, code)
        self.items = items
        self.descriptors = descriptors

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Array)
            and self.code == other.code
            and self.items == other.items
            and self.descriptors == other.descriptors
        )

    def __repr__(self) -> str:
        described = f", {self.descriptors!r}" if self.descriptors else ""
        return f"Array(0x{self.code:02x}, {self.items!r}{described})"
