"""Schemas in the form of DDL, without Spark's own parser."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from busbar.spark.ddl import parse_type
from busbar.spark.errors import OptionError


def test_fields_of_all_kinds() -> None:
    text = """item STRING NOT NULL COMMENT 'a name, (or so)', `unit price` decimal(9, 2), count: int,
        lines ARRAY<STRUCT<id BIGINT, note: STRING NOT NULL>>, sizes MAP<STRING, DOUBLE>, at TIMESTAMP,
        tags ARRAY<VARCHAR(20)>"""
    assert parse_type("bodySchema", text) == StructType(
        [
            StructField("item", StringType(), False),
            StructField("unit price", DecimalType(9, 2)),
            StructField("count", IntegerType()),
            StructField(
                "lines",
                ArrayType(
                    StructType([StructField("id", LongType()), StructField("note", StringType(), False)])
                ),
            ),
            StructField("sizes", MapType(StringType(), DoubleType())),
            StructField("at", TimestampType()),
            StructField("tags", ArrayType(StringType())),
        ]
    )


@pytest.mark.parametrize(
    "kind",
    [
        StructType([StructField("a", LongType()), StructField("b", ArrayType(StringType()))]),
        StructType(
            [StructField("string", StringType()), StructField("array", ArrayType(DecimalType(10, 0)))]
        ),
        ArrayType(MapType(StringType(), StructType([StructField("c", DecimalType(38, 18))]))),
        StringType(),
    ],
)
def test_what_spark_writes_is_read(kind: StructType) -> None:
    assert parse_type("bodySchema", kind.simpleString()) == kind
    assert parse_type("bodySchema", kind.json() if kind != StringType() else "string") == kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("item", "'item' is no type"),
        ("item STRING,", "ends where 'more'"),
        ("item STRING count INT", "'count' is too much"),
        ("item ARRAY<STRING", "ends where '>'"),
        ("item STRING, item INT", "the same name"),
        ("item DECIMAL(39)", "1 to 38 digits"),
        ("item CHAR(x)", "'x' is where a number"),
        ("item STRING NOT", "ends where"),
        ("item ; INT", "';' is not expected"),
        ('{"type": "nothing"}', "in its JSON form"),
        ("{", "it is no JSON"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_type("bodySchema", text)
    assert said in str(caught.value)
