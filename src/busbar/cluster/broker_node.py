"""A broker process as a member of the namespace: its gateway, its way to all fragments, and the other broker processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from busbar import __version__
from busbar.broker.history import HistoryRecorder
from busbar.broker.move_runner import MoveRunner
from busbar.broker.process_figures import process_figures
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.change import EntityChange
from busbar.cluster.channel import Channel
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.codec import WireError
from busbar.cluster.controller_connection import ControllerConnection
from busbar.cluster.fd_passing import CLIENT, FdReceiver
from busbar.cluster.hand_over import hand_over
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.peer_server import PeerServer, PeerServers
from busbar.cluster.remote_store import PeerClient
from busbar.cluster.store_route import StoreRoute
from busbar.fragment.figures import FiguresOfFragments
from busbar.model.api import EntityView, TransferReport
from busbar.model.commands import Command
from busbar.model.connection_views import ConnectionQuery, ConnectionReport
from busbar.model.effects import Effect
from busbar.model.figures import GatewayFigures, ProcessFigures
from busbar.model.history import ClientName, HistoryRecording, HistoryStep
from busbar.model.node_views import NodeView
from busbar.store.location import OwnerSilence

PEER = "peer"
"""The label of a socket that leads to the stores of another broker process, whose name follows."""
SERVED = "served"
"""Of one from which another broker process uses the stores of this one. Its name follows, and that of its gateway."""

_log = logging.getLogger(__name__)


class ServingGateway(Protocol):
    """The gateway of this broker process, as far as sockets are handed to it."""

    @property
    def connection_count(self) -> int:
        """How many client connections there are."""

    def figures(self) -> GatewayFigures:
        """What it has done."""

    def adopt(self, what: socket.socket) -> None:
        """Serve a client that the controller has accepted."""

    def evict_oldest(self) -> None:
        """Close the oldest connection, since descriptors have run out."""

    def client_names(self, clients: Sequence[tuple[int, int]]) -> list[ClientName | None]:
        """Who these clients are or were."""

    async def connection_report(self, query: ConnectionQuery) -> ConnectionReport: ...

    async def close_connection(self, id: str) -> bool: ...

    def close_clients(self) -> None:
        """Close all AMQP connections, since the broker process is cut off."""

    async def stop(self) -> None: ...


GatewayOpener = Callable[[NodeSettings, ClusterBroker], Awaitable[ServingGateway]]


class BrokerNode:
    """A controller_connection.NodeHandler, and so a protocol.NodeApi."""

    def __init__(
        self, name: str, end: socket.socket, clock: Callable[[], int], open_gateway: GatewayOpener
    ) -> None:
        self.channel: ControllerConnection | None = None
        """The channel to the controller; set before its first frame."""
        self._name = name
        self._port = ClusterBroker()
        self._port.own_hosts = lambda: self.channel.hosts.values() if self.channel is not None else ()
        self.recorder = HistoryRecorder(self._port)
        """Of the history of messages in the stores of this process."""
        self._moves = MoveRunner(self._port, asyncio.get_running_loop(), clock, self._port.routes.sink_of)
        self._transfer_patience = 0
        self._clock = clock
        self._since = clock()
        self._open_gateway = open_gateway
        self._gateway: ServingGateway | None = None
        self.on_open: Callable[[], None] = lambda: None
        """Called when the gateway is open."""
        self.on_log_level: Callable[[str], None] = lambda level: None
        """Changes the level of the log of this process."""
        self._gateway_name = ""
        self._fd_socket = FdReceiver(
            end,
            self._on_socket,
            lambda: self._gateway.connection_count if self._gateway else 0,
            self._exhausted,
        )
        self._linking: set[asyncio.Task[object]] = set()
        self.on_controller: Callable[[], None] = lambda: None
        """Called when a controller has opened the gateway, or has found it open: it may be another one than before."""
        self.peer_addresses: dict[str, str] = {}
        """By broker of another node, where its stores can be reached."""
        self._served = PeerServers(self._port)
        self.look_at: Callable[[str], OwnerSilence] = lambda store: OwnerSilence(-1.0)
        """Looks at the owner of a store, in its own place."""

    @property
    def catalogue_version(self) -> int:
        """The number of the last change of the catalogue that this broker has."""
        return self._port.replica.version

    @property
    def fragment_figures(self) -> FiguresOfFragments:
        """What the fragments of this process have done."""
        return self._port.fragment_figures

    def emit(self, effects: list[Effect]) -> None:
        self._port.dispatch(effects)

    # ---- what the controller asks ----

    def load_entities(self, version: int, entities: Sequence[EntityView]) -> None:
        self._port.load_entities(version, entities)

    def reload_entities(self, version: int, entities: Sequence[EntityView]) -> None:
        self._port.reload_entities(version, entities)

    def entities_changed(self, version: int, entities: Sequence[EntityChange]) -> None:
        self._port.entities_changed(version, entities)

    def store_opened(self, store: str) -> None:
        route = self._port.route_to(store)
        if route is not None:
            route.own_opened()

    async def ping(self) -> None:
        """Completes at once; the completion is the reply to the controller."""

    def open_gateway(self, settings: NodeSettings) -> Coroutine[Any, Any, None]:
        """Open the gateway. When the next call comes, the stores of the namespace are assigned."""
        self._take_part(settings)
        return self._open(settings)

    async def connect_peers(self, brokers: Sequence[str]) -> None:
        """Wait for the other brokers. When targets in other processes can be reached, messages may move."""
        await self._port.wait_for_peers(brokers)
        self._moves.start(self._transfer_patience)

    def broker_joined(self, broker: str, address: str) -> None:
        self.peer_addresses[broker] = address
        self._port.peer_joined(broker)

    def broker_lost(self, broker: str) -> None:
        self._port.drop_peer(broker)

    def broker_ended(self, broker: str, gateway: str) -> None:
        self._served.settle(broker, gateway)
        assert self.channel is not None
        for host in self.channel.hosts.values():
            host.gateway_ended(gateway)

    def stores_moved(self, owners: Mapping[str, str]) -> None:
        for store, broker in owners.items():
            route = self._port.route_to(store)
            if route is None:  # the gateway is not open yet
                continue
            if broker == self._name:
                assert self.channel is not None
                route.use_own(self.channel.hosts[store], broker, self._gateway_name)
            else:
                route.leave_own()
                self._port.store_moved(store, broker)

    async def hand_over(self, host: LocalStoreHost) -> list[Command]:
        """Release a store of this process for another one, and let all clients go on there. Returns the commands of the
        controller that were not applied. Raises ServerBusy if the store stays."""
        route = self._port.route_to(host.name)
        asked = await hand_over(host, route, self._served, self._gateway_name)
        self._moves.on_store_left(route)
        return asked

    async def transfers(self) -> TransferReport:
        return await self._moves.transfers()

    async def view(self) -> NodeView:
        assert self.channel is not None
        hosts = [*self.channel.hosts.values()]
        return NodeView(
            self._name,
            machine=socket.gethostname(),
            process=os.getpid(),
            version=__version__,
            since=self._since,
            connections=self._gateway.connection_count if self._gateway is not None else 0,
            catalogue_version=self._port.replica.version,
            channels=self._port.peers,
            stores=[host.name for host in hosts],
            figures=[host.figures() for host in hosts],
        )

    async def history(self, message_id: str) -> list[HistoryStep]:
        return self.recorder.steps_of(message_id)

    async def client_names(self, clients: Sequence[tuple[int, int]]) -> list[ClientName | None]:
        return [None] * len(clients) if self._gateway is None else self._gateway.client_names(clients)

    def set_recording(self, recording: HistoryRecording) -> None:
        self.recorder.set_recording(recording)

    async def look_at_store(self, store: str) -> OwnerSilence:
        return await asyncio.to_thread(self.look_at, store)

    async def connection_report(self, query: ConnectionQuery) -> ConnectionReport:
        if self._gateway is None:
            return ConnectionReport([], 0)
        return await self._gateway.connection_report(query)

    async def close_connection(self, id: str) -> bool:
        return self._gateway is not None and await self._gateway.close_connection(id)

    def set_log_level(self, level: str) -> None:
        self.on_log_level(level)

    async def figures(self) -> ProcessFigures:
        assert self.channel is not None
        gateway = self._gateway.figures() if self._gateway is not None else GatewayFigures()
        return process_figures(self._name, self.fragment_figures, self.channel.hosts.values(), gateway)

    def close_clients(self) -> None:
        """Close the connections of all clients, with their sessions."""
        if self._gateway is not None:
            self._gateway.close_clients()

    async def close_gateway(self) -> None:
        await self._moves.stop()
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await gateway.stop()

    def _take_part(self, settings: NodeSettings) -> None:
        """Assign the stores of the namespace, before entities are known: their fragments can be in any of them."""
        assert self.channel is not None
        loop = asyncio.get_running_loop()
        self._gateway_name = settings.gateway
        self.recorder.set_recording(settings.recording)
        self.peer_addresses.update(settings.addresses)
        routes: list[StoreRoute] = []
        for store, broker in settings.owners.items():
            known = self._port.route_to(store)
            if known is not None:  # from an earlier controller
                routes.append(known)
                self.stores_moved({store: broker})
                continue
            route = StoreRoute(store, broker, loop, self._clock, self._port.dispatch)
            route.names_holders = settings.has_nodes
            route.on_open = partial(self._moves.on_store_open, route)
            if broker == self._name:
                route.use_own(self.channel.hosts[store], broker, settings.gateway)
            routes.append(route)
        others = [broker for broker in settings.brokers if broker != self._name]
        self._port.configure(self.channel.controller, routes, others, settings.namespace)

    async def _open(self, settings: NodeSettings) -> None:
        self._transfer_patience = settings.limits.transfer_patience
        if self._gateway is None:  # it stays open when there is another controller
            self._gateway = await self._open_gateway(settings, self._port)
        self.on_controller()
        self.on_open()

    def _on_socket(self, label: str, what: socket.socket) -> None:
        kind, _, broker = label.partition(" ")
        if kind == CLIENT:
            if self._gateway is not None:
                self._gateway.adopt(what)
            else:
                what.close()
        elif kind == PEER:
            self._link(self.peer_client(broker), what)
        elif kind == SERVED:
            self._link(self.peer_server(*broker.split(" ")), what)
        else:
            raise WireError(f"A broker process was handed a socket as {label!r}.")

    def reach_peers(self, dial: Callable[[str], None]) -> None:
        """Let `dial` make the missing channels to other brokers, instead of the controller."""
        self._port.introduce_peer = dial

    def peer_client(self, broker: str) -> PeerClient:
        """A channel to the stores of another broker, not connected yet."""
        return self._port.add_peer(broker)

    def peer_server(self, broker: str, gateway: str) -> PeerServer:
        """A channel by which another broker uses the stores of this one, not connected yet."""
        assert self.channel is not None
        peers, hosts = self.channel.peers, self.channel.hosts
        served = self._served.serve(broker, gateway, lambda: [*hosts.values()], peers.discard)
        peers.add(served)
        return served

    def _link(self, channel: Channel, what: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[object] = loop.create_task(loop.create_unix_connection(lambda: channel, sock=what))
        self._linking.add(task)

        def linked(task: asyncio.Task[object]) -> None:
            self._linking.discard(task)
            if not task.cancelled() and task.exception() is not None:
                _log.error("a channel to another broker process cannot be used", exc_info=task.exception())
                what.close()
                channel.connection_lost(None)

        task.add_done_callback(linked)

    def _exhausted(self, label: str) -> None:
        if self._gateway is not None:
            self._gateway.evict_oldest()
