"""Orders, each a message session, followed through their steps by Spark: in order, with state, and after a crash.

The messages of a session are the steps of one order. For every message this query writes which step it was and what happened
just before it in the same session. A step that came twice, or one that came after the last, is marked as such.

Why the order is right. A session lies in one fragment, and sequence numbers rise within a fragment. A micro-batch is a span
of numbers of each fragment, and batches follow each other without gaps; so all of a batch comes behind all of the batches
before it. Within a batch Spark's shuffle mixes rows, and the processor sorts those of its session. It keeps the last number
that it has seen, and would fail rather than go back.

Why a crash does no harm. State and offsets are Spark's, in the checkpoint: both are of the last batch that was committed. A
batch that was under way is read again from the tap, the same span with the same bytes, even if receivers have completed its
messages meanwhile. Its output replaces what the first attempt left, because its place follows from the number of the batch.

Start a Busbar with `make run`, send to the queue `workflows` (samples/sessions/workflow.py does), then

BUSBAR_CONNECTION_STRING=... .venv/bin/python samples/spark/sessions.py workflows OUTPUT [--available-now]

Kill it whenever you like and start it again: OUTPUT/steps has every message once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from busbar.spark import attach, local_session

VARIABLE = "BUSBAR_CONNECTION_STRING"
LAST_STEP = "ship"
STATE = "last long, count int, previous string, finished boolean"
FRESH = (0, 0, None, False)
STEPS = "session_id string, sequence_number long, number int, step string, previous string, remark string"


class Workflow(StatefulProcessor):
    """One for each partition of the shuffle; Spark sets it to the state of a session before it gives it rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("workflow", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # type: ignore[override]
        (session,) = key
        last, count, previous, finished = (self._state.exists() and self._state.get()) or FRESH
        for row in sorted(rows, key=lambda row: row.sequence_number):
            if row.sequence_number <= last:
                raise AssertionError(f"session {session!r} went back from {last} to {row.sequence_number}")
            step = row.body.decode()
            remark = "after the last step" if finished else "repeated" if step == previous else None
            count += 1
            yield Row(
                session_id=session,
                sequence_number=row.sequence_number,
                number=count,
                step=step,
                previous=previous,
                remark=remark,
            )
            last, previous, finished = row.sequence_number, step, finished or step == LAST_STEP
        self._state.update((last, count, previous, finished))

    def close(self) -> None:
        pass


def followed(messages: DataFrame) -> DataFrame:
    """What became of each message, session by session."""
    return (
        messages.where(col("session_id").isNotNull())
        .select("session_id", "sequence_number", "body")
        .groupBy("session_id")
        .transformWithState(Workflow(), STEPS, outputMode="Append", timeMode="None")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow sessions in Spark.")
    parser.add_argument("queue")
    parser.add_argument("output")
    parser.add_argument("--available-now", action="store_true", help="stop at the end of what is there")
    parser.add_argument("--batch", default="1000", help="messages in a micro-batch")
    given = parser.parse_args()

    spark = local_session(
        "sessions",
        config={
            # The state store of transformWithState.
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.shuffle.partitions": "2",  # how many processes share the sessions; the checkpoint keeps it
        },
    )
    attach(spark, connectionStringEnv=VARIABLE)
    messages = (
        spark.readStream.format("busbar")
        .option("connectionStringEnv", VARIABLE)
        .option("entity", given.queue)
        .option("tap", "spark-sessions")
        .option("owner", given.output)
        .option("startingPosition", "earliest")
        .option("maxMessagesPerTrigger", given.batch)
        .load()
    )

    def write(steps: DataFrame, batch: int) -> None:
        steps.write.mode("overwrite").parquet(f"{given.output}/steps/batch={batch}")
        print(f"batch {batch} is written", flush=True)

    query = (
        followed(messages)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{given.output}/checkpoint")
    )
    if given.available_now:
        query = query.trigger(availableNow=True)
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
