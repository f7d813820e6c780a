"""Bodies as columns, by a given schema: JSON, and Avro where Spark's own module for it is installed.

A row whose body does not fit fails alone: `decoded` has the others, with a column `value` of the schema in front of their
own columns, and `failed` those that failed, unchanged, for a side output.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json, struct
from pyspark.sql.types import DataType, StringType, StructField, StructType

from busbar.spark.errors import OptionError

_CORRUPT = "_corrupt_record"
_BODY = "_decoded"


@dataclass(frozen=True, slots=True)
class Bodies:
    """Rows that could be decoded, and rows that could not."""

    decoded: DataFrame
    failed: DataFrame


def json_bodies(frame: DataFrame, schema: StructType | str, column: str = "value") -> Bodies:
    """Bodies that are JSON objects. A body that is none, or has a field of another type, fails; fields that are missing
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
    """Bodies in Avro's binary encoding, by a schema in its JSON form. Needs Spark's module spark-avro in the session."""
    from pyspark.sql.avro.functions import from_avro

    try:
        parsed = frame.withColumn(_BODY, from_avro(col("body"), schema, {"mode": "PERMISSIVE"}))
        kind: DataType = parsed.schema[_BODY].dataType
    except (AnalysisException, TypeError) as error:
        raise OptionError(
            "schema",
            f"cannot be used: Avro needs the module org.apache.spark:spark-avro in the session ({error}).",
        ) from None
    own = [col(f"`{name}`") for name in frame.columns]
    good = col(_BODY).isNotNull()
    if isinstance(kind, StructType) and kind.fields:
        # What cannot be read has all its fields null.
        there = col(f"{_BODY}.`{kind.fields[0].name}`").isNotNull()
        for field in kind.fields[1:]:
            there = there | col(f"{_BODY}.`{field.name}`").isNotNull()
        good = good & there
    return Bodies(parsed.where(good).select(col(_BODY).alias(column), *own), parsed.where(~good).select(*own))
