"""Runs the recipes of docs/spark-recipes.md, which the directory has as files, and samples/spark/sessions.py.

    python -m tests.spark.recipes_program [--stop | SECONDS]

With --stop each stops between its result and its settlement, the sample in its second batch. A line is printed for each that
has got there, and the next one begins. Then the program waits to be killed. Without it, the number is the time, in seconds
since 1970, at which the locks of an earlier run have expired.
"""

from __future__ import annotations

import runpy
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

LOCKING = "refunds.py"
RECIPES = ("takings.py", "deliveries.py", LOCKING)
SAMPLE = str(Path(__file__).resolve().parents[2] / "samples" / "spark" / "sessions.py")
SAMPLE_ARGUMENTS = ("workflows", "output", "--batch", "60")
LATER = {"write": 1}
"""The batch in which the function of a query stops, if it is not the first."""

BatchFunction = Callable[[DataFrame, int], None]
original = DataStreamWriter.foreachBatch
stopped = threading.Semaphore(0)


def wait_here(name: str) -> None:
    print(f"result of {name}", flush=True)
    stopped.release()
    time.sleep(600)


def stopping_foreach_batch(writer: DataStreamWriter, function: BatchFunction) -> DataStreamWriter:
    """The batch is written, and Spark does not get to commit it."""

    def write(rows: DataFrame, batch: int) -> None:
        function(rows, batch)
        if batch >= LATER.get(function.__name__, 0):
            wait_here(function.__name__)

    return original(writer, write)


def stopping_complete(_receiver: BlockingReceiver, _messages: Any) -> None:
    wait_here("complete")


def run(name: str, *arguments: str) -> None:
    sys.argv = [name, *arguments]
    runpy.run_path(name, run_name="__main__")


def main(stops: bool, expired: float = 0.0) -> None:
    local_session("recipes")  # one for all
    if not stops:
        for name in RECIPES:
            if name == LOCKING:
                time.sleep(max(0.0, expired - time.time()))
            run(name)
        run(SAMPLE, *SAMPLE_ARGUMENTS, "--available-now")  # it stops the session
        return
    DataStreamWriter.foreachBatch = stopping_foreach_batch  # type: ignore[method-assign,assignment]
    BlockingReceiver.complete = stopping_complete  # type: ignore[method-assign,assignment]
    for command in (SAMPLE, *SAMPLE_ARGUMENTS), *((name,) for name in RECIPES):
        threading.Thread(target=run, args=command, daemon=True).start()
        stopped.acquire()
    time.sleep(600)


if __name__ == "__main__":
    stops = "--stop" in sys.argv
    main(stops, 0.0 if stops else float(sys.argv[1]))
