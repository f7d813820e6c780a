"""Bodies by a schema: those that fit, and those that go to a side output."""

from __future__ import annotations

import pytest
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


def test_avro_says_what_it_needs(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(b"x",)], "body BINARY")
    with pytest.raises(OptionError, match="spark-avro"):
        avro_bodies(frame, '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}')
