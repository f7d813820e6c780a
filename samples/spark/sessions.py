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

    .venv/bin/python samples/spark/sessions.py

sends the steps of four orders to a queue of its own, follows them, prints a table, and deletes the queue. It uses the Busbar
of BUSBAR_CONNECTION_STRING, or that of `make run`; if none runs, it starts one for itself. With arguments it follows a queue
of yours until it is stopped:

    BUSBAR_CONNECTION_STRING=... .venv/bin/python samples/spark/sessions.py QUEUE OUTPUT [--available-now]

Kill it whenever you like and start it again: OUTPUT/steps has every message once.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from busbar.client import OutgoingMessage
from busbar.client.blocking import connect
from busbar.client.blocking_administration import BlockingAdministrationClient
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


def follow(spark: SparkSession, queue: str, output: str, batch: str, *, now: bool) -> None:
    """Write what became of each message of a queue to OUTPUT/steps, until the end of what is there or without end."""
    messages = (
        spark.readStream.format("busbar")
        .option("connectionStringEnv", VARIABLE)
        .option("entity", queue)
        .option("tap", "spark-sessions")
        .option("owner", output)
        .option("startingPosition", "earliest")
        .option("maxMessagesPerTrigger", batch)
        .load()
    )

    def write(steps: DataFrame, number: int) -> None:
        steps.write.mode("overwrite").parquet(f"{output}/steps/batch={number}")
        print(f"batch {number} is written", flush=True)

    query = (
        followed(messages)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{output}/checkpoint")
    )
    if now:
        query = query.trigger(availableNow=True)
    query.start().awaitTermination()


# ---- without arguments ---------------------------------------------------------------------------------

LOCAL = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
"""The Busbar of `make run`."""
ORDERS = {
    "order-1": ("reserve", "charge", "ship"),
    "order-2": ("reserve", "charge", "charge", "ship"),
    "order-3": ("reserve", "charge", "ship", "charge"),
    "order-4": ("reserve",),
}


@contextmanager
def busbar() -> Iterator[str]:
    """The connection string of a Busbar that runs. If there is none, one runs for the time of the block."""
    if VARIABLE in os.environ or is_running():
        yield os.environ.get(VARIABLE, LOCAL)
        return
    print("No Busbar runs here, so this sample starts one.", flush=True)
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "busbar", "serve", "--dev", "--data", data]
        command += ["--port", "0", "--http-port", "0", "--tls-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                ready = next(line for line in process.stdout if line.startswith("ready "))
                yield ready.removeprefix("ready ").strip()
            finally:
                process.terminate()


def is_running() -> bool:
    try:
        socket.create_connection(("localhost", 5672), timeout=1).close()
    except OSError:
        return False
    return True


def send_orders(connection: str, queue: str) -> None:
    """The steps of all orders, interleaved: the first of each, then the second of each, and so on."""
    rounds = zip_longest(*([(order, step) for step in steps] for order, steps in ORDERS.items()))
    messages = [
        OutgoingMessage(step.encode(), session_id=order)
        for turn in rounds
        for order, step in filter(None, turn)
    ]
    with connect(connection) as factory:
        factory.message_sender(queue).send_messages(messages)
    print(f"{len(messages)} steps of {len(ORDERS)} orders are in the queue {queue!r}.", flush=True)


def demonstrate() -> None:
    queue = f"sessions-{uuid.uuid4().hex[:8]}"
    with busbar() as connection, tempfile.TemporaryDirectory() as output:
        os.environ[VARIABLE] = connection  # where the workers of Spark find it
        with BlockingAdministrationClient.from_connection_string(connection) as administration:
            administration.create_queue(queue, requires_session=True)
            try:
                send_orders(connection, queue)
                spark = session()
                follow(spark, queue, output, "5", now=True)
                steps = spark.read.parquet(f"{output}/steps").select(
                    "session_id", "number", "step", "previous", "remark"
                )
                steps.na.fill("").orderBy("session_id", "number").show(100, truncate=False)
                spark.stop()
            finally:
                administration.delete_queue(queue)


def session() -> SparkSession:
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
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow sessions in Spark.")
    parser.add_argument("queue", nargs="?")
    parser.add_argument("output", nargs="?")
    parser.add_argument("--available-now", action="store_true", help="stop at the end of what is there")
    parser.add_argument("--batch", default="1000", help="messages in a micro-batch")
    given = parser.parse_args()
    if given.queue is None:
        demonstrate()
        return
    if given.output is None:
        parser.error("OUTPUT is missing: the directory for the result")
    spark = session()
    follow(spark, given.queue, given.output, given.batch, now=given.available_now)
    spark.stop()


if __name__ == "__main__":
    main()
