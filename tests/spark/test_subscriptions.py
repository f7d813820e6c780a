"""Subscriptions are read, captured and redriven as queues are, and topics are written to: nothing is missed, nothing twice,
in any subscription."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from busbar.client.blocking import connect
from busbar.jobs import archive
from busbar.jobs.capture import capture
from busbar.jobs.redrive import RedriveError, RedriveReport, redrive
from busbar.jobs.replay import replay
from busbar.jobs.replay_source import ReplayError
from busbar.spark.errors import OptionError
from busbar.spark.sink_options import SinkOptions
from pyspark_busbar import DefaultSource
from tests.spark.conftest import RECEIVE_SECONDS, Collected, Namespace, numbered, run_now, wait_for_end
from tests.spark.letters import decoded, make, take
from tests.spark.stepping import Checkpoint, Stepper

_numbers = itertools.count()


class Topic:
    """A topic with the subscriptions `audit` and `billing`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.audit = f"{name}/Subscriptions/audit"
        self.billing = f"{name}/Subscriptions/billing"

    @classmethod
    def make(cls, namespace: Namespace, **options: Any) -> Topic:
        topic = cls(f"topic{next(_numbers)}")
        authority = str(namespace.server.data / "tls" / "ca.pem")
        with ServiceBusAdministrationClient.from_connection_string(
            namespace.server.connection_string, connection_verify=authority
        ) as administration:
            administration.create_topic(topic.name, **options)
            for name in ("audit", "billing"):
                administration.create_subscription(topic.name, name)
        return topic


def came(namespace: Namespace, subscription: str) -> int:
    """How many messages have ever come into a subscription."""
    return sum(namespace.taps(subscription).ends().ends.values())


def bury(namespace: Namespace, subscription: str, count: int) -> None:
    with namespace.factory.receiver(subscription) as receiver:
        left = count
        while left:
            received = receiver.receive(left, RECEIVE_SECONDS)
            assert received
            receiver.dead_letter(received, "broken", "because")
            left -= len(received)


@pytest.mark.req("D1")
def test_a_subscription_and_its_dead_letters_are_read(namespace: Namespace, collected: Collected) -> None:
    topic = Topic.make(namespace, enable_partitioning=True)
    namespace.taps(topic.audit).create("analysis", from_earliest=True)
    namespace.send(topic.name, numbered(0, 300), keyed=True)
    namespace.receive(topic.audit, 250)  # it is kept for the tap
    bury(namespace, topic.audit, 20)
    checkpoint = namespace.checkpoint()
    # In any case; what is read has the name that the broker has for it.
    spelled = topic.audit.lower().replace("audit", "AUDIT")
    run_now(namespace.stream(spelled, tap="analysis"), checkpoint, collected)
    namespace.send(topic.name, numbered(300, 350), keyed=True)
    namespace.receive(topic.audit, 80)
    run_now(namespace.stream(topic.audit, tap="analysis"), checkpoint, collected)
    assert sorted(collected.bodies) == sorted(numbered(0, 350))
    assert {row.entity for row in collected.rows} == {topic.audit}
    dead = namespace.read(f"{spelled}/$DeadLetterQueue").collect()
    assert [(row.entity, row.state, row.dead_letter_reason) for row in dead] == [
        (topic.audit, "dead-lettered", "broken")
    ] * 20
    # A stream that consumes takes the place of the receivers of one subscription.
    eating = Checkpoint()
    options = namespace.options(topic.billing, mode="consume", tap="eater", startingPosition="earliest")
    rows = Stepper(options, eating).run_now()
    assert sorted(bytes(row["body"]) for row in rows) == sorted(numbered(0, 350))
    assert Stepper(options, eating).run_now() == []  # which commits what was read before
    billing = namespace.taps(topic.billing)
    assert sum(billing.read(None, index, 0, end).count for index, end in billing.ends().ends.items()) == 0
    # A topic itself holds nothing.
    source = DefaultSource(namespace.options(topic.name))
    with pytest.raises(PySparkException, match=r"BUSBAR_REFUSED.*is a topic.*subscriptions"):
        source.reader(source.schema()).partitions()


