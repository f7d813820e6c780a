"""When to look at fragments again: a heap and one timer of the loop, for all fragments of a host.

Rules:
1. A slot has at most one live entry (its `timer_at`). An earlier wish replaces it; a later one waits until the entry
   comes up and is looked at again, so that locks taken and settled by the thousand do not touch the heap.
2. Times are the wall clock's, and wall clocks jump: the timer never sleeps longer than LONGEST_SLEEP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from busbar.broker.slot import Slot

LONGEST_SLEEP = 1.0


class FragmentTimers:
    """Calls `due(slots)` with the slots whose time has come."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        due: Callable[[list[Slot], int], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._due = due
        self._heap: list[tuple[int, int, Slot]] = []
        self._pushed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def want(self, slot: Slot, at: int, now: int) -> None:
        """Wake the slot at a time or before it (0: no wish)."""
        if at == 0 or (slot.timer_at != 0 and slot.timer_at <= at):
            return
        slot.timer_at = at
        self._pushed += 1  # breaks ties, since slots have no order
        heappush(self._heap, (at, self._pushed, slot))
        if self._heap[0][2] is slot:
            self._set_timer(at, now)

    def stop(self) -> None:
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: int, now: int) -> None:
        when = self._loop.time() + min(max((at - now) / 1000.0, 0.0), LONGEST_SLEEP)
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock()
        due: list[Slot] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, slot = heappop(heap)
            if slot.timer_at == at:
                slot.timer_at = 0
                due.append(slot)
        if due:
            self._due(due, now)
        if heap:
            self._set_timer(heap[0][0], now)
