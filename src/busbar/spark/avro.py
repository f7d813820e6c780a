"""Avro bodies: the column type of a schema, and the decoding of a batch of bodies.

Types are mapped as in Spark's own reader of Avro, so that an archive of Avro files and a queue of Avro bodies look the same.
A union of null and one other type is that type. Other unions, and records that contain themselves, have no column type and
are refused.

A body is read by the schema of its writer, and turned into the schema of the column by the rules of Avro. Fields that the
column lacks are left out. Fields that the writer lacks get their default. Numbers are widened. If there is no default, or
types differ otherwise, the body does not fit.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import SchemaParseException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from busbar.spark.errors import OptionError
from busbar.spark.registered_bodies import RegisteredBodies
from busbar.spark.wire_format import schema_id_of

Schema = Any
"""A schema as its JSON form has it: a name, a list, or an object."""

_PRIMITIVE: dict[str, type[DataType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "bytes": BinaryType,
    "fixed": BinaryType,
    "string": StringType,
    "enum": StringType,
}
_LOGICAL: dict[str, type[DataType]] = {
    "date": DateType,
    "timestamp-millis": TimestampType,
    "timestamp-micros": TimestampType,
    "local-timestamp-millis": TimestampNTZType,
    "local-timestamp-micros": TimestampNTZType,
    "uuid": StringType,
}


class AvroSchema:
    """A schema, ready to decode with. It is sent to workers as its text, and those that it refers to."""

    def __init__(self, text: str, references: tuple[str, ...] = ()) -> None:
        self.text = text
        self.references = references
        known: dict[str, Any] = {}
        columns: dict[str, DataType] = {}
        try:
            for each in references:
                _column_type(parse_schema(_without_times(json.loads(each)), known), columns)
            self.parsed = parse_schema(_without_times(json.loads(text)), known)
            self.type, _ = _column_type(self.parsed, columns)
        except (ValueError, TypeError, KeyError, SchemaParseException, RecursionError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError("bodySchema", f"is no Avro schema: {error}.") from None

    def __reduce__(self) -> tuple[type[AvroSchema], tuple[str, tuple[str, ...]]]:
        return AvroSchema, (self.text, self.references)

    def decode(self, body: bytes, writer: Schema | None = None) -> object:
        """Decode a body by the parsed schema of its writer, which is this one if none is given. Raises an exception of any
        kind if the body is not of the schema, as a whole and without a rest."""
        stream = io.BytesIO(body)
        if writer is None:
            value = schemaless_reader(stream, self.parsed)
        else:
            value = schemaless_reader(stream, writer, self.parsed)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes are left over")
        return _plain(value)

    def encode(self, value: object) -> bytes:
        """Encode a value. Raises an exception of any kind if it is not of the schema."""
        stream = io.BytesIO()
        schemaless_writer(stream, self.parsed, value, strict_allow_default=True)
        return stream.getvalue()

    def decode_batches(self, batches: Iterator[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
        """Batches with one more column: the decoded `body`, in a struct that is null if it could not be decoded."""
        kind = pa.struct([pa.field("value", to_arrow_type(self.type, timezone="UTC"))])
        for batch in batches:
            values = pa.array([self._decode_or_none(body.as_py()) for body in batch.column("body")], kind)
            yield pa.RecordBatch.from_arrays([*batch.columns, values], [*batch.schema.names, column])

    def _decode_or_none(self, body: bytes | None) -> dict[str, object] | None:
        if body is None:
            return None
        try:
            return {"value": self.decode(body)}
        except Exception:  # bytes of another format can raise any exception
            return None


def _column_type(schema: Schema, known: dict[str, DataType]) -> tuple[DataType, bool]:
    """The type of a column, and whether it may be null."""
    if isinstance(schema, list):
        return _of_union(schema, known)
    if isinstance(schema, str):
        found = known.get(schema)
        return (found if found is not None else _primitive(schema)()), False
    name = schema["type"]
    if isinstance(name, (list, dict)):
        return _column_type(name, known)
    logical = schema.get("logicalType")
    if logical == "decimal":
        kind: DataType = DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
    elif logical in _LOGICAL:
        kind = _LOGICAL[logical]()
    elif name in ("fixed", "enum"):
        kind = _primitive(name)()
    elif name in ("record", "error"):
        kind = StructType([_field(field, known) for field in schema["fields"]])
    elif name == "array":
        item, nullable = _column_type(schema["items"], known)
        kind = ArrayType(item, nullable)
    elif name == "map":
        item, nullable = _column_type(schema["values"], known)
        kind = MapType(StringType(), item, nullable)
    else:
        return _column_type(name, known)
    if "name" in schema:
        known[schema["name"]] = kind
    return kind, False


def _field(field: Schema, known: dict[str, DataType]) -> StructField:
    kind, nullable = _column_type(field["type"], known)
    return StructField(field["name"], kind, nullable)


def _of_union(branches: list[Schema], known: dict[str, DataType]) -> tuple[DataType, bool]:
    others = [branch for branch in branches if branch != "null"]
    if len(others) != 1:
        raise OptionError(
            "bodySchema",
            f"has a union that is no column: {branches!r}. Only unions of null and one type are.",
        )
    return _column_type(others[0], known)[0], len(others) < len(branches)


def _primitive(name: str) -> type[DataType]:
    found = _PRIMITIVE.get(name)
    if found is None:
        raise OptionError("bodySchema", f"has the type {name!r}, for which there is no column.")
    return found


def _without_times(schema: Schema) -> Schema:
    """The schema with times of day as plain numbers, as in Spark's own reader."""
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in ("default", "symbols", "name", "namespace", "doc") else _without_times(value)
        for key, value in schema.items()
        if not (key == "logicalType" and str(value).startswith("time-"))
    }


def _plain(value: object) -> object:
    """The value in a type that pyarrow can convert."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


# ---- with a registry -----------------------------------------------------------------------------------


class AvroBodies(RegisteredBodies[AvroSchema, Schema]):
    """Decodes bodies by a schema, and those of a registry by the schema that each names."""

    def decode(self, body: bytes, content_type: str | None = None) -> object:
        """Decode a body. Raises an exception of any kind if it does not fit, and SourceError if the registry fails."""
        if self._registry is None:
            return self._schema.decode(body)
        schema_id, payload = schema_id_of(body, content_type, self._registry)
        writer = self._named.get(schema_id)
        if writer is None:
            found = self._registered(self._registry, schema_id, "AVRO")
            writer = parse_writer(found.text, tuple(text for _, text in found.references))
            self._named[schema_id] = writer
        return self._schema.decode(payload, writer)


def parse_writer(text: str, references: tuple[str, ...]) -> Schema:
    """The parsed schema of a writer, which needs no column. Raises SchemaParseException, ValueError."""
    known: dict[str, Any] = {}
    for each in references:
        parse_schema(_without_times(json.loads(each)), known)
    return parse_schema(_without_times(json.loads(text)), known)
