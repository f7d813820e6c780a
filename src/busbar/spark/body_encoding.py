"""Encodes a column of values to bodies, in the formats that the source decodes. Spark itself encodes JSON and text.

With a registry the bodies name the schema of `schemaSubject`, as the serializers of its clients do. The schema has to be
there: nothing is registered. A value that does not fit the schema fails the write.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, concat, lit, to_json
from pyspark.sql.types import BinaryType, StructField, StructType

from busbar.spark.body_options import AVRO, JSON, PROTOBUF, TEXT, BodyOptions
from busbar.spark.body_schema import VALUE, is_framed
from busbar.spark.errors import OptionError, SinkError
from busbar.spark.schema_registry import RegisteredSchema, registry_of_process
from busbar.spark.wire_format import framed

BODY = "body"
CONTENT_TYPE = "content_type"


class BodyEncoder(Protocol):
    """Encodes values of one schema."""

    def encode(self, value: Any) -> bytes: ...


def with_bodies(frame: DataFrame, options: BodyOptions) -> DataFrame:
    """The frame with a column `body` in place of `value`, and with a content type if that names the schema. Raises
    OptionError, SourceError."""
    if VALUE not in frame.columns or BODY in frame.columns:
        raise OptionError("bodyFormat", "needs a frame with a column 'value' and without a column 'body'.")
    found = _registered(options)
    if options.format in (JSON, TEXT):
        return _encoded_by_spark(frame, options, found)
    encoder, path = _encoder(options, found)
    schema = StructType(
        [*(field for field in frame.schema.fields if field.name != VALUE), StructField(BODY, BinaryType())]
    )
    head = _head(options, found, path)
    made = frame.mapInArrow(lambda batches: _encode(batches, encoder, head), schema)
    if found is not None and not is_framed(options.registry):
        made = made.withColumn(CONTENT_TYPE, lit(f"avro/binary+{found.id}"))
    return made


def _registered(options: BodyOptions) -> RegisteredSchema | None:
    if options.registry is None:
        return None
    if not options.subject:
        raise OptionError("schemaSubject", "is missing: bodies name its schema.")
    return registry_of_process(options.registry).by_subject(
        options.subject, options.version, serialized=options.format == PROTOBUF
    )


def _encoded_by_spark(frame: DataFrame, options: BodyOptions, found: RegisteredSchema | None) -> DataFrame:
    value = col(VALUE) if options.format == TEXT else to_json(col(VALUE))
    body = value.cast("binary")
    if found is not None and is_framed(options.registry):
        body = concat(lit(_head(options, found, None)), body)
    return frame.withColumn(BODY, body).drop(VALUE)


def _encoder(
    options: BodyOptions, found: RegisteredSchema | None
) -> tuple[BodyEncoder, tuple[int, ...] | None]:
    """The encoder, and of Protobuf the path of the message."""
    if options.format == AVRO:
        from busbar.spark.avro import AvroSchema

        if found is not None:
            return AvroSchema(found.text, tuple(text for _, text in found.references)), None
        return AvroSchema(options.schema_bytes().decode("utf-8", "replace")), None
    from busbar.spark import protobuf_bodies as protobuf

    if found is None:
        return protobuf.ProtobufSchema(options.schema_bytes(), options.message), None
    file = protobuf.file_of(found.text)
    name = options.message or protobuf.name_at(file, (0,))
    path = next(
        ((index,) for index in range(len(file.message_type)) if protobuf.name_at(file, (index,)) == name),
        None,
    )
    if path is None:
        raise OptionError("bodyMessage", f"is {name!r}, which is no message at the top of its schema.")
    return protobuf.ProtobufSchema(protobuf.set_of(found.text, found.references), name), path


def _head(options: BodyOptions, found: RegisteredSchema | None, path: tuple[int, ...] | None) -> bytes:
    """What is in front of each body."""
    if found is None or not is_framed(options.registry):
        return b""
    try:
        return framed(int(found.id), b"", path)
    except (ValueError, struct.error):
        raise OptionError(
            "schemaRegistry", f"has the schema with the id {found.id!r}, which is no number."
        ) from None


def _encode(batches: Iterator[pa.RecordBatch], encoder: BodyEncoder, head: bytes) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = [name for name in batch.schema.names if name != VALUE]
        values = batch.column(batch.schema.names.index(VALUE)).to_pylist(maps_as_pydicts="strict")
        bodies = pa.array(
            [None if value is None else head + _one(encoder, value) for value in values], pa.binary()
        )
        columns = [batch.column(name) for name in names]
        yield pa.RecordBatch.from_arrays([*columns, bodies], [*names, BODY])


def _one(encoder: BodyEncoder, value: Any) -> bytes:
    try:
        return encoder.encode(value)
    except Exception as error:  # the libraries raise exceptions of many kinds
        raise SinkError(
            "BUSBAR_SINK_BAD_ROW", f"A value does not fit the schema of its body: {error}."
        ) from None
