"""Decides which broker process owns which messaging store. Pure: it is given which brokers live.

The decision alone does not make an owner. A broker owns a store when it has claimed it: it holds the lock of the store's
file, and its claim has raised the epoch. So if two brokers take themselves for the owner, at most one of them can commit.

Rules:
1. The home of a store is the broker with the number of the store modulo the number of brokers. Consecutive fragments of a
   partitioned entity are in consecutive stores. So different brokers handle them.
2. When a broker has ended, each of its stores goes to the living broker with the fewest stores. If several have equally
   few, the highest hash of store and broker decides (rendezvous hashing).
3. If no broker lives, the stores stay assigned as they are. Each waits for its own broker.
4. A store whose owner lives stays there, unless a move makes load more even, or an operator has pinned it to another living
   broker. Of brokers that take part, none has two stores more than another, as far as pins allow. So none has more than
   the number of stores divided by that of brokers, rounded up. Moves are made one at a time, and no more than needed.
   A store goes home if it can (rule 1), else the highest hash decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b


def home_of(store: str, brokers: Sequence[str]) -> str:
    """The broker that owns the store when all live (rule 1)."""
    number = re.search(r"\d+$", store)
    return brokers[int(number[0]) % len(brokers) if number is not None else 0]


class StoreClaims:
    def __init__(self, brokers: Sequence[str]) -> None:
        self.owners: dict[str, str] = {}
        """By store, the broker that owns it, or that claims it now."""
        self.pins: dict[str, str] = {}
        """By store, the broker to which an operator has moved it."""
        self._brokers = list(brokers)
        self._living: set[str] = set()

    @property
    def brokers(self) -> list[str]:
        return self._brokers

    def add(self, store: str) -> str:
        """Assign a store that is new here. Returns its broker."""
        owner = home_of(store, self._brokers)
        if self._living and owner not in self._living:
            owner = self._least_loaded(store)
        self.owners[store] = owner
        return owner

    def remove(self, store: str) -> None:
        self.owners.pop(store, None)
        self.pins.pop(store, None)

    def begin(self, broker: str) -> None:
        """Note that a broker lives. It may be one that was not there before."""
        if broker not in self._brokers:
            self._brokers = sorted([*self._brokers, broker])
        self._living.add(broker)

    def end(self, broker: str) -> dict[str, str]:
        """Note that a broker has ended. Returns the stores that others claim now, with the broker of each."""
        self._living.discard(broker)
        moved: dict[str, str] = {}
        if self._living:
            for store in self.stores_of(broker):
                self.owners[store] = moved[store] = self._least_loaded(store)
        return moved

    def move(self, store: str, broker: str) -> None:
        """Note that the owner of a store has released it for another broker."""
        self.owners[store] = broker

    def next_owner(self, store: str, members: Collection[str]) -> str | None:
        """Which of the `members` gets a store whose owner is to have none (rule 2). None: there is no other one."""
        loads = _loads(self.owners.values(), members)
        loads.pop(self.owners[store], None)
        return _least_loaded(store, loads) if loads else None

    def next_move(self, members: Collection[str]) -> tuple[str, str] | None:
        """The next store to hand over, and the broker that gets it (rule 4). `members` are the brokers that take part."""
        for store, pinned in self.pins.items():
            if pinned in members and self.owners[store] in members and self.owners[store] != pinned:
                return store, pinned
        loads = _loads(self.owners.values(), members)
        if not loads:
            return None
        free = [store for store, owner in self.owners.items() if owner in loads and store not in self.pins]
        most = max([loads[self.owners[store]] for store in free], default=0)
        fewest = min(loads.values())
        if most - fewest < 2:
            return None
        pairs = [
            (store, broker)
            for store in free
            if loads[self.owners[store]] == most
            for broker in loads
            if loads[broker] == fewest
        ]
        return max(pairs, key=lambda pair: (home_of(pair[0], self._brokers) == pair[1], _weight(*pair), pair))

    def stores_of(self, broker: str) -> list[str]:
        return [store for store, owner in self.owners.items() if owner == broker]

    def _least_loaded(self, store: str) -> str:
        return _least_loaded(store, _loads(self.owners.values(), self._living))


def _loads(owners: Iterable[str], brokers: Iterable[str]) -> dict[str, int]:
    loads = dict.fromkeys(brokers, 0)
    for owner in owners:
        if owner in loads:
            loads[owner] += 1
    return loads


def _least_loaded(store: str, loads: Mapping[str, int]) -> str:
    return min(loads, key=lambda broker: (loads[broker], -_weight(store, broker), broker))


def _weight(store: str, broker: str) -> int:
    return int.from_bytes(blake2b(f"{store} {broker}".encode(), digest_size=8).digest(), "big")
