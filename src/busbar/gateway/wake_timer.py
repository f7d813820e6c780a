"""One timer of the event loop for all parts of a connection that have work at a later time.

1. Each part has at most one wake time. A new one replaces the old one; 0 removes it.
2. The timer is set for the earliest wake time. If that is removed, the timer is not changed: it fires, and finds nothing
   due.
3. A part is woken with at least its own wake time, also if the clock has been set back meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from busbar.clock import wall_clock
from busbar.partitions.origin import Wakeable


class WakeTimer:
    def __init__(self, flush: Callable[[], None]) -> None:
        """`flush` is called after parts were woken."""
        self._flush: Callable[[], None] | None = flush
        self._due: list[tuple[int, int]] = []
        """Wake times and the numbers of their entries, as a heap; with entries that are not valid any more."""
        self._parts: dict[int, Wakeable] = {}
        self._entries: dict[Wakeable, int] = {}
        self._last = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def wake_at(self, part: Wakeable, at: int) -> None:
        """Call `part.wake` at that time, in ms; 0: never."""
        entry = self._entries.pop(part, 0)
        if entry:
            del self._parts[entry]
        if at and self._flush is not None:
            self._last += 1
            self._entries[part] = self._last
            self._parts[self._last] = part
            heapq.heappush(self._due, (at, self._last))
            self._set(at)

    def close(self) -> None:
        """Wake no part any more."""
        self._flush = None
        self._due.clear()
        self._parts.clear()
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, at: int) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        delay = max(1, at - wall_clock()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = max(wall_clock(), self._timer_at)
        try:
            while self._due and self._due[0][0] <= now:
                _at, entry = heapq.heappop(self._due)
                part = self._parts.pop(entry, None)
                if part is not None:
                    del self._entries[part]
                    self.wake_at(part, part.wake(now))
        finally:  # if one part fails, the others are woken all the same
            while self._due and self._due[0][1] not in self._parts:
                heapq.heappop(self._due)
            if self._due:
                self._set(self._due[0][0])
            if self._flush is not None:
                self._flush()
