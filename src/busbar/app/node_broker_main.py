"""The program of a broker process of a node; `busbar serve --node` starts it.

    python -m busbar.app.node_broker_main NAME START

NAME is for people who look at the list of processes, START is a BrokerStart as JSON. The process ignores signals that a
terminal or a supervisor sends to all processes at once: the node handles them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec

from busbar.app.certificates import TlsFiles, server_context
from busbar.app.log_output import set_log_level, start_logging
from busbar.app.store_places import ListedPlace
from busbar.app.system import loop_factory, nonce_source, raise_descriptor_limit
from busbar.app.trace_settings import make_tracer
from busbar.broker.store_host import LocalStoreHost
from busbar.clock import wall_clock
from busbar.cluster.broker_node import BrokerNode
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.controller_connection import ControllerConnection, Emit
from busbar.cluster.node_broker import NodeBroker
from busbar.cluster.node_processes import BrokerStart
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.node_tls import NodeTls, NodeTlsFiles
from busbar.cluster.shared_quota import SharedQuota
from busbar.gateway.authority import Authority
from busbar.gateway.gateway import Gateway
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import StoreError
from busbar.store.location import OwnerSilence
from busbar.store.postgresql.ownership import boot_time

_log = logging.getLogger(__name__)


async def _run(start: BrokerStart) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    nonces, rules, tracer = nonce_source(), RuleCompiler(uuid4), make_tracer(os.environ, start.name)

    async def open_gateway(settings: NodeSettings, port: ClusterBroker) -> Gateway:
        tls = server_context(TlsFiles(Path(start.certificate), Path(start.certificate_key), None))
        authority = Authority(settings.rules, port.authorization_rules)
        quota = SharedQuota(port, settings.limits, lambda: 1 + len(node.peer_addresses))
        gateway = Gateway(port, authority, settings.limits, tls, start.name, quota, tracer)
        await gateway.start()
        node.on_controller = quota.counter_changed
        return gateway

    def fenced(store: str) -> None:
        _log.error("another process has claimed %s: this one ends, and is started again", store)
        os._exit(1)

    watched: dict[str, ListedPlace] = {}

    def place_of(name: str) -> ListedPlace:
        return ListedPlace(Path(start.directory), name, start.lease)

    def look_at(name: str) -> OwnerSilence:
        """What is seen of the owner of a store. What was seen before counts."""
        try:
            return watched.setdefault(name, place_of(name)).place.silence()
        except StoreError:  # it is not known here yet
            return OwnerSilence(-1.0)

    def make_host(name: str, emit: Emit, _: Callable[[], None]) -> LocalStoreHost:
        place = place_of(name)
        return LocalStoreHost(
            name,
            place.open,
            loop,
            wall_clock,
            nonces,
            emit,
            lambda: fenced(name),
            place.place,
            start.store_timeout,
            rules,
            inline_messages=start.inline_messages,
            history=node.recorder.switch,
            fragment_figures=node.fragment_figures,
        )

    def end() -> None:
        if connection.hosts:  # the node was killed: what is not durable was not acknowledged
            os._exit(1)
        ended.set()

    node = BrokerNode(start.name, socket.socket(fileno=start.fd_socket), wall_clock, open_gateway)
    node.look_at, node.on_log_level = look_at, set_log_level
    files = NodeTlsFiles(Path(start.node_certificate), Path(start.node_key), Path(start.node_authority))
    broker = NodeBroker(start, node, NodeTls(files), end, boot_time)
    connection = node.channel = ControllerConnection(make_host, broker.controller_lost, node)
    await broker.run(connection)
    await loop.create_unix_connection(lambda: broker, sock=socket.socket(fileno=start.channel))
    await ended.wait()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    start = msgspec.json.decode(sys.argv[2], type=BrokerStart)
    start_logging(start.name)
    sys.setswitchinterval(0.0005)  # as in the controller (server.py), and for the same reasons
    gc.set_threshold(50_000, 20, 20)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(start))


if __name__ == "__main__":
    main()
