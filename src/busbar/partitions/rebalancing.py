"""Decides when credit moves from one fragment of an entity to another.

1. If the plan leaves a fragment without credit, the fragment that holds most is revoked at once, one at a time.
2. If a fragment is still without credit REBALANCE_MS later, and no fragment was granted a turn meanwhile, the others hold
   credit that they do not use. Those that have delivered nothing are revoked, and every fragment gets credit for at least
   one message.
"""

from __future__ import annotations

from busbar.partitions.demands import FragmentDemands

REBALANCE_MS = 50


class Rebalancer:
    __slots__ = ("_demands", "_grants_before", "_revoked", "due_at")

    def __init__(self, demands: FragmentDemands) -> None:
        self._demands = demands
        self._revoked = demands.credits[0]
        """The fragment that was last revoked in favour of others."""
        self._grants_before = 0
        self.due_at = 0
        """When (ms) to check whether a fragment is still without credit; 0: never."""

    def plan(self, wanted: int, most: int, now: int, *, force: bool = False) -> None:
        """Spread credit for `wanted` messages; `most` bounds the credit of one fragment."""
        demands = self._demands
        allocator = demands.allocator
        for credit, count in allocator.plan(wanted, most, force=force).items():
            demands.ask(credit, count)
        if allocator.starved:
            if not self.due_at:
                self._look_later(now)
            if not self._revoked.draining:
                largest = allocator.largest_holder()
                if largest is not None:
                    self._revoked = largest
                    demands.revoke(largest)

    def _look_later(self, now: int) -> None:
        self._grants_before = self._demands.allocator.grants_made
        self.due_at = now + REBALANCE_MS

    def is_due(self, now: int) -> bool:
        """Whether it is time, and a fragment is still without credit."""
        if not self.due_at or now < self.due_at:
            return False
        self.due_at = 0
        return self._demands.allocator.starved

    def rebalance(self, wanted: int, most: int, now: int) -> None:
        allocator = self._demands.allocator
        if allocator.grants_made > self._grants_before:
            self._look_later(now)
            return
        for credit in allocator.stalled():
            self._demands.revoke(credit)
        self.plan(wanted, most, now, force=True)
