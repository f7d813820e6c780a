"""df.write and df.writeStream: columns as the Azure SDK sees them, nothing twice whatever is repeated, plain refusals."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessageState
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from busbar.client import BatchOver
from busbar.client.blocking import connect
from busbar.client.sender import Writer
from busbar.spark import sink_progress
from busbar.spark.sink_metrics import SinkProgress
from tests.spark.conftest import QUEUES, Namespace, wait_for_end

LISTENER = {"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "first key", "SecondaryKey": "second key"}

# the first test starts Spark, perhaps on a busy machine
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.server({**QUEUES, "sessions": {"RequiresSession": True}}, rules=[LISTENER]),
]


def write(namespace: Namespace, frame: DataFrame, entity: str, **options: str) -> None:
    frame.write.format("busbar").options(**namespace.options(entity, **options)).mode("append").save()


def numbered(namespace: Namespace, count: int, partitions: int = 2) -> DataFrame:
    """Rows with a body and the number that makes them unique."""
    return namespace.spark.range(0, count, 1, partitions).select(
        F.col("id").alias("number"), F.concat(F.lit("body "), F.col("id")).alias("body")
    )


def peeked(namespace: Namespace, entity: str, **options: Any) -> list[Any]:
    with ServiceBusClient.from_connection_string(namespace.server.connection_string) as client:
        found: list[Any] = []
        with client.get_queue_receiver(entity, **options) as receiver:
            while page := receiver.peek_messages(
                250, sequence_number=found[-1].sequence_number + 1 if found else 0
            ):
                found += page
        return found


def bodies(namespace: Namespace, entity: str) -> Counter[str]:
    return Counter(str(message) for message in peeked(namespace, entity))


def expected(count: int) -> Counter[str]:
    return Counter(f"body {number}" for number in range(count))


# ---- columns -----------------------------------------------------------------------------------------


@pytest.mark.req("D2")
def test_columns_are_the_fields_that_the_sdk_sees(namespace: Namespace) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    row = Row(
        payload=b"\x00\xff",
        message_id="first",
        session_id="s 1",
        correlation_id="c",
        label="a subject",
        content_type="application/json",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        time_to_live=timedelta(minutes=5),
        properties={"n": 5, "m": -1},
    )
    options = {"column.body": "payload", "column.subject": "label"}
    write(namespace, namespace.spark.createDataFrame([row]), "sessions", **options)
    scheduled = Row(body="später", message_id="second", session_id="s 1", scheduled_enqueue_time=due)
    write(namespace, namespace.spark.createDataFrame([scheduled]), "sessions")
    first, second = peeked(namespace, "sessions", session_id="s 1")
    assert b"".join(first.body) == b"\x00\xff"
    assert (first.message_id, first.session_id, first.correlation_id) == ("first", "s 1", "c")
    assert (first.subject, first.content_type, first.to) == ("a subject", "application/json", "t")
    assert (first.reply_to, first.reply_to_session_id) == ("r", "rs")
    assert first.time_to_live == timedelta(minutes=5)
    assert first.application_properties == {b"n": 5, b"m": -1}
    assert str(second) == "später"
    assert second.state == ServiceBusMessageState.SCHEDULED
    assert second.scheduled_enqueue_time_utc == due


@pytest.mark.req("D2")
def test_keys_choose_fragments(namespace: Namespace, wide: str) -> None:
    frame = numbered(namespace, 400).withColumn(
        "partition_key", F.concat(F.lit("key "), F.col("number") % 20)
    )
    write(namespace, frame, wide, idColumns="number")
    messages = peeked(namespace, wide)
    assert Counter(str(message) for message in messages) == expected(400)
    fragments: dict[str, set[int]] = {}
    for message in messages:
        fragments.setdefault(message.partition_key, set()).add(message.sequence_number >> 48)
    assert len(fragments) == 20
    assert all(len(each) == 1 for each in fragments.values())
    assert len(set.union(*fragments.values())) > 4


@pytest.mark.req("D2")
def test_what_was_read_is_written_as_it_was(namespace: Namespace, wide: str, queue: str) -> None:
    namespace.send(wide, [b"one", b"two", b"three"], keyed=True)
    read = namespace.read(wide)
    write(namespace, read, queue, message="raw")
    write(namespace, read, queue, message="columns", idFrom="source")
    copies = namespace.read(queue).collect()
    originals = {row.message_id: row for row in read.collect()}
    same = [row for row in copies if row.message_id in originals]
    assert sorted(row.raw for row in same) == sorted(row.raw for row in originals.values())
    others = {row.message_id: row for row in copies if row.message_id not in originals}
    assert set(others) == {f"{wide}:{row.sequence_number}" for row in originals.values()}
    assert sorted((row.body, row.partition_key) for row in others.values()) == sorted(
        (row.body, row.partition_key) for row in originals.values()
    )


# ---- nothing twice -----------------------------------------------------------------------------------


def broken(namespace: Namespace, frame: DataFrame, entity: str, marker: Path) -> DataFrame:
    """The same rows; but while the marker is there, a task fails as soon as messages of another one have arrived."""
    secret, text = namespace.server.connection_string, str(marker)

    def through(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and Path(text).exists():
            with connect(secret) as factory:
                until = time.monotonic() + 60
                while not any(factory.taps(entity).ends().ends.values()) and time.monotonic() < until:
                    time.sleep(0.05)
            raise RuntimeError("this task is broken on purpose")
        yield from batches

    return frame.mapInArrow(through, frame.schema)


@pytest.mark.req("D2")
def test_a_write_that_failed_half_way_is_run_again(namespace: Namespace, wide: str, tmp_path: Path) -> None:
    marker = tmp_path / "broken"
    marker.touch()
    frame = broken(namespace, numbered(namespace, 400), wide, marker)
    with pytest.raises(PySparkException, match="broken on purpose"):
        write(namespace, frame, wide, idColumns="number", writer="nightly job")
    assert 0 < bodies(namespace, wide).total() < 400  # what failed is visible in part
    marker.unlink()
    shuffled = frame.repartition(5, F.rand(7))
    write(namespace, shuffled, wide, idColumns="number", writer="nightly job")
    assert bodies(namespace, wide) == expected(400)
    namespace.receive(wide, 400)
    write(namespace, frame, wide, idColumns="number", writer="nightly job")  # all is known, and stays so
    assert not bodies(namespace, wide)


@pytest.mark.req("D2")
def test_a_task_that_spark_repeats_writes_once(namespace: Namespace, wide: str) -> None:
    """It fails when a part of its rows has arrived; Spark runs it again from its first row."""
    secret, size = namespace.server.connection_string, "spark.sql.execution.arrow.maxRecordsPerBatch"

    def through(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            context = TaskContext.get()
            if number == 9 and context is not None and context.attemptNumber() == 0:
                with connect(secret) as factory:
                    until = time.monotonic() + 60
                    while not any(factory.taps(wide).ends().ends.values()):
                        if time.monotonic() > until:  # no `assert`: workers may have no pytest
                            raise RuntimeError("nothing has arrived")
                        time.sleep(0.05)
                raise RuntimeError("the first attempt is broken on purpose")

    namespace.spark.conf.set(size, "100")
    try:
        rows = numbered(namespace, 2_000, 1).withColumn("body", F.rpad("body", 2_000, "."))
        write(namespace, rows.mapInArrow(through, rows.schema), wide, idColumns="number")
    finally:
        namespace.spark.conf.unset(size)
    copies = namespace.read(wide)
    assert copies.count() == 2_000
    assert copies.select("body").distinct().count() == 2_000


@pytest.mark.req("D2")
def test_a_writer_that_goes_on_with_an_old_batch_is_refused(namespace: Namespace, queue: str) -> None:
    frame = numbered(namespace, 10, 1)
    write(namespace, frame, queue, idColumns="number", writer="job", batch="7")
    with pytest.raises(PySparkException, match=r"BUSBAR_SINK_BATCH_OVER"):
        write(namespace, frame, queue, idColumns="number,body", writer="job", batch="6")
    assert bodies(namespace, queue) == expected(10)
    write(namespace, frame, queue, idColumns="number", writer="job", batch="8")  # the ids of 7 are known yet
    assert bodies(namespace, queue) == expected(10)


@pytest.mark.req("D2")
def test_without_a_name_every_write_is_another(namespace: Namespace, queue: str) -> None:
    frame = numbered(namespace, 10, 1)
    for turn in (1, 2):
        write(namespace, frame, queue, idColumns="number")
        assert bodies(namespace, queue).total() == 10 * turn
    write(namespace, frame.drop("number"), queue, delivery="at-least-once")
    assert bodies(namespace, queue).total() == 30


class Stream:
    """A query from files to a queue."""

    def __init__(self, namespace: Namespace, entity: str, directory: Path) -> None:
        self._namespace = namespace
        self._entity = entity
        self._input = directory / "input"
        self._input.mkdir()
        self.checkpoint = directory / "checkpoint"
        self._schema = StructType.fromJson(json.loads(numbered(namespace, 1).schema.json()))

    def add(self, first: int, last: int) -> None:
        lines = [json.dumps({"number": number, "body": f"body {number}"}) for number in range(first, last)]
        (self._input / f"{first}.json").write_text("\n".join(lines))

    def run(self, partitions: int, marker: Path | None = None) -> SinkProgress | None:
        """Run to the end; returns what the last batch has written."""
        frame = self._namespace.spark.readStream.schema(self._schema).json(str(self._input))
        frame = frame.repartition(partitions, F.rand())
        if marker is not None:
            frame = broken(self._namespace, frame, self._entity, marker)
        query = (
            frame.writeStream.format("busbar")
            .options(**self._namespace.options(self._entity, idColumns="number"))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        wait_for_end(query)
        written = [sink_progress(each) for each in query.recentProgress]
        return next((each for each in reversed(written) if each is not None), None)

    def forget_the_last_commit(self) -> int:
        """As if Spark had died right before it noted it. The batch."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in commits.glob(f"*{last}*"):
            path.unlink()
        return last

    @property
    def query_id(self) -> str:
        found: str = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return found


