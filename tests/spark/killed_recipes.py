"""Runs the recipes of docs/spark-recipes.md at the same time, and stops each between its result and its settlement.

    python -m tests.spark.killed_recipes FILE...

It prints a line for each recipe that has got there. Then it waits to be killed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from busbar.client.blocking import BlockingReceiver
from busbar.spark.session import local_session

BatchFunction = Callable[[DataFrame, int], None]


def wait_here(name: str) -> None:
    print(f"result of {name}", flush=True)
    time.sleep(600)


original = DataStreamWriter.foreachBatch


def stopping_foreach_batch(writer: DataStreamWriter, function: BatchFunction) -> DataStreamWriter:
    """The batch is written; Spark does not get to commit it."""

    def write(rows: DataFrame, batch: int) -> None:
        function(rows, batch)
        wait_here(function.__name__)

    return original(writer, write)


def stopping_complete(_receiver: BlockingReceiver, _messages: Any) -> None:
    wait_here("complete")


def run(path: Path) -> None:
    exec(compile(path.read_text(), path.name, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    DataStreamWriter.foreachBatch = stopping_foreach_batch  # type: ignore[method-assign,assignment]
    BlockingReceiver.complete = stopping_complete  # type: ignore[method-assign,assignment]
    local_session("recipes")  # one for all: they would start it at the same time
    for name in sys.argv[1:]:
        threading.Thread(target=run, args=(Path(name),), daemon=True).start()
    time.sleep(600)
