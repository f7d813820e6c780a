"""The composition root: a data directory, its stores and their hosts, the catalogue, the port, the listeners; and their end.

Rules:
1. The parts are started from the disk upwards and stopped from the clients downwards. No client is accepted before all is
   ready. Nothing is closed while a part above may still use it.
2. A clean stop notifies the clients, makes durable what was accepted, and keeps the message locks for the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from busbar import __version__, compiled
from busbar.app.addresses import address_for_others, is_everywhere, is_loopback, local_address, machine_name
from busbar.app.certificates import (
    CertificateError,
    TlsFiles,
    given_files,
    own_files,
    server_context,
)
from busbar.app.config import ConfigError, NamespaceConfig, parse_config, read_config
from busbar.app.data_directory import DataDirectory
from busbar.app.endpoint_file import RunningEndpoint
from busbar.app.log_output import change_log_level
from busbar.app.node_config import NodeConfig
from busbar.app.process_history import ProcessHistory
from busbar.app.provisioning import provision
from busbar.app.published_endpoint import PublishedEndpoint
from busbar.app.shared_listener import SharedListener
from busbar.app.store_places import StorePlaces, WantedStores
from busbar.app.system import nonce_source, raise_descriptor_limit
from busbar.app.trace_settings import make_tracer
from busbar.broker.host_api import StoreHost, StoreState
from busbar.broker.move_runner import MoveRunner
from busbar.broker.process_figures import process_figures
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.clock import wall_clock
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.connection_counter import ConnectionCounter
from busbar.cluster.node_settings import NodeSettings, share_of
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.cluster.supervisor import BrokerSupervisor
from busbar.gateway.authority import Authority
from busbar.gateway.gateway import Gateway
from busbar.model.entities import (
    EntityStatus,
    QueueDescription,
)
from busbar.model.errors import BusbarError
from busbar.model.figures import GatewayFigures, ProcessFigures
from busbar.model.limits import Limits
from busbar.model.node_views import NodeView, StoreFigures
from busbar.model.sas import SasRule
from busbar.rules.selection import RuleCompiler
from busbar.store.catalogue_contract import CatalogueLocation
from busbar.store.contract import StoreError

DEFAULT_KEY_NAME = "RootManageSharedAccessKey"
DEV_KEY = "SAS_KEY_VALUE"  # the emulator's well-known key, which is no secret
DRAIN_SECONDS = 10.0
HTTP_PORT = 5300  # the vendor's emulator has its management and its health there
TLS_PORT = 5671  # where an SDK goes that was given no port

Announce = Callable[[str], None]
_log = logging.getLogger(__name__)


class ServeError(Exception):
    """Serving is not possible; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `busbar serve` was asked for."""

    data: Path = field(default_factory=lambda: Path(".busbar"))
    config: Path | None = None
    host: str = "127.0.0.1"
    port: int = 5672
    http_port: int | None = None
    """None: the conventional one, if it is free."""
    key_name: str = DEFAULT_KEY_NAME
    key: str | None = None
    dev: bool = False
    tls_port: int | None = None
    """None: the conventional one, if it is free."""
    tls_names: tuple[str, ...] = ()
    """Names for the generated certificate, beside those of this machine."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    stores: WantedStores = field(default_factory=WantedStores)
    """At least these; those that are there are all used."""
    brokers: int = 1
    """More than one: so many processes of their own have the stores."""
    catalogue: str = ""
    """The address of the database with the catalogue; empty: the one that was named last, else the data directory."""
    node: NodeConfig | None = None
    """The node of a cluster that this is."""

    def __post_init__(self) -> None:
        if self.dev and not is_loopback(self.host):
            raise ConfigError(
                f"--dev uses a key that everyone knows, so it listens on this machine only, not on {self.host!r}. "
                "Use 127.0.0.1, or leave --dev out."
            )
        if self.dev and self.key is not None:
            raise ConfigError("--dev brings its own well-known key; leave --key out, or --dev.")


