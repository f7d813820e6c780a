"""What Spark pays for reading a queue: the source compared with a Parquet scan of the same rows and with a plain tap reader.

Unique bodies of 1 KiB, two cores, everything on this machine, the broker included. The source decodes every column and
passes them to Spark, which drops them (noop); so does the scan. The plain reader reads the pages of the same tap in one
process, with the client only, and decodes nothing. There are enough messages that the start of a job, a third of a second,
counts for little. All are measured in turn, forwards and backwards, so that the first one way is the last the other. Each
ratio is of one such round, and the median of ROUNDS counts.

A round before them does not count: Java discards what it compiled for a source at the first Parquet scan. To compile it
again takes seconds, which would be counted for the next source. The budget:

    source / Parquet scan              at least 0.5
    source / plain tap reader          at least 0.6
    source, 16 fragments / 2 fragments at least 0.8
    broker CPU per browsed message     at most a quarter of that of a receive-and-complete

Less to read: the same queue with a condition on a property that one message in ten meets, and with two columns without
bodies. The bytes are those of the pages that the broker sends, counted by a reader of the same tap.

    bytes, all / one in ten            at least 8
    bytes, all / two columns           at least 4
    time, all / one in ten             at least 1.3
    time, all / two columns            at least 1.5

One deep queue: a regular queue, which has one fragment, read by 1, 2 and 4 tasks. Two cores are shared by Spark, its workers
and the broker, so four tasks gain nothing here, and two gain little. The ratio states that dividing costs nothing:

    deep queue, 2 tasks / 1 task       at least 0.9
    deep queue, 4 tasks / 1 task       at least 0.8
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from bench.spark_measured import hold, run, seconds, shown
from busbar.client import OutgoingMessage, TapSelection, encode
from busbar.client.blocking import BlockingFactory, connect
from busbar.model.partitioning import index_of_key
from harness.measured import MeasuredServer

MESSAGES = int(os.environ.get("BUSBAR_BENCH_MESSAGES", "400000"))
RECEIVED = 20_000
SELECTED = {"properties": '{"tenth": true}'}
NARROW = {"columns": "message_id,enqueued_time"}
TASKS = (1, 2, 4)
ROUNDS = int(os.environ.get("BUSBAR_BENCH_ROUNDS", "3"))
FRAGMENTS = 16
TAP = "bench"


def fill(factory: BlockingFactory, queue: str, fragments: int, count: int) -> None:
    """Send messages with unique bodies, spread over so many fragments by their keys."""
    keys: list[str] = []
    number = 0
    while len(keys) < fragments:
        if index_of_key(f"key {number}", FRAGMENTS) == len(keys):
            keys.append(f"key {number}")
        number += 1
    with factory.sender(queue) as sender:
        for first in range(0, count, 2_000):
            sender.send(
                [
                    encode(
                        OutgoingMessage(
                            body=os.urandom(1024),
                            message_id=f"{queue}-{index}",
                            partition_key=keys[index % fragments],
                            application_properties={"tenth": index % 10 == 0},
                        )
                    )
                    for index in range(first, min(count, first + 2_000))
                ]
            )


def source(spark: SparkSession, secret: Path, queue: str, **more: str) -> DataFrame:
    options = {"connectionStringFile": str(secret), "entity": queue, "tap": TAP} | more
    return spark.read.format("busbar").options(**options).load()


def throw_away(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def read_plainly(factory: BlockingFactory, queue: str) -> int:
    taps = factory.taps(queue)
    read = 0
    for state in taps.show(TAP).fragments:
        for page in taps.pages(TAP, state.index, state.position, state.end):
            read += page.count
    return read


def bytes_sent(factory: BlockingFactory, queue: str, select: TapSelection | None = None) -> int:
    """The bytes of all pages of a tap."""
    taps = factory.taps(queue)
    spans = [(state.index, state.position, state.end) for state in taps.show(TAP).fragments]
    return sum(len(page.rows) for _, page in taps.pages_of(TAP, spans, select=select))


def receive(factory: BlockingFactory, queue: str, count: int) -> None:
    with factory.receiver(queue) as receiver:
        while count > 0:
            messages = receiver.receive(min(1_000, count), 10)
            receiver.complete(messages)
            count -= len(messages)


def paired(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios, round by round."""
    return median(our / their for our, their in zip(ours, theirs, strict=True))


