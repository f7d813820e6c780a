"""Busbar among its peers: the server as a user starts it, and the AMQP driver."""

from __future__ import annotations

from pathlib import Path

from harness.amqp_driver import LoadConnection, Receiver, Sender, connect
from harness.peers.client import BODY
from harness.peers.process import tree_seconds
from harness.serving import Busbar, config_text


class BusbarPeer:
    name = "Busbar"

    def __init__(self, directory: Path, queue: str = "orders") -> None:
        self._server = Busbar(directory / "data", config_text({queue: {"MaxSizeInMegabytes": 5120}}))
        self._queue = queue
        self._connections: list[LoadConnection] = []

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def cpu_seconds(self) -> float:
        return tree_seconds(self._server.pid)

    def syncs(self) -> int | None:
        return None

    async def sender(self, in_flight: int, batch: int = 1) -> Sender:
        connection = await self._connect()
        return await connection.sender(self._queue, in_flight=in_flight, batch=batch, body=BODY)

    async def receiver(self, credit: int) -> Receiver:
        return await (await self._connect()).receiver(self._queue, credit=credit)

    async def _connect(self) -> LoadConnection:
        connection = await connect(self._server.port)
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        while self._connections:
            await self._connections.pop().close()
