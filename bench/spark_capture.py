"""What an archive costs: `busbar capture` compared with a stream of the same messages that Spark drops.

Unique bodies of 1 KiB in 16 fragments, two cores, everything on this machine, the broker included. Both are whole runs of
what is available now, from the start of the query to its end; the capture's files are synced and committed by then. They are
measured in turn; medians of ROUNDS count. The budget:

    capture / source → noop            at least 0.5
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from bench.spark_measured import hold, run, seconds, shown
from bench.spark_source import FRAGMENTS, fill
from busbar.client.blocking import BlockingFactory, connect
from busbar.jobs import archive
from busbar.jobs.capture import capture
from busbar.spark.secrets import Secret
from harness.measured import MeasuredServer

MESSAGES = int(os.environ.get("BUSBAR_BENCH_MESSAGES", "150000"))
ROUNDS = 3
LEAST = 0.5
QUEUE = "wide"
ALL = {"maxMessagesPerTrigger": "10000000", "startingPosition": "earliest"}


def captured(spark: SparkSession, secret: Path, output: Path) -> None:
    capture(
        [QUEUE],
        output,
        connection=Secret(file=str(secret)),
        available_now=True,
        session=spark,
        options=ALL,
    )


def thrown_away(spark: SparkSession, secret: Path, checkpoint: Path) -> None:
    options = {"connectionStringFile": str(secret), "entity": QUEUE, **ALL}
    query = (
        spark.readStream.format("busbar")
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def forget_taps(factory: BlockingFactory) -> None:
    taps = factory.taps(QUEUE)
    for tap in taps.list():
        taps.delete(tap.name)


def measure(spark: SparkSession, server: MeasuredServer, directory: Path) -> bool:
    secret = directory / "connection"
    secret.write_text(server.busbar.connection_string)
    factory = connect(server.busbar.connection_string)
    fill(factory, QUEUE, FRAGMENTS, MESSAGES)
    works: dict[str, Callable[[Path], object]] = {
        "source → noop": lambda place: thrown_away(spark, secret, place),
        "capture": lambda place: captured(spark, secret, place),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS + 1):
        for name, work in works.items():
            place = directory / f"{name}-{turn}"
            taken = seconds(lambda work=work, place=place: work(place))  # type: ignore[misc]
            forget_taps(factory)
            if name == "capture" and archive.dataset(place).count_rows() != MESSAGES:
                raise AssertionError("the archive is not what was sent")
            if turn:  # the first one starts workers
                rates[name].append(MESSAGES / taken)
    factory.close()
    rate = shown(rates)
    return hold([("capture / source → noop", rate["capture"] / rate["source → noop"], LEAST)])


def main() -> int:
    return run({QUEUE: {"EnablePartitioning": True}}, measure)


if __name__ == "__main__":
    sys.exit(main())
