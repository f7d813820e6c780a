"""How the demand of one receiver is spread over the fragments of an entity.

The client says how many messages it can take (`want`); each fragment is asked for a part of them. No commands, no time here.

1. The demand in all exceeds `want` by no more than one message for each fragment. So with a small `want` every fragment is
   asked, and a message is found in whichever it is; what comes beyond `want` goes to the cache.
2. Each fragment has a window: how much it is asked for at a time. It doubles whenever the fragment has given all it was
   asked for, so that a fragment with all the traffic gets nearly all of the credit. It starts again after a drain.
3. Fragments that were asked for nothing get their part first, those with large windows as much as LARGE messages or what is
   left for FEWEST fragments, since a few large answers cost less than many small ones. Then what is left is offered to all.
   Both go in turn, beginning behind the fragment that was served last.
4. Under load some fragments may find nothing left: the client takes as much as it can, and their turn comes with its next
   credit. If it does not come soon, others hold demand and give nothing: they are called back, and `pressing` asks
   everyone for at least one message.
5. A fragment that is being drained is not asked until it has answered.

For a single fragment (a regular entity) all of this comes down to asking it for what is wanted.
"""

from __future__ import annotations

FIRST_WINDOW = 4
FEWEST = 4
LARGE = 64


class FragmentDemand:
    """What one fragment was asked for, for one receiver."""

    __slots__ = (
        "consumer",
        "draining",
        "fragment",
        "gave",
        "given",
        "handing",
        "index",
        "more",
        "outstanding",
        "partition",
        "refusing",
        "round",
        "silent",
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
        self.window = 0
        self.gave = False
        """It has given something lately."""
        self.draining = False
        """It was told to forget what it has not given, and has not answered yet."""
        self.silent = False
        """It has not answered a drain in time: its store is out, say. Nobody waits for it any more."""
        self.refusing = False
        """What still comes goes back at once, until it has answered the drain."""
        self.handing = 0
        """Messages whose locks are being renewed on their way to the client."""
        # While the client drains:
        self.more = False
        """It may have messages that the drain has not reached."""
        self.round = 0
        """What it was asked for in this round; -1: the drain under way is an older one."""
        self.given = 0


class Shares:
    def __init__(self, demands: list[FragmentDemand]) -> None:
        self.demands = demands
        self.outstanding = 0
        """Of all fragments together."""
        self.unasked = False
        """The last plan left a fragment out for which there was nothing left."""
        self._first = 0

    def plan(self, want: int, most: int, *, pressing: bool = False) -> dict[FragmentDemand, int]:
        """Whom to ask for how many messages more; noted as asked. `most` bounds a window."""
        demands = self.demands
        count = len(demands)
        budget = want + count - self.outstanding
        even = max(1, want // count)
        part = max(even, min(want // FEWEST, LARGE))
        least = 1 if pressing else 0
        grants: dict[FragmentDemand, int] = {}
        self.unasked = False
        first = self._first
        for step in range(count):
            demand = demands[(first + step) % count]
            if demand.outstanding or demand.draining:
                continue
            if not demand.window:
                demand.window = min(even, FIRST_WINDOW)
            grant = max(least, min(demand.window, part, budget))
            if grant <= 0:
                self.unasked = True
                continue
            grants[demand] = demand.outstanding = grant
            budget -= grant
            self._first = (first + step + 1) % count
        if budget > 0:
            self._offer(budget, min(most, want), grants)
        self.outstanding += sum(grants.values())
        return grants

    def _offer(self, budget: int, most: int, grants: dict[FragmentDemand, int]) -> None:
        """Rule 3. Small top-ups are left to gather until they are half a window."""
        demands = self.demands
        count = len(demands)
        first = self._first
        for step in range(count):
            demand = demands[(first + step) % count]
            if demand.draining:
                continue
            window = min(demand.window, most)
            missing = window - demand.outstanding
            if missing <= 0 or missing < window // 2:
                continue
            grant = min(missing, budget)
            grants[demand] = grants.get(demand, 0) + grant
            demand.outstanding += grant
            budget -= grant
            if budget <= 0:
                self._first = (first + step + 1) % count
                return

    def hoarders(self) -> list[FragmentDemand]:
        """Who was asked for more than one message and has given none since this was asked last."""
        found = []
        for demand in self.demands:
            if demand.outstanding > 1 and not demand.gave and not demand.draining:
                found.append(demand)
            demand.gave = False
        return found

    def ask(self, demand: FragmentDemand, credit: int) -> None:
        """Note that a fragment is asked for more, by whatever rule."""
        demand.outstanding += credit
        self.outstanding += credit

    def given(self, demand: FragmentDemand, count: int) -> None:
        """A fragment has given messages."""
        taken = min(count, demand.outstanding)
        demand.outstanding -= taken
        self.outstanding -= taken
        demand.given += count
        demand.gave = True
        if not demand.outstanding:
            demand.window *= 2

    def drained(self, demand: FragmentDemand) -> None:
        """A fragment has forgotten what it had not given."""
        self.outstanding -= demand.outstanding
        demand.outstanding = 0
        demand.window = 0
        demand.draining = demand.silent = demand.refusing = False
