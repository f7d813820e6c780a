"""Counts the AMQP connections of a namespace and of its entities, over all gateways.

Rules:
1. A subject is the namespace (empty) or an entity (its key). Each has a limit. Gateways take parts of it, in blocks, and
   return them. What all gateways have together is never more than the limit.
2. The less is left, the smaller are the parts that are given: of the last ones each gateway gets one at a time.
3. A gateway has its parts until it returns them, or has ended for certain. That a channel broke changes nothing.
4. A gateway that was there before this counter has parts of an earlier one. It reports them. Until all have reported,
   nothing is given, and the gateways decide for themselves (connection_share.py).
5. If reports add up to more than the limit, nothing is given before enough was returned.

The counter is a part of the controller. Every gateway has a channel to it anyway, and the controller starts and reaps
them. A counter at the first fragment of each entity would have to move with the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from busbar.model.limits import Limits

NAMESPACE_BLOCK = 64
ENTITY_BLOCK = 16
BLOCKS_OF_A_LIMIT = 32
"""A gateway's block is at most this part of its even share of the limit, so that what lies unused at others stays small."""
UNKNOWN = -1
"""The answer while gateways have not reported what they have."""


def limit_of(subject: str, limits: Limits) -> int:
    return limits.max_entity_connections if subject else limits.max_connections


def block_of(subject: str, limits: Limits, gateways: int) -> int:
    """How many connections a gateway asks for at once. With a small limit it is one."""
    largest = ENTITY_BLOCK if subject else NAMESPACE_BLOCK
    return max(1, min(largest, limit_of(subject, limits) // (BLOCKS_OF_A_LIMIT * gateways)))


class ConnectionCounter:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: dict[str, Counter[str]] = {}
        """By gateway, what it has of each subject."""
        self._unreported: set[str] = set()
        self._sums: Counter[str] = Counter()

    def expect(self, gateway: str) -> None:
        """Note that a gateway lives, and may have parts of an earlier counter (rule 4)."""
        if gateway not in self._held:
            self._unreported.add(gateway)

    def report(self, gateway: str, held: Mapping[str, int]) -> None:
        """Set what a gateway has, instead of what was known of it. A new one has nothing."""
        self.ended(gateway)
        self._held[gateway] = Counter(held)
        self._sums.update(held)

    def take(self, gateway: str, subject: str, count: int) -> int:
        """Give a gateway up to `count` of a subject. Returns how many, or UNKNOWN."""
        held = self._held.get(gateway)
        if held is None or self._unreported:
            return UNKNOWN
        left = limit_of(subject, self._limits) - self._sums[subject]
        given = max(0, min(count, left, max(1, left // len(self._held))))
        if given:
            held[subject] += given
            self._sums[subject] += given
        return given

    def put_back(self, gateway: str, subject: str, count: int) -> None:
        """Take back what a gateway does not need."""
        held = self._held.get(gateway)
        if held is not None:
            self._remove(held, subject, min(count, held[subject]))

    def ended(self, gateway: str) -> None:
        """Note that a gateway has ended for certain, and its connections with it."""
        self._unreported.discard(gateway)
        held = self._held.pop(gateway, Counter())
        for subject in [*held]:
            self._remove(held, subject, held[subject])

    def _remove(self, held: Counter[str], subject: str, count: int) -> None:
        for counts in (held, self._sums):
            counts[subject] -= count
            if not counts[subject]:
                del counts[subject]


class CountedGateway:
    """One gateway, as the counter is called for it."""

    def __init__(self, counter: ConnectionCounter, gateway: str) -> None:
        self._counter = counter
        self._gateway = gateway

    async def take_connections(self, subject: str, count: int) -> int:
        return self._counter.take(self._gateway, subject, count)

    def return_connections(self, subject: str, count: int) -> None:
        self._counter.put_back(self._gateway, subject, count)

    def report_connections(self, held: Mapping[str, int]) -> None:
        self._counter.report(self._gateway, held)
