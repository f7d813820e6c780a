"""Runs the recipes of docs/spark-recipes.md, which the directory has as files.

    python -m tests.spark.recipes_program [--stop]

With --stop all run at the same time, and each stops between its result and its settlement. A line is printed for each that
has got there. Then the program waits to be killed.
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

RECIPES = ("takings.py", "deliveries.py", "refunds.py")

BatchFunction = Callable[[DataFrame, int], None]
original = DataStreamWriter.foreachBatch


def wait_here(name: str) -> None:
    print(f"result of {name}", flush=True)
    time.sleep(600)


def stopping_foreach_batch(writer: DataStreamWriter, function: BatchFunction) -> DataStreamWriter:
    """The batch is written, and Spark does not get to commit it."""

    def write(rows: DataFrame, batch: int) -> None:
        function(rows, batch)
        wait_here(function.__name__)

    return original(writer, write)


def stopping_complete(_receiver: BlockingReceiver, _messages: Any) -> None:
    wait_here("complete")


def run(name: str) -> None:
    exec(compile(Path(name).read_text(), name, "exec"), {"__name__": "__main__"})


def main(stops: bool) -> None:
    local_session("recipes")  # one for all: they would start it at the same time
    if not stops:
        for name in RECIPES:  # the last one when locks have expired
            run(name)
        return
    DataStreamWriter.foreachBatch = stopping_foreach_batch  # type: ignore[method-assign,assignment]
    BlockingReceiver.complete = stopping_complete  # type: ignore[method-assign,assignment]
    for name in RECIPES:
        threading.Thread(target=run, args=(name,), daemon=True).start()
    time.sleep(600)


if __name__ == "__main__":
    main("--stop" in sys.argv)
