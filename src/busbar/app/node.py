"""A node of a cluster: it joins the others beside the catalogue, has broker processes, and may become the controller.

Rules:
1. All nodes look at the owner's row of the catalogue. Its holder is the controller. If the row is free, each tries to claim
   it, and one succeeds.
2. The brokers get the address of the controller from their node. Brokers serve clients and stores also while there is none.
3. The controller that finds itself replaced stops being it; its brokers, like all others, connect to the next one.
4. A node whose name another one has taken ends.
5. If nothing is seen of the controller for a part of the lease, the nodes look at the owners of all stores, too. The machine
   of the controller may have owned some. The next controller goes on from what its node has seen. So the leases of
   catalogue and stores are waited for at the same time.
6. If stores were added, the controller starts again: it loads the catalogue, and creates the stores. Brokers serve clients
   meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from busbar import __version__
from busbar.app.addresses import address_for_others, local_address
from busbar.app.certificates import TlsFiles
from busbar.app.config import NamespaceConfig
from busbar.app.data_directory import DataDirectory
from busbar.app.node_certificates import NodeCertificate, make_authority
from busbar.app.node_config import NodeConfig
from busbar.app.node_controller import NodeController, address_of
from busbar.app.store_places import StoreAddress, write_addresses
from busbar.catalogue.change import ENTITY
from busbar.catalogue.definition import decode_definition
from busbar.cluster.channel import Channel
from busbar.cluster.dead_nodes import DeadNodes
from busbar.cluster.hello import TO_CONTROLLER, Hello
from busbar.cluster.node_broker import ISOLATION_LOOKS
from busbar.cluster.node_brokers import NodeBrokers, gateway_name
from busbar.cluster.node_port import NodePort
from busbar.cluster.node_processes import BrokerStart
from busbar.cluster.node_tls import NodeTls, NodeTlsFiles
from busbar.model.entities import AuthorizationRule, authorization_rules_of
from busbar.model.limits import Limits
from busbar.model.names import NAMESPACE_ENTRY
from busbar.model.sas import SasRule
from busbar.store.contract import StoreError
from busbar.store.journal.directory import store_names
from busbar.store.location import OwnerSilence
from busbar.store.postgresql.location import PostgresqlLocation
from busbar.store.postgresql.members import ClusterLook, Member, MemberTable
from busbar.store.postgresql.ownership import LeaseWatch, boot_time

DRAIN_SECONDS = 10.0
FORGOTTEN_SECONDS = 600.0
"""A node of which nothing was seen for so long is not looked for: no session lock lasts as long."""
SILENT = 4
"""After this part of a lease without a sign of the controller, the owners of stores are looked at."""
LOOKS = 6
"""In each lease."""
NEW_STORES = 2
"""After so many looks, all nodes have seen stores that were added."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_node(config: NodeConfig, directory: DataDirectory) -> AsyncIterator[ClusterNode]:
    """A node that has reached the catalogue's database, until it has left the cluster. Raises StoreError."""
    node = ClusterNode(config, directory)
    try:
        await node.meet()
        yield node
    finally:
        await node.leave()


