"""The ports of a namespace whose clients are served by other processes of this machine."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.supervisor import BrokerSupervisor
from busbar.gateway.listening.listener import Listener


class ClientTakers(Protocol):
    """Broker processes that get clients."""

    def accept_delay(self) -> float: ...

    def dispatch(self, client: socket.socket) -> None: ...


class SharedListener:
    """The ports of a namespace that has several broker processes: each client is accepted here and handed to one of them."""

    def __init__(self, brokers: ClientTakers) -> None:
        self._listener = Listener(brokers.accept_delay, brokers.dispatch)
        self._close_gateways: Callable[[], Awaitable[None]] | None = None

    async def start(self, brokers: BrokerSupervisor, settings: Sequence[NodeSettings]) -> None:
        """Open the gateways, each with its settings. No client is accepted before `listen`."""
        self._close_gateways = brokers.close_gateways
        await brokers.open_gateways(settings)

    async def listen(self, host: str, port: int) -> int:
        return await self._listener.listen(host, port)

    def close(self) -> None:
        """Accept no more clients."""
        self._listener.close()

    async def stop(self) -> None:
        """Accept no more clients, and let every gateway notify its own."""
        self.close()
        if self._close_gateways is not None:
            await self._close_gateways()
