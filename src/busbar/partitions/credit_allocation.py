"""How the demand of one receiver is spread over the fragments of an entity.

The client says how many messages it can take (`want`); each fragment is asked for a part of them. No commands, no time here.

1. The demand in all exceeds `want` by no more than one message for each fragment. So with a small `want` every fragment is
   asked, and a message is found in whichever it is; what comes beyond `want` goes to the cache.
2. A fragment that is not known to have messages is asked for a few, BASE_CREDIT at most, and these stay asked for until they
   come: with low traffic a message is found without delay, wherever it is.
3. A fragment that has given all it was asked for is *flowing*: it likely has more. What is left of the demand goes to those,
   first to the one that has given least, as much to each as its window allows: few large answers cost less than many small
   ones, and what is received together can be settled together. One that begins to flow counts as having given what the
   others have: it need not catch up. While much is on its way, a part that is less than half of what the client usually
   wants waits until it is more. The window grows whenever it was used up.
4. If there is nothing left for one that is flowing, the one that was asked for most is called back at once: it gives what it
   has and forgets the rest, which goes to those whose turn it is. If it could not give all, it is not flowing any more, and
   its window shrinks to what it gave. So under load no fragment is more than a turn or two ahead of another, however fast
   its store answers, and a turn is as many messages as it has or the client can take; and between fragments that have a
   little each, the demand settles down so that no one need be called back.
5. A fragment that is being drained is not asked until it has answered. If nobody has had a turn for a while, since one that
   was called back does not answer, all that give nothing are called back, and `force` asks everyone for at least one
   message.

For a single fragment (a regular entity) all of this comes down to asking it for what is wanted.
"""

from __future__ import annotations

BASE_CREDIT = 4
FIRST_WINDOW = 16
GROWTH = 8
LARGEST_WINDOW = 1 << 20


class FragmentCredit:
    """What one fragment was asked for, for one receiver."""

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
        """What its messages carry as x-opt-partition-id; -1 on a regular entity."""
        self.consumer = 0
        self.outstanding = 0
        """Asked for and not given yet."""
        self.has_backlog = False
        """It gave all it was asked for, when last it was seen."""
        self.served = 0
        """What it has given in all, or as much as others had when it began to flow."""
        self.window = FIRST_WINDOW
        self.used = 0
        """What it has given since it was last called back."""
        self.gave_recently = False
        """It has given something lately."""
        self.draining = False
        """It was told to forget what it has not given, and has not answered yet."""
        self.drain_overdue = False
        """It has not answered a drain in time: its store is unavailable, say. Nobody waits for it any more."""
        self.returning = False
        """What still comes goes back at once, until it has answered the drain."""
        self.renewing = 0
        """Messages whose locks are being renewed on their way to the client."""
        # While the client drains:
        self.more = False
        """It may have messages that the drain has not reached."""
        self.round = 0
        """What it was asked for in this round; -1: the drain under way is an older one."""
        self.delivered = 0


class CreditAllocator:
    def __init__(self, demands: list[FragmentCredit]) -> None:
        self.demands = demands
        self.outstanding = 0
        """Of all fragments together."""
        self.starved = False
        """The last plan left a fragment out for which there was nothing left."""
        self._level = 0
        """What the one whose turn came last had given before."""
        self.grants_made = 0
        self._usual = 0
        """What is wanted at its peaks: between them it falls to nothing and rises again."""

    def plan(self, want: int, most: int, *, force: bool = False) -> dict[FragmentCredit, int]:
        """Whom to ask for how many messages more; noted as asked. `most` bounds a window."""
        demands = self.demands
        count = len(demands)
        budget = want + count - self.outstanding
        self._usual = usual = max(want, self._usual - self._usual // 32)
        most = min(most, want)
        turn, kept = 1, 0
        if self.outstanding > BASE_CREDIT * count:
            # Much is on its way: less than half of what is usually wanted is not worth a turn (rule 3), and the excess of
            # rule 1 is for those who are not flowing.
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
        """Give fragments without credit their turn; what is left of the budget."""
        idle = [
            demand
            for demand in self.demands
            if demand.has_backlog and not demand.outstanding and not demand.draining
        ]
        # Less than a turn is no difference: fragments of one store keep standing after each other, and share commits.
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
            turn = max(turn, most // 2)  # what another one has left over is no turn
            self._level = demand.served
            self.grants_made += 1
        return budget

    def _top_up(self, budget: int, most: int, turn: int, grants: dict[FragmentCredit, int]) -> None:
        """Add credit to fragments that have not delivered all of theirs. Small parts are left to gather until they are
        half a window."""
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
        """The fragment whose credit is revoked, when one was left without. None while another one has not answered that."""
        largest: FragmentCredit | None = None
        for demand in self.demands:
            if demand.draining and not demand.drain_overdue:
                return None
            if demand.outstanding > (BASE_CREDIT if largest is None else largest.outstanding):
                largest = demand
        return largest

    def stalled(self) -> list[FragmentCredit]:
        """Who was asked for more than a few messages and has given none since this was asked last."""
        found = []
        for demand in self.demands:
            if demand.outstanding > BASE_CREDIT and not demand.gave_recently and not demand.draining:
                found.append(demand)
            demand.gave_recently = False
        return found

    def grant_credit(self, demand: FragmentCredit, credit: int) -> None:
        """Note that a fragment is asked for more, by whatever rule."""
        demand.outstanding += credit
        self.outstanding += credit

    def delivered(self, demand: FragmentCredit, count: int) -> None:
        """A fragment has given messages."""
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
        """A fragment has forgotten what it had not given."""
        if demand.outstanding:
            demand.has_backlog = False
            demand.window = max(FIRST_WINDOW, min(demand.window, 2 * demand.used))
        demand.used = 0
        self.outstanding -= demand.outstanding
        demand.outstanding = 0
        demand.draining = demand.drain_overdue = demand.returning = False
