"""Decodes bodies of frames that were read before: from an archive, or by a stream whose bad bodies go elsewhere.

A row whose body does not fit fails alone. `decoded` has the others, with a column `value` of the schema in front of their
own columns. `failed` has those that failed, for a side output.

decode_bodies takes the options of the source (body_options.py), and `failed` has the reason in the column `body_error`.
json_bodies lets Spark itself decode JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import (
    coalesce,
    col,
    create_map,
    from_json,
    lit,
    map_concat,
    map_filter,
    struct,
)
from pyspark.sql.types import DataType, StringType, StructField, StructType

from busbar.spark.errors import OptionError

REASON = "BadBody"
"""The dead-letter reason of messages whose bodies do not fit."""

_CORRUPT = "_corrupt_record"
_BODY = "_decoded"


@dataclass(frozen=True, slots=True)
class Bodies:
    """Rows that could be decoded, and rows that could not."""

    decoded: DataFrame
    failed: DataFrame


def json_bodies(frame: DataFrame, schema: StructType | str, column: str = "value") -> Bodies:
    """Decode bodies that are JSON objects. If a body is not one, or has a field of another type, it fails; missing fields
    are null."""
    wanted = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(wanted, StructType)
    watched = StructType([*wanted.fields, StructField(_CORRUPT, StringType())])
    parsed = frame.withColumn(
        _BODY,
        from_json(
            col("body").cast("string"), watched, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        ),
    )
    good = col("body").isNotNull() & col(_BODY).isNotNull() & col(f"{_BODY}.{_CORRUPT}").isNull()
    value = struct(*[col(f"{_BODY}.`{field.name}`").alias(field.name) for field in wanted.fields])
    own = [col(f"`{name}`") for name in frame.columns]
    return Bodies(
        parsed.where(good).select(value.alias(column), *own),
        parsed.where(~good).select(*own),
    )


def avro_bodies(frame: DataFrame, schema: str, column: str = "value") -> Bodies:
    """Decode bodies in Avro's binary encoding, without a file's header, by a schema in its JSON form. If a body is not of
    the schema, or has bytes left over, it fails."""
    from busbar.spark.avro import AvroSchema

    avro = AvroSchema(schema)
    decoded = StructType([StructField("value", avro.type)])
    parsed = frame.mapInArrow(
        lambda batches: avro.decode_batches(batches, _BODY),
        StructType([*frame.schema.fields, StructField(_BODY, decoded)]),
    )
    own = [col(f"`{name}`") for name in frame.columns]
    good = col(_BODY).isNotNull()
    return Bodies(
        parsed.where(good).select(col(f"{_BODY}.value").alias(column), *own), parsed.where(~good).select(*own)
    )


def decode_bodies(frame: DataFrame, **options: str) -> Bodies:
    """Decode bodies by the options of the source, `bodyFormat` and the others, except `badBodies`. Raises OptionError."""
    from busbar.spark.body_columns import BodyColumns
    from busbar.spark.body_options import COLUMN, parse_body
    from busbar.spark.body_options import OPTIONS as NAMES
    from busbar.spark.body_schema import body_columns, decoder_of_bodies
    from busbar.spark.options import Given

    given = Given({"badBodies": COLUMN, **options}, NAMES, "decoding")
    body = parse_body(given)
    if body is None or body.bad != COLUMN:
        raise OptionError(
            "bodyFormat" if body is None else "badBodies", "does not fit: failed rows are in 'failed'."
        )
    decoder = decoder_of_bodies(body)
    if decoder is None:
        raise OptionError("bodySchema", "is missing; only the source infers it.")
    added = StructType(body_columns(body, decoder.type))
    taken = set(added.fieldNames()) & set(frame.columns)
    if taken:
        raise OptionError(
            "bodyFormat", f"adds the columns {', '.join(sorted(taken))}, which the frame has already."
        )
    columns = BodyColumns(decoder, StructType([*added.fields, *frame.schema.fields]), COLUMN)
    parsed = frame.mapInArrow(
        lambda batches: (columns.add(batch, "frame") for batch in batches),
        StructType([*added.fields, *frame.schema.fields]),
    )
    good = col("body_error").isNull()
    return Bodies(parsed.where(good).drop("body_error"), parsed.where(~good).drop("value"))


def dead_letter_bodies(failed: DataFrame, batch: int, **options: str) -> None:
    """Send the messages of rows with a `body_error` to the queue or topic of the option `entity`, as dead letters that were
    forwarded there: DeadLetterReason is BadBody, DeadLetterErrorDescription the error, DeadLetterSource their entity.

    Call it in foreachBatch with the id of the batch and a `writer`. Then a batch that is repeated sends nothing again. The
    ids of the new messages derive from entity and sequence number, and the property OriginalMessageId keeps their own.
    Raises OptionError, SinkError.
    """
    for name in ("entity", "writer"):
        if not options.get(name):
            raise OptionError(
                name, "is missing: bad bodies are sent to an entity, once for each batch of a writer."
            )
    told = {
        "DeadLetterReason": lit(REASON),
        "DeadLetterErrorDescription": col("body_error"),
        "DeadLetterSource": col("entity"),
        "OriginalMessageId": coalesce(col("message_id"), lit("")),
    }
    kept = map_filter(col("properties"), lambda name, _: ~name.isin(*told))
    added = create_map(*[part for name, text in told.items() for part in (lit(name), _text_property(text))])
    sent = failed.withColumn("properties", map_concat(kept, added)).drop(
        "raw", "body_error", "value", "message_id"
    )
    sent.write.format("busbar").mode("append").options(
        **{
            "message": "columns",
            "idFrom": "source",
            "unknownColumns": "ignore",
            "batch": str(batch),
            **options,
        }
    ).save()


def _text_property(text: Column) -> Column:
    """A property of the type string, as the source returns properties."""
    nothing = {
        "long": "long",
        "double": "double",
        "boolean": "boolean",
        "timestamp": "timestamp",
        "binary": "binary",
    }
    return struct(
        lit("string").alias("type"),
        text.alias("string"),
        *[lit(None).cast(kind).alias(name) for name, kind in nothing.items()],
    )
