"""What the clients of all peers share: the window of a sender, the counters of a receiver, and the frame of a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from harness.conditions import Conditions
from harness.cycle import Sending

BODY = b"x" * 1024
C = TypeVar("C", bound="PeerConnection")


class PeerError(Exception):
    """A peer refused something, or closed the connection."""


class Receiving(Protocol):
    """A receiver that settles everything it gets."""

    confirmed: int

    async def settled(self, count: int) -> None: ...


class Peer(Protocol):
    """A server with one queue."""

    name: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def cpu_seconds(self) -> float: ...

    def syncs(self) -> int | None: ...

    async def sender(self, in_flight: int, batch: int) -> Sending: ...

    async def receiver(self, credit: int) -> Receiving: ...

    async def close(self) -> None:
        """Close all connections of its senders and receivers."""
        ...


class PeerSender(Conditions):
    """Keeps up to `in_flight` messages unanswered, and sends `batch` of them at a time."""

    def __init__(self, in_flight: int, batch: int) -> None:
        super().__init__()
        self._in_flight = in_flight
        self._batch = batch
        self._left = 0
        self.outstanding = 0
        self.acknowledged = 0

    async def send(self, count: int) -> None:
        """Send that many more; returns when all of them are answered."""
        self.start(count)
        await self.until(lambda: not self._left and not self.outstanding)

    def start(self, count: int) -> None:
        self._left = count
        self._pump()

    def stop(self) -> None:
        self._left = 0

    def answered(self, count: int) -> None:
        """So many messages are on disk."""
        self.acknowledged += count
        self.outstanding -= count
        self._pump()
        self.wake()

    def _pump(self) -> None:
        batches = min(self._in_flight - self.outstanding, self._left) // self._batch
        if batches > 0:
            self._left -= batches * self._batch
            self.outstanding += batches * self._batch
            self.write(batches)

    def write(self, batches: int) -> None:
        """Send so many batches."""
        raise NotImplementedError


class PeerReceiver(Conditions):
    """Counts messages whose settlement is confirmed."""

    def __init__(self) -> None:
        super().__init__()
        self.confirmed = 0

    async def settled(self, count: int) -> None:
        """Wait for that many confirmed settlements in all."""
        await self.until(lambda: self.confirmed >= count)

    def confirm(self, count: int) -> None:
        self.confirmed += count
        self.wake()


class PeerConnection(asyncio.Protocol):
    """A connection whose replies are parsed by a subclass. What waits on it ends with it."""

    def __init__(self) -> None:
        self.user: PeerSender | PeerReceiver | None = None
        self.waiting = Conditions()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(high=16 * 1024 * 1024)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(PeerError(f"the connection ended: {exc}"))

    def write(self, data: bytes) -> None:
        if self._transport is None:
            raise PeerError("the connection is closed")
        self._transport.write(data)

    def fail(self, problem: Exception) -> None:
        self.waiting.fail(problem)
        if self.user is not None:
            self.user.fail(problem)
        self.abort()

    def abort(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


async def opened(make: Callable[[], C], port: int) -> C:
    """Connect to a port of this machine."""
    _transport, connection = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    return connection
