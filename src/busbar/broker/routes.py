"""Which host has which fragment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from busbar.model.commands import Command


class CommandSink(Protocol):
    """Whoever commands for the fragments of a store can be given to."""

    name: str

    def submit(self, commands: Iterable[Command]) -> None: ...


T = TypeVar("T", bound=CommandSink)


class FragmentRoutes(Generic[T]):
    def __init__(self) -> None:
        self._homes: dict[int, T] = {}

    def assign(self, fragments: Iterable[int], hosts: Iterable[T]) -> None:
        """Note which host each fragment has."""
        self._homes.update(zip(fragments, hosts, strict=True))

    def remove(self, fragments: Iterable[int]) -> None:
        """These are of no entity any more."""
        for fragment in fragments:
            self._homes.pop(fragment, None)

    def sink_of(self, fragment: int) -> T | None:
        return self._homes.get(fragment)

    def count(self, host: T) -> int:
        return sum(1 for home in self._homes.values() if home is host)

    def submit(self, commands: list[Command]) -> list[Command]:
        """Hand commands to their hosts, one batch for each; those of unknown fragments are returned."""
        homes = self._homes
        if len(commands) == 1:
            home = homes.get(commands[0].fragment)
            if home is None:
                return commands
            home.submit(commands)
            return []
        groups: dict[T | None, list[Command]] = {}
        for command in commands:
            host = homes.get(command.fragment)
            group = groups.get(host)
            if group is None:
                groups[host] = [command]
            else:
                group.append(command)
        unknown = groups.pop(None, [])
        for host, group in groups.items():
            assert host is not None
            host.submit(group)
        return unknown
