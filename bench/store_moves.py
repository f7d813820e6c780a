"""How long commits wait while messages that survive are moved from the journal to SQLite, beside SQLite alone.

    python -m bench.store_moves [--seconds 10] [--rate 2000] [--directory DIR]

Commits of 20 messages are due at a fixed rate. A share of the messages survives, and the others are deleted some commits
later. Latencies count from when a commit was due, so one that is late delays those behind it. The ratios of the two stores
in one run are what to compare between machines. The rest depends on the disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import deque
from pathlib import Path

from busbar.broker.file_watch import SOON, WATCH_INTERVAL
from busbar.fragment.changes import Changes, Head
from busbar.model.message import ACTIVE, LANES, Record
from busbar.store.contract import Store
from busbar.store.journal.store import JournalStore
from busbar.store.sqlite.store import SqliteStore

GROUP = 20
BODIES = [os.urandom(1024) for _ in range(GROUP)]  # a record of the journal has the same object only once
SURVIVE = (0, 10, 100)  # per cent
LIVE = 5  # commits after which a message is deleted


class Stream:
    """Commits at a fixed rate, and what an idle store does between them."""

    def __init__(self, store: Store, survivors: int) -> None:
        self.store = store
        self.store.claim()
        self._survivors = survivors
        self._last = 0
        self._next_look = 0.0
        self._live: deque[list[int]] = deque()

    def run(self, seconds: float, rate: float) -> tuple[list[float], float]:
        """The latency of each commit in ms, and the CPU seconds of all."""
        latencies = []
        began, cpu = time.perf_counter(), time.process_time()
        for k in range(int(seconds * rate / GROUP)):
            due = began + k * GROUP / rate
            self._wait(due)
            self._commit()
            latencies.append((time.perf_counter() - due) * 1000)
        return latencies, time.process_time() - cpu

    def _wait(self, due: float) -> None:
        while (now := time.perf_counter()) < due:
            if now >= self._next_look:
                has_more = self.store.maintain()
                self._next_look = time.perf_counter() + (SOON if has_more else WATCH_INTERVAL) / 1000
            else:
                time.sleep(max(0.0, min(due, self._next_look) - now))

    def _commit(self) -> None:
        changes = Changes(1)
        numbers = range(self._last + 1, self._last + GROUP + 1)
        changes.puts[ACTIVE] = [
            Record(n, 1, 0, 0, 0, len(body), body, None) for n, body in zip(numbers, BODIES, strict=True)
        ]
        self._last += GROUP
        self._live.append([n for n in numbers if n % 100 >= self._survivors])
        if len(self._live) > LIVE:
            changes.deletes[ACTIVE] = self._live.popleft()
        changes.head = Head(1, self._last, [0] * LANES, 0)
        self.store.commit([changes])


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=float, default=10.0, help="for each store and share")
    arguments.add_argument("--rate", type=float, default=2_000.0, help="messages a second")
    arguments.add_argument("--directory", type=Path, default=None, help="where to write (a real disk)")
    given = arguments.parse_args()
    print("survive  store      p50 ms   p99 ms  p99.9 ms   CPU-µs/msg")
    for share in SURVIVE:
        with tempfile.TemporaryDirectory(dir=given.directory) as name:
            _case(Path(name), share, given.seconds, given.rate)


def _case(directory: Path, share: int, seconds: float, rate: float) -> None:
    stores: dict[str, Store] = {
        "SQLite": SqliteStore(directory / "store.db"),
        "journal": JournalStore(directory / "other.db"),
    }
    found = {}
    for name, store in stores.items():
        latencies, cpu = Stream(store, share).run(seconds, rate)
        latencies.sort()
        row = [*(percentile(latencies, at) for at in (0.5, 0.99, 0.999)), cpu / len(latencies) / GROUP * 1e6]
        found[name] = row
        print(f"{share:5} %  {name:8}{row[0]:9.2f}{row[1]:9.2f}{row[2]:10.2f}{row[3]:13.1f}", flush=True)
        store.release()
    ratios = [ours / theirs for ours, theirs in zip(found["journal"], found["SQLite"], strict=True)]
    print(
        f"{share:5} %  {'ratio':8}{ratios[0]:9.2f}{ratios[1]:9.2f}{ratios[2]:10.2f}{ratios[3]:13.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
