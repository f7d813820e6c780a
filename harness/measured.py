"""Measures a server from outside: CPU time of all its threads, syncs, memory; and the speed of the machine.

CPU times are comparable only on one machine at one time. So every figure is also given as a ratio to `calibrate()`: a fixed
piece of plain Python work, timed in the same run.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.faults.shims import build_shim
from harness.serving import Busbar, config_text


def calibrate(rounds: int = 3_000) -> float:
    """CPU-µs of one unit of plain Python work (dictionaries, bytes, integers); the best of five."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time_ns()
        for number in range(rounds):
            reference_unit(number)
        best = min(best, (time.process_time_ns() - began) / 1000 / rounds)
    return best


def reference_unit(seed: int) -> int:
    """A fixed piece of work."""
    kept: dict[int, bytes] = {}
    total = 0
    for number in range(20):
        key = seed * 31 + number
        kept[key] = key.to_bytes(8, "big") + b"calibration"
        total += len(kept[key]) + (key & 7)
    for key in list(kept):
        total -= len(kept.pop(key))
    return total


def processor_time(process: int) -> float:
    """Seconds that a process has spent on processors, with all its threads, including ended ones."""
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    coarse = (int(stat[11]) + int(stat[12])) / 100
    try:
        tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
        fine = sum(int(task.read_text().split()[0]) / 1e9 for task in tasks)
    except OSError:
        return coarse
    return max(fine, coarse - 0.02)


class MeasuredServer:
    def __init__(self, busbar: Busbar, counter: Path | None) -> None:
        self.busbar = busbar
        self._counter = counter

    def cpu_seconds(self) -> float:
        """CPU time of all threads, including ended ones."""
        return processor_time(self.busbar.pid)

    def descriptors(self) -> int:
        """Open files and sockets."""
        return sum(1 for _ in Path(f"/proc/{self.busbar.pid}/fd").iterdir())

    def syncs(self) -> int | None:
        """Syncs so far; None if they cannot be counted."""
        if self._counter is None:
            return None
        return int(struct.unpack("l", self._counter.read_bytes())[0])


@contextmanager
def measured_server(
    queues: Mapping[str, Mapping[str, object]],
    *,
    interpreted: bool = False,
    limits: Mapping[str, object] | None = None,
    arguments: tuple[str, ...] = (),
    topics: Sequence[Mapping[str, object]] = (),
) -> Iterator[MeasuredServer]:
    """Run a server in a directory of its own. If there is a C compiler, its syncs are counted."""
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        environment = {"BUSBAR_INTERPRETED": "1"} if interpreted else {}
        counter = _count_syncs(Path(directory), environment)
        busbar = Busbar(
            Path(directory) / "data",
            config_text(queues, limits, topics),
            arguments=arguments,
            environment=environment,
        )
        busbar.start()
        try:
            yield MeasuredServer(busbar, counter)
        finally:
            busbar.stop()


def _count_syncs(directory: Path, environment: dict[str, str]) -> Path | None:
    if shutil.which("cc") is None:
        return None
    library, counter = build_shim("count_syncs", directory), directory / "syncs"
    counter.write_bytes(bytes(8))
    environment["LD_PRELOAD"] = str(library)
    environment["SYNC_COUNT"] = str(counter)
    return counter


def rooms_are_compiled() -> bool:
    from busbar.amqp import connection

    return (connection.__file__ or "").endswith(".so")
