"""Limits client connections by state, and closes the oldest one when a limit is reached.

1. A connection passes through these states:

       silent           nothing has come; costs a descriptor and a timer       at most `max_silent_connections` of
       waiting          its first byte is there, unread; waits to be started   these two together
       unauthenticated  started: TLS handshake, first bytes, login, headers    `max_unauthenticated_connections`
       authenticated    a token (AMQP) or a whole request head (HTTP) has come

2. When there is no room for one more silent connection, the oldest silent one is closed, once it is `SILENT_GRACE` old.
   Until then none is accepted, and new ones stay in the kernel's queue. When a waiting one cannot be started, the oldest
   unauthenticated one is closed, once it is `UNAUTHENTICATED_GRACE` old. So a flood of silent connections cannot lock out
   clients, and many clients after a restart are let in as fast as they authenticate.
3. AMQP connections are bounded by `max_connections`, for all gateways of the namespace together (the quota). One more is not
   counted and stays unauthenticated, so that the gateway can answer it with the reason. HTTP connections are bounded by
   `max_http_connections`: the one that has been idle longest is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from busbar.gateway.gateway_quota import GatewayQuota
from busbar.model.api import ConnectionQuota
from busbar.model.limits import Limits

NAMESPACE = ""
"""The subject of the quota for all connections."""

SILENT_GRACE = 1.0
UNAUTHENTICATED_GRACE = 5.0
"""Seconds for which a connection is not closed, however many others wait."""
ANSWER_SECONDS = 3.0
"""For so long a connection that is to be closed may wait for answers. A command whose store goes to another owner waits for
that, 2 seconds at most."""
CLOSE_SECONDS = 1.0
QUIET_SECONDS = 0.5
"""A client that has asked nothing for so long has probably finished a series of requests."""
REQUEST_SECONDS = 3.0
"""For so long a client that goes on asking is answered, before its connection is closed all the same."""


class AmqpConnectionHandle(Protocol):
    """An AMQP connection that can be closed when the broker stops."""

    @property
    def is_answered(self) -> bool: ...

    @property
    def last_request(self) -> float: ...

    def stop_reading(self) -> None: ...

    def shut_down(self) -> None: ...


class HttpConnectionHandle(Protocol):
    """An HTTP connection between or in its requests."""

    @property
    def idle(self) -> bool: ...

    def dismiss(self) -> None: ...


class TrackedConnection:
    """One connection, from its acceptance to its end."""

    __slots__ = ("_evict", "_limiter", "since")

    def __init__(self, limiter: ConnectionLimiter, since: float, evict: Callable[[], None]) -> None:
        self._limiter = limiter
        self._evict = evict
        self.since = since

    def set_evict(self, evict: Callable[[], None]) -> None:
        """Set what closes the connection from here on: another object has it now."""
        self._evict = evict

    def evict(self) -> None:
        self.untrack()
        self._evict()

    def first_byte(self) -> None:
        """Record that its first byte has come."""
        if self._limiter.silent.pop(self, self) is None:
            self._limiter.waiting[self] = None

    def start(self) -> None:
        """Record that it was started, and has to authenticate."""
        limiter = self._limiter
        limiter.silent.pop(self, None)
        limiter.waiting.pop(self, None)
        self.since = limiter.now()
        limiter.unauthenticated[self] = None

    def authenticated(self) -> None:
        self.untrack()

    def untrack(self) -> None:
        """Stop limiting it: it has authenticated, or ended."""
        limiter = self._limiter
        limiter.silent.pop(self, None)
        limiter.waiting.pop(self, None)
        if limiter.unauthenticated.pop(self, self) is None:
            limiter.place_free()

    # Called by an AMQP connection

    def admit(self, connection: AmqpConnectionHandle) -> bool:
        """Count one more AMQP connection, if it is known here that there is room. If not, `request` decides."""
        if not self._limiter.quota.take(NAMESPACE):
            return False
        self._limiter.amqp_connections.add(connection)
        return True

    async def request(self, connection: AmqpConnectionHandle) -> bool:
        """Whether there is room for one more AMQP connection, which is then counted.

        If there is no room, it stays among the unauthenticated connections until it ends.
        """
        if not await self._limiter.quota.request(NAMESPACE):
            return False
        self._limiter.amqp_connections.add(connection)
        return True

    def closed(self, connection: AmqpConnectionHandle) -> None:
        if connection in self._limiter.amqp_connections:
            self._limiter.amqp_connections.remove(connection)
            self._limiter.quota.release(NAMESPACE)
        self.untrack()


class ConnectionLimiter:
    """Shared by all ports of a gateway."""

    def __init__(self, limits: Limits, quota: ConnectionQuota | None = None) -> None:
        """Without a quota, this gateway is the only one of its namespace."""
        self.limits = limits
        self.quota = quota or GatewayQuota(limits)
        # In the order in which connections entered the state
        self.silent: dict[TrackedConnection, None] = {}
        self.waiting: dict[TrackedConnection, None] = {}
        self.unauthenticated: dict[TrackedConnection, None] = {}
        self.amqp_connections: set[AmqpConnectionHandle] = set()
        self.place_free: Callable[[], None] = lambda: None
        """Called when an unauthenticated connection has ended or authenticated."""
        self._http_connections: dict[HttpConnectionHandle, None] = {}
        self.now = asyncio.get_running_loop().time

    @property
    def connection_count(self) -> int:
        """Connections that have named their protocol."""
        return len(self.amqp_connections) + len(self._http_connections)

    def track(self, evict: Callable[[], None]) -> TrackedConnection:
        """Track a new connection; `evict` closes it."""
        tracked = TrackedConnection(self, self.now(), evict)
        self.silent[tracked] = None
        return tracked

    def accept_delay(self) -> float:
        """0 if one more may be accepted now (the oldest may have been closed for it), else the seconds to wait."""
        if len(self.silent) + len(self.waiting) < self.limits.max_silent_connections:
            return 0.0
        return self._make_room(self.silent, SILENT_GRACE)

    def start_delay(self) -> float:
        """0 if one more may be started now (the oldest may have been closed for it), else the seconds to wait."""
        if len(self.unauthenticated) < self.limits.max_unauthenticated_connections:
            return 0.0
        return self._make_room(self.unauthenticated, UNAUTHENTICATED_GRACE)

    def _make_room(self, tracked: dict[TrackedConnection, None], grace: float) -> float:
        if not tracked:
            return grace
        oldest = next(iter(tracked))
        wait = oldest.since + grace - self.now()
        if wait > 0:
            return wait
        oldest.evict()
        return 0.0

    def evict_oldest(self) -> None:
        """Close the oldest connection: the process has no descriptors left."""
        for tracked in (self.silent, self.unauthenticated):
            if tracked:
                next(iter(tracked)).evict()
                return

    # HTTP connections, those that have been idle longest first

    def http_used(self, handle: HttpConnectionHandle) -> None:
        """Count an HTTP connection, or note that it has just been used."""
        self._http_connections.pop(handle, None)
        self._http_connections[handle] = None
        if len(self._http_connections) > self.limits.max_http_connections:
            for other in self._http_connections:
                if other.idle:
                    self._http_connections.pop(other)
                    other.dismiss()
                    return
            self._http_connections.pop(handle)
            handle.dismiss()

    def http_closed(self, handle: HttpConnectionHandle) -> None:
        self._http_connections.pop(handle, None)

    def shut_down_all(self) -> None:
        """Close every AMQP connection now."""
        for connection in list(self.amqp_connections):
            connection.shut_down()

    async def close(self) -> None:
        """Close every AMQP connection because the broker stops. Wait a moment for the close frames to be sent.

        A client is asked to leave between two series of requests, if it makes a pause soon (`QUIET_SECONDS`). Until then all
        that it asks for is done. SDKs repeat no request whose connection ends before the answer.
        """
        for tracked in [*self.silent, *self.waiting]:
            tracked.evict()
        deadline = self.now() + REQUEST_SECONDS
        while True:
            late = self.now() >= deadline
            since = self.now() - QUIET_SECONDS
            quiet = [one for one in self.amqp_connections if late or one.last_request <= since]
            await self._close(quiet)
            if late or not self.amqp_connections.difference(quiet):
                break
            await asyncio.sleep(0.01)
        await _until(lambda: not self.amqp_connections, CLOSE_SECONDS)

    async def _close(self, connections: list[AmqpConnectionHandle]) -> None:
        """Close these connections, each after its last answer, if that comes soon."""
        for connection in connections:
            connection.stop_reading()
        open_ones = self.amqp_connections
        await _until(lambda: all(one.is_answered for one in connections if one in open_ones), ANSWER_SECONDS)
        for connection in connections:
            connection.shut_down()


async def _until(check: Callable[[], bool], seconds: float) -> None:
    """Wait until the check is true, but not longer than this."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not check() and loop.time() < deadline:
        await asyncio.sleep(0.01)
