"""Who the clients of this gateway are, also for some time after they have left: for the history of messages.

A name is kept while its connection lives. Of connections that have ended the last KEPT_CONNECTIONS are remembered, and of a
connection the last KEPT_LINKS of its consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from busbar.model.history import ClientName

KEPT_CONNECTIONS: Final = 1_000
KEPT_LINKS: Final = 1_000
MAX_NAME: Final = 128
"""Characters of a name that are kept: clients choose them."""


class _Client:
    __slots__ = ("address", "container", "links")

    def __init__(self, container: str, address: str) -> None:
        self.container = container
        self.address = address
        self.links: dict[int, str] = {}


class ClientNames:
    def __init__(self) -> None:
        self._clients: dict[int, _Client] = {}
        self._ended: dict[int, None] = {}  # in the order of their ends

    def opened(self, origin: int, container: str, address: str) -> None:
        """Note a connection by its number at the broker."""
        if origin:
            self._clients[origin] = _Client(container[:MAX_NAME], address)

    def linked(self, origin: int, link: str, consumers: Sequence[int]) -> None:
        """Note the link that gets the messages of these consumers."""
        client = self._clients.get(origin)
        if client is None:
            return
        for consumer in consumers:
            client.links[consumer] = link[:MAX_NAME]
        while len(client.links) > KEPT_LINKS:
            del client.links[next(iter(client.links))]

    def ended(self, origin: int) -> None:
        if origin not in self._clients:
            return
        self._ended[origin] = None
        while len(self._ended) > KEPT_CONNECTIONS:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            del self._clients[oldest]

    def name(self, origin: int, consumer: int) -> ClientName | None:
        client = self._clients.get(origin)
        if client is None:
            return None
        return ClientName(client.container, client.address, client.links.get(consumer, ""))
