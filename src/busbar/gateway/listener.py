"""The AMQP port: accepts connections and bounds how many there are, before and after they have proven who they are."""

from __future__ import annotations

import asyncio
import secrets

from busbar.gateway.authority import Authority
from busbar.gateway.connection import GatewayConnection
from busbar.gateway.service import Service
from busbar.model.limits import Limits
from busbar.model.port import FragmentPort


class AmqpListener:
    def __init__(self, port: FragmentPort, authority: Authority, limits: Limits) -> None:
        identity = secrets.token_hex(4)
        self._service = Service(port, authority, limits, f"busbar-{identity}", f"Reference:{identity}")
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._connections: set[GatewayConnection] = set()
        self._unproven: set[GatewayConnection] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0 asks for a free one)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: GatewayConnection(self, self._service), host, port, backlog=1024
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, tell every client, and wait a moment for the farewells to go out."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.shut_down()
        for _ in range(100):
            if not self._connections:
                break
            await asyncio.sleep(0.01)

    # Called by connections

    def admit(self, connection: GatewayConnection) -> bool:
        if len(self._connections) >= self._limits.max_connections:
            return False
        if len(self._unproven) >= self._limits.max_unproven_connections:
            return False
        self._connections.add(connection)
        self._unproven.add(connection)
        return True

    def authenticated(self, connection: GatewayConnection) -> None:
        self._unproven.discard(connection)

    def gone(self, connection: GatewayConnection) -> None:
        self._connections.discard(connection)
        self._unproven.discard(connection)
