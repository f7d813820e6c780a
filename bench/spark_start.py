"""Where the time of a small capture goes: the parts of `busbar capture` of 1,000 messages, and the same job without Busbar.

Both are whole processes on this machine, from their start to their end, with the same Java and the same settings. The other
job has a source of three rows in Python, a stream of what is available now, and Parquet files; so it is what Spark itself
takes. They run in turn; medians of ROUNDS count. The budget:

    capture / the same without Busbar      at most 1.5
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import connect
from harness.measured import measured_server, rooms_are_compiled

MESSAGES = 1_000
ROUNDS = int(os.environ.get("BUSBAR_BENCH_ROUNDS", "3"))
MOST = 1.5
QUEUE = "orders"
SHOWN = {
    "starting Spark (Java)": "Java",
    "starting Spark (session)": "the session",
    "starting to read": "the plan",
    "waiting for the first batch": "the first batch",
    "stopping Spark": "the end",
}
FIRST = "Busbar, before Spark"
WITHOUT = """
import sys
from pathlib import Path
from busbar.spark.class_archive import Numbers, stream
from busbar.spark.session import QUICK_START, open_session

def part(text):
    print(text, file=sys.stderr, flush=True)

def write(frame, batch):
    frame.mapInArrow(lambda batches: batches, frame.schema).write.parquet(f"{sys.argv[1]}/files")

spark = open_session("numbers", config=QUICK_START, on_part=lambda name: part(f"starting Spark ({name})"))
part("starting to read numbers")
spark.dataSource.register(Numbers)
query = stream(spark, Path(sys.argv[1], "checkpoint")).foreachBatch(write).start()
part("waiting for the first batch")
query.awaitTermination()
part("stopping Spark")
spark.stop()
"""


def timed(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Run a program; the seconds of each part that it reports."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stderr is not None
    parts: dict[str, float] = {}
    current, since, said = FIRST, began, ""
    for line in process.stderr:
        said += line
        now = time.perf_counter()
        for text, name in SHOWN.items():
            if text in line:
                parts[current] = parts.get(current, 0.0) + now - since
                current, since = name, now
    if process.wait() != 0:
        raise AssertionError(f"exit code {process.returncode}:\n{said}")
    parts[current] = parts.get(current, 0.0) + time.perf_counter() - since
    return parts


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory,
        measured_server({QUEUE: {}}) as server,
    ):
        connection = server.busbar.connection_string
        with connect(connection) as factory, factory.sender(QUEUE) as sender:
            sender.send([encode(OutgoingMessage(os.urandom(200))) for _ in range(MESSAGES)])
        environment = {**os.environ, "BUSBAR_CONNECTION_STRING": connection}
        runs: dict[str, list[dict[str, float]]] = {"capture": [], "without": []}
        for turn in range(ROUNDS + 1):
            place = Path(directory, str(turn))
            command = [
                sys.executable,
                "-m",
                "busbar",
                "capture",
                QUEUE,
                "--output",
                f"{place}-archive",
                "--available-now",
            ]
            measured = timed(command, environment)
            without = timed([sys.executable, "-c", WITHOUT, f"{place}-numbers"], environment)
            if turn:  # the first one reads files from the disk
                runs["capture"].append(measured)
                runs["without"].append(without)
    return shown(runs)


def shown(runs: dict[str, list[dict[str, float]]]) -> int:
    print(f"  {'seconds':<24}{'capture':>10}{'without':>10}")
    for part in (FIRST, *SHOWN.values()):
        medians = [median(run.get(part, 0.0) for run in runs[kind]) for kind in ("capture", "without")]
        print(f"  {part:<24}{medians[0]:>10.2f}{medians[1]:>10.2f}")
    capture, without = (median(sum(run.values()) for run in runs[kind]) for kind in ("capture", "without"))
    print(f"  {'in all':<24}{capture:>10.2f}{without:>10.2f}")
    print(f"  {'capture / without':<24}{capture / without:>10.2f}  (at most {MOST:g})")
    if not rooms_are_compiled():
        print(
            "\nthe compiled rooms are not built: the interpreted ones were measured, and no ratio is asked of them"
        )
        return 0
    return 0 if capture / without <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
