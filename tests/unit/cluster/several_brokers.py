"""Several brokers in one process, joined by real channels, over stores in memory that a test can break and hold up."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from busbar.broker.host_api import StoreState
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.cluster import protocol
from busbar.cluster.broker_connection import BrokerConnection
from busbar.cluster.broker_node import PEER, SERVED, BrokerNode
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.controller_connection import ControllerConnection, Emit
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.remote_store import ENDED
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.api import EntityView
from busbar.model.connection_views import ConnectionQuery, ConnectionReport
from busbar.model.figures import GatewayFigures
from busbar.model.history import ClientName
from busbar.model.limits import Limits
from harness.memory_store import Disk
from harness.waiting import until
from tests.conformance.port_process import clock
from tests.unit.broker.namespaces import Disks, FailingStore


class NoClients:
    """The gateway of a broker that no client is connected to."""

    connection_count = 0

    def figures(self) -> GatewayFigures:
        return GatewayFigures()

    def adopt(self, what: socket.socket) -> None:
        what.close()

    def evict_oldest(self) -> None:
        pass

    def client_names(self, clients: Sequence[tuple[int, int]]) -> list[ClientName | None]:
        return [None] * len(clients)

    async def connection_report(self, query: ConnectionQuery) -> ConnectionReport:
        return ConnectionReport([], 0)

    async def close_connection(self, id: str) -> bool:
        return False

    def close_clients(self) -> None:
        """Nothing: there are none."""

    async def stop(self) -> None:
        pass


class Broker:
    """One broker, and the controller's channel to it."""

    def __init__(
        self, name: str, node: BrokerNode, there: ControllerConnection, channel: BrokerConnection
    ) -> None:
        self.name = name
        self.node = node
        self.there = there
        self.channel = channel
        self.has_gateway = False
        self.told: list[tuple[str, EntityView | None]] = []
        self.port.watch(lambda path, view: self.told.append((path, view)))

    @property
    def port(self) -> ClusterBroker:
        return self.node._port

    def knows(self, path: str) -> bool:
        """Whether its gateway has the entity, decided or not."""
        return self.port.replica.get(path) is not None

    def host(self, store: str) -> LocalStoreHost:
        return self.there.hosts[store]


class Cluster:
    def __init__(self, owners: Mapping[str, str]) -> None:
        """`owners` are the names of the brokers, by store."""
        self.disks = Disks()
        self.controller = LocalBroker()
        self.publisher = CataloguePublisher(self.controller)
        self.brokers: dict[str, Broker] = {}
        self._owners = owners
        self._loop = asyncio.get_running_loop()
        self._nonces = itertools.count(1)
        self._made: list[LocalStoreHost] = []
        for store in owners:
            self.disks.there[store] = Disk()
        self.hosts = {
            store: RemoteStoreHost(store, owner, self._loop, clock, self.controller.dispatch)
            for store, owner in owners.items()
        }
        self.stores = StoreSet(self.hosts.values())
        self.stores.carrier = self.publisher
        self.controller.inspect_remote = self.publisher.inspect
        home = CatalogueHome(self.disks.catalogue.location, self._loop)
        self.catalogue = Catalogue(self.stores, home, Limits())
        self.controller.serve(self.stores, self.catalogue)

    def _make_host(self, name: str, emit: Emit, fenced: Callable[[], None]) -> LocalStoreHost:
        self._made.append(
            LocalStoreHost(
                name,
                lambda: FailingStore(name, self.disks),
                self._loop,
                clock,
                lambda: next(self._nonces),
                emit,
                fenced,
            )
        )
        return self._made[-1]

    async def start(self, name: str) -> Broker:
        """Start a broker; its stores come back if it was there before."""
        ours, theirs = socket.socketpair()
        end, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        node = BrokerNode(name, end, clock, _open_gateway)
        there = node.channel = ControllerConnection(self._make_host, lambda: None, node)
        hosts = {store: host for store, host in self.hosts.items() if host.broker == name}

        def lost() -> None:
            self.publisher.remove_broker(channel)
            for host in hosts.values():
                host.disconnected(ENDED)

        channel = BrokerConnection(hosts, lost, self.controller)
        await self._loop.create_unix_connection(lambda: there, sock=theirs)
        await self._loop.create_unix_connection(lambda: channel, sock=ours)
        self.brokers[name] = Broker(name, node, there, channel)
        for host in hosts.values():
            host.attach_channel(channel)
        await asyncio.gather(*[host.restore() for host in hosts.values()])
        return self.brokers[name]

    async def join(self, name: str) -> None:
        """Open the gateway of a broker, and connect it with the others."""
        broker = self.brokers[name]
        settings = NodeSettings(
            [], Limits(), "", "", dict(self._owners), sorted({*self._owners.values()}), f"{name}.1"
        )
        opened = protocol.NODES.remote(broker.channel).open_gateway(settings)
        self.publisher.add_broker(broker.channel)
        await opened
        others = [one for one in self.brokers.values() if one.has_gateway and not one.channel.is_lost]
        broker.has_gateway = True
        for other in others:
            if other is not broker:
                for one, two in ((broker, other), (other, broker)):
                    leading, served = socket.socketpair()
                    one.node._on_socket(f"{PEER} {two.name}", leading)
                    two.node._on_socket(f"{SERVED} {one.name} {one.name}.1", served)
                await broker.port.wait_for_peers([other.name])

    async def kill(self, name: str) -> None:
        """End the channel to a broker, as its death does."""
        channel = self.brokers[name].channel
        channel.abort()
        await until(lambda: channel.is_lost)

    async def until_open(self) -> None:
        await until(lambda: all(host.state is StoreState.OPEN for host in self.hosts.values()))

    async def end(self) -> None:
        for hangs in self.disks.hanging.values():
            hangs.end()
        await self.catalogue.close()
        await self.stores.close(1)
        for host in self._made:
            await host.close()
        for broker in self.brokers.values():
            broker.channel.close()
            broker.there.close()


async def _open_gateway(settings: NodeSettings, port: ClusterBroker) -> NoClients:
    return NoClients()


FOUR = {"store-0": "broker-0", "store-1": "broker-1", "store-2": "broker-0", "store-3": "broker-1"}
"""Two stores in each of two brokers."""


@asynccontextmanager
async def cluster(owners: Mapping[str, str] = FOUR) -> AsyncIterator[Cluster]:
    here = Cluster(owners)
    try:
        for name in sorted({*owners.values()}):
            await here.start(name)
        await here.catalogue.load()
        for name in sorted({*owners.values()}):
            await here.join(name)
        yield here
    finally:
        await here.end()
