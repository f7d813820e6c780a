"""Spreads the credit of one receiver over the fragments of an entity.

`want` is the number of messages that the client can take. Each fragment gets credit for a part of them. This file issues no
commands and reads no time.

1. The credit of all fragments together exceeds `want` by at most one message for each fragment. So with a small `want` every
   fragment has credit, and a message is found in any of them. Messages beyond `want` go to the cache.
2. If a fragment is not known to have messages, it gets credit for a few, BASE_CREDIT at most. It keeps this credit until
   messages come. So with low traffic a message is found without delay, in any fragment.
3. If a fragment has used all its credit, it is *flowing*: it likely has more. The rest of the credit goes to flowing
   fragments, first to the one that has delivered least, as much to each as its window allows. Few large answers cost less
   than many small ones, and messages that are received together can be settled together. When a fragment begins to flow, it
   counts as having delivered as much as the others, so it need not catch up. While much credit is outstanding, a part of
   less than half of the usual `want` waits until it is larger. The window grows whenever it was used up.
4. If no credit is left for a flowing fragment, the fragment with the largest credit is revoked at once. It delivers what it
   has and drops the rest of its credit, which goes to the fragments that are next. If it could not use all its credit, it is
   not flowing any more, and its window shrinks to what it delivered. So under load no fragment is more than a turn or two
   ahead of another, even if its store is faster. A turn is as many messages as the fragment has or the client can take. If
   all fragments have few messages, the credit settles so that no fragment need be revoked.
5. A fragment that is being drained gets no credit until it has answered. If no fragment was granted a turn for a while,
   because a revoked one does not answer, all fragments that deliver nothing are revoked. Then `force` gives every fragment
   credit for at least one message.

With a single fragment (a regular entity), that fragment gets credit for `want` messages.
"""

from __future__ import annotations

BASE_CREDIT = 4
FIRST_WINDOW = 16
GROWTH = 8
LARGEST_WINDOW = 1 << 20


class FragmentCredit:
    """The credit that one fragment has from one receiver."""

    __slots__ = (
        "consumer",
        "delivered",
        "drain_overdue",
        "draining",
        "fragment",
        "gave_recently",
        "has_backlog",
        "index",
        "more",
        "outstanding",
        "partition",
        "renewing",
        "returning",
        "round",
        "served",
        "used",
        "window",
    )

    def __init__(self, fragment: int, index: int, partition: int) -> None:
        self.fragment = fragment
        self.index = index
        self.partition = partition
        """The x-opt-partition-id of its messages; -1 on a regular entity."""
        self.consumer = 0
        self.outstanding = 0
        """Credit that the fragment has not used yet."""
        self.has_backlog = False
        """It used all its credit when it last delivered."""
        self.served = 0
        """Messages that it has delivered in all; at least as many as the others had when it began to flow."""
        self.window = FIRST_WINDOW
        self.used = 0
        """Messages that it has delivered since it was last revoked."""
        self.gave_recently = False
        """It has delivered something since the last check."""
        self.draining = False
        """It was revoked, and has not answered yet."""
        self.drain_overdue = False
        """It has not answered a drain in time, for example because its store is unavailable. No drain waits for it."""
        self.returning = False
        """Messages that still come return at once, until it has answered the drain."""
        self.renewing = 0
        """Messages whose locks are being renewed on their way to the client."""
        # While the client drains:
        self.more = False
        """It may have messages that the drain has not reached."""
        self.round = 0
        """Its credit in this round of the drain; -1: the drain under way is an older one."""
        self.delivered = 0


