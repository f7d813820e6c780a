"""The ports of a namespace that has several broker processes: each client is accepted here and handed to one of them."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.cluster.supervisor import BrokerSupervisor
from busbar.gateway.listening.listener import Listener


class SharedListener:
    def __init__(self, brokers: BrokerSupervisor) -> None:
        self._brokers = brokers
        self._porch = Listener(brokers.accept_delay, brokers.dispatch)

    async def start(self, settings: Sequence[bytes]) -> None:
        """Open the gateways, each with its settings; nobody is accepted before `listen`."""
        await self._brokers.open_gateways(settings)

    async def listen(self, host: str, port: int) -> int:
        return await self._porch.listen(host, port)

    async def stop(self) -> None:
        """Accept nobody, and let every gateway tell its clients."""
        self._porch.close()
        await self._brokers.close_gateways()
