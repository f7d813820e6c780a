"""The program of a broker process; `busbar serve --brokers N` starts it.

    python -m busbar.app.broker_main NAME DIRECTORY CHANNEL FD_SOCKET TIMEOUT INLINE_MESSAGES

NAME is for people who look at the list of processes. CHANNEL and FD_SOCKET are the descriptors of its ends of the channel
and of the socket over which client sockets are passed. TIMEOUT is the number of seconds that a disk may take to answer.
Commits of at most INLINE_MESSAGES messages are made on the event loop. The process lives as long as the channel. It ignores
signals that a terminal or a supervisor sends to all processes at once: the controller handles them, and drains before it
closes the channel.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

from busbar.app.certificates import TlsFiles, server_context
from busbar.app.log_output import set_log_level, start_logging
from busbar.app.store_places import StorePlaces
from busbar.app.system import loop_factory, nonce_source, raise_descriptor_limit
from busbar.app.trace_settings import make_tracer
from busbar.broker.store_host import LocalStoreHost
from busbar.clock import wall_clock
from busbar.cluster.broker_node import BrokerNode
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.controller_connection import ControllerConnection, Emit
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.shared_quota import SharedQuota
from busbar.gateway.authority import Authority
from busbar.gateway.gateway import Gateway
from busbar.rules.selection import RuleCompiler


async def _open_gateway(name: str, settings: NodeSettings, port: ClusterBroker) -> Gateway:
    tls = server_context(TlsFiles(Path(settings.certificate), Path(settings.certificate_key), None))
    authority = Authority(settings.rules, port.authorization_rules)
    quota = SharedQuota(port, settings.limits, lambda: len(settings.brokers))
    gateway = Gateway(port, authority, settings.limits, tls, name, quota, make_tracer(os.environ, name))
    await gateway.start()
    return gateway


async def _run(
    name: str, directory: Path, descriptor: int, fd_socket: int, patience: float, inline_messages: int
) -> None:
    loop = asyncio.get_running_loop()
    nonces = nonce_source()
    rules = RuleCompiler(uuid4)
    ended = asyncio.Event()

    def make_host(name: str, emit: Emit, fenced: Callable[[], None]) -> LocalStoreHost:
        place = StorePlaces(directory).at(name)
        return LocalStoreHost(
            name,
            place.open,
            loop,
            wall_clock,
            nonces,
            emit,
            fenced,
            place.place,
            patience,
            rules,
            inline_messages=inline_messages,
            history=member.recorder.switch,
            fragment_figures=member.fragment_figures,
        )

    def end() -> None:
        if channel.hosts:  # the controller was killed: what is not durable was not acknowledged
            os._exit(1)
        ended.set()

    open_gateway = partial(_open_gateway, name)
    member = BrokerNode(name, socket.socket(fileno=fd_socket), wall_clock, open_gateway)
    member.on_log_level = set_log_level
    channel = member.channel = ControllerConnection(make_host, end, member)
    await loop.create_unix_connection(lambda: channel, sock=socket.socket(fileno=descriptor))
    await ended.wait()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, name, directory, descriptor, fd_socket, patience, inline = sys.argv
    start_logging(name)
    sys.setswitchinterval(0.0005)  # as in the controller (server.py), and for the same reasons
    gc.set_threshold(50_000, 20, 20)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(name, Path(directory), int(descriptor), int(fd_socket), float(patience), int(inline)))


if __name__ == "__main__":
    main()
