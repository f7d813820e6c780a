"""Bodies by a schema: those that fit, and those that go to a side output."""

from __future__ import annotations

import copy
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import SparkSession

from busbar.spark.bodies import avro_bodies, json_bodies
from busbar.spark.errors import OptionError


def test_json_bodies_that_fail_are_set_aside(spark: SparkSession) -> None:
    rows = [
        (1, b'{"item": "pen", "count": 2}'),
        (2, b'{"item": "ink"}'),
        (3, b"no json"),
        (4, b'{"item": "pad", "count": "many"}'),
        (5, None),
    ]
    frame = spark.createDataFrame(rows, "sequence_number LONG, body BINARY")
    bodies = json_bodies(frame, "item STRING, count INT")
    found = bodies.decoded.orderBy("sequence_number").collect()
    assert [(row.sequence_number, row.value.item, row.value["count"]) for row in found] == [
        (1, "pen", 2),
        (2, "ink", None),
    ]
    failed = bodies.failed.orderBy("sequence_number").collect()
    assert [row.sequence_number for row in failed] == [3, 4, 5]
    assert bodies.failed.columns == frame.columns


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "count", "type": ["null", "int"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "opens", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "before", "type": ["null", "Kind"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": ["null", "double"]}},
    ],
}


def test_avro_bodies_that_fail_are_set_aside(spark: SparkSession) -> None:
    order: dict[str, Any] = {
        "item": "pen",
        "count": 2,
        "price": Decimal("1.50"),
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "opens": 32_400_000,
        "id": str(UUID(int=7)),
        "kind": "NEW",
        "before": "OLD",
        "tags": ["a", "b"],
        "sizes": {"wide": 1.5, "high": None},
    }
    few = order | {"item": "ink", "count": None, "before": None, "tags": [], "sizes": {}}
    good, sparse = encoded(order), encoded(few)
    rows = [(1, good), (2, sparse), (3, b"no avro"), (4, good + b"!"), (5, good[:-1]), (6, None), (7, b"")]
    frame = spark.createDataFrame(rows, "sequence_number LONG, body BINARY")
    bodies = avro_bodies(frame, json.dumps(ORDER))
    found = bodies.decoded.orderBy("sequence_number").collect()
    assert [row.sequence_number for row in found] == [1, 2]
    expected = order | {"at": order["at"].astimezone().replace(tzinfo=None)}  # as Spark shows times
    assert found[0].value.asDict() == expected
    assert found[1].value.asDict() == expected | {
        "item": "ink",
        "count": None,
        "before": None,
        "tags": [],
        "sizes": {},
    }
    assert bodies.decoded.select("value.price").schema["price"].dataType.simpleString() == "decimal(9,2)"
    failed = bodies.failed.orderBy("sequence_number").collect()
    assert [row.sequence_number for row in failed] == [3, 4, 5, 6, 7]
    assert bodies.failed.columns == frame.columns


def encoded(order: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    schema = copy.deepcopy(ORDER)
    schema["fields"][4]["type"] = "int"  # written as the number that it is
    schemaless_writer(stream, parse_schema(schema), order)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "is no Avro schema"),
        ('{"type": "record", "fields": []}', "is no Avro schema"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "shop.Other"}]}',
            "is no Avro schema",
        ),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "has a union",
        ),
    ],
)
def test_avro_schemas_that_are_refused(spark: SparkSession, schema: str, said: str) -> None:
    frame = spark.createDataFrame([(b"x",)], "body BINARY")
    with pytest.raises(OptionError, match=said):
        avro_bodies(frame, schema)