def _deep(spark: SparkSession, secret: Path, tasks: int) -> Callable[[], object]:
    """Read the regular queue with so many tasks."""
    return lambda: throw_away(source(spark, secret, "deep", maxPartitions=str(tasks)))


def measure(spark: SparkSession, server: MeasuredServer, directory: Path) -> bool:
    secret = directory / "connection"
    secret.write_text(server.busbar.connection_string)
    factory = connect(server.busbar.connection_string)
    for queue, fragments in (("wide", FRAGMENTS), ("narrow", 2), ("deep", 1)):
        factory.taps(queue).create(TAP, from_earliest=True, max_size=1 << 40)
        fill(factory, queue, fragments, MESSAGES)
    archive = str(directory / "archive")
    source(spark, secret, "wide").write.option("compression", "zstd").parquet(archive)

    works: dict[str, Callable[[], object]] = {
        "source, 16 fragments": lambda: throw_away(source(spark, secret, "wide")),
        "source, 2 fragments": lambda: throw_away(source(spark, secret, "narrow")),
        "Parquet scan": lambda: throw_away(spark.read.parquet(archive)),
        "plain tap reader": lambda: read_plainly(factory, "wide"),
        "one message in ten": lambda: throw_away(source(spark, secret, "wide", **SELECTED)),
        "two columns": lambda: throw_away(source(spark, secret, "wide", **NARROW)),
        **{f"deep queue, {tasks} tasks": _deep(spark, secret, tasks) for tasks in TASKS},
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    browse: list[float] = []
    for number in range(1 + ROUNDS):
        taken = dict.fromkeys(works, 0.0)
        for name in [*works, *reversed(works)]:
            before = server.cpu_seconds()
            taken[name] += seconds(works[name])
            if name.startswith("source"):  # all of each message
                browse.append((server.cpu_seconds() - before) / MESSAGES * 1e6)
        if number > 0:
            for name, spent in taken.items():
                rates[name].append(2 * MESSAGES / spent)
    before = server.cpu_seconds()
    receive(factory, "narrow", RECEIVED)
    received = (server.cpu_seconds() - before) / RECEIVED * 1e6
    sent = bytes_sent(factory, "wide")
    few = bytes_sent(factory, "wide", TapSelection(properties={"tenth": (True,)}))
    small = bytes_sent(factory, "wide", TapSelection(bodies=False, application_properties=False))
    factory.close()

    shown(rates)
    print(
        f"  broker CPU: {median(browse):.1f} µs for a browsed message, {received:.1f} µs for one received and completed"
    )
    print(f"  bytes read: {sent:,} of all, {few:,} of one message in ten, {small:,} of two columns")
    print(f"  this machine has {len(os.sched_getaffinity(0))} cores, for Spark, its workers and the broker")
    # Of neighbours in time: other work on the machine then matters less.
    wide = rates["source, 16 fragments"]
    ratios = (
        ("source / Parquet scan", paired(wide, rates["Parquet scan"]), 0.5),
        ("source / plain tap reader", paired(wide, rates["plain tap reader"]), 0.6),
        ("16 fragments / 2 fragments", paired(wide, rates["source, 2 fragments"]), 0.8),
        ("receive CPU / browse CPU", received / median(browse), 4.0),
        ("bytes, all / one in ten", sent / few, 8.0),
        ("bytes, all / two columns", sent / small, 4.0),
        ("time, all / one in ten", paired(rates["one message in ten"], wide), 1.3),
        ("time, all / two columns", paired(rates["two columns"], wide), 1.5),
        (
            "deep queue, 2 tasks / 1 task",
            paired(rates["deep queue, 2 tasks"], rates["deep queue, 1 tasks"]),
            0.9,
        ),
        (
            "deep queue, 4 tasks / 1 task",
            paired(rates["deep queue, 4 tasks"], rates["deep queue, 1 tasks"]),
            0.8,
        ),
    )
    return hold(ratios)


def main() -> int:
    queues = {name: {"EnablePartitioning": True} for name in ("wide", "narrow")}
    return run({**queues, "deep": {"EnablePartitioning": False}}, measure)


if __name__ == "__main__":
    sys.exit(main())
