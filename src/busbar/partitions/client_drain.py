"""Drains one receiver: the client requests the messages that there are now, and an answer.

1. All fragments are drained in rounds. If a fragment used all its credit, it may have more, and takes part in the next
   round. The drain is complete when the client can take nothing more, or no fragment has more.
2. A round ends when each of its fragments has answered. DRAIN_WAIT_MS after the first round began, fragments that have not
   answered are overdue, for example because their store is unavailable. No drain waits for an overdue fragment until it
   answers.
"""

from __future__ import annotations

from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.demands import FragmentDemands

DRAIN_WAIT_MS = 1_000


class ClientDrain:
    __slots__ = ("_demands", "is_active", "overdue_at")

    def __init__(self, demands: FragmentDemands) -> None:
        self._demands = demands
        self.is_active = False
        self.overdue_at = 0
        """When (ms) the fragments that have not answered are overdue; 0 while there is no round."""

    def begin(self) -> None:
        self.is_active = True
        for credit in self._demands.credits:
            credit.more = True

    def step(self, capacity: int, now: int) -> bool:
        """Begin the next round if the last one is over; True if the drain is over."""
        credits = self._demands.credits
        if any(credit.draining and not credit.drain_overdue for credit in credits):
            return False
        asked = [credit for credit in credits if credit.more and not credit.draining]
        if capacity <= 0 or not asked:
            self.is_active = False
            self.overdue_at = 0
            return True
        share = -(-capacity // len(asked))
        for credit in asked:
            count = max(0, share - credit.outstanding)
            self._demands.allocator.grant_credit(credit, count)
            credit.round = credit.outstanding
            credit.delivered = 0
            self._demands.ask(credit, count, drain=True)
        if not self.overdue_at:
            self.overdue_at = now + DRAIN_WAIT_MS
        return False

    def answered(self, credit: FragmentCredit) -> None:
        """Record that a fragment has delivered what it had. If it used all its credit, it may have more."""
        if credit.round >= 0:
            credit.more = 0 < credit.round <= credit.delivered
        credit.round = 0

    def is_overdue(self, now: int) -> bool:
        """Whether the time limit has passed. Then the drain does not wait for fragments that have not answered."""
        if not self.overdue_at or now < self.overdue_at:
            return False
        self.overdue_at = 0
        for credit in self._demands.credits:
            credit.drain_overdue = credit.draining
        return True