class CreditAllocator:
    def __init__(self, demands: list[FragmentCredit]) -> None:
        self.demands = demands
        self.outstanding = 0
        """Of all fragments together."""
        self.starved = False
        """The last plan left a fragment without credit."""
        self._level = 0
        """What the fragment with the last turn had delivered before it."""
        self.grants_made = 0
        self._usual = 0
        """The peak of `want`; between peaks it falls to zero and rises again."""

    def plan(self, want: int, most: int, *, force: bool = False) -> dict[FragmentCredit, int]:
        """The credit to add for each fragment, which is recorded as granted. `most` bounds a window."""
        demands = self.demands
        count = len(demands)
        budget = want + count - self.outstanding
        self._usual = usual = max(want, self._usual - self._usual // 32)
        most = min(most, want)
        turn, kept = 1, 0
        if self.outstanding > BASE_CREDIT * count:
            # Much credit is outstanding: less than half of the usual `want` is not worth a turn (rule 3). The excess of rule
            # 1 is for fragments that are not flowing.
            turn, kept = max(1, min(most, usual) // 2), count
        grants: dict[FragmentCredit, int] = {}
        if self.starved and budget - kept < turn and not force:
            return grants  # as before
        standing = max(1, min(BASE_CREDIT, want // (4 * count)))
        least = 1 if force else 0
        flowing = False
        self.starved = False
        for demand in demands:
            if demand.outstanding or demand.draining:
                continue
            if demand.has_backlog:
                flowing = True
                continue
            grant = max(least, min(standing, budget))
            if grant <= 0:
                self.starved = True
                continue
            grants[demand] = grant
            budget -= grant
        budget -= kept
        if flowing:
            budget = self._take_turns(budget, most, turn, least, grants)
        for demand, grant in grants.items():
            demand.outstanding = grant
            self.outstanding += grant
        if budget > 0 and not self.starved:
            self._top_up(budget, most, turn, grants)
        return grants

    def _take_turns(
        self, budget: int, most: int, turn: int, least: int, grants: dict[FragmentCredit, int]
    ) -> int:
        """Give fragments without credit their turn; returns the rest of the budget."""
        idle = [
            demand
            for demand in self.demands
            if demand.has_backlog and not demand.outstanding and not demand.draining
        ]
        # Less than a turn makes no difference: fragments of one store stay next to each other, and share commits.
        most_of_a_turn = max(1, most)
        idle.sort(key=lambda demand: demand.served // most_of_a_turn)
        for demand in idle:
            wanted = min(demand.window, most)
            grant = min(wanted, budget)
            if grant < min(wanted, turn):
                grant = least
            if grant <= 0:
                self.starved = True
                continue
            grants[demand] = grant
            budget -= grant
            turn = max(turn, most // 2)  # the rest of another fragment's turn is not a turn
            self._level = demand.served
            self.grants_made += 1
        return budget

    def _top_up(self, budget: int, most: int, turn: int, grants: dict[FragmentCredit, int]) -> None:
        """Add credit to fragments that have not used all of theirs. Small parts wait until they are half a window."""
        for demand in self.demands:
            if not demand.has_backlog or demand.draining:
                continue
            window = min(demand.window, most)
            missing = window - demand.outstanding
            if missing <= 0 or missing < window // 2 or budget < min(missing, turn):
                continue
            grant = min(missing, budget)
            grants[demand] = grants.get(demand, 0) + grant
            self.grant_credit(demand, grant)
            budget -= grant
            if budget <= 0:
                return

    def largest_holder(self) -> FragmentCredit | None:
        """The fragment to revoke when another one is without credit. None while a revoked one has not answered."""
        largest: FragmentCredit | None = None
        for demand in self.demands:
            if demand.draining and not demand.drain_overdue:
                return None
            if demand.outstanding > (BASE_CREDIT if largest is None else largest.outstanding):
                largest = demand
        return largest

    def stalled(self) -> list[FragmentCredit]:
        """Fragments that hold more than BASE_CREDIT and have delivered nothing since the last call."""
        found = []
        for demand in self.demands:
            if demand.outstanding > BASE_CREDIT and not demand.gave_recently and not demand.draining:
                found.append(demand)
            demand.gave_recently = False
        return found

    def grant_credit(self, demand: FragmentCredit, credit: int) -> None:
        """Record that a fragment gets more credit, by any rule."""
        demand.outstanding += credit
        self.outstanding += credit

    def delivered(self, demand: FragmentCredit, count: int) -> None:
        """Record that a fragment has delivered messages."""
        taken = min(count, demand.outstanding)
        demand.outstanding -= taken
        self.outstanding -= taken
        demand.delivered += count
        demand.used += count
        demand.served += count
        demand.gave_recently = True
        if not demand.outstanding:
            if demand.has_backlog:
                demand.window = min(demand.window * GROWTH, LARGEST_WINDOW)
            else:
                demand.has_backlog = True
                demand.served = max(demand.served, self._level)

    def drained(self, demand: FragmentCredit) -> None:
        """Record that a fragment has dropped its unused credit."""
        if demand.outstanding:
            demand.has_backlog = False
            demand.window = max(FIRST_WINDOW, min(demand.window, 2 * demand.used))
        demand.used = 0
        self.outstanding -= demand.outstanding
        demand.outstanding = 0
        demand.draining = demand.drain_overdue = demand.returning = False
