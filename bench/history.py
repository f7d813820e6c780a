"""What it costs to record the history of messages, as the ratio to the same load without it.

    python -m bench.history [ROUNDS]

The loads go through a real gateway, commit loop and machine, without sockets, threads and disk (harness/hot_path.py). Only
the CPU time of the server counts. Rounds of both loads alternate, and the lowest of each is compared. What it costs while it
is off is in the figures of bench.hot_path.
"""

from __future__ import annotations

import sys
import time

from harness.hot_path import HotPath

MESSAGES = 2_000


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def start(self) -> None:
        self._began = time.process_time()

    def stop(self) -> None:
        self.seconds += time.process_time() - self._began


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    watches = {recorded: _Stopwatch() for recorded in (False, True)}
    paths = {recorded: HotPath(watch, records_history=recorded) for recorded, watch in watches.items()}
    lowest = dict.fromkeys(paths, float("inf"))
    for path in paths.values():
        path.cycle(MESSAGES)
    for _ in range(rounds):
        for recorded, path in paths.items():
            watches[recorded].seconds = 0.0
            path.cycle(MESSAGES)
            lowest[recorded] = min(lowest[recorded], watches[recorded].seconds)
    for recorded, seconds in lowest.items():
        print(
            f"history {'on ' if recorded else 'off'}  {seconds / MESSAGES * 1e6:7.1f} us of CPU for a message"
        )
    print(f"ratio        {lowest[True] / lowest[False]:7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
