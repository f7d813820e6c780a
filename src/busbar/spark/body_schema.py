"""Finds the schema of bodies by their options, in the driver, and makes the decoder that is sent to the tasks.

A program may name fewer fields of `value` with Spark's `schema(...)`. JSON bodies are decoded by the type that it gives; of
other formats it gets the fields that it names.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from busbar.spark.body_options import AVRO, JSON, PROTOBUF, BodyOptions
from busbar.spark.ddl import parse_type
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.schema_registry import CONFLUENT, RegisteredSchema, RegistryOptions, registry_of_process
from busbar.spark.wire_format import confluent_id_of

VALUE = "value"
ERROR = "body_error"
INFERRED = "inferred"
"""In the metadata of `value`: its type comes from a sample, which may be another one at the next start."""


class BodyDecoder(Protocol):
    """Decodes bodies of one format to values of a column type."""

    type: DataType

    def decode(self, body: bytes, content_type: str | None = None) -> object:
        """Decode a body. Raises SourceError if that cannot be found out now, any other exception if it does not fit."""
        ...


class TextBodies:
    """Decodes bodies that are text in UTF-8."""

    type: DataType = StringType()

    def decode(self, body: bytes, content_type: str | None = None) -> object:
        return body.decode("utf-8")


class FramedBodies:
    """Decodes bodies behind the id of their schema, which their format does not need."""

    def __init__(self, decoder: BodyDecoder) -> None:
        self.type = decoder.type
        self._decoder = decoder

    def decode(self, body: bytes, content_type: str | None = None) -> object:
        return self._decoder.decode(confluent_id_of(body)[1], content_type)


def decoder_of_bodies(options: BodyOptions, given: DataType | None = None) -> BodyDecoder | None:
    """The decoder of bodies. `given` is the type that a program gives to `value`. None: JSON without a schema, which has to
    be inferred. Raises OptionError, SourceError."""
    if options.format == JSON:
        return _json_decoder(options, given)
    decoder: BodyDecoder
    if options.format == AVRO:
        decoder = _avro_decoder(options)
    elif options.format == PROTOBUF:
        decoder = _protobuf_decoder(options)
    else:
        decoder = TextBodies()
    if given is not None and not is_part(given, decoder.type):
        raise OptionError(
            "schema",
            f"has the column 'value' with the type {given.simpleString()}; bodies have {decoder.type.simpleString()}.",
        )
    return decoder


def _json_decoder(options: BodyOptions, given: DataType | None) -> BodyDecoder | None:
    try:
        from busbar.spark.json_bodies import JsonBodies
    except ModuleNotFoundError as error:
        raise _missing(error, "msgspec") from None
    text = options.schema_bytes().decode("utf-8", "replace").strip()
    registry = options.registry
    if given is not None:
        kind = given
    elif text:
        kind = parse_type("bodySchemaFile" if options.schema_file else "bodySchema", text)
    elif registry is not None and options.subject:
        from busbar.spark.json_schema import type_of_schema

        found = registry_of_process(registry).by_subject(options.subject, options.version)
        _check_kind(found, "JSON", options)
        kind = type_of_schema(found.text)
    else:
        return None
    plain = JsonBodies(kind)
    return FramedBodies(plain) if is_framed(registry) else plain


def is_framed(registry: RegistryOptions | None) -> bool:
    """Whether bodies begin with the id of their schema."""
    return registry is not None and registry.kind == CONFLUENT


def _avro_decoder(options: BodyOptions) -> BodyDecoder:
    try:
        from busbar.spark.avro import AvroBodies, AvroSchema
    except ModuleNotFoundError as error:
        raise _missing(error, "fastavro") from None
    text = options.schema_bytes().decode("utf-8", "replace")
    if text:
        return AvroBodies(AvroSchema(text), options.registry)
    assert options.registry is not None
    found = registry_of_process(options.registry).by_subject(options.subject, options.version)
    _check_kind(found, "AVRO", options)
    return AvroBodies(AvroSchema(found.text, tuple(other for _, other in found.references)), options.registry)


def _protobuf_decoder(options: BodyOptions) -> BodyDecoder:
    try:
        from busbar.spark import protobuf_bodies as protobuf
    except ModuleNotFoundError as error:
        raise _missing(error, "protobuf") from None
    if options.schema_file:
        schema = protobuf.ProtobufSchema(options.schema_bytes(), options.message)
        return protobuf.ProtobufBodies(schema, options.registry)
    assert options.registry is not None
    found = registry_of_process(options.registry).by_subject(
        options.subject, options.version, serialized=True
    )
    _check_kind(found, "PROTOBUF", options)
    try:
        files = protobuf.set_of(found.text, found.references)
        name = options.message or protobuf.name_at(protobuf.file_of(found.text), (0,))
    except ValueError as error:
        raise SourceError("BUSBAR_SCHEMA_REGISTRY", f"The schema of {options.subject!r}: {error}.") from None
    return protobuf.ProtobufBodies(protobuf.ProtobufSchema(files, name), options.registry)


def _check_kind(found: RegisteredSchema, kind: str, options: BodyOptions) -> None:
    if found.kind != kind:
        raise OptionError("schemaSubject", f"is {options.subject!r}, whose schema is one of {found.kind}.")


def _missing(error: ModuleNotFoundError, package: str) -> OptionError:
    return OptionError(
        "bodyFormat",
        f"needs the package {package!r} ({error}): pip install 'busbar-mq[spark]', on every node.",
    )


def body_columns(options: BodyOptions, kind: DataType, *, inferred: bool = False) -> list[StructField]:
    """The columns that bodies add to a read."""
    columns = [StructField(VALUE, kind, True, {INFERRED: True} if inferred else None)]
    if options.has_errors:
        columns.append(StructField(ERROR, StringType()))
    return columns


def is_part(given: DataType, full: DataType) -> bool:
    """Whether a type has only fields of another one, with their types. Whether something can be null makes no difference."""
    if isinstance(given, StructType) and isinstance(full, StructType):
        known = {field.name: field.dataType for field in full.fields}
        return bool(given.fields) and all(
            field.name in known and is_part(field.dataType, known[field.name]) for field in given.fields
        )
    if isinstance(given, ArrayType) and isinstance(full, ArrayType):
        return is_part(given.elementType, full.elementType)
    if isinstance(given, MapType) and isinstance(full, MapType):
        return is_part(given.keyType, full.keyType) and is_part(given.valueType, full.valueType)
    return given == full
