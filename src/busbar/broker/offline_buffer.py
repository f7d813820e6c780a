"""Keeps what consumers ask for while their store is unavailable, until it is open again.

Rules:
1. There is one demand for each consumer, however long the outage lasts: credit adds up. A consumer that leaves is removed.
2. A drain is answered at once: nothing is available, and the consumer's credit is dropped, also by its machine.
3. When a consumer leaves or no longer awaits a session, this is passed on only if its machine has the consumer.
4. Settlements without an answer (released messages) are kept as they are. There are no more of them than locks. What
   gateways report of the holders of sessions is kept as it is, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from busbar.model.commands import (
    AwaitSession,
    CancelAwait,
    Command,
    Demand,
    Leave,
    Settle,
)
from busbar.model.effects import Drained
from busbar.model.hold_commands import ReleaseHolds, ResumeSession

ALL_CREDIT = 1 << 40

Key = tuple[int, int]
"""A consumer: its origin, and its number there. Of an AwaitSession: its origin, and the request."""


class _Fragment:
    def __init__(self) -> None:
        # What the machine has
        self.known: set[Key] = set()
        self.awaiting: set[Key] = set()
        # What it will get
        self.gone: set[Key] = set()
        self.emptied: dict[Key, Demand] = {}
        self.demands: dict[Key, Demand] = {}
        self.rest: list[Command] = []


class OfflineBuffer:
    def __init__(self) -> None:
        self._fragments: dict[int, _Fragment] = {}

    def seed(self, fragment: int, demands: Iterable[Demand], awaits: Iterable[AwaitSession]) -> None:
        """Note the demands and awaited sessions that the fragment's machine has."""
        here = self._at(fragment)
        here.known.update((demand.origin, demand.consumer) for demand in demands)
        here.awaiting.update((await_.origin, await_.request) for await_ in awaits)

    def add(self, command: Command) -> Drained | None:
        """Keep a command that has no answer. Returns the immediate answer to a drain (rule 2)."""
        here = self._at(command.fragment)
        if isinstance(command, Demand):
            return self._demand(here, command)
        if isinstance(command, Leave):
            self._leave(here, command.origin, command.consumer)
        elif isinstance(command, CancelAwait):
            self._cancel(here, command.fragment, (command.origin, command.awaited))
        elif isinstance(command, Settle | ResumeSession | ReleaseHolds):
            here.rest.append(command)
        return None

    def replay(self) -> list[Command]:
        """All that was kept, for machines that are in service again."""
        commands: list[Command] = []
        for fragment, here in self._fragments.items():
            commands += [Leave(fragment, origin, consumer) for origin, consumer in sorted(here.gone)]
            commands += here.rest
            commands += [_demand(demand, -ALL_CREDIT) for demand in here.emptied.values()]
            commands += here.demands.values()
        self._fragments = {}
        return commands

    def reset(self, fragment: int, demands: Iterable[Demand]) -> list[Drained]:
        """Prepare for another machine, without consumers, in place of this one. It gets what consumers still wait for
        (`demands`). Returns answers to drains that have none yet."""
        here = self._at(fragment)
        forgotten = here.gone | here.emptied.keys()
        here.known, here.awaiting, here.gone, here.emptied, here.rest = set(), set(), set(), {}, []
        drained = []
        for demand in demands:
            if (demand.origin, demand.consumer) in forgotten:
                continue
            if demand.drain:
                drained.append(Drained(demand.origin, demand.consumer))
            elif demand.credit > 0:
                self._demand(here, demand)
        return drained

    def has_left(self, held: ResumeSession) -> bool:
        """Whether the holder of a session has left since the store is unavailable."""
        here = self._at(held.fragment)
        return not {(held.origin, held.consumer), (held.origin, 0)}.isdisjoint(here.gone)

    def drop(self, fragment: int) -> None:
        self._fragments.pop(fragment, None)

    def _demand(self, here: _Fragment, command: Demand) -> Drained | None:
        key: Key = (command.origin, command.consumer)
        if command.drain:
            here.demands.pop(key, None)
            if key in here.known:
                here.emptied[key] = command
            return Drained(command.origin, command.consumer)
        before = here.demands.get(key)
        here.demands[key] = _demand(command, command.credit + (before.credit if before is not None else 0))
        return None

    def _leave(self, here: _Fragment, origin: int, consumer: int) -> None:
        for key in [key for key in here.known | here.demands.keys() if _is(key, origin, consumer)]:
            here.demands.pop(key, None)
            here.emptied.pop(key, None)
            if key in here.known:
                here.known.discard(key)
                here.gone.add(key)
        if consumer == 0:
            for key in [key for key in here.awaiting if key[0] == origin]:
                here.awaiting.discard(key)
                here.gone.add((origin, 0))

    def _cancel(self, here: _Fragment, fragment: int, key: Key) -> None:
        if key in here.awaiting:
            here.awaiting.discard(key)
            here.rest.append(CancelAwait(fragment, *key))

    def _at(self, fragment: int) -> _Fragment:
        found = self._fragments.get(fragment)
        if found is None:
            found = self._fragments[fragment] = _Fragment()
        return found


def _is(key: Key, origin: int, consumer: int) -> bool:
    return key[0] == origin and consumer in (0, key[1])


def _demand(of: Demand, credit: int) -> Demand:
    return Demand(of.fragment, of.origin, of.consumer, of.sub, credit, False, of.delete)