async def serve(
    config: ServeConfig, announce: Announce, stop: asyncio.Event, suggest: Announce = lambda queue: None
) -> None:
    """Serve until `stop` is set. `announce` gets lines for the operator. When connections are accepted, it gets a line that
    starts with "ready " and has the connection string. Before that `suggest` gets the name of a queue to try things out
    with, empty if there is none."""
    raise_descriptor_limit()
    sys.setswitchinterval(0.0005)  # a busy loop would keep the store's thread waiting for 5 ms at each commit
    async with contextlib.AsyncExitStack() as stack:
        directory = DataDirectory(config.data)
        stack.callback(directory.release)
        for warning in directory.warnings:
            announce(f"warning: {warning}")
        namespace = _namespace(config, directory)
        if config.node is not None:
            await _serve_node(config, config.node, directory, namespace, announce, stop, stack)
            return
        key = DEV_KEY if config.dev else config.key or directory.key()
        tls, secure = _tls(config, directory)
        if tls.left_out and not is_loopback(config.host):
            announce(f"warning: {_left_out(tls)}")
        rules = _rules(config, key, namespace)
        broker = await stack.enter_async_context(_broker(directory, namespace, config, rules, stop))
        for note in (*broker.catalogue.notes, *broker.notes):
            announce(f"warning: {note}")
        _warn(config, namespace, announce)
        edge = await _edge(broker, rules, namespace.limits, tls, secure)
        stack.push_async_callback(edge.stop)
        ports = await _open_ports(edge, config, announce)
        _tune_collector()
        endpoint = _endpoint(config, directory, ports, key, tls, announce)
        stack.callback(endpoint.watch(broker.catalogue))
        stack.callback(endpoint.remove)
        suggest(_plain_queue(broker.catalogue))
        _announce_ready(config, ports, endpoint, tls, announce)
        await stop.wait()
    if broker.fenced:
        raise ServeError(
            f"Another process took over a store or the catalogue of {directory.path}; this one has stopped."
        )


