"""Who is inside, and for how long somebody may be there without having proven who he is.

1. Everyone accepted is a guest. A guest is silent until its first bytes have named a protocol (inside TLS if there is
   TLS), and unproven until a token (AMQP) or a whole request head (HTTP) has come.
2. There are at most `max_unproven_connections` unproven guests. When one more stands at the door, the oldest silent one
   makes room, after `SILENT_GRACE`; if none is silent, the oldest that speaks, after `SPEAKING_GRACE`. So a flood of
   connections that say nothing cannot lock out clients that speak, and a crowd of honest clients after a restart is let
   in as fast as it proves itself instead of pushing each other out.
3. AMQP connections are bounded by `max_connections`: the surplus is refused. HTTP connections are bounded by
   `max_http_connections`: the one that has been idle longest makes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from busbar.model.limits import Limits

SILENT_GRACE = 0.25
SPEAKING_GRACE = 5.0
"""Seconds that an unproven guest has for itself, however many stand at the door."""


class Resident(Protocol):
    """An AMQP connection that can be told that the broker stops."""

    def shut_down(self) -> None: ...


class Visitor(Protocol):
    """An HTTP connection between or in its requests."""

    @property
    def idle(self) -> bool: ...

    def dismiss(self) -> None: ...


class Guest:
    """One connection in the lobby's books, from its acceptance to its end."""

    __slots__ = ("_lobby", "_turn_out", "since")

    def __init__(self, lobby: Lobby, since: float, turn_out: Callable[[], None]) -> None:
        self._lobby = lobby
        self._turn_out = turn_out
        self.since = since

    def handed_to(self, turn_out: Callable[[], None]) -> None:
        """Somebody else has the connection now: this is how it is ended from here on."""
        self._turn_out = turn_out

    def turn_out(self) -> None:
        self.leave()
        self._turn_out()

    def spoke(self) -> None:
        """It has named a protocol."""
        if self._lobby.silent.pop(self, self) is None:
            self._lobby.speaking[self] = None

    def proven(self) -> None:
        self.leave()

    def leave(self) -> None:
        """It is nobody to be watched any more: proven, or gone."""
        self._lobby.silent.pop(self, None)
        self._lobby.speaking.pop(self, None)

    # Called by an AMQP connection

    def admit(self, connection: Resident) -> bool:
        """Whether there is room for one more AMQP connection; it is counted then."""
        residents = self._lobby.residents
        if len(residents) >= self._lobby.limits.max_connections:
            self.leave()
            return False
        residents.add(connection)
        return True

    def authenticated(self, connection: Resident) -> None:
        self.proven()

    def gone(self, connection: Resident) -> None:
        self._lobby.residents.discard(connection)
        self.leave()


class Lobby:
    """Shared by all ports of a gateway."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # The unproven guests, in the order of their arrival.
        self.silent: dict[Guest, None] = {}
        self.speaking: dict[Guest, None] = {}
        self.residents: set[Resident] = set()
        self._visitors: dict[Visitor, None] = {}
        self._loop = asyncio.get_running_loop()

    def enter(self, turn_out: Callable[[], None]) -> Guest:
        """Take somebody in; `turn_out` ends the connection."""
        guest = Guest(self, self._loop.time(), turn_out)
        self.silent[guest] = None
        return guest

    def room_in(self) -> float:
        """0 if one more may be accepted now (the oldest may have been turned out for it), else the seconds to wait."""
        if len(self.silent) + len(self.speaking) < self.limits.max_unproven_connections:
            return 0.0
        now = self._loop.time()
        wait = SPEAKING_GRACE
        for guests, grace in ((self.silent, SILENT_GRACE), (self.speaking, SPEAKING_GRACE)):
            if guests:
                oldest = next(iter(guests))
                rest = oldest.since + grace - now
                if rest <= 0:
                    oldest.turn_out()
                    return 0.0
                wait = min(wait, rest)
        return wait

    def turn_out_oldest(self) -> None:
        """The process has no descriptors left: the oldest unproven guest gives its own back."""
        for guests in (self.silent, self.speaking):
            if guests:
                next(iter(guests)).turn_out()
                return

    # HTTP connections, those that have been idle longest first

    def visits(self, visitor: Visitor) -> None:
        """Count an HTTP connection, or note that it has just been used."""
        self._visitors.pop(visitor, None)
        self._visitors[visitor] = None
        if len(self._visitors) > self.limits.max_http_connections:
            for other in self._visitors:
                if other.idle:
                    self._visitors.pop(other)
                    other.dismiss()
                    return
            self._visitors.pop(visitor)
            visitor.dismiss()

    def left(self, visitor: Visitor) -> None:
        self._visitors.pop(visitor, None)

    async def close(self) -> None:
        """Tell every AMQP client that the broker stops, and wait a moment for the farewells to go out."""
        for guest in list(self.silent):
            guest.turn_out()
        for resident in list(self.residents):
            resident.shut_down()
        for _ in range(100):
            if not self.residents:
                break
            await asyncio.sleep(0.01)