@pytest.mark.req("D2")
def test_a_stream_writes_once_through_failures_and_replays(
    namespace: Namespace, wide: str, tmp_path: Path
) -> None:
    stream = Stream(namespace, wide, tmp_path)
    marker = tmp_path / "broken"
    marker.touch()
    stream.add(0, 300)
    with pytest.raises(StreamingQueryException, match="broken on purpose"):
        stream.run(2, marker)
    assert 0 < bodies(namespace, wide).total() < 300
    marker.unlink()
    repeated = stream.run(3)
    assert bodies(namespace, wide) == expected(300)
    assert repeated is not None and (repeated.entity, repeated.batch) == (wide, 0)
    metrics = repeated.metrics
    assert (metrics.messages, metrics.refused) == (300, 0) and metrics.bytes > 300 * len("body 299")
    assert metrics.duplicates is not None and 0 < metrics.duplicates < 300 and metrics.wait_seconds > 0
    # The queue has no duplicate detection at all, and its messages are gone: what is known of them is the writer's.
    namespace.receive(wide, 300)
    stream.forget_the_last_commit()
    known = stream.run(5)
    assert known is not None and (known.metrics.messages, known.metrics.duplicates) == (300, 300)
    assert not bodies(namespace, wide)
    stream.add(300, 350)
    fresh = stream.run(2)
    assert fresh is not None and (fresh.metrics.messages, fresh.metrics.duplicates) == (50, 0)
    assert bodies(namespace, wide) == expected(350) - expected(300)
    zombie = namespace.factory.sender(wide, writer=Writer(f"spark-query-{stream.query_id}", 0))
    with pytest.raises(Exception, match="batch") as raised:
        zombie.send([b"\x00\x53\x73\xc0\x04\x01\xa1\x01z\x00\x53\x75\xa0\x01z"])
    assert BatchOver.default_condition in str(raised.value)
    assert bodies(namespace, wide).total() == 50


