"""Turns a JSON Schema of a registry into a column type.

    object with properties    STRUCT (fields that are required are NOT NULL)    integer   BIGINT
    object without            MAP<STRING, ...> by additionalProperties          number    DOUBLE
    array                     ARRAY                                             string    STRING, by format TIMESTAMP or DATE

A type with null, as a list of types or in anyOf and oneOf, can be null. References inside the document are followed. All
else, such as a choice among several types, is a STRING with the JSON of the value.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from busbar.spark.errors import OptionError

_SIMPLE: Final[dict[str, type[DataType]]] = {
    "integer": LongType,
    "number": DoubleType,
    "boolean": BooleanType,
}
_FORMATS: Final[dict[str, type[DataType]]] = {"date-time": TimestampType, "date": DateType}


def type_of_schema(text: str) -> DataType:
    """The column type of a JSON Schema. Raises OptionError."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError("schemaSubject", f"has a schema that is no JSON: {error}.") from None
    kind, _ = _Reader(document).type_of(document, ())
    if not isinstance(kind, StructType):
        raise OptionError(
            "schemaSubject", "has a JSON Schema without properties; give the type with 'bodySchema'."
        )
    return kind


class _Reader:
    def __init__(self, document: Any) -> None:
        self._document = document

    def type_of(self, schema: Any, path: tuple[str, ...]) -> tuple[DataType, bool]:
        """A type, and whether the value can be null."""
        if not isinstance(schema, dict):
            return StringType(), True
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in path:
                raise OptionError(
                    "schemaSubject", f"has {reference!r}, which contains itself: no column can."
                )
            return self.type_of(self._follow(reference), (*path, reference))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return self._choice(schema[key], path)
        named = schema.get("type")
        names = named if isinstance(named, list) else [named]
        others = [name for name in names if name != "null"]
        nullable = len(others) < len(names)
        if len(others) != 1:
            return StringType(), True
        return self._named(others[0], schema, path), nullable

    def _named(self, name: Any, schema: dict[str, Any], path: tuple[str, ...]) -> DataType:
        if name == "object":
            return self._object(schema, path)
        if name == "array":
            item, nullable = self.type_of(schema.get("items"), path)
            return ArrayType(item, nullable)
        if name == "string":
            return _FORMATS.get(str(schema.get("format")), StringType)()
        return _SIMPLE.get(str(name), StringType)()

    def _object(self, schema: dict[str, Any], path: tuple[str, ...]) -> DataType:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            required = schema.get("required") or ()
            fields: list[StructField] = []
            for name, each in properties.items():
                kind, nullable = self.type_of(each, path)
                fields.append(StructField(name, kind, nullable or name not in required))
            return StructType(fields)
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            value, nullable = self.type_of(more, path)
            return MapType(StringType(), value, nullable)
        return StringType()

    def _choice(self, branches: list[Any], path: tuple[str, ...]) -> tuple[DataType, bool]:
        others = [each for each in branches if each != {"type": "null"}]
        if len(others) != 1:
            return StringType(), True
        kind, nullable = self.type_of(others[0], path)
        return kind, nullable or len(others) < len(branches)

    def _follow(self, reference: str) -> Any:
        found = self._document
        if not reference.startswith("#"):
            return None
        for step in filter(None, reference[1:].split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found
