"""A broker process of a node: its way to the controller, and to the broker processes of other nodes.

Rules:
1. It gets the address of the controller from its node. It connects there, and again whenever the channel has ended.
   Stores, clients and channels to other brokers go on meanwhile; only what the controller answers is refused.
2. It has a port of its own, at which the gateways of other brokers use its stores. It connects to theirs.
3. When another process has claimed one of its stores, it was frozen or cut off. Then it ends, and its node starts it again:
   so its clients get nothing that rests on what it had.
4. It ends with its node.
5. If it has no controller, and its node cannot reach the catalogue, it is cut off. Others may take it for ended after a
   lease, and free the sessions of its clients. So it closes the connections of its clients before that (dead_nodes.py).
   If it was taken for ended all the same, it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from busbar.cluster.broker_node import BrokerNode
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.codec import WireError
from busbar.cluster.controller_connection import ControllerConnection
from busbar.cluster.hello import TAKEN_FOR_ENDED, TO_CONTROLLER, TO_STORES, Hello
from busbar.cluster.isolation import Isolation
from busbar.cluster.node_port import HelloRefused, NodePort, dial
from busbar.cluster.node_processes import STARTED, STARTING, BrokerStart, StartingNode
from busbar.cluster.node_settings import node_of
from busbar.cluster.node_tls import NodeTls
from busbar.cluster.protocol import StoreFrame
from busbar.model.errors import BusbarError

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.5
ISOLATION_LOOKS = 12
"""In each lease."""

_log = logging.getLogger(__name__)
_UNREACHED = (OSError, TimeoutError, WireError, HelloRefused)


class NodeBroker(Channel):
    """The broker's end of the channel to its node. A node_processes.StartedBroker."""

    def __init__(
        self,
        start: BrokerStart,
        node: BrokerNode,
        tls: NodeTls,
        ended: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`ended` is called when the process has to end. `clock` gives seconds, and goes on while the process is
        suspended."""
        super().__init__()
        self._start = start
        self._node = node
        self._tls = tls
        self._ended = ended
        self._port = NodePort(tls, start.namespace, start.name, self._serve_peer, start.versions)
        self._address = ""
        self._controller = ("", "")
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._attaching: asyncio.Task[None] | None = None
        self._connection: ControllerConnection | None = None
        self._isolation = Isolation(start.lease, clock)
        self._isolating: asyncio.Task[None] | None = None
        self._parent: StartingNode = STARTING.remote(self)
        node.on_open = self._parent.gateway_opened
        node.reach_peers(self._reach)

    async def run(self, connection: ControllerConnection) -> None:
        """Listen for other brokers, and connect to the controller from now on. Raises OSError."""
        self._connection = connection
        port = await self._port.listen(self._start.host, self._start.port)
        self._address = f"{self._start.address}:{port}"
        self._attaching = asyncio.get_running_loop().create_task(self._attach(connection))
        self._isolating = asyncio.get_running_loop().create_task(self._watch_isolation())

    # ---- the node ----

    def handle_frame(self, frame: StoreFrame) -> None:
        raise WireError("A node sent something else than calls.")

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return STARTED, self

    def closed(self) -> None:
        self._ended()

    async def ping(self) -> None:
        """Completes at once; the completion is the reply to the node."""

    def use_controller(self, node: str, address: str) -> None:
        if (node, address) != self._controller:
            self._controller = (node, address)
            self._changed.set()
            if self._connection is not None and self._connection.is_connected:
                self._connection.abort()

    def catalogue_seen(self, ago: float) -> None:
        self._isolation.catalogue_seen(ago)

    async def _watch_isolation(self) -> None:
        """Close the connections of clients when this process is cut off (rule 5)."""
        while True:
            await asyncio.sleep(self._start.lease / ISOLATION_LOOKS)
            if self._connection is not None and self._connection.is_connected:
                self._isolation.controller_seen()
            if self._isolation.begins():
                _log.error(
                    "this broker is cut off from the controller and the catalogue; its clients have to leave"
                )
                self._node.close_clients()

    async def leave(self, drain: float) -> None:
        assert self._connection is not None
        with contextlib.suppress(
            TimeoutError, ChannelClosed, BusbarError
        ):  # without a controller they are only closed
            async with asyncio.timeout(drain):
                await self._connection.controller.release_stores()
        await self._node.close_gateway()
        hosts = [*self._connection.hosts.values()]
        for host in hosts:
            host.stop_timers()
        await asyncio.gather(*[host.drain(drain) for host in hosts])
        await asyncio.gather(*[host.close() for host in hosts])
        self._connection.hosts.clear()
        self._connection.controller.leaving()
        for task in (self._attaching, self._isolating):
            if task is not None:
                task.cancel()

    # ---- the controller (rule 1) ----

    def controller_lost(self) -> None:
        """Connect again."""
        self._lost.set()

    async def _attach(self, connection: ControllerConnection) -> None:
        pause = FIRST_PAUSE
        while True:
            self._changed.clear()
            node, address = self._controller
            if address:
                self._lost.clear()
                try:
                    await dial(address, self._tls, self._hello(node, connection), node, lambda: connection)
                    pause = FIRST_PAUSE
                    await self._lost.wait()
                    continue
                except _UNREACHED as error:
                    _log.info("the controller at %s cannot be reached: %s", address, error)
                    if str(error) == TAKEN_FOR_ENDED:
                        _log.error("this broker ends, and is started again: %s", error)
                        self._ended()
                        return
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
                pause = FIRST_PAUSE
            except TimeoutError:
                pause = min(2 * pause, LONGEST_PAUSE)

    def _hello(self, controller: str, connection: ControllerConnection) -> Hello:
        start = self._start
        held = [name for name, host in connection.hosts.items() if host.is_open]
        return Hello(
            TO_CONTROLLER,
            start.namespace,
            start.node,
            start.name,
            start.gateway,
            controller,
            self._address,
            held,
            start.ended,
            self._node.catalogue_version,
            start.versions,
        )

    # ---- other brokers (rule 2) ----

    def _serve_peer(self, hello: Hello) -> Channel | str:
        if hello.purpose != TO_STORES:
            return "this is not the controller"
        return self._node.peer_server(hello.broker, hello.gateway)

    def _reach(self, broker: str) -> None:
        """Make a channel to the stores of another broker, unless one is being made."""
        address = self._node.peer_addresses.get(broker)
        if address is not None and broker not in self._dialling:
            task = asyncio.get_running_loop().create_task(self._dial(broker, address))
            self._dialling[broker] = task
            task.add_done_callback(lambda task: self._dialling.pop(broker))

    async def _dial(self, broker: str, address: str) -> None:
        start = self._start
        hello = Hello(
            TO_STORES,
            start.namespace,
            start.node,
            start.name,
            start.gateway,
            broker,
            versions=start.versions,
        )
        try:
            make = self._node.peer_client
            await dial(address, self._tls, hello, node_of(broker), lambda: make(broker))
        except _UNREACHED as error:
            _log.info("%s at %s cannot be reached: %s", broker, address, error)
