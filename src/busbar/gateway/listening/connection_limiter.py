"""Who is inside, and for how long somebody may be there without having proven who he is.

1. Everyone accepted is a guest. Its way is

       silent    nothing has come; costs a descriptor and a timer           at most `max_silent_connections` of
       waiting   its first byte is there, unread; waits for a place         these two together
       unproven  has a place: TLS handshake, first bytes, login, headers    at most `max_unauthenticated_connections`
       proven    a token (AMQP) or a whole request head (HTTP) has come

2. When there is no room for one more silent guest, the oldest silent one goes, once it is `SILENT_GRACE` old; until then
   nobody is accepted, and the kernel's queue holds those who come. When there is no place for one that waits, the oldest
   unproven one goes, once it is `UNPROVEN_GRACE` old. So a flood of connections that say nothing cannot lock out clients
   that speak, and a crowd of honest clients after a restart is let in as fast as it proves itself instead of pushing each
   other out.
3. AMQP connections are bounded by `max_connections`: the surplus is refused. HTTP connections are bounded by
   `max_http_connections`: the one that has been idle longest makes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from busbar.model.limits import Limits

SILENT_GRACE = 1.0
UNPROVEN_GRACE = 5.0
"""Seconds that a guest has for itself, however many stand at the door."""


class AmqpConnectionHandle(Protocol):
    """An AMQP connection that can be told that the broker stops."""

    def shut_down(self) -> None: ...


class HttpConnectionHandle(Protocol):
    """An HTTP connection between or in its requests."""

    @property
    def idle(self) -> bool: ...

    def dismiss(self) -> None: ...


class TrackedConnection:
    """One connection in the lobby's books, from its acceptance to its end."""

    __slots__ = ("_lobby", "_turn_out", "since")

    def __init__(self, lobby: ConnectionLimiter, since: float, turn_out: Callable[[], None]) -> None:
        self._lobby = lobby
        self._turn_out = turn_out
        self.since = since

    def set_evict(self, turn_out: Callable[[], None]) -> None:
        """Somebody else has the connection now: this is how it is ended from here on."""
        self._turn_out = turn_out

    def evict(self) -> None:
        self.untrack()
        self._turn_out()

    def first_byte(self) -> None:
        """Its first byte is there."""
        if self._lobby.silent.pop(self, self) is None:
            self._lobby.waiting[self] = None

    def start(self) -> None:
        """It has a place now, and proves itself or is watched."""
        lobby = self._lobby
        lobby.silent.pop(self, None)
        lobby.waiting.pop(self, None)
        self.since = lobby.now()
        lobby.unauthenticated[self] = None

    def authenticated(self) -> None:
        self.untrack()

    def untrack(self) -> None:
        """It is nobody to be watched any more: proven, or gone."""
        lobby = self._lobby
        lobby.silent.pop(self, None)
        lobby.waiting.pop(self, None)
        if lobby.unauthenticated.pop(self, self) is None:
            lobby.place_free()

    # Called by an AMQP connection

    def admit(self, connection: AmqpConnectionHandle) -> bool:
        """Whether there is room for one more AMQP connection; it is counted then."""
        residents = self._lobby.amqp_connections
        if len(residents) >= self._lobby.limits.max_connections:
            self.untrack()
            return False
        residents.add(connection)
        return True

    def closed(self, connection: AmqpConnectionHandle) -> None:
        self._lobby.amqp_connections.discard(connection)
        self.untrack()


class ConnectionLimiter:
    """Shared by all ports of a gateway."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Guests, in the order of their arrival there.
        self.silent: dict[TrackedConnection, None] = {}
        self.waiting: dict[TrackedConnection, None] = {}
        self.unauthenticated: dict[TrackedConnection, None] = {}
        self.amqp_connections: set[AmqpConnectionHandle] = set()
        self.place_free: Callable[[], None] = lambda: None
        """Called when an unproven guest has given up its place."""
        self._visitors: dict[HttpConnectionHandle, None] = {}
        self.now = asyncio.get_running_loop().time

    @property
    def connection_count(self) -> int:
        """Those who have said what they speak, about: who is just doing so is counted soon."""
        return len(self.amqp_connections) + len(self._visitors)

    def enter(self, turn_out: Callable[[], None]) -> TrackedConnection:
        """Take somebody in; `turn_out` ends the connection."""
        guest = TrackedConnection(self, self.now(), turn_out)
        self.silent[guest] = None
        return guest

    def accept_delay(self) -> float:
        """0 if one more may be accepted now (the oldest may have been turned out for it), else the seconds to wait."""
        if len(self.silent) + len(self.waiting) < self.limits.max_silent_connections:
            return 0.0
        return self._make_room(self.silent, SILENT_GRACE)

    def start_delay(self) -> float:
        """The same for a place among the unproven."""
        if len(self.unauthenticated) < self.limits.max_unauthenticated_connections:
            return 0.0
        return self._make_room(self.unauthenticated, UNPROVEN_GRACE)

    def _make_room(self, guests: dict[TrackedConnection, None], grace: float) -> float:
        if not guests:
            return grace
        oldest = next(iter(guests))
        wait = oldest.since + grace - self.now()
        if wait > 0:
            return wait
        oldest.evict()
        return 0.0

    def evict_oldest(self) -> None:
        """The process has no descriptors left: the oldest guest gives its own back."""
        for guests in (self.silent, self.unauthenticated):
            if guests:
                next(iter(guests)).evict()
                return

    # HTTP connections, those that have been idle longest first

    def http_used(self, visitor: HttpConnectionHandle) -> None:
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

    def http_closed(self, visitor: HttpConnectionHandle) -> None:
        self._visitors.pop(visitor, None)

    async def close(self) -> None:
        """Tell every AMQP client that the broker stops, and wait a moment for the farewells to go out."""
        for guest in [*self.silent, *self.waiting]:
            guest.evict()
        for resident in list(self.amqp_connections):
            resident.shut_down()
        for _ in range(100):
            if not self.amqp_connections:
                break
            await asyncio.sleep(0.01)
