"""What crosses between a node and the broker processes that it has started, on sockets without names."""

from __future__ import annotations

from typing import Protocol

import msgspec

from busbar.cluster.calls import RemoteInterface


class BrokerStart(msgspec.Struct):
    """With what a node starts a broker process."""

    name: str
    node: str
    gateway: str
    """The name of its gateway. No other has had it."""
    ended: list[str]
    """Gateways of its predecessors, which have ended."""
    namespace: str
    """The id of the cluster."""
    directory: str
    channel: int
    fd_socket: int
    """Descriptors of its ends of the channel, and of the socket over which clients come."""
    host: str
    port: int
    """Where it listens for others that use its stores; 0: any free port."""
    address: str
    """The address at which others reach that host."""
    store_timeout: float
    lease: float
    """Both in seconds."""
    inline_messages: int
    """Commits of at most so many messages are made on the event loop."""
    certificate: str
    certificate_key: str
    """For clients."""
    node_certificate: str
    node_key: str
    node_authority: str
    """For other nodes."""
    versions: list[int]
    """The versions of the channels between nodes that it offers."""


class StartedBroker(Protocol):
    """A broker process, as its node calls it."""

    async def ping(self) -> None:
        """Completes at once; the completion is the reply to the node."""

    def use_controller(self, node: str, address: str) -> None:
        """Connect to the controller there, unless that is done."""

    def catalogue_seen(self, ago: float) -> None:
        """Note for how many seconds the node has not reached the catalogue."""

    async def leave(self, drain: float) -> None:
        """Close the gateway, then all stores. What is under way may take `drain` seconds."""


class StartingNode(Protocol):
    """The node, as its broker processes call it."""

    def gateway_opened(self) -> None:
        """Note that clients can come."""


STARTED = RemoteInterface[StartedBroker](StartedBroker)  # type: ignore[type-abstract]
STARTING = RemoteInterface[StartingNode](StartingNode)  # type: ignore[type-abstract]
