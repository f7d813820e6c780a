"""Less to read: filters and columns that reach the broker, what the plan shows, and the lag in the progress of a query."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from busbar.client import OutgoingMessage, encode
from busbar.spark import source_progress
from busbar.spark.errors import OptionError
from pyspark_busbar import DefaultSource
from tests.spark.conftest import Collected, Namespace, explained, received, wait_for_end
from tests.spark.stepping import Checkpoint, Stepper


def fill(namespace: Namespace, queue: str, count: int = 40, size: int = 1_000) -> None:
    """Messages with a session, a subject and properties by their number."""
    with namespace.factory.sender(queue) as sender:
        sender.send(
            [
                encode(
                    OutgoingMessage(
                        body=bytes([number]) * size,
                        message_id=str(number),
                        session_id=f"s{number % 4}",
                        subject="even" if number % 2 == 0 else "odd",
                        application_properties={"region": "eu" if number < 10 else "us", "number": number},
                    )
                )
                for number in range(count)
            ]
        )


def ids(frame: DataFrame) -> list[int]:
    return sorted(int(row.message_id) for row in frame.select("message_id").collect())


@pytest.mark.req("D1")
def test_filters_and_columns_are_met_by_the_broker(namespace: Namespace, queue: str) -> None:
    fill(namespace, queue)
    frame = namespace.read(queue)
    filtered = frame.where(
        (F.col("session_id") == "s1")
        & (F.col("sequence_number") > 9)
        & (F.col("state") == "active")
        & (F.col("enqueued_time") > "2026-01-01")
        & F.col("fragment").isin(0, 3)
        & F.col("message_id").like("%3")
    )
    assert ids(filtered) == [13, 33]
    plan = explained(filtered)
    (pushed,) = [line for line in plan.splitlines() if line.startswith("PushedFilters")]
    for condition in (
        "EqualTo(session_id,s1)",
        "GreaterThan(sequence_number,9)",
        "GreaterThan(enqueued_time,2026-01-01",
        "EqualTo(state,active)",
        "In(fragment, [0,3])",
    ):
        assert condition in pushed
    assert "EndsWith(message_id" not in pushed and "EndsWith(message_id" in plan, "Spark meets this one"
    narrow = namespace.read(queue, columns="message_id,state")
    assert narrow.columns == ["message_id", "state"]
    rows = narrow.collect()
    assert sorted((int(row.message_id), row.state) for row in rows) == [
        (number, "active") for number in range(40)
    ]
    by_schema = namespace.spark.read.format("busbar").schema("subject string, body_type string")
    rows = by_schema.options(**namespace.options(queue)).load().distinct().collect()
    assert sorted((row.subject, row.body_type) for row in rows) == [("even", "data"), ("odd", "data")]


def test_a_session_that_pushes_no_filters_reads_the_same(namespace: Namespace, queue: str) -> None:
    fill(namespace, queue)
    namespace.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        filtered = namespace.read(queue).where("session_id = 's1' AND sequence_number > 9")
        assert ids(filtered) == [9, 13, 17, 21, 25, 29, 33, 37]
        assert "EqualTo(session_id" not in explained(filtered)
    finally:
        namespace.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def read(namespace: Namespace, queue: str, **options: str) -> list[dict[str, Any]]:
    """The rows of a batch, as Spark reads it, without Spark."""
    source = DefaultSource(namespace.options(queue, **options))
    reader = source.reader(source.schema())
    frames: list[Any] = [frame for each in reader.partitions() for frame in reader.read(each)]
    return [row for frame in frames for row in frame.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["message_id"]) for row in rows]


def test_conditions_as_options(namespace: Namespace, queue: str) -> None:
    fill(namespace, queue)
    found = read(namespace, queue, properties='{"region": "eu"}', subjects="odd")
    assert numbers(found) == [1, 3, 5, 7, 9]
    assert numbers(read(namespace, queue, sessions="s1,s2", properties='{"number": [5, 6, 7]}')) == [5, 6]
    assert read(namespace, queue, states="deferred,dead-lettered") == []
    assert read(namespace, queue, fragments="1") == []
    narrow = read(namespace, queue, columns="body_type,sequence_number", properties='{"number": 5}')
    assert narrow == [{"body_type": "data", "sequence_number": 6}]
    with pytest.raises(OptionError, match="'columns' names 'boddy'"):
        read(namespace, queue, columns="boddy")


def test_tasks_log_what_they_read(namespace: Namespace, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    fill(namespace, queue)

    def logged(**options: str) -> tuple[int, int, int]:
        caplog.clear()
        with caplog.at_level("INFO", "busbar.spark"):
            read(namespace, queue, **options)
        (record,) = [each for each in caplog.records if each.getMessage().startswith("Read ")]
        messages, scanned, entity, size = record.args  # type: ignore[misc]
        assert entity == queue
        return int(messages), int(scanned), int(size)  # type: ignore[arg-type]

    messages, scanned, everything = logged()
    assert (messages, scanned) == (40, 40) and everything > 40_000
    messages, scanned, narrow = logged(columns="message_id,state")
    assert (messages, scanned) == (40, 40) and narrow < everything / 5
    messages, scanned, few = logged(properties='{"number": 5}')
    assert (messages, scanned) == (1, 40) and few < everything / 20
    messages, scanned, none = logged(properties='{"region": "nowhere"}')
    assert (messages, scanned, none) == (0, 40, 0)


def test_dead_letters_by_reason(namespace: Namespace, queue: str) -> None:
    fill(namespace, queue, 6)
    with namespace.factory.receiver(queue) as receiver:
        for number, message in enumerate(received(receiver, 6)):
            receiver.dead_letter([message], "late" if number % 2 else "broken")
    frame = namespace.read(queue, subQueue="deadletter").where("dead_letter_reason = 'late'")
    rows = frame.select("message_id", "dead_letter_reason").collect()
    assert sorted((row.message_id, row.dead_letter_reason) for row in rows) == [
        ("1", "late"),
        ("3", "late"),
        ("5", "late"),
    ]


def test_a_stream_reads_what_it_selects_and_passes_the_rest(namespace: Namespace, queue: str) -> None:
    fill(namespace, queue)
    options = namespace.options(
        queue, tap="part", startingPosition="earliest", properties='{"region": "eu"}', sessions="s0"
    )
    assert numbers(Stepper(options, Checkpoint()).run_now()) == [0, 4, 8]
    assert namespace.taps(queue).show("part").fragments[0].position == 40


def test_many_tasks_share_a_deep_fragment_behind_unused_numbers(namespace: Namespace, queue: str) -> None:
    """Numbers of messages that are gone do not count, so that no task is left without messages."""
    namespace.send(queue, [f"{number}".encode() for number in range(30_000)])
    namespace.receive(queue, 15_000)
    source = DefaultSource(namespace.options(queue, maxPartitions="3"))
    reader: Any = source.reader(source.schema())
    counts = [sum(frame.num_rows for frame in reader.read(each)) for each in reader.partitions()]
    assert counts == [5_000, 5_000, 5_000]


def test_progress_has_the_lag(namespace: Namespace, queue: str, collected: Collected) -> None:
    fill(namespace, queue, 30)
    began = datetime.now(UTC)
    frame = namespace.stream(queue, tap="slow", startingPosition="earliest", maxMessagesPerTrigger="20")
    query = (
        frame.writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(namespace.checkpoint()))
        .trigger(availableNow=True)
        .start()
    )
    wait_for_end(query)
    assert collected.has(30)
    first, second, *_ = [each for each in query.recentProgress if each.numInputRows]
    (progress,) = source_progress(first)
    assert (progress.entity, progress.tap) == (queue, "slow")
    assert (progress.lag.behind_messages, progress.lag.remaining_messages) == (30, 10)
    assert 0 < progress.lag.behind_seconds < (datetime.now(UTC) - began).total_seconds() + 60
    assert progress.lag.retention_left_seconds is not None
    assert 6 * 86_400 < progress.lag.retention_left_seconds < 7 * 86_400
    assert progress.processed_rate > 0
    (progress,) = source_progress(second)
    assert (progress.lag.behind_messages, progress.lag.remaining_messages) == (10, 0)


def test_lag_of_each_entity_and_of_all(namespace: Namespace) -> None:
    for queue, count in (("queue38", 3), ("queue37", 5)):
        fill(namespace, queue, count)
    given = {name: value for name, value in namespace.options("").items() if name != "entity"}
    stepper = Stepper(given | {"entities": "queue38,queue37", "startingPosition": "earliest"}, Checkpoint())
    stepper.plan()
    report = stepper.reader.reportLatestOffset()
    assert report is not None
    lags = {label: each["lag"]["behindMessages"] for label, each in report["entities"].items()}
    assert lags == {"queue37": 5, "queue38": 3}
    assert report["lag"]["behindMessages"] == 8
    assert "lag" not in json.loads(stepper.checkpoint.offsets[0])
    stepper.finish()
    stepper.plan()
    report = stepper.reader.reportLatestOffset()
    assert report is not None and (report["lag"]["behindMessages"], report["lag"]["behindSeconds"]) == (0, 0)
