"""How long a program waits for a processor while a test measures a time: what a busy machine adds to every such time.

    with Lateness(process.pid) as lateness:
        seconds = ...
    assert seconds < lateness.allowed(2.0)

A thread sleeps for a hundredth of a second at a time. The longest of these sleeps shows how late the machine wakes a
process.
Beside it stands what Linux counts for each thread of the program: the time in which it could have run and did not
(/proc/PID/task/TID/schedstat, its second number). Where nothing is counted, that time is zero.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

SAMPLE_SECONDS: Final = 0.01
SLACK_SECONDS: Final = 0.5
"""To start a signal handler, and to reap the process, also on a machine that is idle."""
STEPS: Final = 10
"""How many times processes wake each other between a signal and an end, at most."""


class Lateness:
    """Samples of a program for the time of a `with` block."""

    def __init__(self, pid: int) -> None:
        self.worst = 0.0
        """The longest time by which a sleep was too long."""
        self._tasks = Path(f"/proc/{pid}/task")
        self._before = self._waited()
        self._after = dict(self._before)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="lateness", daemon=True)

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def waited(self) -> float:
        """How long the threads of the program have waited for a processor, together."""
        return sum(after - self._before.get(task, 0.0) for task, after in self._after.items())

    def allowed(self, seconds: float) -> float:
        """The longest time in which this machine certainly does what takes so many seconds on another."""
        return seconds + SLACK_SECONDS + STEPS * self.worst + 2 * self.waited

    def _sample(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(SAMPLE_SECONDS)
            self.worst = max(self.worst, time.monotonic() - began - SAMPLE_SECONDS)
            self._after |= self._waited()

    def _waited(self) -> dict[str, float]:
        """By thread, how long it has waited since it began."""
        found: dict[str, float] = {}
        try:
            for path in self._tasks.iterdir():
                found[path.name] = int((path / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            pass  # it has ended, or nothing is counted
        return found
