"""What one gateway has of the limits of connections, which hold for all gateways together. The counter has the rest
(connection_counter.py).

Rules:
1. A connection is admitted if the gateway has a part for it. Otherwise it waits, and the gateway asks the counter for a
   block, or for as many as wait if these are more. There is one question for a subject at a time.
2. If the counter gives nothing, all that wait are refused. If it gives less than is needed, the gateway asks again.
3. Of parts that are not used the gateway keeps fewer than two blocks; with blocks of one it keeps none. What was not used
   for a whole period is returned, too.
4. If the counter does not answer, those that wait are admitted up to the gateway's even share of the limit. So messaging
   goes on, and the sum of all gateways may be above the limit until the counter is back. What was admitted that way is
   asked for with the next block.
5. A counter that is new gets a report of what is used. All that is not used is given up with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from busbar.cluster.connection_counter import UNKNOWN, block_of, limit_of
from busbar.model.limits import Limits


class Decided(NamedTuple):
    """How many of those that wait longest are admitted, and how many after them are refused."""

    admitted: int
    refused: int


@dataclass(slots=True)
class _SubjectShare:
    """The part of one subject."""

    limit: int
    block: int
    given: int = 0
    used: int = 0
    waiting: int = 0
    is_asked: bool = False
    least_spare: int = 0
    """Since the current period began."""

    @property
    def spare(self) -> int:
        return max(0, self.given - self.used)

    def admit(self, count: int) -> None:
        self.used += count
        self.waiting -= count
        self.least_spare = min(self.least_spare, self.spare)


class ConnectionShare:
    def __init__(self, limits: Limits, gateways: Callable[[], int]) -> None:
        """`gateways` gives the number of gateways of the namespace."""
        self._limits = limits
        self._gateways = gateways
        self._parts: dict[str, _SubjectShare] = {}

    def take(self, subject: str) -> bool:
        """Admit a connection, if there is a part for it and no other waits."""
        part = self._part(subject)
        if part.waiting or not part.spare:
            return False
        part.waiting += 1
        part.admit(1)
        return True

    def wait(self, subject: str) -> None:
        self._part(subject).waiting += 1

    def leave(self, subject: str) -> None:
        """Note that one that waited does so no more."""
        self._part(subject).waiting -= 1
        self._forget(subject)

    def question(self, subject: str) -> int:
        """How many to ask the counter for now; 0: none, or it is asked already."""
        part = self._part(subject)
        if part.is_asked or not part.waiting:
            return 0
        part.is_asked = True
        return max(part.block, part.used - part.given + part.waiting)

    def answered(self, subject: str, given: int) -> Decided:
        """Take the answer of the counter. If some still wait then, it has to be asked again."""
        if given == UNKNOWN:
            return self.unanswered(subject, over=True)
        part = self._part(subject)
        part.is_asked = False
        part.given += given
        admitted = min(part.waiting, part.spare)
        part.admit(admitted)
        refused = 0 if given else part.waiting
        part.waiting -= refused
        self._forget(subject)
        return Decided(admitted, refused)

    def unanswered(self, subject: str, over: bool) -> Decided:
        """Decide without the counter (rule 4). If the question is not over, its answer may still come."""
        part = self._part(subject)
        part.is_asked = not over
        most = max(part.given, part.limit // self._gateways())
        admitted = min(part.waiting, max(0, most - part.used))
        part.admit(admitted)
        refused, part.waiting = part.waiting, 0
        self._forget(subject)
        return Decided(admitted, refused)

    def release(self, subject: str) -> int:
        """Note that a connection has ended. Returns how many parts are returned to the counter now."""
        part = self._part(subject)
        part.used -= 1
        is_surplus = part.spare > 2 * (part.block - 1) and not part.waiting
        returned = min(part.block, part.spare) if is_surplus else 0
        return self._returned(subject, part, returned)

    def period_ended(self) -> dict[str, int]:
        """What is returned to the counter, because it was not used for a whole period."""
        returned: dict[str, int] = {}
        for subject, part in [*self._parts.items()]:
            if part.least_spare:
                returned[subject] = self._returned(subject, part, part.least_spare)
            part.least_spare = part.spare
        return returned

    def report(self) -> dict[str, int]:
        """What this gateway uses, for a counter that is new (rule 5)."""
        for subject, part in [*self._parts.items()]:
            part.given, part.least_spare = part.used, 0
            self._forget(subject)
        return {subject: part.used for subject, part in self._parts.items() if part.used}

    def _returned(self, subject: str, part: _SubjectShare, count: int) -> int:
        part.given -= count
        part.least_spare = min(part.least_spare, part.spare)
        self._forget(subject)
        return count

    def _part(self, subject: str) -> _SubjectShare:
        part = self._parts.get(subject)
        if part is None:
            limits, gateways = self._limits, self._gateways()
            part = _SubjectShare(limit_of(subject, limits), block_of(subject, limits, gateways))
            self._parts[subject] = part
        return part

    def _forget(self, subject: str) -> None:
        part = self._parts.get(subject)
        if part is not None and not (part.given or part.used or part.waiting or part.is_asked):
            del self._parts[subject]
