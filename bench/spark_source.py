"""What Spark pays for reading a queue: the source compared with a Parquet scan of the same rows and with a plain tap reader.

Unique bodies of 1 KiB, two cores, everything on this machine, the broker included. The source decodes every column and
passes them to Spark, which drops them (noop); so does the scan. The plain reader reads the pages of the same tap in one
process, with the client only, and decodes nothing. There are enough messages that the start of a job, a third of a second,
counts for little. All are measured in turn, forwards and backwards, so that the first one way is the last the other. Each
ratio is of one such round, and the median of ROUNDS counts.

A round before them does not count: Java discards what it compiled for a source at the first Parquet scan. To compile it
again takes seconds, which would be counted for the next source. The budget:

    source / Parquet scan              at least 0.3
    source / plain tap reader          at least 0.5
    source, 16 fragments / 2 fragments at least 0.9
    broker CPU per browsed message     at most a quarter of that of a receive-and-complete
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from bench.spark_measured import hold, run, seconds, shown
from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import BlockingFactory, connect
from busbar.model.partitioning import index_of_key
from harness.measured import MeasuredServer

MESSAGES = int(os.environ.get("BUSBAR_BENCH_MESSAGES", "400000"))
RECEIVED = 20_000
ROUNDS = 3
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
                        )
                    )
                    for index in range(first, min(count, first + 2_000))
                ]
            )


def source(spark: SparkSession, secret: Path, queue: str) -> DataFrame:
    options = {"connectionStringFile": str(secret), "entity": queue, "tap": TAP}
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


def receive(factory: BlockingFactory, queue: str, count: int) -> None:
    with factory.receiver(queue) as receiver:
        while count > 0:
            messages = receiver.receive(min(1_000, count), 10)
            receiver.complete(messages)
            count -= len(messages)


def paired(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios, round by round."""
    return median(our / their for our, their in zip(ours, theirs, strict=True))


def measure(spark: SparkSession, server: MeasuredServer, directory: Path) -> bool:
    secret = directory / "connection"
    secret.write_text(server.busbar.connection_string)
    factory = connect(server.busbar.connection_string)
    for queue, fragments in (("wide", FRAGMENTS), ("narrow", 2)):
        factory.taps(queue).create(TAP, from_earliest=True, max_size=1 << 40)
        fill(factory, queue, fragments, MESSAGES)
    archive = str(directory / "archive")
    source(spark, secret, "wide").write.option("compression", "zstd").parquet(archive)

    works: dict[str, Callable[[], object]] = {
        "source, 16 fragments": lambda: throw_away(source(spark, secret, "wide")),
        "source, 2 fragments": lambda: throw_away(source(spark, secret, "narrow")),
        "Parquet scan": lambda: throw_away(spark.read.parquet(archive)),
        "plain tap reader": lambda: read_plainly(factory, "wide"),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    browse: list[float] = []
    for number in range(1 + ROUNDS):
        taken = dict.fromkeys(works, 0.0)
        for name in [*works, *reversed(works)]:
            before = server.cpu_seconds()
            taken[name] += seconds(works[name])
            if name.startswith("source"):
                browse.append((server.cpu_seconds() - before) / MESSAGES * 1e6)
        if number > 0:
            for name, spent in taken.items():
                rates[name].append(2 * MESSAGES / spent)
    before = server.cpu_seconds()
    receive(factory, "narrow", RECEIVED)
    received = (server.cpu_seconds() - before) / RECEIVED * 1e6
    factory.close()

    shown(rates)
    print(
        f"  broker CPU: {median(browse):.1f} µs for a browsed message, {received:.1f} µs for one received and completed"
    )
    # Of neighbours in time: other work on the machine then matters less.
    wide = rates["source, 16 fragments"]
    ratios = (
        ("source / Parquet scan", paired(wide, rates["Parquet scan"]), 0.3),
        ("source / plain tap reader", paired(wide, rates["plain tap reader"]), 0.5),
        ("16 fragments / 2 fragments", paired(wide, rates["source, 2 fragments"]), 0.9),
        ("receive CPU / browse CPU", received / median(browse), 4.0),
    )
    return hold(ratios)


def main() -> int:
    return run({name: {"EnablePartitioning": True} for name in ("wide", "narrow")}, measure)


if __name__ == "__main__":
    sys.exit(main())
