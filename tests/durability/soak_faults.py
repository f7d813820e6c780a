"""The faults of a soak: a proxy that cuts and stalls connections, and a plan of what happens when.

The plan follows from a seed alone. Which connection a fault hits depends on the connections of that moment, and so on
real processes: the seed replays the times and kinds of faults, not each interleaving.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from harness.serving import Busbar

RECEIVE_BUFFER = 16 * 1024
"""Of the proxy's sockets to the server: a stalled connection soon fills the buffers of the server."""
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: the close sends RST


class FaultKind(Enum):
    CLOSE = "close"  # an orderly end of the TCP connection
    RESET = "reset"  # an end that loses what is under way
    STALL = "stall"  # the client has credit and does not read
    KILL = "kill"  # kill -9 of a process of the server


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens so many seconds after the start of the load."""

    at: float
    kind: FaultKind
    choice: float = 0.0
    """Which connection, as a part of all of them."""
    seconds: float = 0.0
    """How long it is stalled."""


def fault_plan(seed: int, seconds: float, kills_until: float, longest_stall: float) -> list[Fault]:
    """All faults of a campaign, in order."""
    chance = random.Random(seed)
    return sorted(
        [*_disconnects(chance, seconds, longest_stall), *_kills(chance, kills_until)],
        key=lambda fault: fault.at,
    )


def _disconnects(chance: random.Random, seconds: float, longest_stall: float) -> Iterator[Fault]:
    at = chance.uniform(0.3, 0.8)
    while at < seconds:
        kind = chance.choice((FaultKind.CLOSE, FaultKind.RESET, FaultKind.STALL, FaultKind.STALL))
        stalled = 0.0
        if kind is FaultKind.STALL:  # one in ten is longer than the client waits for an answer
            stalled = longest_stall if chance.random() < 0.1 else chance.uniform(0.3, longest_stall / 2)
        yield Fault(at, kind, chance.random(), stalled)
        at += chance.uniform(0.2, 1.2)


def _kills(chance: random.Random, until: float) -> Iterator[Fault]:
    at = chance.uniform(1.0, 2.0)
    while at < until:
        yield Fault(at, FaultKind.KILL)
        at += chance.uniform(8.0, 20.0)


class _Side(asyncio.Protocol):
    """One of the two sockets of a proxied connection."""

    def __init__(self, connection: ProxiedConnection) -> None:
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._pauses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.end()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.resume()

    def pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1 and self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


class ProxiedConnection:
    """A connection of a client, and the proxy's own to the server."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self._proxy = proxy
        self.client = _Side(self)
        self.server = _Side(self)

    async def open(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self.client.pause()
        to_server = socket.socket()
        to_server.setblocking(False)
        to_server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        try:
            await loop.sock_connect(to_server, ("127.0.0.1", port))
            await loop.create_connection(lambda: self.server, sock=to_server)
        except OSError:  # the server is down
            to_server.close()
            self.end()
            return
        self.client.other, self.server.other = self.server, self.client
        self.client.resume()

    def end(self, *, reset: bool = False) -> None:
        self._proxy.connections.discard(self)
        for side in (self.client, self.server):
            transport = side.transport
            if transport is None or transport.is_closing():
                continue
            if not reset:
                transport.close()
                continue
            with suppress(OSError):
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            transport.abort()

    def stall(self, seconds: float) -> None:
        """Read nothing from the server for so long."""
        self.server.pause()
        asyncio.get_running_loop().call_later(seconds, self.server.resume)


class CuttingProxy:
    """A TCP proxy in front of a Busbar, whose connections can be cut and stalled."""

    def __init__(self, server: Busbar) -> None:
        self._server = server
        self._listening: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self.connections: set[ProxiedConnection] = set()
        self.accepted = 0

    async def __aenter__(self) -> CuttingProxy:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._accept, "127.0.0.1", 0)
        return self

    def _accept(self) -> _Side:
        self.accepted += 1
        connection = ProxiedConnection(self)
        self.connections.add(connection)
        task = asyncio.get_running_loop().create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return connection.client

    async def _open(self, connection: ProxiedConnection) -> None:
        await asyncio.sleep(0)  # until the client's side has its transport
        await connection.open(self._server.port)

    async def __aexit__(self, *_exc: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for connection in list(self.connections):
            connection.end()
        await asyncio.gather(*self._opening, return_exceptions=True)

    @property
    def connection_string(self) -> str:
        assert self._listening is not None
        port = self._listening.sockets[0].getsockname()[1]
        return re.sub(rf":{self._server.port}\b", f":{port}", self._server.connection_string)

    def inject(self, fault: Fault) -> None:
        """Cut or stall the connection that the fault chooses."""
        if not self.connections:
            return
        ordered = sorted(self.connections, key=id)
        connection = ordered[int(fault.choice * len(ordered))]
        if fault.kind is FaultKind.STALL:
            connection.stall(fault.seconds)
        else:
            connection.end(reset=fault.kind is FaultKind.RESET)
