"""What a stream says when it cannot be served: an error of Spark's, with a condition and what would be right."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from busbar.client.blocking import connect
from harness.serving import Busbar, config_text
from harness.waiting import eventually
from tests.spark.conftest import PATIENCE, QUEUES, Collected, Namespace, numbered, run_now, wait_for_end

RULES = [
    {"Name": name, "Rights": [right], "PrimaryKey": f"key of {name}", "SecondaryKey": f"other key of {name}"}
    for name, right in (("sender", "Send"), ("listener", "Listen"))
]

pytestmark = pytest.mark.server(QUEUES, rules=RULES)


def started(frame: DataFrame, checkpoint: Path, collected: Collected) -> StreamingQuery:
    return (
        frame.writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="50 milliseconds")
        .start()
    )


def failure(query: StreamingQuery) -> str:
    """What a query says that ends by itself: the sentence of Busbar on the first line, and no trace."""
    with pytest.raises(StreamingQueryException) as caught:
        wait_for_end(query)
    said = str(caught.value)
    assert "[BUSBAR_" in said.splitlines()[0] and "Traceback" not in said and 'File "' not in said, said
    return said


def key_of(namespace: Namespace, rule: str) -> str:
    """A file with a connection string that gives one right alone."""
    path = namespace.secret.with_name(rule)
    of_rule = f"KeyName={rule};SharedAccessKey=key of {rule}"
    path.write_text(
        re.sub("KeyName=[^;]*;SharedAccessKey=[^;]*", of_rule, namespace.server.connection_string)
    )
    return str(path)


@pytest.mark.req("D1")
def test_an_entity_that_is_not_there(namespace: Namespace, collected: Collected) -> None:
    said = failure(started(namespace.stream("nowhere"), namespace.checkpoint(), collected))
    assert "[BUSBAR_NOT_FOUND]" in said and "'nowhere'" in said


@pytest.mark.req("D1")
def test_rights_that_are_missing(namespace: Namespace, queue: str, collected: Collected) -> None:
    namespace.taps(queue).create("made-by-others", from_earliest=True)
    namespace.send(queue, numbered(0, 3))
    to_send = namespace.stream(queue, connectionStringFile=key_of(namespace, "sender"))
    said = failure(started(to_send, namespace.checkpoint(), collected))
    assert "[BUSBAR_UNAUTHORIZED]" in said and "Listen" in said
    listener = key_of(namespace, "listener")
    said = failure(
        started(namespace.stream(queue, connectionStringFile=listener), namespace.checkpoint(), collected)
    )
    assert "[BUSBAR_UNAUTHORIZED]" in said and "Manage" in said
    # Listening is enough for a tap that is there.
    frame = namespace.stream(queue, connectionStringFile=listener, tap="made-by-others")
    run_now(frame, namespace.checkpoint(), collected)
    assert collected.bodies == numbered(0, 3)


@pytest.mark.req("D1")
def test_a_tap_that_was_truncated(namespace: Namespace, queue: str, collected: Collected) -> None:
    checkpoint = namespace.checkpoint()
    limits = {"tap": "short", "startingPosition": "earliest", "tapMaxSize": "20000"}
    namespace.send(queue, numbered(0, 5))
    run_now(namespace.stream(queue, **limits), checkpoint, collected)
    namespace.send(queue, [b"x" * 1000 for _ in range(100)])
    namespace.receive(queue, 105)
    eventually(lambda: namespace.taps(queue).show("short").truncated, seconds=PATIENCE)
    namespace.send(queue, numbered(5, 8))
    said = failure(started(namespace.stream(queue, **limits), checkpoint, collected))
    assert "[BUSBAR_DATA_LOSS]" in said and "truncated" in said and "'failOnDataLoss'" in said
    assert re.search(r"fragment 0: 6 to \d+", said), said
    run_now(namespace.stream(queue, **limits, failOnDataLoss="false"), checkpoint, collected)
    assert collected.bodies[-3:] == numbered(5, 8)


@pytest.mark.req("D1")
def test_an_entity_that_goes_while_it_is_read(namespace: Namespace, queue: str, collected: Collected) -> None:
    checkpoint = namespace.checkpoint()
    frame = namespace.stream(queue, tap="live", startingPosition="earliest")
    namespace.send(queue, numbered(0, 3))
    query = started(frame, checkpoint, collected)
    eventually(lambda: collected.has(3), seconds=PATIENCE)
    with ServiceBusAdministrationClient.from_connection_string(
        namespace.server.connection_string, connection_verify=str(namespace.server.data / "tls" / "ca.pem")
    ) as administration:
        administration.delete_queue(queue)
        said = failure(query)
        assert "[BUSBAR_NOT_FOUND]" in said and repr(queue) in said
        administration.create_queue(queue)
    namespace.send(queue, numbered(3, 5))
    said = failure(started(frame, checkpoint, collected))
    assert "[BUSBAR_DATA_LOSS]" in said and "deleted and made again" in said


@pytest.mark.req("D1")
def test_an_entity_that_is_made_again_while_it_is_read(
    namespace: Namespace, queue: str, collected: Collected
) -> None:
    namespace.send(queue, numbered(0, 3))
    frame = namespace.stream(queue, tap="live", startingPosition="earliest")
    query = started(frame, namespace.checkpoint(), collected)
    eventually(lambda: collected.has(3), seconds=PATIENCE)
    namespace.remake(queue)
    namespace.send(queue, numbered(0, 9))
    said = failure(query)
    assert "[BUSBAR_DATA_LOSS]" in said or "[BUSBAR_NOT_FOUND]" in said, said
    assert collected.has(3)


@pytest.mark.req("D1")
def test_a_tap_of_another_checkpoint(namespace: Namespace, queue: str, collected: Collected) -> None:
    first = namespace.checkpoint()
    options = {"tap": "shared", "startingPosition": "earliest"}
    namespace.send(queue, numbered(0, 3))
    run_now(namespace.stream(queue, **options), first, collected)
    said = failure(started(namespace.stream(queue, **options), namespace.checkpoint(), Collected()))
    assert "[BUSBAR_TAP_OWNED]" in said and "'takeOver'" in said
    second, taken = namespace.checkpoint(), Collected()
    namespace.send(queue, numbered(3, 5))
    run_now(namespace.stream(queue, **options, takeOver="true"), second, taken)
    assert taken.bodies == numbered(3, 5)
    namespace.send(queue, numbered(5, 6))
    said = failure(started(namespace.stream(queue, **options), first, collected))
    assert "[BUSBAR_TAP_OWNED]" in said


@pytest.mark.req("D2")
def test_columns_that_are_no_message(namespace: Namespace, queue: str) -> None:
    rate = namespace.spark.readStream.format("rate").option("rowsPerSecond", "10").load()
    cases = {
        r"BUSBAR_SINK_SCHEMA.*'value'": rate.select("value", F.lit("b").alias("body")),
        r"BUSBAR_SINK_SCHEMA.*'body'": rate.select(F.col("value").alias("body")),
    }
    for text, frame in cases.items():
        with pytest.raises(PySparkException, match=text):
            query = (
                frame.withColumn("message_id", F.lit("one"))
                .writeStream.format("busbar")
                .options(**namespace.options(queue))
                .option("checkpointLocation", str(namespace.checkpoint()))
                .start()
            )
            wait_for_end(query)
    assert namespace.read(queue).count() == 0


@pytest.mark.req("D2")
def test_a_write_waits_for_a_broker_that_is_away(namespace: Namespace, tmp_path: Path) -> None:
    """And goes on, if it comes back in time."""
    server = Busbar(tmp_path / "data", config_text({"orders": {}})).start()
    secret = tmp_path / "away"
    secret.write_text(server.connection_string)
    incoming = tmp_path / "incoming"
    incoming.mkdir()

    def add(number: int) -> None:
        fresh = incoming / f".{number}"
        fresh.write_text(json.dumps({"message_id": f"id {number}", "body": f"body {number}"}))
        fresh.rename(incoming / f"{number}.json")

    def written() -> int:
        with connect(server.connection_string) as factory:
            return factory.taps("orders").ends().ends[0]

    rows = namespace.spark.readStream.schema("message_id string, body string").json(str(incoming))
    options = {"connectionStringFile": str(secret), "entity": "orders", "waitForBroker": "60s"}
    query = (
        rows.writeStream.format("busbar")
        .options(**options)
        .option("checkpointLocation", str(namespace.checkpoint()))
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        add(1)
        eventually(lambda: written() == 1, seconds=PATIENCE)
        server.kill()
        add(2)
        time.sleep(1)
        assert query.isActive
        server.start()
        eventually(lambda: written() == 2, seconds=PATIENCE)
        assert query.isActive
    finally:
        query.stop()
        server.stop()
