"""A program as a user writes it: a stream of messages, copied to another queue by our sink and to Parquet by Spark's own.

    copying_program.py DIRECTORY SOURCE TARGET MASTER

It runs until it is killed. `copy` with `now` ends with what is there. Every start has other partitions and another order of
rows: a batch that is repeated does not look like its first attempt.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from busbar.spark import attach, detach
from busbar.spark.session import open_session

CONNECTION = {"connectionStringEnv": "BUSBAR_CONNECTION_STRING"}


def copy(
    spark: SparkSession,
    directory: Path,
    source: str,
    target: str,
    connection: dict[str, str],
    *,
    now: bool = False,
) -> None:
    listener = attach(spark, **connection)
    options = {
        **connection,
        "waitForBroker": "2m",
        "entity": source,
        "startingPosition": "earliest",
        "maxPartitions": str(random.randint(1, 3)),
        "owner": "copying",
    }
    if not now:
        options["maxMessagesPerTrigger"] = "500"
    trigger = {"availableNow": True} if now else {"processingTime": "100 milliseconds"}

    copied = spark.readStream.format("busbar").options(**options, tap="copied").load()
    to_queue = (
        copied.repartition(random.randint(1, 4), F.rand())
        .writeStream.format("busbar")
        .options(**connection, entity=target, message="raw", waitForBroker="2m")
        .option("checkpointLocation", str(directory / "copied"))
        .trigger(**trigger)
    )
    filed = spark.readStream.format("busbar").options(**options, tap="filed").load()
    to_files = (
        filed.select("message_id", "body", "raw")
        .writeStream.format("parquet")
        .option("path", str(directory / "files"))
        .option("checkpointLocation", str(directory / "filed"))
        .trigger(**trigger)
    )
    if now:
        for each in (to_queue, to_files):
            each.start().awaitTermination()
    else:
        for query in [to_queue.start(), to_files.start()]:
            query.awaitTermination()
    detach(spark, listener)


if __name__ == "__main__":
    directory, source, target, master = sys.argv[1:]
    copy(open_session("copying", master=master), Path(directory), source, target, CONNECTION)
