"""Bodies by a schema: those that fit, and those that go to a side output or to a queue of their own."""

from __future__ import annotations

import copy
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import DataFrame, SparkSession

from busbar.client import OutgoingMessage, encode
from busbar.spark.bodies import avro_bodies, dead_letter_bodies, decode_bodies, encode_bodies, json_bodies
from busbar.spark.errors import OptionError
from busbar.spark.wire_format import framed
from harness.schema_registry import basic, serving_schemas
from pyspark_busbar import DefaultSource
from tests.spark.conftest import Namespace, wait_for_end
from tests.unit.spark.protobuf_files import LINE, classes_of, set_of


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


def rows_of(namespace: Namespace, queue: str, **options: str) -> list[dict[str, Any]]:
    """The rows of a batch, as Spark reads it, without Spark."""
    source = DefaultSource(namespace.options(queue, **options))
    reader: Any = source.reader(source.schema())
    return [row for each in reader.partitions() for frame in reader.read(each) for row in frame.to_pylist()]


@pytest.mark.req("D1")
def test_the_schema_of_json_is_inferred_from_the_first_messages(namespace: Namespace, wide: str) -> None:
    with pytest.raises(OptionError, match=f"of the first 0 messages of '{wide}' none is JSON"):
        rows_of(namespace, wide, bodyFormat="json")
    bodies = [json.dumps({"item": f"pen {number}", "count": number}).encode() for number in range(40)]
    namespace.send(wide, [*bodies, b"no json"], keyed=True)
    read = rows_of(namespace, wide, bodyFormat="json", columns="value,body_error", badBodies="column")
    values = [row["value"] for row in read if row["body_error"] is None]
    assert sorted(value["count"] for value in values) == list(range(40))
    assert [row["value"] for row in read if row["body_error"]] == [None]
    namespace.send(wide, [b'{"late": true}'], keyed=True)
    few = DefaultSource(namespace.options(wide, bodyFormat="json", bodySampleSize="5")).schema()
    assert few["value"].dataType.simpleString() == "struct<count:bigint,item:string>", "a sample of five"
    all_of_them = DefaultSource(namespace.options(wide, bodyFormat="json")).schema()
    assert all_of_them["value"].dataType.simpleString() == "struct<count:bigint,item:string,late:boolean>"
    later = namespace.options(wide, bodyFormat="json", startingPosition="latest")
    with pytest.raises(OptionError, match="none is JSON"):
        DefaultSource(later).schema()


@pytest.mark.req("D1")
def test_a_query_on_fields_of_bodies(namespace: Namespace, queue: str) -> None:
    bodies = [json.dumps({"item": f"pen {number}", "count": number}).encode() for number in range(20)]
    namespace.send(queue, [*bodies, b"no json"])
    frame = namespace.read(queue, bodyFormat="json", badBodies="column", columns="value,body_error,state")
    assert frame.columns == ["value", "body_error", "state"]
    found = frame.where("value.count > 16 OR body_error IS NOT NULL").collect()
    assert sorted((row.value["item"], row.value["count"]) for row in found if row.value) == [
        ("pen 17", 17),
        ("pen 18", 18),
        ("pen 19", 19),
    ]
    (bad,) = [row for row in found if row.value is None]
    assert "malformed" in bad.body_error and bad.state == "active"


FIRST = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}
SECOND = FIRST | {"fields": [*FIRST["fields"], {"name": "count", "type": "long", "default": 1}]}  # type: ignore[misc]


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return stream.getvalue()


