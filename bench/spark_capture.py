"""What an archive costs: `busbar capture` compared with a stream of the same messages that Spark drops. Archives in other
places are compared with one in a directory.

Unique bodies of 1 KiB in 16 fragments, two cores, everything on this machine, the broker included. Both are whole runs of
what is available now, from the start of the query to its end; the capture's files are synced and committed by then. They are
measured in turn; medians of ROUNDS count. The budget:

    capture / source → noop            at least 0.5
    Delta table / directory            at least 0.8
    S3 server / directory              at least 0.3

The S3 server is a test server in Python on the same two cores, so its ratio is a lower bound.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench.spark_measured import hold, run, seconds, shown
from bench.spark_source import FRAGMENTS, fill
from busbar.client.blocking import BlockingFactory, connect
from busbar.jobs import archive
from busbar.jobs.archive_identity import DELTA, PARQUET
from busbar.jobs.capture import capture
from busbar.spark.secrets import Secret
from harness.measured import MeasuredServer
from harness.object_store import ObjectStore

MESSAGES = int(os.environ.get("BUSBAR_BENCH_MESSAGES", "150000"))
ROUNDS = int(os.environ.get("BUSBAR_BENCH_ROUNDS", "3"))
LEAST = 0.5
LEAST_DELTA = 0.8
LEAST_S3 = 0.3
QUEUE = "wide"
ALL = {"maxMessagesPerTrigger": "10000000", "startingPosition": "earliest"}


def captured(spark: SparkSession, secret: Path, output: Path | str, table_format: str = PARQUET) -> str:
    """Capture everything; returns the archive."""
    capture(
        [QUEUE],
        output,
        connection=Secret(file=str(secret)),
        table_format=table_format,
        available_now=True,
        session=spark,
        options=ALL,
    )
    return str(output)


def thrown_away(spark: SparkSession, secret: Path, checkpoint: Path) -> str | None:
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
    return None


def forget_taps(factory: BlockingFactory) -> None:
    taps = factory.taps(QUEUE)
    for tap in taps.list():
        taps.delete(tap.name)


def measure(spark: SparkSession, server: MeasuredServer, directory: Path, store: ObjectStore) -> bool:
    secret = directory / "connection"
    secret.write_text(server.busbar.connection_string)
    factory = connect(server.busbar.connection_string)
    fill(factory, QUEUE, FRAGMENTS, MESSAGES)
    works: dict[str, Callable[[Path], str | None]] = {
        "source → noop": lambda place: thrown_away(spark, secret, place),
        "capture": lambda place: captured(spark, secret, place),
        "capture, Delta": lambda place: captured(spark, secret, place, DELTA),
        "capture, S3": lambda _place: captured(spark, secret, f"{store.bucket()}/archive"),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS + 1):
        for name, work in works.items():
            place = directory / f"{name}-{turn}"
            made: list[str | None] = []
            taken = seconds(lambda work=work, place=place, made=made: made.append(work(place)))  # type: ignore[misc]
            forget_taps(factory)
            if made[0] is not None and archive.dataset(made[0]).count_rows() != MESSAGES:
                raise AssertionError("the archive is not what was sent")
            if turn:  # the first one starts workers
                rates[name].append(MESSAGES / taken)
    factory.close()
    rate = shown(rates)
    return hold(
        [
            ("capture / source → noop", rate["capture"] / rate["source → noop"], LEAST),
            ("Delta table / directory", rate["capture, Delta"] / rate["capture"], LEAST_DELTA),
            ("S3 server / directory", rate["capture, S3"] / rate["capture"], LEAST_S3),
        ]
    )


def main() -> int:
    store = ObjectStore().start()
    os.environ.update(store.environment)  # before Spark starts: its workers inherit the credentials
    try:
        return run({QUEUE: {"EnablePartitioning": True}}, partial(measure, store=store))
    finally:
        store.stop()


if __name__ == "__main__":
    sys.exit(main())
