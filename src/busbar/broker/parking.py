"""What consumers say while their store is out, kept for its return.

Rules:
1. However long it lasts, there is one demand for each consumer: credit adds up, and who leaves is forgotten.
2. A drain is answered at once: nothing is available, and the consumer's credit is forgotten, also by its machine.
3. That a consumer leaves is passed on only if its machine knows it; settlements without an answer (released messages) are
   kept as they are: there are no more of them than locks.
"""

from __future__ import annotations

from collections.abc import Iterable

from busbar.model.commands import Command, Demand, Leave, Settle
from busbar.model.effects import Drained

Consumer = tuple[int, int]
"""Its origin, and its number there."""


class _Fragment:
    def __init__(self) -> None:
        self.known: set[Consumer] = set()
        self.gone: set[Consumer] = set()
        self.demands: dict[Consumer, Demand] = {}
        self.rest: list[Command] = []


class Parking:
    def __init__(self) -> None:
        self._fragments: dict[int, _Fragment] = {}

    def know(self, fragment: int, consumers: Iterable[Consumer]) -> None:
        """The fragment's machine has these."""
        self._at(fragment).known.update(consumers)

    def add(self, command: Command) -> Drained | None:
        """Keep a command that has no answer; what is said to it at once (rule 2)."""
        here = self._at(command.fragment)
        if isinstance(command, Demand):
            key: Consumer = (command.origin, command.consumer)
            if command.drain:
                self._forget(here, [key])
                return Drained(command.origin, command.consumer)
            before = here.demands.get(key)
            credit = command.credit + (before.credit if before is not None else 0)
            here.demands[key] = Demand(
                command.fragment,
                command.origin,
                command.consumer,
                command.sub,
                credit,
                False,
                command.delete,
            )
        elif isinstance(command, Leave):
            origin, consumer = command.origin, command.consumer
            everyone = here.known | here.demands.keys()
            self._forget(here, [key for key in everyone if key[0] == origin and consumer in (0, key[1])])
        elif isinstance(command, Settle):
            here.rest.append(command)
        return None

    def take(self) -> list[Command]:
        """All that was kept, for machines that are in service again."""
        commands: list[Command] = []
        for fragment, here in self._fragments.items():
            commands += [Leave(fragment, origin, consumer) for origin, consumer in sorted(here.gone)]
            commands += here.rest
            commands += here.demands.values()
        self._fragments = {}
        return commands

    def replace_machine(self, fragment: int, demands: Iterable[Demand]) -> None:
        """Another machine comes in its place: it knows nobody, so `demands` (of those who have not left) are asked again."""
        here = self._at(fragment)
        gone, here.known, here.gone, here.rest = here.gone, set(), set(), []
        for demand in demands:
            if demand.credit > 0 and (demand.origin, demand.consumer) not in gone:
                self.add(demand)

    def drop(self, fragment: int) -> None:
        self._fragments.pop(fragment, None)

    def _forget(self, here: _Fragment, keys: list[Consumer]) -> None:
        for key in keys:
            here.demands.pop(key, None)
            if key in here.known:
                here.known.discard(key)
                here.gone.add(key)

    def _at(self, fragment: int) -> _Fragment:
        found = self._fragments.get(fragment)
        if found is None:
            found = self._fragments[fragment] = _Fragment()
        return found
