"""JSON bodies: the decoding of a body by a column type, and the type of a sample of bodies.

A body fits a type by these rules:
- fields that the type lacks are left out; absent fields are null, and a body without a field that is NOT NULL does not fit;
- a number fits if it is in the range of its type; 1.5 is no integer, and 1 is a double;
- TIMESTAMP and DATE are texts as in RFC 3339 (without a zone they are UTC), BINARY is base64;
- STRING takes every value: one that is no text as its JSON.

The type of a sample has the fields of all its bodies. If a field has values of different kinds, it is a DOUBLE if they are
numbers, else a STRING with the JSON of each. Numbers without a point are BIGINT.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from busbar.spark.errors import OptionError

_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_SIMPLE: Final[dict[type[DataType], Any]] = {
    BooleanType: bool,
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    DateType: date,
    TimestampType: datetime,
    TimestampNTZType: Annotated[datetime, msgspec.Meta(tz=False)],
    BinaryType: bytes,
}
_ANY: Final = str | int | float | bool | list[Any] | dict[str, Any]
"""Everything that is not null."""


class JsonBodies:
    """Decodes JSON bodies to values of a column type. It is sent to workers as the type."""

    def __init__(self, kind: DataType) -> None:
        self.type = kind
        # Most bodies have texts where the type has STRING, so other values are looked for only if that does not fit.
        self._strict: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_python_type(kind, str))
        self._lenient: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_python_type(kind, _ANY))

    def __reduce__(self) -> tuple[type[JsonBodies], tuple[DataType]]:
        return JsonBodies, (self.type,)

    def decode(self, body: bytes, content_type: str | None = None) -> object:
        """Decode a body. Raises ValueError if it does not fit."""
        try:
            return self._strict.decode(body)
        except msgspec.ValidationError:
            return _with_texts(self._lenient.decode(body), self.type)


def _python_type(kind: DataType, text: Any) -> Any:
    """The Python type to decode to; `text` is that of STRING."""
    bits = _BITS.get(type(kind))
    if bits is not None:
        return Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]
    if isinstance(kind, StringType):
        return text
    if isinstance(kind, StructType):
        fields = {
            field.name: NotRequired[_python_type(field.dataType, text) | None]
            if field.nullable
            else Required[_python_type(field.dataType, text)]
            for field in kind.fields
        }
        # A decoder takes an empty name for a name that is not ASCII and was never encoded. Encoding keeps its UTF-8.
        msgspec.json.encode([*fields])
        return TypedDict("Fields", fields)  # type: ignore[operator]
    if isinstance(kind, ArrayType):
        item = _python_type(kind.elementType, text)
        return list[item | None] if kind.containsNull else list[item]  # type: ignore[valid-type]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        value = _python_type(kind.valueType, text)
        return dict[str, value | None] if kind.valueContainsNull else dict[str, value]  # type: ignore[valid-type]
    found = _SIMPLE.get(type(kind))
    if found is None:
        raise OptionError("bodySchema", f"has the type {kind.simpleString()}, which JSON does not have.")
    return found


def _with_texts(value: Any, kind: DataType) -> Any:
    """The value with the JSON of each value that stands for a STRING and is no text."""
    if value is None:
        return None
    if isinstance(kind, StringType):
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(kind, StructType):
        types = {field.name: field.dataType for field in kind.fields}
        return {name: _with_texts(each, types[name]) for name, each in value.items()}
    if isinstance(kind, ArrayType):
        return [_with_texts(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return {name: _with_texts(each, kind.valueType) for name, each in value.items()}
    return value


# ---- the type of a sample ------------------------------------------------------------------------------


def infer_type(bodies: Iterable[bytes]) -> DataType | None:
    """The type that all JSON bodies of a sample fit; bodies that are no JSON do not count. None: there are none."""
    found: DataType | None = None
    for body in bodies:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        kind = _type_of(value)
        found = kind if found is None else _common_type(found, kind)
    return None if found is None else _without_unknown(found)


class _Unknown(DataType):
    """The type of null, and of the items of an empty list."""


def _type_of(value: object) -> DataType:
    if value is None:
        return _Unknown()
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        return LongType() if -(1 << 63) <= value < 1 << 63 else StringType()
    if isinstance(value, float):
        return DoubleType()
    if isinstance(value, list):
        item: DataType = _Unknown()
        for each in value:
            item = _common_type(item, _type_of(each))
        return ArrayType(item)
    if isinstance(value, dict):
        return StructType([StructField(name, _type_of(each)) for name, each in sorted(value.items())])
    return StringType()


def _common_type(one: DataType, other: DataType) -> DataType:
    if isinstance(one, _Unknown):
        return other
    if isinstance(other, _Unknown) or one == other:
        return one
    if {type(one), type(other)} == {LongType, DoubleType}:
        return DoubleType()
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_common_type(one.elementType, other.elementType))
    if isinstance(one, StructType) and isinstance(other, StructType):
        fields = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            mine = fields.get(field.name)
            fields[field.name] = field.dataType if mine is None else _common_type(mine, field.dataType)
        return StructType([StructField(name, kind) for name, kind in sorted(fields.items())])
    return StringType()


def _without_unknown(kind: DataType) -> DataType:
    """The type with STRING for what is unknown, also for an object that never has a field."""
    if isinstance(kind, _Unknown):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_without_unknown(kind.elementType))
    if isinstance(kind, StructType):
        if not kind.fields:
            return StringType()
        return StructType(
            [StructField(field.name, _without_unknown(field.dataType)) for field in kind.fields]
        )
    return kind
