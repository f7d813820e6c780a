"""The holders of message sessions, derived from commands to fragments and from their effects."""

from __future__ import annotations

from busbar.model.commands import AcceptSession, Command, Leave
from busbar.model.effects import Effect, SessionAccepted, SessionLost

Key = tuple[int, int]
"""A consumer: its origin, and its number there."""


class HeldSessions:
    def __init__(self) -> None:
        self._asked: dict[tuple[int, int], int] = {}
        """By origin and request, the fragment."""
        self._held: dict[Key, int] = {}
        """By consumer, the fragment that its session lies in."""

    def said(self, command: Command) -> None:
        if isinstance(command, AcceptSession):
            self._asked[command.origin, command.request] = command.fragment
        elif isinstance(command, Leave):
            for key in self._of(command.origin, command.consumer):
                if self._held[key] == command.fragment:
                    del self._held[key]

    def heard(self, effect: Effect) -> None:
        if isinstance(effect, SessionLost):
            self._held.pop((effect.origin, effect.consumer), None)
        elif effect.request > 0 and self._asked:
            fragment = self._asked.pop((effect.origin, effect.request), None)
            if fragment is not None and isinstance(effect, SessionAccepted):
                self._held[effect.origin, effect.consumer] = fragment

    def gone(self, origin: int) -> None:
        """Drop a client that has left."""
        for asked in [asked for asked in self._asked if asked[0] == origin]:
            del self._asked[asked]
        for key in self._of(origin, 0):
            del self._held[key]

    def forget(self, fragment: int) -> None:
        """Drop a fragment that is gone, and its sessions with it."""
        for key in [key for key, where in self._held.items() if where == fragment]:
            del self._held[key]

    def of(self, origin: int) -> list[tuple[int, int]]:
        """The fragment and the consumer of each session that the client holds."""
        return [(self._held[key], key[1]) for key in self._of(origin, 0)]

    def take(self) -> list[Key]:
        """Return all holders, and drop them."""
        held = sorted(self._held)
        self._asked, self._held = {}, {}
        return held

    def _of(self, origin: int, consumer: int) -> list[Key]:
        if consumer:
            return [(origin, consumer)] if (origin, consumer) in self._held else []
        return [key for key in self._held if key[0] == origin]
