"""A column of maps as the application properties of messages.

Values of plain types become their AMQP types: a STRING a string, integers a long, FLOAT and DOUBLE a double, BOOLEAN,
TIMESTAMP and BINARY theirs. The struct of the source names the AMQP type itself, so that a property is written as it was
read (schema.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from busbar.amqp.codec import decode_value
from busbar.amqp.types import (
    Byte,
    Char,
    Decimal,
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

Values = Sequence[Any]


class PropertyColumn:
    """The properties of a batch. `row` raises ValueError for a value that cannot be a property."""

    def __init__(self, column: pa.MapArray, from_source: bool) -> None:
        self._offsets: list[int] = column.offsets.to_pylist()
        self._valid: list[bool] = column.is_valid().to_pylist()
        self._names: list[str] = column.keys.to_pylist()
        self._value: Callable[[int], object]
        if from_source:
            self._value = _SourceValues(column.items).value
        else:
            self._value = _plain_values(column.items).__getitem__

    def row(self, index: int) -> dict[str, object] | None:
        if not self._valid[index]:
            return None
        names, value = self._names, self._value
        return {names[at]: value(at) for at in range(self._offsets[index], self._offsets[index + 1])}


def milliseconds(column: pa.Array) -> list[int | None]:
    """Times of a TIMESTAMP column, or durations of an interval, in ms."""
    unit = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[column.type.unit]
    found: list[int | None] = column.cast(pa.int64()).to_pylist()
    return [None if value is None else value * 1000 // unit for value in found]


def _plain_values(items: pa.Array) -> Values:
    if pa.types.is_timestamp(items.type):
        return [None if value is None else Timestamp(value) for value in milliseconds(items)]
    values: Values = items.to_pylist()
    return values


class _SourceValues:
    """The struct of the source, as columns."""

    def __init__(self, items: pa.StructArray) -> None:
        self._types: list[str | None] = items.field("type").to_pylist()
        self._columns: dict[str, Values] = {
            name: items.field(name).to_pylist() for name in ("string", "long", "double", "boolean", "binary")
        }
        self._columns["timestamp"] = milliseconds(items.field("timestamp"))

    def value(self, at: int) -> object:
        kind = self._types[at]
        if kind == "null":
            return None
        making = _MAKING.get(kind or "")
        if making is None:
            raise ValueError(f"{kind!r} is no AMQP type")
        for field, make in making:
            given = self._columns[field][at]
            if given is not None:
                return make(given)
        fields = " or ".join(repr(field) for field, _make in making)
        raise ValueError(f"a property of the type {kind!r} has no value in its field {fields}")


def _encoded(data: bytes) -> object:
    value, end = decode_value(data, 0, len(data))
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes stand behind an encoded value")
    return value


def _decimal(code: int) -> Callable[[bytes], object]:
    return lambda raw: Decimal(code, raw)


Making = tuple[tuple[str, Callable[[Any], object]], ...]

_MAKING: Final[dict[str, Making]] = {
    "boolean": (("boolean", bool),),
    "ubyte": (("long", UByte),),
    "ushort": (("long", UShort),),
    "uint": (("long", UInt),),
    "ulong": (("long", ULong), ("string", ULong)),
    "byte": (("long", Byte),),
    "short": (("long", Short),),
    "int": (("long", Int),),
    "long": (("long", int),),
    "float": (("double", Float32),),
    "double": (("double", float),),
    "decimal32": (("binary", _decimal(0x74)),),
    "decimal64": (("binary", _decimal(0x84)),),
    "decimal128": (("binary", _decimal(0x94)),),
    "char": (("string", Char),),
    "timestamp": (("timestamp", Timestamp), ("long", Timestamp)),
    "uuid": (("string", UUID),),
    "binary": (("binary", bytes),),
    "string": (("string", str),),
    "symbol": (("string", Symbol),),
    "list": (("binary", _encoded),),
    "map": (("binary", _encoded),),
    "array": (("binary", _encoded),),
    "described": (("binary", _encoded),),
}
"""For each AMQP type the fields of the struct that may hold it, and the conversion."""