# ---- bad rows ----------------------------------------------------------------------------------------


@pytest.mark.req("D2")
def test_rows_that_cannot_be_messages(namespace: Namespace, queue: str, tmp_path: Path) -> None:
    frame = numbered(namespace, 20, 2).select(
        "body",
        F.when(F.col("number") != 3, F.concat(F.lit("id "), F.col("number"))).alias("message_id"),
        F.when(F.col("number") == 5, F.repeat(F.lit("x"), 200)).alias("session_id"),
    )
    with pytest.raises(PySparkException, match=r"BUSBAR_SINK_BAD_ROW.*no message id.*body='body 3'"):
        write(namespace, frame.where("body = 'body 3'"), queue)
    with pytest.raises(PySparkException, match=r"BUSBAR_SINK_BAD_ROW.*body='body 5'"):
        write(namespace, frame.where("body = 'body 5'"), queue)
    good = expected(20) - Counter(["body 3", "body 5"])
    write(namespace, frame, queue, badRows=str(tmp_path / "bad"))
    assert bodies(namespace, queue) == good
    lines = [json.loads(line) for file in (tmp_path / "bad").glob("*.jsonl") for line in file.open()]
    assert sorted(line["row"]["body"] for line in lines) == ["body 3", "body 5"]
    assert all(line["reason"] for line in lines)
    write(namespace, frame, queue, badRows="drop")
    assert bodies(namespace, queue).total() == 36


