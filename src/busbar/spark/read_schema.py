"""Decides which columns a read has, and makes the decoder of its pages.

Spark asks for the columns first, in a process that does not say whether the read is a batch or a stream. Then the reader is
made with these columns, or with those that the program has given.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import DataType, StructField, StructType

from busbar.spark.body_options import DROP, BodyOptions, parse_body
from busbar.spark.decode import PageDecoder
from busbar.spark.errors import OptionError
from busbar.spark.options import EVENTS, SourceOptions, known_options, stream_option
from busbar.spark.schema import check_schema, schema_of, with_columns


def schema_of_read(given: Mapping[str, str]) -> StructType:
    """The columns of a read with these options. Raises OptionError, SourceError."""
    names = {name.lower(): value for name, value in given.items()}
    several = bool(names.get("entities") or names.get("entitypattern"))
    schema = schema_of(names.get("stream", ""), several)
    if names.get("bodyformat"):
        body = parse_body(known_options(given))
        assert body is not None
        schema = StructType([*schema.fields, *_body_columns(given, body)])
    columns = names.get("columns")
    return schema if columns is None else with_columns(schema, columns)


def _body_columns(given: Mapping[str, str], body: BodyOptions) -> list[StructField]:
    from busbar.spark.body_schema import body_columns, decoder_of_bodies

    decoder = decoder_of_bodies(body)
    if decoder is not None:
        return body_columns(body, decoder.type)
    return body_columns(body, _inferred(given, body), inferred=True)


def _inferred(given: Mapping[str, str], body: BodyOptions) -> DataType:
    """The type of a sample, of what is probably a batch: options of streams are the only sign of the opposite."""
    from busbar.spark.body_sample import infer_body_type

    if stream_option(known_options(given)):
        raise _stream_needs_schema()
    try:
        return infer_body_type(SourceOptions.parse(given, streaming=False), body)
    except OptionError as error:
        if "'tap' names" not in str(error):
            raise
        raise OptionError(
            "bodySchema", f"is missing, and without that tap it cannot be inferred: {error}"
        ) from None


def _stream_needs_schema() -> OptionError:
    return OptionError(
        "bodySchema",
        "is missing. A stream does not infer the schema of JSON bodies, because it could be another one at the next "
        "start. A batch does: frame.schema['value'].dataType.simpleString() returns it.",
    )


def decoder_of(options: SourceOptions, schema: StructType | None, *, streaming: bool = False) -> PageDecoder:
    """Decodes the columns that a read has. Raises OptionError for a schema with other columns."""
    full = schema_of(options.stream, options.several)
    if options.body is not None:
        return _decoder_with_bodies(options, options.body, schema, full, streaming)
    wanted = full if schema is None else check_schema(schema, full)
    return PageDecoder(wanted, events=options.stream == EVENTS, bodies=options.bodies)


def _decoder_with_bodies(
    options: SourceOptions, body: BodyOptions, schema: StructType | None, full: StructType, streaming: bool
) -> PageDecoder:
    from busbar.spark.body_columns import BodyPageDecoder
    from busbar.spark.body_schema import ERROR, INFERRED, VALUE, body_columns, decoder_of_bodies

    given = schema[VALUE] if schema is not None and VALUE in schema.fieldNames() else None
    if streaming and given is not None and given.metadata.get(INFERRED):
        raise _stream_needs_schema()
    needs_value = schema is None or {VALUE, ERROR} & set(schema.fieldNames()) or body.bad == DROP
    if schema is not None and not needs_value:
        return PageDecoder(check_schema(schema, full))
    decoder = decoder_of_bodies(body, None if given is None else given.dataType)
    if decoder is None:
        raise (
            _stream_needs_schema() if streaming else OptionError("bodySchema", "is missing: name its fields.")
        )
    kind = decoder.type if given is None else given.dataType
    all_columns = StructType([*full.fields, *body_columns(body, kind)])
    wanted = all_columns if schema is None else check_schema(schema, all_columns)
    return BodyPageDecoder(wanted, decoder, body)
