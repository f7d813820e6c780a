"""The broker processes that a node has started: supplied with clients, and started again when one has ended.

Rules:
1. A broker gets clients when its gateway is open; a client goes to the broker that has the fewest.
2. The name of its gateway is written down before it is started. When it has ended, that is certain: the process is reaped.
   Its successor reports that to the controller.
3. A broker that dies is started again after a short pause, which grows while it dies at once.
4. A broker that does not answer two pings in a row, each within half its patience, is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.codec import WireError
from busbar.cluster.fd_passing import CLIENT, FdSender
from busbar.cluster.node_processes import STARTED, STARTING, BrokerStart, StartedBroker
from busbar.cluster.protocol import StoreFrame
from busbar.cluster.supervisor import END_SECONDS, FIRST_PAUSE, LONGEST_PAUSE, SETTLED_SECONDS, START_SECONDS

_log = logging.getLogger(__name__)


class StartedConnection(Channel):
    """The node's end of the channel to a broker process. A node_processes.StartingNode."""

    def __init__(self, opened: Callable[[], None]) -> None:
        super().__init__()
        self.gateway_opened = opened
        self.ended = asyncio.Event()
        self.there: StartedBroker = STARTED.remote(self)

    def handle_frame(self, frame: StoreFrame) -> None:
        raise WireError("A broker process sent something else than calls to its node.")

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return STARTING, self

    def closed(self) -> None:
        self.ended.set()


class NodeBrokerProcess:
    """One broker of the node, over all its processes."""

    def __init__(self, start: BrokerStart, lock: int, patience: float) -> None:
        self.start = start
        self.channel: StartedConnection | None = None
        self.fd_socket: FdSender | None = None
        self.is_ready = asyncio.Event()
        self._lock = lock
        self._patience = patience

    @property
    def takes_clients(self) -> bool:
        return self.is_ready.is_set() and self.fd_socket is not None and not self.fd_socket.is_full

    async def run(self, on_start: Callable[[NodeBrokerProcess], None]) -> float:
        """Run one process to its end. Returns the seconds that it lived. Raises OSError if it cannot be started."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        ours, theirs = socket.socketpair()
        our_fd_socket, their_fd_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs, their_fd_socket:
            process = self._spawn(theirs.fileno(), their_fd_socket.fileno())
        channel = self.channel = StartedConnection(self.is_ready.set)
        self.fd_socket = FdSender(our_fd_socket)
        await loop.create_unix_connection(lambda: channel, sock=ours)
        on_start(self)
        watching = loop.create_task(self._watch(channel, process))
        try:
            await channel.ended.wait()
        finally:
            watching.cancel()
            channel.close()
            self.is_ready.clear()
            self.channel = None
            for client in self.fd_socket.close():
                client.close()
            self.fd_socket = None
            await _reap(process)
        return loop.time() - began

    def _spawn(self, channel: int, fd_socket: int) -> subprocess.Popen[bytes]:
        # It imports from where this process does, and not from the directory that it was started in.
        paths = os.pathsep.join(path for path in sys.path if path)
        start = msgspec.structs.replace(self.start, channel=channel, fd_socket=fd_socket)
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "busbar.app.node_broker_main",
                self.start.name,
                msgspec.json.encode(start),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=(channel, fd_socket, self._lock),
        )

    async def _watch(self, channel: StartedConnection, process: subprocess.Popen[bytes]) -> None:
        silent, patience = 0, max(START_SECONDS, self._patience)
        while silent < 2:
            try:
                async with asyncio.timeout(patience / 2):
                    await channel.there.ping()
                silent, patience = 0, self._patience
                await asyncio.sleep(patience / 4)
            except TimeoutError:
                silent += 1
            except ChannelClosed:
                return
        _log.error("%s does not answer for %g s and is ended", self.start.name, patience)
        process.kill()


async def _reap(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, 0.5)
        return
    process.kill()
    await asyncio.to_thread(process.wait)


class NodeBrokers:
    def __init__(
        self,
        starts: list[BrokerStart],
        lock: int,
        patience: float,
        register: Callable[[list[str]], Awaitable[None]],
    ) -> None:
        """`register` writes down the names of all gateways."""
        self._brokers = [NodeBrokerProcess(start, lock, patience) for start in starts]
        self._register = register
        self._controller = ("", "")
        self._keeping: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def gateways(self) -> list[str]:
        return [broker.start.gateway for broker in self._brokers]

    async def start(self) -> None:
        """Start all brokers, and wait until clients can come."""
        await self._register(self.gateways)
        loop = asyncio.get_running_loop()
        self._keeping = [loop.create_task(self._keep(broker)) for broker in self._brokers]
        await asyncio.gather(*[broker.is_ready.wait() for broker in self._brokers])

    def use_controller(self, node: str, address: str) -> None:
        """Send all brokers the address of the controller."""
        self._controller = (node, address)
        for broker in self._brokers:
            self._tell(broker)

    def catalogue_seen(self, ago: float) -> None:
        """Send all brokers for how many seconds this node has not reached the catalogue."""
        for broker in self._brokers:
            if broker.channel is not None:
                broker.channel.there.catalogue_seen(ago)

    def _tell(self, broker: NodeBrokerProcess) -> None:
        if broker.channel is not None and self._controller[1]:
            broker.channel.there.use_controller(*self._controller)

    async def _keep(self, broker: NodeBrokerProcess) -> None:
        """Start a broker again whenever it has ended (rule 3)."""
        pause = FIRST_PAUSE
        while True:
            try:
                if await broker.run(self._tell) > SETTLED_SECONDS:
                    pause = FIRST_PAUSE
            except OSError as error:
                _log.error("%s cannot be started: %s", broker.start.name, error)
            if self._stopping:
                return
            _log.error("%s has ended and is started again", broker.start.name)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            broker.start = msgspec.structs.replace(
                broker.start,
                gateway=gateway_name(broker.start.name),
                ended=[*broker.start.ended, broker.start.gateway][-8:],
            )
            with contextlib.suppress(Exception):  # the next beat of the node writes them, too
                await self._register(self.gateways)

    # ---- clients ----

    def accept_delay(self) -> float:
        """0 if one more client can be handed over now, else the seconds to wait."""
        return 0.0 if any(broker.takes_clients for broker in self._brokers) else 0.05

    def dispatch(self, client: socket.socket) -> None:
        takers = [broker.fd_socket for broker in self._brokers if broker.takes_clients]
        fd_senders = [fd_socket for fd_socket in takers if fd_socket is not None]
        if fd_senders:
            min(fd_senders, key=lambda fd_socket: fd_socket.connection_count).send(CLIENT, client)
        else:
            client.close()

    # ---- the end ----

    async def leave(self, drain: float) -> None:
        """Let all brokers close their gateways and stores, and end them."""
        self._stopping = True
        channels = [broker.channel for broker in self._brokers if broker.channel is not None]
        with contextlib.suppress(TimeoutError, ChannelClosed):
            async with asyncio.timeout(drain + END_SECONDS):
                await asyncio.gather(*[channel.there.leave(drain) for channel in channels])
        for channel in channels:
            channel.close()
        for task in self._keeping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task, END_SECONDS)


def gateway_name(broker: str) -> str:
    """A name that no gateway has had."""
    return f"{broker}.{secrets.token_hex(8)}"