def failing_once(namespace: Namespace, frame: DataFrame, subscription: str) -> DataFrame:
    """The same rows; but the first attempt of the first batch fails as soon as some of them have arrived.

    What runs in a task has no `assert`: pytest rewrites it, and the workers of a cluster have no pytest.
    """
    secret = namespace.server.connection_string

    def through(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this is not a task")
        first = context.attemptNumber() == 0 and context.getLocalProperty("streaming.sql.batchId") == "0"
        for number, batch in enumerate(batches):
            yield batch
            if number == 8 and first:  # more than what is buffered on the way
                with connect(secret) as factory:
                    until = time.monotonic() + 60
                    while not any(factory.taps(subscription).ends().ends.values()):
                        if time.monotonic() > until:
                            raise RuntimeError("nothing has arrived")
                        time.sleep(0.05)
                raise RuntimeError("the first attempt is broken on purpose")

    return frame.mapInArrow(through, frame.schema)


@pytest.mark.req("D2")
def test_a_stream_into_a_topic_reaches_every_subscription_once(namespace: Namespace, tmp_path: Path) -> None:
    target = Topic.make(namespace, enable_partitioning=True)
    checkpoint, size = namespace.checkpoint(), "spark.sql.execution.arrow.maxRecordsPerBatch"

    def write(first: int, last: int) -> None:
        tmp_path.joinpath(f"{first}.txt").write_bytes(b"\n".join(numbered(first, last)))
        rows = namespace.spark.readStream.text(str(tmp_path), pathGlobFilter="*.txt")
        rows = rows.select(F.rpad("value", 2_000, ".").alias("body"))
        query = (
            failing_once(namespace, rows, target.audit)
            .writeStream.format("busbar")
            .options(**namespace.options(target.name, idColumns="body"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        wait_for_end(query)

    namespace.spark.conf.set(size, "100")
    try:
        write(0, 1_000)
        namespace.receive(target.audit, 1_000)  # what was received is known all the same
        # As if Spark had died right before it noted its commit.
        for path in (checkpoint / "commits").glob("*0*"):
            path.unlink()
        write(1_000, 1_100)
    finally:
        namespace.spark.conf.unset(size)
    assert (came(namespace, target.audit), came(namespace, target.billing)) == (1_100, 1_100)
    found = Counter(bytes(row.body).rstrip(b".") for row in namespace.read(target.billing).collect())
    assert found == Counter(numbered(0, 1_100))
    for entity, words in (
        (target.audit, f"messages are sent to its topic '{target.name}'"),
        (f"{target.name}/$DeadLetterQueue", "nobody sends to a dead-letter queue"),
    ):
        with pytest.raises(OptionError, match=words):
            SinkOptions.parse(namespace.options(entity), streaming=True)


@pytest.mark.req("D3")
@pytest.mark.req("D4")
def test_a_subscription_is_captured_and_its_dead_letters_go_where_they_are_told(
    namespace: Namespace, tmp_path: Path
) -> None:
    topic, spark = Topic.make(namespace, enable_partitioning=True), namespace.spark
    connection, output = namespace.server.connection_string, tmp_path / "archive"
    dead = f"{topic.audit}/$deadletterqueue"
    namespace.send(topic.name, numbered(0, 60), keyed=True)
    bury(namespace, topic.audit, 60)

    def captured(*entities: str) -> dict[str, int]:
        return dict(capture(entities, output, connection=connection, available_now=True, session=spark).rows)

    assert captured(topic.audit, f"{topic.audit}/$DeadLetterQueue") == {topic.audit: 60, dead: 60}
    namespace.send(topic.name, numbered(60, 70), keyed=True)
    namespace.receive(topic.audit, 10)
    # The same entity, however it is written.
    assert captured(topic.audit.upper()) == {topic.audit: 10}
    assert (
        len(namespace.taps(topic.audit).list()) == len(namespace.taps(topic.audit, "deadletter").list()) == 1
    )
    counts = {topic.audit: 70, dead: 60}
    plain = spark.read.parquet(str(output)).groupBy("entity").count()
    assert {row.entity: row["count"] for row in plain.collect()} == counts
    assert Counter(archive.dataset(output).to_table().column("entity").to_pylist()) == counts
    arrow = ds.dataset(str(output), format="parquet", partitioning="hive").to_table()
    assert Counter(arrow.column("entity").to_pylist()) == counts
    pattern = f"{output}/**/*.parquet"
    rows = duckdb.read_parquet(pattern, hive_partitioning=True).select("entity").fetchall()
    assert Counter(row[0] for row in rows) == counts

    # A replay leaves them; nothing goes to a subscription alone.
    target = f"{topic.name}-repair"
    make(namespace, target)
    report = replay(dead, target, connection=connection, session=spark, order="none")
    assert (report.found, report.sent, report.entities) == (60, 60, {topic.audit: 60})
    assert came(namespace, target) == 60
    with pytest.raises(ReplayError, match=f"its topic is '{topic.name}'"):
        replay(dead, topic.audit, connection=connection, session=spark)

    def moved(entity: str, to: str = "") -> RedriveReport:
        return redrive(entity, connection=connection, target=to)

    for entity, to, words in (
        (topic.audit, "", f"name a target .*its topic '{topic.name}', all of whose subscriptions"),
        (topic.audit, topic.billing, f"its topic is '{topic.name}'"),
        (topic.audit, dead, "nothing can be sent to"),
    ):
        with pytest.raises(RedriveError, match=words):
            moved(entity, to)
    report_of_all = moved(topic.audit.lower(), topic.name)
    assert (report_of_all.entity, report_of_all.there, report_of_all.moved) == (topic.audit, 60, 60)
    assert moved(f"{topic.audit}/$DeadLetterQueue", topic.name).there == 0
    letters = decoded(take(namespace, topic.audit, 60))
    assert sorted(letter.data or b"" for letter in letters) == sorted(numbered(0, 60))
    assert {str(letter.message_id).rpartition(":")[0].rpartition(":")[0] for letter in letters} == {
        topic.audit
    }
    assert came(namespace, topic.billing) == 130