@pytest.mark.req("D1", "D2")
def test_a_stream_of_evolving_bodies_sends_bad_ones_to_a_queue_once(
    namespace: Namespace, queue: str, wide: str, tmp_path: Path
) -> None:
    """Writers go from one schema of the registry to the next while the stream stops and goes on. Each batch is performed
    twice, as after a crash between its output and its commit."""
    place = tmp_path / "credentials"
    place.write_text("user:secret")
    orders: list[tuple[str, int]] = []

    def perform(frame: DataFrame, batch: int) -> None:
        frame.persist()
        orders.extend(
            (row.value["item"], row.value["count"]) for row in frame.where("value IS NOT NULL").collect()
        )
        for _ in range(2):
            options = namespace.options(wide, writer="bad-orders")
            dead_letter_bodies(frame.where("body_error IS NOT NULL"), batch, **options)

    with serving_schemas(basic("user", "secret")) as registry:
        first = registry.register("orders-value", json.dumps(FIRST))
        registry.register("orders-value", json.dumps(SECOND))
        stream = namespace.stream(
            queue,
            tap="typed",
            startingPosition="earliest",
            bodyFormat="avro",
            schemaRegistry=registry.url,
            schemaRegistryCredentialsFile=str(place),
            schemaSubject="orders-value",
            badBodies="column",
        )
        checkpoint = namespace.checkpoint()
        send_orders(
            namespace, queue, [framed(first, avro(FIRST, {"item": "pen"})), b"no avro", framed(99, b"?")]
        )
        run(stream, checkpoint, perform)
        made = namespace.spark.sql(
            "SELECT 'ink' AS message_id, named_struct('item', 'ink', 'count', 2L) AS value"
        )
        sent = encode_bodies(
            made,
            bodyFormat="avro",
            schemaRegistry=registry.url,
            schemaRegistryCredentialsFile=str(place),
            schemaSubject="orders-value",
        )
        sent.write.format("busbar").mode("append").options(**namespace.options(queue)).save()
        send_orders(namespace, queue, [b"no avro"])
        run(stream, checkpoint, perform)
    assert orders == [("pen", 1), ("ink", 2)]
    dead = rows_of(namespace, wide)
    assert sorted(row["body"] for row in dead) == sorted([b"no avro", framed(99, b"?"), b"no avro"])
    for row in dead:
        properties = {name: value["string"] or value["long"] for name, value in row["properties"]}
        assert (properties["DeadLetterReason"], properties["DeadLetterSource"]) == ("BadBody", queue)
        assert properties["OriginalMessageId"] == "the same id" and properties["number"] == 7
        error = "no schema with the id 99" if row["body"] != b"no avro" else "does not begin with the id"
        assert error in properties["DeadLetterErrorDescription"]


def send_orders(namespace: Namespace, queue: str, bodies: list[bytes]) -> None:
    with namespace.factory.sender(queue) as sender:
        for body in bodies:
            message = OutgoingMessage(
                body=body, message_id="the same id", application_properties={"number": 7}
            )
            sender.send([encode(message)])


def run(stream: DataFrame, checkpoint: Path, perform: Any) -> None:
    wait_for_end(
        stream.writeStream.foreachBatch(perform)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def test_bodies_of_a_frame_by_the_options_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    """As for an archive, whose rows were read before."""
    place = tmp_path / "files"
    place.write_bytes(set_of(LINE))
    line = classes_of(LINE)["shop.Line"](id=7, note="first").SerializeToString()
    options = {"bodyFormat": "protobuf", "bodySchemaFile": str(place), "bodyMessage": "shop.Line"}
    made = spark.sql("SELECT 1L AS sequence_number, named_struct('id', 7, 'note', 'first') AS value")
    others = spark.createDataFrame([(2, b"\xff"), (3, None)], "sequence_number LONG, body BINARY")
    frame = encode_bodies(made, **options).union(others)
    bodies = decode_bodies(frame, **options)
    (row,) = bodies.decoded.collect()
    assert (row.value.id, row.value.note, row.sequence_number, bytes(row.body)) == (7, "first", 1, line)
    failed = {row.sequence_number: row.body_error for row in bodies.failed.collect()}
    assert "is no shop.Line" in failed[2] and failed[3] == "the message has no body"
    assert bodies.decoded.columns == ["value", "sequence_number", "body"]
    assert bodies.failed.columns == ["body_error", "sequence_number", "body"]
    for wrong in ({}, {"bodyFormat": "json"}, {"bodyFormat": "text", "badBodies": "drop"}):
        with pytest.raises(OptionError):
            decode_bodies(frame, **wrong)


def test_encoded_bodies_name_the_schema_of_their_subject(spark: SparkSession) -> None:
    made = spark.sql("SELECT named_struct('item', 'pen') AS value")
    with serving_schemas() as registry:
        shape = {"type": "object", "properties": {"item": {"type": "string"}}}
        number = registry.register("orders-value", json.dumps(shape), "JSON")
        schema_id = registry.register_azure("shop", "Order", json.dumps(FIRST))
        by_json = encode_bodies(
            made, bodyFormat="json", schemaRegistry=registry.url, schemaSubject="orders-value"
        )
        azure = encode_bodies(
            made,
            bodyFormat="avro",
            schemaRegistry=registry.url,
            schemaRegistryType="azure",
            schemaSubject="shop/Order",
        )
        rows = by_json.selectExpr("body", "'' AS content_type").union(azure).collect()
        with pytest.raises(OptionError, match="'schemaSubject' is missing"):
            encode_bodies(made, bodyFormat="json", schemaRegistry=registry.url)
    assert [(bytes(row.body), row.content_type) for row in rows] == [
        (framed(number, b'{"item":"pen"}'), ""),
        (avro(FIRST, {"item": "pen"}), f"avro/binary+{schema_id}"),
    ]
