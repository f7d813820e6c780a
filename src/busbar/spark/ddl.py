"""Reads a schema in the form of DDL, as Spark does, in a process that has no Spark session.

Spark asks a source for its columns in a Python process of its own, which cannot reach Spark's parser.

    item STRING, count INT NOT NULL, tags ARRAY<STRING>, sizes MAP<STRING, DOUBLE>, `unit price` DECIMAL(9, 2)

A colon between name and type is optional, and so is STRUCT<...> around all fields. A comment is read and left out. The JSON
form of a schema (`frame.schema.json()`) is accepted as well.
"""

from __future__ import annotations

import json
import re
from typing import Final

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
    _parse_datatype_json_string,
)

from busbar.spark.errors import OptionError

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")
_SIMPLE: Final[dict[str, type[DataType]]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
_DECIMAL: Final = ("decimal", "dec", "numeric")
_MOST_DIGITS: Final = 38


def parse_type(option: str, text: str) -> DataType:
    """The type that a text describes; fields without STRUCT<...> are a struct. Raises OptionError."""
    if text.lstrip().startswith("{"):
        return _from_json(option, text)
    return _Parser(option, text).whole()


def _from_json(option: str, text: str) -> DataType:
    try:
        return _parse_datatype_json_string(text)
    except Exception as error:  # Spark raises many kinds for what is not a type
        reason = "it is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise OptionError(option, f"is no schema of Spark in its JSON form: {reason}.") from None


class _Parser:
    """Reads one text from its beginning to its end."""

    def __init__(self, option: str, text: str) -> None:
        self._option = option
        self._text = text
        self._tokens = self._split(text)
        self._next = 0

    def whole(self) -> DataType:
        if self._is_type():
            found = self._type()
        else:
            found = StructType(self._fields(""))
        if self._peek():
            raise self._wrong(f"{self._peek()!r} is too much")
        return found

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(f"{text[at:].split()[0]!r} is not expected")
            tokens.append(found.group().strip())
            at = found.end()
        return tokens

    def _is_type(self) -> bool:
        """Whether the text is a type, not a list of fields: a name of a field is followed by a type, or by a colon."""
        following = self._tokens[1] if len(self._tokens) > 1 else ""
        return following in ("", "<", "(")

    def _fields(self, end: str) -> list[StructField]:
        fields: list[StructField] = []
        while True:
            fields.append(self._field())
            if self._peek() != ",":
                break
            self._take(",")
        if end:
            self._take(end)
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise self._wrong("two fields have the same name")
        return fields

    def _field(self) -> StructField:
        name = self._take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name):
            raise self._wrong(f"{name!r} is where a field is expected")
        if self._peek() == ":":
            self._take(":")
        kind = self._type()
        nullable = True
        if self._peek().lower() == "not":
            self._take()
            if self._take().lower() != "null":
                raise self._wrong("NULL is missing after NOT")
            nullable = False
        if self._peek().lower() == "comment":
            self._take()
            self._take()
        return StructField(name, kind, nullable)

    def _type(self) -> DataType:
        name = self._take().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _DECIMAL:
            return self._decimal()
        if name in ("char", "varchar"):
            self._numbers()
            return StringType()
        if name == "array":
            self._take("<")
            item = self._type()
            self._take(">")
            return ArrayType(item)
        if name == "map":
            self._take("<")
            key = self._type()
            self._take(",")
            value = self._type()
            self._take(">")
            return MapType(key, value)
        if name == "struct":
            self._take("<")
            return StructType(self._fields(">"))
        raise self._wrong(f"{name!r} is no type")

    def _decimal(self) -> DecimalType:
        numbers = self._numbers() if self._peek() == "(" else [10]
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 0 < precision <= _MOST_DIGITS or scale > precision:
            raise self._wrong(
                f"a decimal has 1 to {_MOST_DIGITS} digits, of which at most all are behind the point"
            )
        return DecimalType(precision, scale)

    def _numbers(self) -> list[int]:
        self._take("(")
        found: list[int] = []
        while True:
            word = self._take()
            if not word.isdigit():
                raise self._wrong(f"{word!r} is where a number is expected")
            found.append(int(word))
            if self._peek() != ",":
                break
            self._take(",")
        self._take(")")
        return found

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        word = self._peek()
        if not word:
            raise self._wrong(f"it ends where {expected or 'more'!r} is expected")
        if expected and word != expected:
            raise self._wrong(f"{word!r} is where {expected!r} is expected")
        self._next += 1
        return word

    def _wrong(self, what: str) -> OptionError:
        return OptionError(
            self._option,
            f"is {self._text!r}, which is no DDL: {what}. It looks like 'item STRING, count INT NOT NULL'.",
        )
