"""spark.readStream: every message once, whatever receivers do meanwhile, and a tap that follows."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import connect
from busbar.spark import attach, detach
from busbar.spark.listener import committed_offsets
from harness.serving import Busbar, config_text
from harness.waiting import eventually
from tests.spark.conftest import PATIENCE, Collected, Namespace, numbered, run_now, wait_for_end


@pytest.mark.req("D1")
def test_runs_add_up_while_receivers_take_everything(
    namespace: Namespace, wide: str, collected: Collected
) -> None:
    checkpoint = namespace.checkpoint()
    frame = namespace.stream(wide, tap="archive", startingPosition="earliest", maxMessagesPerTrigger="150")
    namespace.send(wide, numbered(0, 400), keyed=True)
    run_now(frame, checkpoint, collected)
    assert sorted(collected.bodies) == sorted(numbered(0, 400))
    assert max(len(rows) for rows in collected.batches.values()) <= 150
    namespace.send(wide, numbered(400, 700), keyed=True)
    namespace.receive(wide, 700)
    run_now(frame, checkpoint, collected)
    assert sorted(collected.bodies) == sorted(numbered(0, 700))
    # All was committed and passed: nothing is kept any more.
    eventually(lambda: namespace.kept(wide) == 0, seconds=PATIENCE)


@pytest.mark.req("D1")
def test_a_stream_follows_and_its_listener_advances_the_tap(
    namespace: Namespace, queue: str, collected: Collected
) -> None:
    listener = attach(namespace.spark, connectionStringFile=str(namespace.secret))
    try:
        query = (
            namespace.stream(queue, tap="live", startingPosition="earliest")
            .writeStream.foreachBatch(collected)
            .option("checkpointLocation", str(namespace.checkpoint()))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        for turn in range(3):
            namespace.send(queue, numbered(turn * 10, turn * 10 + 10))
            eventually(partial(collected.has, turn * 10 + 10), seconds=PATIENCE)
        tap = namespace.taps(queue)
        eventually(lambda: tap.show("live").fragments[0].position == 30, seconds=PATIENCE)
        query.stop()
    finally:
        detach(namespace.spark, listener)
    assert collected.bodies == numbered(0, 30)


def test_a_stream_without_a_name_makes_a_tap_and_its_checkpoint_knows_it(
    namespace: Namespace, queue: str, collected: Collected
) -> None:
    namespace.send(queue, numbered(0, 5))
    checkpoint = namespace.checkpoint()
    frame = namespace.stream(queue)  # from the latest on
    run_now(frame, checkpoint, collected)
    assert collected.rows == []
    (tap,) = namespace.taps(queue).list()
    assert tap.name.startswith("spark-") and tap.owner
    namespace.send(queue, numbered(5, 9))
    run_now(frame, checkpoint, collected)
    assert collected.bodies == numbered(5, 9)
    assert len(namespace.taps(queue).list()) == 1
    (offset,) = committed_offsets(checkpoint)
    assert (offset.tap, offset.owner, offset.positions) == (tap.name, tap.owner, {0: 9})


def test_a_failed_first_batch_is_repeated_from_its_beginning(
    namespace: Namespace, queue: str, collected: Collected
) -> None:
    namespace.send(queue, numbered(0, 10))
    namespace.taps(queue).create("again", from_earliest=True)
    namespace.receive(queue, 4)
    checkpoint = namespace.checkpoint()
    frame = namespace.stream(queue, tap="again")

    def fail(_frame: object, _batch: int) -> None:
        raise RuntimeError("before anything was written")

    query = (
        frame.writeStream.foreachBatch(fail)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException):
        wait_for_end(query)
    namespace.send(queue, numbered(10, 15))
    run_now(frame, checkpoint, collected)
    assert [bytes(row.body) for row in collected.batches[0]] == numbered(0, 10)
    assert collected.bodies == numbered(0, 15)


def test_what_is_consumed_is_taken_out(namespace: Namespace, queue: str, collected: Collected) -> None:
    namespace.send(queue, numbered(0, 20))
    checkpoint = namespace.checkpoint()
    frame = namespace.stream(queue, mode="consume", tap="worker", startingPosition="earliest", lease="5s")
    run_now(frame, checkpoint, collected)
    assert collected.bodies == numbered(0, 20)
    eventually(lambda: namespace.read(queue).count() == 0, seconds=PATIENCE)
    namespace.send(queue, numbered(20, 25))
    run_now(frame, checkpoint, collected)
    assert collected.bodies == numbered(0, 25)


def failure(namespace: Namespace, checkpoint: Path, queue: str, **options: str) -> str:
    """What a run says that cannot go on."""
    query = (
        namespace.stream(queue, **options)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException) as caught:
        wait_for_end(query)
    return str(caught.value)


def test_the_query_waits_for_a_broker_that_is_away(namespace: Namespace, tmp_path: Path) -> None:
    collected = Collected()
    server = Busbar(tmp_path / "data", config_text({"orders": {}})).start()
    secret = tmp_path / "away"
    secret.write_text(server.connection_string)
    try:
        with connect(server.connection_string) as factory:
            sender = factory.sender("orders")
            sender.send([encode(OutgoingMessage(b"before"))])
            query = (
                namespace.stream("orders", connectionStringFile=str(secret), startingPosition="earliest")
                .writeStream.foreachBatch(collected)
                .option("checkpointLocation", str(namespace.checkpoint()))
                .trigger(processingTime="50 milliseconds")
                .start()
            )
            eventually(partial(collected.has, 1), seconds=PATIENCE)
        server.kill()
        time.sleep(0.5)
        server.start()
        with connect(server.connection_string) as factory:
            factory.sender("orders").send([encode(OutgoingMessage(b"after"))])
        eventually(lambda: collected.bodies == [b"before", b"after"], seconds=PATIENCE)
        assert query.isActive
        query.stop()
    finally:
        server.stop()
    said = failure(
        namespace,
        namespace.checkpoint(),
        "orders",
        connectionStringFile=str(secret),
        waitForBroker="300ms",
    )
    assert "[BUSBAR_UNAVAILABLE]" in said and "'waitForBroker'" in said


def test_no_secret_is_written_down(namespace: Namespace, queue: str, tmp_path: Path) -> None:
    """A connection string given as an option is in no plan and in no file of a checkpoint."""
    key = namespace.server.key
    options = {
        "connectionString": namespace.server.connection_string,
        "entity": queue,
        "startingPosition": "earliest",
    }
    namespace.send(queue, numbered(0, 3))
    checkpoint = namespace.checkpoint()
    frame = namespace.spark.readStream.format("busbar").options(**options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    wait_for_end(query)
    for progress in query.recentProgress:
        assert key not in json.dumps(dict(progress), default=str)
    for file in checkpoint.rglob("*"):
        if file.is_file():
            assert key.encode() not in file.read_bytes(), file
    batch = namespace.spark.read.format("busbar").options(**options).load()
    assert batch.count() == 3
    plan = batch._jdf.queryExecution().toString()
    assert key not in plan


def test_keys_and_tokens_in_a_plan_are_redacted(namespace: Namespace) -> None:
    """Also where they are no option: Spark's own expressions are Java's."""
    address = "Endpoint=sb://127.0.0.1:1/;"
    token = "SharedAccessSignature sr=sb%3a%2f%2f127.0.0.1&sig=hidden%3d&se=1&skn=rule"
    for secret in (
        "SharedAccessKeyName=rule;SharedAccessKey=hidden=",
        f"SharedAccessSignature={token}",
        token,
    ):
        frame = namespace.spark.sql(f"SELECT '{address}{secret};EntityPath=shown' AS text")
        plan = frame._jdf.queryExecution().toString()
        assert "hidden" not in plan and "redacted" in plan and "shown" in plan, plan