class ClusterNode:
    def __init__(self, config: NodeConfig, directory: DataDirectory) -> None:
        self.key = ""
        """The key of the namespace, which all nodes have."""
        self.is_replaced = False
        """Whether another node has taken its name."""
        self.brokers: NodeBrokers | None = None
        self._config = config
        self._directory = directory
        self._table = MemberTable(config.catalogue)
        self._thread = ThreadPoolExecutor(1, "busbar-members")
        self._namespace = ""
        self._certificate: NodeCertificate | None = None
        self._member: Member | None = None
        self._port: NodePort | None = None
        self._controller: NodeController | None = None
        self._stop: Callable[[], None] = lambda: None
        self._looking: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._finding_ended: asyncio.Task[None] | None = None
        self._found_ended: set[str] = set()
        """Incarnations of nodes that have ended, as this controller has reported."""
        self._new_since = 0.0
        """When stores were first seen that the controller does not have."""
        self._seen_at = boot_time()
        """When the last look at the catalogue began that succeeded."""
        self._known_stores: list[StoreAddress] = []
        self._watched: dict[str, PostgresqlLocation] = {}
        """Stores whose owners this node has looked at (rule 5)."""
        self._looks: dict[str, asyncio.Task[OwnerSilence]] = {}
        self._on_rules: Callable[[Sequence[AuthorizationRule]], None] = lambda rules: None
        self._known_rules: Sequence[AuthorizationRule] = ()
        self._local_address = ""
        """Where processes of this machine reach the node port."""

    @property
    def _known_at(self) -> str:
        """The host by which other nodes reach this one."""
        given = self._config.address
        if given:
            return f"[{given.strip('[]')}]" if ":" in given else given
        return address_for_others(self._config.host)

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def meet(self) -> None:
        """Agree with the other nodes on what all have. Raises StoreError, OSError."""
        table, config = self._table, self._config

        def agree() -> tuple[bytes, bytes, bytes]:
            if config.stores.urls:
                table.add_stores(config.stores.urls, [*store_names(64)])
            return (
                table.secret("id", lambda: secrets.token_hex(16).encode()),
                table.secret("sas.key", lambda: b64encode(secrets.token_bytes(32))),
                table.secret("authority", make_authority),
            )

        identity, key, authority = await self._call(agree)
        self._namespace, self.key = identity.decode(), key.decode()
        if config.certificate is None:
            self._certificate = NodeCertificate(self._directory.path, config.name, authority)
            self._certificate.renew()

    def _tls_files(self) -> NodeTlsFiles:
        config = self._config
        if config.certificate is not None and config.key is not None and config.authority is not None:
            return NodeTlsFiles(config.certificate, config.key, config.authority)
        assert self._certificate is not None
        return self._certificate.files

    async def start(
        self, rules: list[SasRule], namespace: NamespaceConfig, tls: TlsFiles, stop: Callable[[], None]
    ) -> NodeBrokers:
        """Join the cluster, and wait until this node serves clients. `stop` is called if it cannot go on. Raises StoreError,
        OSError."""
        config, limits = self._config, namespace.limits
        self._stop = stop
        files = self._tls_files()
        node_tls = NodeTls(files)
        self._port = NodePort(node_tls, self._namespace, config.name, self._answer, config.versions)
        port = await self._port.listen(config.host, config.port)
        self._local_address = f"{local_address(config.host)}:{port}"
        address = f"{self._known_at}:{port}"
        member = self._member = Member(
            config.name,
            secrets.token_hex(8),
            address,
            self._directory.place,
            __version__,
            max(config.versions),
            config.brokers,
        )
        ended = await self._call(lambda: self._table.join(member, limits.store_lease / 1000))
        starts = [self._broker_start(number, files, tls, limits, ended) for number in range(config.brokers)]
        brokers = self.brokers = NodeBrokers(
            starts, self._directory.lock, limits.broker_ping_timeout / 1000, self._register
        )
        self._looking = asyncio.get_running_loop().create_task(self._look(rules, namespace, brokers))
        lease = limits.store_lease / 1000
        self._reporting = asyncio.get_running_loop().create_task(self._report_catalogue(brokers, lease))
        started = asyncio.get_running_loop().create_task(brokers.start())
        await asyncio.wait([started, self._looking], return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            raise StoreError("this node cannot take part in the cluster")
        await started
        return brokers

    def _broker_start(
        self, number: int, files: NodeTlsFiles, tls: TlsFiles, limits: Limits, ended: list[str]
    ) -> BrokerStart:
        config = self._config
        name = f"{config.name}.{number}"
        return BrokerStart(
            name,
            config.name,
            gateway_name(name),
            [gateway for gateway in ended if gateway.startswith(f"{name}.")],
            self._namespace,
            str(self._directory.path),
            -1,
            -1,
            config.host,
            config.port + 1 + number if config.port else 0,
            self._known_at,
            limits.store_timeout / 1000,
            limits.store_lease / 1000,
            limits.inline_commit_messages,
            str(tls.certificate),
            str(tls.key),
            str(files.certificate),
            str(files.key),
            str(files.authority),
            config.versions,
        )

    async def _register(self, gateways: list[str]) -> None:
        """Write down the names of the gateways of this node."""
        member = self._member
        assert member is not None
        await self._call(lambda: self._table.beat(member, gateways))

    def _answer(self, hello: Hello) -> Channel | str:
        if hello.purpose != TO_CONTROLLER or self._controller is None:
            return "this node is not the controller"
        return self._controller.attach(hello)

    # ---- the look at the others ----

    async def _look(self, rules: list[SasRule], namespace: NamespaceConfig, brokers: NodeBrokers) -> None:
        lease = namespace.limits.store_lease / 1000
        watch = LeaseWatch(lease)
        dead = DeadNodes(lease, boot_time)
        member = self._member
        assert member is not None
        is_away = False
        while True:
            try:
                if not await self._call(lambda: self._table.beat(member, brokers.gateways)):
                    _log.error("another node has taken the name '%s'", member.name)
                    self.is_replaced = True
                    self._stop()
                    return
                asked = boot_time()
                look = await self._call(self._table.look)
                self._seen_at = asked
                is_free = watch.is_free(look.owner, asked, boot_time())
                if self._controller is None and watch.silence >= lease / SILENT:
                    self._look_at_stores(look, lease)
                is_away = False
                self._keep_addresses(look)
                self._keep_rules(await self._call(lambda: self._table.entry(ENTITY + NAMESPACE_ENTRY)))
                if self._certificate is not None:
                    self._certificate.renew()
                await self._follow(look, is_free, rules, namespace, brokers)
                if self._finding_ended is None or self._finding_ended.done():
                    self._finding_ended = asyncio.get_running_loop().create_task(
                        self._find_ended(look, dead, lease)
                    )
            except (StoreError, OSError) as error:
                if not is_away:
                    _log.warning("the other nodes cannot be seen: %s", error)
                is_away = True
            await asyncio.sleep(lease / LOOKS)

    async def _follow(
        self,
        look: ClusterLook,
        is_free: bool,
        rules: list[SasRule],
        namespace: NamespaceConfig,
        brokers: NodeBrokers,
    ) -> None:
        """Become the controller if there is none, and send the brokers its address."""
        if self._controller is not None and self._controller.is_over:
            await self._step_down()
        elif self._controller is not None and self._has_new_stores(look, namespace.limits.store_lease / 1000):
            _log.warning("stores were added: the catalogue is loaded again")
            await self._step_down()
            is_free = True
        if self._controller is None and is_free and look.stores:
            controller = NodeController(
                self._config.name, self._config.catalogue, namespace, self._watched, self._forget_store
            )
            if await controller.claim(look.owner.claim):
                self._controller = controller
                alive = [one for one in look.members if not one.has_ended and one.age < 1.0]
                others = [one for one in alive if one.name not in (look.owner.holder, self._config.name)]
                expected = self._config.brokers + sum(one.brokers for one in others)
                controller.start(rules, expected, look)
        if self._controller is not None:
            assert self._member is not None
            brokers.use_controller(self._member.name, self._local_address)
            return
        holder = look.member(look.owner.holder)
        if holder is not None:
            brokers.use_controller(holder.name, holder.address)

    async def _report_catalogue(self, brokers: NodeBrokers, lease: float) -> None:
        """Send the brokers for how long this node has not reached the catalogue, also while a look hangs."""
        while True:
            brokers.catalogue_seen(boot_time() - self._seen_at)
            await asyncio.sleep(lease / ISOLATION_LOOKS)

    async def _find_ended(self, look: ClusterLook, dead: DeadNodes, lease: float) -> None:
        """As the controller, find out which nodes have ended without a word."""
        controller = self._controller
        if controller is None:
            self._found_ended.clear()
            return
        silent = {
            member.name: (member.age, [member.address, *addresses])
            for member in look.members
            if not member.has_ended and member.gateways and lease / 2 <= member.age < FORGOTTEN_SECONDS
            if member.incarnation not in self._found_ended
            if (addresses := controller.addresses(member.name)) is not None
        }
        for name in await dead.look(silent):
            member = look.member(name)
            assert member is not None
            controller.note_node_ended(name, member.gateways.split())
            self._found_ended.add(member.incarnation)

    def _look_at_stores(self, look: ClusterLook, lease: float) -> None:
        """Begin a look at the owner of every store (rule 5). One that takes long delays no other."""
        for store in look.stores:
            if store.name not in self._watched:
                self._watched[store.name] = address_of(store).location(lease)
            if store.name not in self._looks:
                looking = asyncio.to_thread(self._watched[store.name].silence)
                task = self._looks[store.name] = asyncio.get_running_loop().create_task(looking)
                task.add_done_callback(partial(self._looked, store.name))

    def _looked(self, store: str, _: object) -> None:
        del self._looks[store]

    def _keep_addresses(self, look: ClusterLook) -> None:
        """Write the addresses of all stores into the data directory, where brokers read them."""
        stores = [address_of(store) for store in look.stores]
        if stores != self._known_stores:
            write_addresses(self._directory.path, stores, self._config.catalogue)
            self._known_stores = stores

    async def _forget_store(self, name: str) -> None:
        await self._call(lambda: self._table.remove_store(name))

    def watch_rules(self, changed: Callable[[Sequence[AuthorizationRule]], None]) -> None:
        """Call `changed` with the authorization rules of the namespace, now and when they are others."""
        self._on_rules = changed
        changed(self._known_rules)

    def _keep_rules(self, encoded: bytes | None) -> None:
        """Pass on the authorization rules of the namespace, as the catalogue has them."""
        if encoded is None:
            return
        rules = authorization_rules_of(decode_definition(encoded).description)
        if rules != self._known_rules:
            self._known_rules = rules
            self._on_rules(rules)

    def _has_new_stores(self, look: ClusterLook, lease: float) -> bool:
        """Whether stores were added that the controller does not have, and all nodes have seen their addresses by now."""
        assert self._controller is not None
        if {store.name for store in look.stores} <= self._controller.stores:
            self._new_since = 0.0
            return False
        self._new_since = self._new_since or boot_time()
        return boot_time() - self._new_since >= NEW_STORES * lease / LOOKS

    async def _step_down(self) -> None:
        controller, self._controller = self._controller, None
        if controller is not None:
            _log.warning("this node is not the controller any more")
            await controller.stop()

    # ---- the end ----

    async def leave(self) -> None:
        """Close clients and stores, then what this node has as the controller, and leave the cluster."""
        if self.brokers is not None:
            await self.brokers.leave(DRAIN_SECONDS)
        for task in (self._looking, self._reporting, self._finding_ended):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._controller is not None:
            await self._controller.stop()
        if self._port is not None:
            self._port.close()
        member = self._member
        if member is not None and not self.is_replaced:
            with contextlib.suppress(StoreError):
                await self._call(lambda: self._table.end(member))
        await self._call(self._table.close)
        self._thread.shutdown(wait=False)