async def _serve_node(
    config: ServeConfig,
    asked: NodeConfig,
    directory: DataDirectory,
    namespace: NamespaceConfig,
    announce: Announce,
    stop: asyncio.Event,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Serve as a node of a cluster until `stop` is set."""
    from busbar.app.node import open_node  # its driver costs a namespace without it nothing

    try:
        node = await stack.enter_async_context(open_node(asked, directory))
        key = DEV_KEY if config.dev else config.key or node.key
        tls, _ = _tls(config, directory)
        _warn(config, namespace, announce)
        brokers = await node.start(_rules(config, key, namespace), namespace, tls, stop.set)
    except (StoreError, OSError) as error:
        raise ServeError(f"The node '{asked.name}' cannot take part in the cluster: {error}") from error
    edge = SharedListener(brokers)
    stack.callback(edge.close)
    ports = await _open_ports(edge, config, announce)
    _tune_collector()
    endpoint = _endpoint(config, directory, ports, key, tls, announce)
    node.watch_rules(endpoint.use)
    stack.callback(endpoint.remove)
    _announce_ready(config, ports, endpoint, tls, announce)
    await stop.wait()
    if node.is_replaced:
        raise ServeError(f"Another node has taken the name '{asked.name}'; this one has stopped.")


def _tune_collector() -> None:
    """Keep the garbage collector from objects that stay: those that are loaded now, and messages.

    Messages of pages and windows come by thousands, and are never part of a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _endpoint(
    config: ServeConfig, directory: DataDirectory, ports: _Ports, key: str, tls: TlsFiles, announce: Announce
) -> PublishedEndpoint:
    """The endpoint by which commands of this machine find the namespace."""
    endpoint = RunningEndpoint(
        local_address(config.host),
        ports.main,
        ports.http,
        ports.tls,
        os.getpid(),
        config.key_name,
        key,
        str(tls.ca) if tls.ca else None,
        directory.instance,
        *directory.identity,
    )
    return PublishedEndpoint(directory.path, endpoint, announce)


def _announce_ready(
    config: ServeConfig, ports: _Ports, endpoint: PublishedEndpoint, tls: TlsFiles, announce: Announce
) -> None:
    """Announce the addresses for clients, on this machine and on others. The last line starts with "ready "."""
    address = address_for_others(config.host)
    announce(f"health: http://{address}:{ports.http}/health")
    trust = f"busbar trust --data {config.data}" if tls.ca else f"the issuer of {tls.certificate}"
    announce(f"tls: {address}:{ports.tls}, and any other port; for clients to trust it: {trust}")
    announce(
        f"ready Endpoint=sb://{address}:{ports.main};SharedAccessKeyName={endpoint.key_name};"
        f"SharedAccessKey={endpoint.key};UseDevelopmentEmulator=true;"
    )


class Edge(Protocol):
    """The ports of a namespace, and the gateways behind them."""

    async def listen(self, host: str, port: int) -> int:
        """Listen on one more port and return its number (0 asks for a free one). Raises OSError."""

    async def stop(self) -> None: ...


async def _edge(
    broker: _Broker, rules: list[SasRule], limits: Limits, tls: TlsFiles, secure: ssl.SSLContext
) -> Edge:
    """One gateway here, or one in each broker process."""
    if broker.processes is None:
        authority = Authority(rules, broker.catalogue.authorization_rules)
        gateway = Gateway(broker.port, authority, limits, secure, tracer=make_tracer(os.environ))
        await gateway.start()
        broker.gateway = gateway
        broker.port.name_clients = gateway.client_names
        broker.port.report_connections = gateway.page_of_connections
        broker.port.close_at_gateway = gateway.close_connection
        return gateway
    count = broker.processes.count
    front = SharedListener(broker.processes)
    await front.start(
        broker.processes,
        [
            NodeSettings(
                rules,
                share_of(limits, number, count),
                str(tls.certificate),
                str(tls.key),
                namespace=broker.catalogue.properties.name,
            )
            for number in range(count)
        ],
    )
    return front


def _rules(config: ServeConfig, key: str, namespace: NamespaceConfig) -> list[SasRule]:
    """The rule of the command line, and those of the configuration."""
    rules = [SasRule(config.key_name, (key,), frozenset(("Manage", "Send", "Listen")))]
    for rule in namespace.rules:
        if rule.name == config.key_name:
            raise ConfigError(
                f"The authorization rule '{rule.name}' of the configuration has the name of the server's own rule; "
                "choose another for one of them (--key-name)."
            )
        keys = tuple(filter(None, (rule.primary_key, rule.secondary_key)))
        rules.append(SasRule(rule.name, keys, frozenset(rule.rights)))
    return rules


@dataclass(slots=True)
class _Broker:
    port: LocalBroker
    catalogue: Catalogue
    stores: StoreSet
    processes: BrokerSupervisor | None
    fenced: bool = False
    notes: list[str] = field(default_factory=list)
    since: int = field(default_factory=wall_clock)
    gateway: Gateway | None = None  # of this process, if there is no other

    async def figures(self) -> list[ProcessFigures]:
        """What this process has done, if it is the only one."""
        own = [host for host in self.stores.hosts if isinstance(host, LocalStoreHost)]
        gateway = self.gateway.figures() if self.gateway is not None else GatewayFigures()
        return [process_figures("", self.port.fragment_figures, own, gateway)]


async def _nodes(broker: _Broker) -> list[NodeView]:
    """What operators see of this process and of all broker processes."""
    processes = broker.processes
    own = [host for host in broker.stores.hosts if isinstance(host, LocalStoreHost)]
    takeovers = processes.takeovers if processes is not None else {}
    here = NodeView(
        "busbar" if processes is None else "controller",
        machine=socket.gethostname(),
        process=os.getpid(),
        version=__version__,
        since=broker.since,
        connections=broker.gateway.connection_count if broker.gateway is not None else 0,
        catalogue_version=broker.catalogue.version,
        stores=[host.name for host in own],
        figures=[host.figures() for host in own]
        + [StoreFigures(store, takeovers=count) for store, count in takeovers.items()],
    )
    return [here, *(await processes.nodes() if processes is not None else ())]


@contextlib.asynccontextmanager
async def _broker(
    directory: DataDirectory,
    namespace: NamespaceConfig,
    config: ServeConfig,
    rules: list[SasRule],
    stop: asyncio.Event,
) -> AsyncIterator[_Broker]:
    """The fragments of all stores, from their opening to their closing."""
    port = LocalBroker()
    places = StorePlaces(directory.path)
    wanted = places.add(config.stores)
    found = await asyncio.to_thread(places.names)
    brokers = min(config.brokers, len({*found, *wanted}))  # one without a store would have nothing to do
    members = CataloguePublisher(port)
    processes = _supervisor(brokers, directory, namespace.limits, members) if brokers > 1 else None

    def fenced() -> None:
        broker.fenced = True
        stop.set()

    moves: MoveRunner | None = None
    if processes is None:
        loop = asyncio.get_running_loop()
        moves = MoveRunner(port, loop, wall_clock, lambda fragment: stores.routes.sink_of(fragment))
        port.report_transfers = moves.transfers
        make_host = _local_hosts(places, namespace.limits, port, fenced, moves.on_store_open)
    else:
        port.inspect_remote = members.inspect
        make_host = _remote_hosts(processes, places, port, fenced)
    stores = StoreSet([make_host(name) for name in found], make_host)
    port.own_hosts = lambda: [host for host in stores.hosts if isinstance(host, LocalStoreHost)]
    home = _home(places.catalogue(config.catalogue), namespace.limits, fenced)
    catalogue = Catalogue(stores, home, namespace.limits, namespace.tier, namespace.name)
    port.serve(stores, catalogue)
    if processes is not None:
        stores.carrier = members
        processes.unchanged = catalogue.unchanged
    broker = _Broker(port, catalogue, stores, processes)
    _show(broker)
    try:
        try:
            if processes is not None:
                await processes.start()
            await catalogue.load(wanted)
        except (StoreError, BusbarError, OSError) as error:
            raise ServeError(f"The stores in {directory.path} cannot be opened: {error}") from error
        broker.notes = [*await provision(catalogue, namespace, rules), *_fewer(brokers, config.brokers)]
        if moves is not None:
            moves.start(namespace.limits.transfer_patience)
        yield broker
    finally:
        if moves is not None:
            await moves.stop()
        await catalogue.close()
        if not await stores.close(DRAIN_SECONDS):
            _log.warning("not all operations under way could be finished within %g s", DRAIN_SECONDS)
        if processes is not None:
            await processes.stop()


def _show(broker: _Broker) -> None:
    """Let the broker API answer for this process, or for all broker processes."""
    port, processes = broker.port, broker.processes
    port.report_nodes = lambda: _nodes(broker)
    port.report_figures = processes.figures if processes is not None else broker.figures
    port.change_log_level = partial(change_log_level, tell=processes.set_log_level if processes else None)


def _fewer(brokers: int, asked: int) -> list[str]:
    """The note that there are fewer brokers than were asked for, if there are."""
    if brokers == asked:
        return []
    return [f"there are {brokers} brokers, although {asked} were asked for: one for each store"]


def _home(place: CatalogueLocation, limits: Limits, fenced: Callable[[], None]) -> CatalogueHome:
    """The home of the catalogue, which is opened with the stores."""
    return CatalogueHome(place, asyncio.get_running_loop(), limits.store_timeout / 1000, fenced)


def _supervisor(
    brokers: int, directory: DataDirectory, limits: Limits, members: CataloguePublisher
) -> BrokerSupervisor:
    """Starts and ends the broker processes."""
    return BrokerSupervisor(
        brokers,
        directory.path,
        directory.lock,
        members,
        ConnectionCounter(limits),
        limits.broker_ping_timeout / 1000,
        limits.store_timeout / 1000,
        limits.balance_delay / 1000,
        limits.inline_commit_messages,
    )


def _remote_hosts(
    processes: BrokerSupervisor, places: StorePlaces, port: LocalBroker, fenced: Callable[[], None]
) -> Callable[[str], StoreHost]:
    """Makes the host of a store that a broker process has. Operators ask these processes through the broker API."""
    port.report_transfers = processes.transfers
    port.report_history, port.set_recording = processes.history, processes.set_recording
    port.report_connections = processes.connections
    port.close_at_gateway = processes.close_connection
    port.move_remote = processes.moves.move
    port.restart_remote = processes.rolling.start
    loop = asyncio.get_running_loop()

    def make_host(name: str) -> StoreHost:
        place = places.at(name)
        host = RemoteStoreHost(name, "", loop, wall_clock, port.dispatch, fenced, place.place)
        processes.assign_store(host)
        return host

    return make_host


def _local_hosts(
    places: StorePlaces,
    limits: Limits,
    port: LocalBroker,
    fenced: Callable[[], None],
    on_open: Callable[[StoreHost], None],
) -> Callable[[str], StoreHost]:
    """Makes the host of a store of this process. `on_open` gets a host whenever its store is open."""
    loop = asyncio.get_running_loop()
    nonces, rules, history = nonce_source(), RuleCompiler(uuid4), ProcessHistory(port)

    def make_host(name: str) -> StoreHost:
        place = places.at(name)
        host = LocalStoreHost(
            name,
            place.open,
            loop,
            wall_clock,
            nonces,
            port.dispatch,
            fenced,
            place.place,
            limits.store_timeout / 1000,
            rules,
            inline_messages=limits.inline_commit_messages,
            history=history.switch,
            fragment_figures=port.fragment_figures,
        )

        def shown() -> None:
            if host.state is StoreState.OPEN:
                on_open(host)

        host.shown = shown
        return host

    return make_host


def _namespace(config: ServeConfig, directory: DataDirectory) -> NamespaceConfig:
    """The file that was given; else the sample for a new directory; else nothing beyond what the directory has."""
    if config.config is not None:
        return read_config(config.config)
    if directory.is_new and not config.catalogue:
        sample = resources.files("busbar.app").joinpath("sample", "Config.json")
        return parse_config(sample.read_text("utf-8"), "the sample configuration")
    return parse_config("{}", "no configuration")


@dataclass(frozen=True, slots=True)
class _Ports:
    """The open ports. All of them accept all protocols. Clients without a port use the conventional ones."""

    main: int
    http: int
    tls: int


async def _open_ports(edge: Edge, config: ServeConfig, announce: Announce) -> _Ports:
    """Open the ports, the extra ones first: the main one is open when all is ready."""
    http = await _open_port(edge, config, announce, config.http_port, HTTP_PORT, "--http-port")
    tls = await _open_port(edge, config, announce, config.tls_port, TLS_PORT, "--tls-port")
    main = await _listen(edge, config.host, config.port, "--port")
    return _Ports(main, http or main, tls or main)


async def _open_port(
    edge: Edge,
    config: ServeConfig,
    announce: Announce,
    asked: int | None,
    conventional: int,
    option: str,
) -> int | None:
    """Open an extra port. One that the user named must be free; the conventional one is a convenience."""
    if asked is not None:
        return await _listen(edge, config.host, asked, option)
    if config.port == conventional:
        return None
    try:
        return await _listen(edge, config.host, conventional, option)
    except ServeError as error:
        announce(f"warning: {error} The main port understands the same.")
        return None


async def _listen(edge: Edge, host: str, port: int, option: str) -> int:
    try:
        return await edge.listen(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServeError(
            f"Cannot listen on {host}:{port}: {reason}. Choose another with --host or {option}."
        ) from None


def _tls(config: ServeConfig, directory: DataDirectory) -> tuple[TlsFiles, ssl.SSLContext]:
    """The user's certificate, or a generated one for the names by which clients may call this machine."""
    try:
        files = given_files(config.tls_cert, config.tls_key)
        if files is None:
            here = address_for_others(config.host).strip("[]")
            asked, found = [*config.tls_names], [machine_name()]
            (found if is_everywhere(config.host) else asked).append(here)
            files = own_files(directory.path, asked, found=filter(None, found))
        return files, server_context(files)
    except CertificateError as error:
        raise ConfigError(str(error)) from None


def _left_out(tls: TlsFiles) -> str:
    names = " and ".join(tls.left_out)
    return (
        f"clients that call this machine {names} cannot verify it: its certificate authority was made for other names. "
        f"Let them use one of those, or delete {tls.certificate.parent} and start again for a new authority; clients must "
        "then be told to trust it (busbar trust)."
    )


def _plain_queue(catalogue: Catalogue) -> str:
    """A queue that takes any message and gives it to any receiver; empty if there is none."""
    for view in catalogue.entities():
        queue = view.description
        if not isinstance(queue, QueueDescription) or queue.requires_session or queue.forward_to:
            continue
        if queue.status == EntityStatus.ACTIVE:
            return view.path
    return ""


def _warn(config: ServeConfig, namespace: NamespaceConfig, announce: Announce) -> None:
    for warning in namespace.warnings:
        announce(f"warning: {warning}")
    if not is_loopback(config.host):
        announce(
            f"warning: listening on {config.host}: clients that do not use TLS send keys and messages for all to read. "
            "Use a private network, or TLS (`busbar trust` says how)."
        )
    if not compiled():
        announce(
            "note: running interpreted, which is slower: the compiled rooms are not built, or BUSBAR_INTERPRETED=1 is set."
        )
