"""The times at which fragments are due again: one heap for all fragments of a store.

Rule: a slot has at most one live entry (its `timer_at`). An earlier time replaces it. A later time is asked for again
when the entry has come up. So locks that are taken and settled by the thousand do not touch the heap.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import final

from busbar.broker.slot import Slot


@final
class FragmentTimers:
    """The times at which slots are due, in ms."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Slot]] = []
        self._pushed = 0

    def want(self, slot: Slot, at: int) -> None:
        """Make the slot due at this time, unless it is due earlier (0: never)."""
        if at == 0 or (slot.timer_at != 0 and slot.timer_at <= at):
            return
        slot.timer_at = at
        self._pushed += 1  # breaks ties, since slots have no order
        heappush(self._heap, (at, self._pushed, slot))

    @property
    def next_at(self) -> int:
        """The first of the times (0: none). It may be that of an entry that was replaced."""
        return self._heap[0][0] if self._heap else 0

    def take_due(self, now: int) -> list[Slot]:
        """The slots whose time has come."""
        due: list[Slot] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, slot = heappop(heap)
            if slot.timer_at == at:
                slot.timer_at = 0
                due.append(slot)
        return due

    def clear(self) -> None:
        self._heap.clear()
