"""What Spark pays for writing to a queue: the sink compared with a plain batched send, and with a writer of rows.

Unique bodies of 1 KiB with an id, a key and two more fields, two cores, everything on this machine, the broker included; the
rows are in Spark's memory. The plain send encodes and sends the same messages in one process, with the client only. The
broker remembers the ids that the sink writes, but not those of the plain send.

Most of that time is the broker's. The gain of Arrow is measured without it: Spark's rows become messages that are not
sent. One run uses the sink's encoder from record batches, the other the client's own `encode` from a Row at a time.

All are measured in turn; medians of ROUNDS count. The budget:

    sink / plain batched send        at least 0.4
    Arrow writer / writer of rows    at least 1.5
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.spark_measured import hold, run, seconds, shown
from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import BlockingFactory, connect
from busbar.spark.sink_columns import plan_of
from busbar.spark.sink_encode import MessageEncoder
from busbar.spark.sink_options import SinkOptions
from harness.measured import MeasuredServer

MESSAGES = int(os.environ.get("BUSBAR_BENCH_MESSAGES", "150000"))
FILES = 4
ROUNDS = 3
QUEUE = "orders"
CHUNK = 10_000
TIMES = 12
"""How often each row becomes a message that is not sent: the start of a job should not count."""


class Nowhere(WriterCommitMessage):
    """The commit message of a task without a broker."""


class RowWriter(DataSourceWriter):
    """What the sink would be without Arrow."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for row in iterator:
            encode(OutgoingMessage(**row.asDict()))
        return Nowhere()


class ArrowWriter(DataSourceArrowWriter):
    """The part of the sink before it sends."""

    def __init__(self, schema: StructType) -> None:
        options = SinkOptions.parse({"entity": QUEUE, "connectionStringEnv": "UNUSED"}, streaming=False)
        self._encoder = MessageEncoder(plan_of(schema, options), once=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            assert not self._encoder.encode(batch).bad
        return Nowhere()


class RowFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nowhere-rows"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RowWriter()


class ArrowFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nowhere-arrow"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return ArrowWriter(schema)


def make_rows(directory: Path) -> str:
    """Parquet files with a message in each row, since createDataFrame is too slow for many rows."""
    place = directory / "rows"
    place.mkdir()
    each = MESSAGES // FILES
    for file in range(FILES):
        columns = {
            "body": pa.array([os.urandom(1024) for _ in range(each)], pa.binary()),
            "message_id": [f"{file}-{number}" for number in range(each)],
            "partition_key": [f"customer {number % 1000}" for number in range(each)],
            "subject": ["order"] * each,
            "content_type": ["application/octet-stream"] * each,
        }
        pq.write_table(pa.table(columns), place / f"{file}.parquet")
    return str(place)


def send_plainly(factory: BlockingFactory, messages: list[dict[str, Any]]) -> None:
    with factory.sender(QUEUE) as sender:
        for first in range(0, len(messages), CHUNK):
            part = messages[first : first + CHUNK]
            sender.send([encode(OutgoingMessage(**fields)) for fields in part])


def write_with_sink(frame: DataFrame, secret: Path) -> None:
    options = {"connectionStringFile": str(secret), "entity": QUEUE}
    frame.write.format("busbar").options(**options).mode("append").save()


def write_nowhere(frame: DataFrame, format: str) -> None:
    frame.write.format(format).mode("append").save()


def drain(factory: BlockingFactory, count: int) -> None:
    with factory.receiver(QUEUE, delete=True, credit=5_000) as receiver:
        while count > 0:
            count -= len(receiver.receive(5_000, 10))


def measure(spark: SparkSession, server: MeasuredServer, directory: Path) -> bool:
    secret = directory / "connection"
    secret.write_text(server.busbar.connection_string)
    factory = connect(server.busbar.connection_string)
    for format in (RowFormat, ArrowFormat):
        spark.dataSource.register(format)
    place = make_rows(directory)
    frame = spark.read.parquet(place).cache()
    frame.count()
    messages = pq.read_table(place).to_pylist()
    more = reduce(DataFrame.union, [frame] * TIMES)
    sent: dict[str, Callable[[], object]] = {
        "sink": lambda: write_with_sink(frame, secret),
        "plain batched send": lambda: send_plainly(factory, messages),
    }
    made: dict[str, Callable[[], object]] = {
        "Arrow writer, unsent": lambda: write_nowhere(more, ArrowFormat.name()),
        "writer of rows, unsent": lambda: write_nowhere(more, RowFormat.name()),
    }
    sent["sink"]()  # the first run starts workers
    drain(factory, len(messages))
    rates: dict[str, list[float]] = {name: [] for name in (*sent, *made)}
    for _ in range(ROUNDS):
        for name, work in sent.items():
            rates[name].append(len(messages) / seconds(work))
            drain(factory, len(messages))
        for name, work in made.items():
            rates[name].append(len(messages) * TIMES / seconds(work))
    factory.close()

    rate = shown(rates)
    ratios = (
        ("sink / plain batched send", rate["sink"] / rate["plain batched send"], 0.4),
        ("Arrow writer / writer of rows", rate["Arrow writer, unsent"] / rate["writer of rows, unsent"], 1.5),
    )
    return hold(ratios)


def main() -> int:
    return run({QUEUE: {"EnablePartitioning": True, "MaxSizeInMegabytes": 5120}}, measure)


if __name__ == "__main__":
    sys.exit(main())
