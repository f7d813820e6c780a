"""Decodes bodies to columns, by a given schema: JSON, and Avro (avro.py).

A row whose body does not fit fails alone. `decoded` has the others, with a column `value` of the schema in front of their
own columns. `failed` has those that failed, unchanged, for a side output.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json, struct
from pyspark.sql.types import DataType, StringType, StructField, StructType

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
