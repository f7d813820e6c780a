"""When the messages that express entities have in memory alone are written.

Rules
- A fragment is looked at when the oldest of its messages in memory has been there for FragmentSettings.express_ms. If the
  message is gone by then, the fragment is looked at again when the next one has been there as long.
- If it is still there, all that the fragment has in memory is written in one commit. So a fragment is written at most once
  in that time, and never if its messages are consumed sooner.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import final

from busbar.broker.slot import Slot


@final
class ExpressTimers:
    """The times at which fragments are looked at, in ms. A slot has at most one (its `express_at`)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Slot]] = []
        self._pushed = 0

    def want(self, slot: Slot, at: int) -> None:
        """Look at a fragment then (0: never). None is due for it yet."""
        slot.express_at = at
        if at:
            self._pushed += 1  # breaks ties, since slots have no order
            heappush(self._heap, (at, self._pushed, slot))

    @property
    def next_at(self) -> int:
        """The first of the times (0: none)."""
        return self._heap[0][0] if self._heap else 0

    def take_due(self, now: int) -> list[Slot]:
        """The fragments to write now. Those whose oldest message is younger get another time."""
        due: list[Slot] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, slot = heappop(heap)
            slot.express_at = 0
            at = 0 if slot.broken else slot.machine.write_at()
            if at > now:
                self.want(slot, at)
            elif at:
                due.append(slot)
        return due

    def postpone(self, now: int, by: int) -> None:
        """Look at nothing before the time is over: the store takes no writes."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, slot = heappop(heap)
            self.want(slot, now + by)

    def clear(self) -> None:
        self._heap.clear()