# ---- refusals ----------------------------------------------------------------------------------------


@pytest.mark.req("D2")
def test_refusals_say_what_is_wrong(namespace: Namespace, queue: str, tmp_path: Path) -> None:
    frame = numbered(namespace, 3, 1)
    with pytest.raises(PySparkException, match=r"BUSBAR_NOT_FOUND.*'nowhere'") as caught:
        write(namespace, frame, "nowhere", idColumns="number")
    assert "Traceback" not in str(caught.value), "the trace of a task"
    listener = tmp_path / "listener"
    listener.write_text(
        re.sub(
            "KeyName=[^;]*;SharedAccessKey=[^;]*",
            "KeyName=listener;SharedAccessKey=first key",
            namespace.secret.read_text(),
        )
    )
    with pytest.raises(PySparkException, match=r"BUSBAR_UNAUTHORIZED.*Send"):
        write(namespace, frame, queue, idColumns="number", connectionStringFile=str(listener))
    with pytest.raises(
        PySparkException, match=r"BUSBAR_SINK_SCHEMA.*'number' .BIGINT. is no field of a message"
    ):
        write(namespace, frame, queue, delivery="at-least-once")
    with pytest.raises(PySparkException, match=r"BUSBAR_SINK_NO_ID.*idColumns"):
        write(namespace, frame.drop("number"), queue)
    with pytest.raises(PySparkException, match=r"BUSBAR_SINK_MODE.*append"):
        frame.write.format("busbar").options(**namespace.options(queue, idColumns="number")).mode(
            "overwrite"
        ).save()
    away = tmp_path / "away"
    away.write_text(
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    )
    with pytest.raises(PySparkException, match=r"BUSBAR_UNAVAILABLE.*waitForBroker"):
        write(namespace, frame, queue, idColumns="number", connectionStringFile=str(away), waitForBroker="1s")
    assert not bodies(namespace, queue)
