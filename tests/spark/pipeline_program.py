"""A program as a user writes it, for any Spark: a batch from a queue into another one, and sessions, followed with state.

    pipeline_program.py CONNECTION_FILE CHECKPOINT

It takes the session as it was submitted, or the one that it is given: nothing in it depends on where it runs. It registers
the format as docs/spark-cluster.md shows. The code that follows sessions is that of samples/spark/sessions.py.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat_ws

from busbar.spark import attach, detach
from harness.page_blocks import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spark-cluster.md"
SAMPLE = ROOT / "samples" / "spark" / "sessions.py"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def pipeline(spark: SparkSession, connection_file: str, checkpoint: str) -> None:
    """Queue `orders` to `copies`; each message of the session-aware queue `workflows` to `steps`, with its number in its
    session and the step before it."""
    connection = {"connectionStringFile": connection_file, "waitForBroker": "20s"}
    orders = spark.read.format("busbar").options(**connection).load("orders")
    (
        orders.select("message_id", "body")
        .write.format("busbar")
        .mode("append")
        .options(**connection)
        .save("copies")
    )
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    listener = attach(spark, connectionStringFile=connection_file)
    followed = runpy.run_path(str(SAMPLE))["followed"]
    messages = (
        spark.readStream.format("busbar")
        .options(**connection, entity="workflows", tap="followed", startingPosition="earliest")
        .option("maxMessagesPerTrigger", "40")
        .load()
    )
    steps = followed(messages).select(
        "session_id",
        col("step").alias("body"),
        col("previous").alias("correlation_id"),
        concat_ws(" ", "session_id", "number").alias("message_id"),
    )
    (
        steps.writeStream.format("busbar")
        .options(**connection, entity="steps", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    detach(spark, listener)


if __name__ == "__main__":
    spark = SparkSession.builder.appName("pipeline").getOrCreate()
    for block in blocks_of(PAGE, ("sh", "python")):
        if block.language == "python":
            exec(compile(block.text, PAGE.name, "exec"), {"spark": spark})
    pipeline(spark, *sys.argv[1:])
    spark.stop()
