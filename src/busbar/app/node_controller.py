"""The controller as one node has it: the catalogue, its stores, and the brokers of all nodes that connect to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from busbar.app.config import NamespaceConfig
from busbar.app.log_output import change_log_level
from busbar.app.provisioning import provision
from busbar.app.store_places import StoreAddress
from busbar.broker.host_api import StoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.clock import wall_clock
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.channel import Channel
from busbar.cluster.connection_counter import ConnectionCounter
from busbar.cluster.controller import ClusterController
from busbar.cluster.hello import Hello
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.errors import BusbarError
from busbar.model.sas import SasRule
from busbar.store.contract import StoreError
from busbar.store.postgresql.catalogue import catalogue_at
from busbar.store.postgresql.location import PostgresqlLocation
from busbar.store.postgresql.members import ClusterLook, ListedStore

JOIN_SECONDS = 1.0
RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


def address_of(store: ListedStore) -> StoreAddress:
    return StoreAddress(store.name, store.url, store.identity)


def _answer_by(port: LocalBroker, cluster: ClusterController) -> None:
    """Let the brokers of the cluster answer what concerns their processes."""
    port.report_transfers = cluster.transfers
    port.report_nodes = cluster.nodes
    port.report_history = cluster.history
    port.set_recording = cluster.set_recording
    port.report_connections = cluster.connections
    port.close_at_gateway = cluster.close_connection
    port.report_figures = cluster.figures
    port.change_log_level = partial(change_log_level, tell=cluster.set_log_level)
    port.move_remote = cluster.moves.move


class NodeController:
    """From the claim of the catalogue to its loss."""

    def __init__(
        self,
        node: str,
        url: str,
        namespace: NamespaceConfig,
        watched: Mapping[str, PostgresqlLocation],
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        """`url` is the address of the catalogue. `watched` are stores whose owners the node has looked at. `forget` takes a
        store from the list beside the catalogue."""
        self.is_over = False
        """Whether another node has claimed the catalogue."""
        self._node = node
        self._url = url
        self._namespace = namespace
        self._watched = watched
        self._forget = forget
        self.stores: set[str] = set()
        """The names of the stores that it has loaded."""
        self._home: CatalogueHome | None = None
        self._cluster: ClusterController | None = None
        self._catalogue: Catalogue | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def _lease(self) -> float:
        return self._namespace.limits.store_lease / 1000

    async def claim(self, stale: int) -> bool:
        """Claim the catalogue, in place of that claim. False if another node was faster."""
        place = catalogue_at(self._url, self._node, self._lease, is_shared=True, stale=[stale])
        limits = self._namespace.limits
        loop = asyncio.get_running_loop()
        home = CatalogueHome(place, loop, limits.store_timeout / 1000, self._fenced)
        try:
            await home.claim()
        except StoreError as error:
            _log.info("the catalogue was not claimed: %s", error)
            await home.close()
            return False
        self._home = home
        return True

    def _fenced(self) -> None:
        self.is_over = True

    def start(self, rules: list[SasRule], expected: int, look: ClusterLook) -> None:
        """Serve as the controller from now on. So many brokers are expected at first."""
        limits = self._namespace.limits
        assert self._home is not None
        port = LocalBroker()
        members = CataloguePublisher(port)
        cluster = self._cluster = ClusterController(
            members, ConnectionCounter(limits), self._lease, limits.balance_delay / 1000
        )
        places = {
            store.name: self._watched.get(store.name) or address_of(store).location(self._lease)
            for store in look.stores
        }
        self.stores = {*places}
        loop = asyncio.get_running_loop()
        is_loading = True

        def make_host(name: str) -> StoreHost:
            place = places[name].place
            host = RemoteStoreHost(name, "", loop, wall_clock, port.dispatch, None, place)
            cluster.add_store(host, is_new=not is_loading)
            return host

        stores = StoreSet([], make_host)
        tier, name = self._namespace.tier, self._namespace.name
        self._catalogue = Catalogue(stores, self._home, limits, tier, name)
        port.serve(stores, self._catalogue)
        port.inspect_remote = members.inspect
        _answer_by(port, cluster)
        cluster.unchanged = self._catalogue.unchanged

        async def forget_store(name: str) -> None:
            cluster.remove_store(name)
            await self._forget(name)
            self.stores.discard(name)

        self._catalogue.store_list.forget = forget_store
        stores.carrier = members
        settings = NodeSettings(rules, limits, "", "", namespace=name)

        async def run() -> None:
            nonlocal is_loading
            there = await asyncio.gather(
                *[asyncio.to_thread(location.may_exist) for location in places.values()]
            )
            for name, exists in zip(places, there, strict=True):
                if exists:
                    stores.add(name)
            is_loading = False
            await cluster.wait_for_brokers(expected, JOIN_SECONDS)
            await cluster.assign_orphans()
            catalogue = self._catalogue
            assert catalogue is not None
            await catalogue.load([*places])
            for note in (*catalogue.notes, *await provision(catalogue, self._namespace, rules)):
                _log.warning("%s", note)
            await cluster.serve(settings, catalogue.readmit)

        self._running = loop.create_task(self._run(run()))

    async def _run(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (StoreError, BusbarError, OSError) as error:
            _log.error("this node cannot be the controller: %s", error)
            self.is_over = True
        except Exception:
            _log.exception("this node cannot be the controller")
            self.is_over = True

    def attach(self, hello: Hello) -> Channel | str:
        if self._cluster is None or self.is_over:
            return "this node is not the controller any more"
        return self._cluster.attach(hello)

    def addresses(self, node: str) -> list[str] | None:
        """Where the brokers of a node were when they were last connected. None if one of them is, or that is not known."""
        return None if self._cluster is None else self._cluster.addresses(node)

    def note_node_ended(self, node: str, gateways: Sequence[str]) -> None:
        if self._cluster is not None:
            self._cluster.note_node_ended(node, gateways)

    async def stop(self) -> None:
        """Leave the catalogue to the next controller. Brokers keep their stores."""
        self.is_over = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._cluster is not None:
            await self._cluster.abandon()
        if self._catalogue is not None:
            await self._catalogue.close()
        elif self._home is not None:
            await self._home.close()
