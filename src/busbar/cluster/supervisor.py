"""The broker processes of `busbar serve --brokers N`: started, introduced to each other, started again, and ended.

Rules:
1. Every store has one owner (claims.py). When a broker has ended, others claim its stores at once. They are not assigned
   before the process is reaped: then the kernel has freed the locks of the files, and nothing is written any more.
2. The channel to a broker is a pair of sockets without a name. So are the channels between brokers, which are made here and
   handed over. A broker lives as long as its channel: however the controller ends, its brokers end with it. A broker whose
   channel to another one broke asks for another channel.
3. A broker also holds the lock of the data directory, so that no other namespace is served from it while one is left.
4. A broker that dies is started again after a short pause, which grows while it dies at once. It serves clients. It gets
   stores when another broker ends, and when it has lived for a while others hand some over to it (store_moves.py).
5. A broker that does not answer two pings in a row, each within half its patience, is killed, and rule 4 follows. It is
   pinged from its start on; until its first answer it may take longer.
6. Every broker has a gateway. It gets clients when it has all entities and can reach all others; a client goes to the
   broker that has the fewest.
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
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import msgspec

from busbar.broker.host_api import StoreHost
from busbar.cluster import protocol
from busbar.cluster.broker_connection import BrokerConnection
from busbar.cluster.broker_node import PEER, SERVED
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.channel import ChannelClosed
from busbar.cluster.claims import StoreClaims
from busbar.cluster.connection_counter import ConnectionCounter, CountedGateway
from busbar.cluster.connection_reports import close_connection_of, connections_of
from busbar.cluster.fd_passing import CLIENT, FdSender
from busbar.cluster.gathering import figures_of
from busbar.cluster.history_gathering import gather_history
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.remote_store import ENDED
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.cluster.rolling_restart import RollingRestart
from busbar.cluster.store_moves import StoreMoves
from busbar.model.api import TransferReport
from busbar.model.connection_views import ConnectionQuery, ConnectionReport
from busbar.model.figures import ProcessFigures
from busbar.model.history import HistoryRecording, HistoryStep
from busbar.model.node_views import NodeView

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
SETTLED_SECONDS = 10.0
"""A broker that has lived this long did not die of being started."""
END_SECONDS = 5.0
START_SECONDS = 30.0
"""The least time that a broker may take until its first answer: its program has to be loaded."""
VIEW_SECONDS = 1.0
"""For which operators wait for a broker that does not answer."""
INTRODUCED_SECONDS = 0.5
"""A channel that was made within this time may still be on its way."""

_log = logging.getLogger(__name__)


class BrokerProcess:
    def __init__(
        self,
        name: str,
        directory: Path,
        lock: int,
        members: CataloguePublisher,
        counter: ConnectionCounter,
        patience: float,
        store_timeout: float,
        inline_messages: int,
    ) -> None:
        """`lock` is the descriptor by which the data directory is held; both sorts of patience are in seconds."""
        self.name = name
        self.gateway = ""
        """The name of its gateway, while the process lives: another one each time."""
        self.hosts: dict[str, RemoteStoreHost] = {}
        self.channel: BrokerConnection | None = None
        self.fd_socket: FdSender | None = None
        self.on_restart: Callable[[BrokerProcess], Awaitable[None]] | None = None
        """Called when it was started again."""
        self.on_start: Callable[[BrokerProcess], None] = lambda broker: None
        """Called when there is a channel to it."""
        self.on_lost: Callable[[BrokerProcess, list[socket.socket]], None] = lambda broker, left: None
        """Called when the channel to it has ended, with the clients that were meant for it."""
        self.on_exit: Callable[[BrokerProcess], None] = lambda broker: None
        """Called when the process has ended for certain."""
        self.misses: Callable[[BrokerProcess, str], None] = lambda broker, other: None
        """Called with the name of another broker to which it has no channel."""
        self._directory = directory
        self._lock = lock
        self._members = members
        self._counter = counter
        self._patience = patience
        self._store_patience = store_timeout
        self._inline_messages = inline_messages
        self._watching: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._pause = FIRST_PAUSE
        self._stopping = False
        self._by_plan = False
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        our_fd_socket, their_fd_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs, their_fd_socket:
            self._spawn(theirs.fileno(), their_fd_socket.fileno())
        loop = asyncio.get_running_loop()
        self._started = loop.time()
        self.gateway = f"{self.name}.{secrets.token_hex(8)}"
        self._counter.report(self.gateway, {})
        self.fd_socket = FdSender(our_fd_socket)
        channel = BrokerConnection(
            self.hosts,
            self._lost,
            self._members.broker,
            lambda other: self.misses(self, other),
            CountedGateway(self._counter, self.gateway),
        )
        await loop.create_unix_connection(lambda: channel, sock=ours)
        self.channel = channel
        self._watching = loop.create_task(self._watch(channel))
        self.on_start(self)
        for host in self.hosts.values():
            host.attach_channel(channel)
        await asyncio.gather(*[host.restore() for host in self.hosts.values()])

    def _spawn(self, channel: int, fd_socket: int) -> None:
        # It imports from where this process does, and not from the directory that it was started in.
        program = [sys.executable, "-P", "-m", "busbar.app.broker_main"]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [
                *program,
                self.name,
                str(self._directory),
                str(channel),
                str(fd_socket),
                str(self._store_patience),
                str(self._inline_messages),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=(channel, fd_socket, self._lock),
        )

    def assign_store(self, host: RemoteStoreHost) -> None:
        """Make this broker the owner of one more store."""
        host.broker = self.name
        self.hosts[host.name] = host
        if self.channel is not None and not self.channel.is_lost:
            host.attach_channel(self.channel)

    async def open_gateway(self, settings: NodeSettings) -> None:
        """Open the gateway of this broker; clients come when the others can be reached too. Raises ChannelClosed, or what
        the gateway raises."""
        if self.channel is None or self.channel.is_lost:  # it has ended again already
            raise ChannelClosed
        opened = protocol.NODES.remote(self.channel).open_gateway(settings)
        self._members.add_broker(self.channel)
        await opened

    async def _watch(self, channel: BrokerConnection) -> None:
        """Ping the broker. If two answers in a row are missing, kill it.

        One answer may lie unread when this process itself was held up."""
        silent = 0
        patience = max(START_SECONDS, self._patience)
        while silent < 2:
            try:
                async with asyncio.timeout(patience / 2):
                    await protocol.NODES.remote(channel).ping()
                silent, patience = 0, self._patience
                await asyncio.sleep(patience / 4)
            except TimeoutError:
                silent += 1
            except ChannelClosed:
                return
        _log.error("%s does not answer for %g s and is ended", self.name, patience)
        if self._process is not None:
            self._process.kill()

    async def close_gateway(self) -> None:
        if self.channel is not None:
            with contextlib.suppress(ChannelClosed):
                await protocol.NODES.remote(self.channel).close_gateway()

    def give_up(self) -> None:
        """End a broker that cannot serve, so that it is started again."""
        if self.channel is not None:
            self.channel.close()

    def end_by_plan(self) -> None:
        """End a broker whose stores others have, so that it is started again at once."""
        self._by_plan = True
        self._pause = 0.0
        self.give_up()

    async def stop(self) -> None:
        """End the broker, when all its stores are closed."""
        self._stopping = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self.channel is not None:
            self.channel.close()
        if self.fd_socket is not None:
            self._close_fd_socket()
        await self._reap(END_SECONDS, END_SECONDS)

    def _close_fd_socket(self) -> list[socket.socket]:
        fd_socket, self.fd_socket = self.fd_socket, None
        return fd_socket.close() if fd_socket is not None else []

    def _lost(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self.channel is not None:
            self._members.remove_broker(self.channel)
        left = self._close_fd_socket()
        if self._stopping:
            for client in left:
                client.close()
            return
        for host in self.hosts.values():
            host.disconnected(ENDED)
        self._restarting = asyncio.get_running_loop().create_task(self._restart())
        self.on_lost(self, left)

    async def _restart(self) -> None:
        """Start the broker again, after a pause that grows while it dies at once."""
        loop = asyncio.get_running_loop()
        self.channel = None
        code = await self._reap(0.5)
        self.on_exit(self)
        level = logging.INFO if self._by_plan else logging.ERROR
        _log.log(level, "%s ended with code %s and is started again", self.name, code)
        by_plan, self._by_plan = self._by_plan, False
        if not by_plan and loop.time() - self._started > SETTLED_SECONDS:
            self._pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            try:
                await self.start()
                break
            except OSError as error:
                _log.error("%s cannot be started: %s", self.name, error)
        if self.on_restart is not None:
            await self.on_restart(self)

    async def _reap(self, patience: float, longest: float | None = None) -> int | None:
        """Wait for the end of the process, kill it after `patience`, and return its exit code. A process whose disk hangs
        may not end before the disk answers; then it is not waited for longer than `longest`, if that is given."""
        process = self._process
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(process.wait, patience)
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(process.wait, longest)
        _log.error("%s does not end, since a disk of its does not answer", self.name)
        return None


class BrokerSupervisor:
    def __init__(
        self,
        count: int,
        directory: Path,
        lock: int,
        members: CataloguePublisher,
        counter: ConnectionCounter,
        patience: float,
        store_timeout: float,
        settle: float,
        inline_messages: int,
    ) -> None:
        """`settle` is for how long stores are not moved after a broker has come or gone. All times are in seconds."""
        self._counter = counter
        self._brokers = [
            BrokerProcess(
                f"broker-{number}",
                directory,
                lock,
                members,
                counter,
                patience,
                store_timeout,
                inline_messages,
            )
            for number in range(count)
        ]
        self._claims = StoreClaims([broker.name for broker in self._brokers])
        self._by_name = {broker.name: broker for broker in self._brokers}
        for broker in self._brokers:
            broker.on_start = self._started
            broker.on_exit = self._ended
        self._recording = HistoryRecording()
        self.takeovers: Counter[str] = Counter()
        """By store, how often it was claimed because its owner had ended."""
        self._settings: dict[BrokerProcess, NodeSettings] = {}
        self._open: set[BrokerProcess] = set()
        """Those that have a gateway."""
        self._ready: set[BrokerProcess] = set()
        """Those that get clients."""
        self._retired: set[BrokerProcess] = set()
        """Those that are about to be restarted."""
        self.moves = StoreMoves(
            self._claims,
            lambda: {broker.name for broker in self._ready - self._retired},
            self._hand_over,
            settle,
        )
        self.rolling = RollingRestart(self._claims.brokers, self.moves)
        self.rolling.retire = lambda name: self._retired.add(self._by_name[name])
        self.rolling.replace = self._replace
        self._introduced: dict[tuple[str, str], float] = {}
        """When a channel was last made from one to another."""
        self.unchanged: Callable[[StoreHost], AbstractAsyncContextManager[None]] = lambda host: nullcontext()
        """Inside it no entity changes, since that store goes to another broker."""

    async def start(self) -> None:
        await asyncio.gather(*[broker.start() for broker in self._brokers])

    async def stop(self) -> None:
        await asyncio.gather(*[broker.stop() for broker in self._brokers])

    # ---- owners of stores (rule 1) ----

    def assign_store(self, host: RemoteStoreHost) -> None:
        """Choose the owner of a store that is new here."""
        host.gateways = self._gateways
        self._by_name[self._claims.add(host.name)].assign_store(host)

    def _gateways(self) -> list[str]:
        return [broker.gateway for broker in self._brokers if broker.gateway]

    def _started(self, broker: BrokerProcess) -> None:
        self._claims.begin(broker.name)

    def _ended(self, broker: BrokerProcess) -> None:
        """Let other brokers claim the stores of one that has ended, and report its end and the new owners to all."""
        moved = self._claims.end(broker.name)
        gateway, broker.gateway = broker.gateway, ""
        self._counter.ended(gateway)
        for store, name in moved.items():
            host = broker.hosts.pop(store)
            self._by_name[name].assign_store(host)
            host.start_restoring()
            self.takeovers[store] += 1
            _log.warning("%s is claimed by %s, since %s has ended", store, name, broker.name)
        self._tell_all(lambda other: other.broker_ended(broker.name, gateway))
        if moved:
            self._tell_all(lambda other: other.stores_moved(moved))

    async def _hand_over(self, store: str, to: str) -> None:
        """Hand a store over from the broker that has it to another one. Returns when it is open there, or it takes too long.
        Raises ServerBusy if it stays, and ChannelClosed if the broker that had it has ended."""
        here, there = self._by_name[self._claims.owners[store]], self._by_name[to]
        host = here.hosts[store]
        async with self.unchanged(host):
            await host.hand_over()
            self._claims.move(store, to)
            del here.hosts[store]
            there.assign_store(host)
            host.start_restoring()
            self._tell_all(lambda broker: broker.stores_moved({store: to}))
            await host.until_open()

    def _tell_all(self, tell: Callable[[protocol.NodeApi], None]) -> None:
        for broker in self._brokers:
            if broker.channel is not None and not broker.channel.is_lost:
                tell(protocol.NODES.remote(broker.channel))

    # ---- gateways (rule 6) ----

    @property
    def count(self) -> int:
        return len(self._brokers)

    async def open_gateways(self, settings: Sequence[NodeSettings]) -> None:
        """Open the gateways of all brokers, with the settings of each."""
        self._settings = dict(zip(self._brokers, settings, strict=True))
        for broker in self._brokers:
            broker.on_restart = self._join
            broker.on_lost = self._lost
            broker.misses = self._misses
        await asyncio.gather(*[self._join(broker) for broker in self._brokers])
        # The first had no others to connect to: once more, now that all are there.
        await asyncio.gather(*[self._connect_peers(broker) for broker in self._open])

    async def close_gateways(self) -> None:
        await self.rolling.stop()
        await self.moves.stop()
        self._ready.clear()
        self._open.clear()  # no channels are made any more
        await asyncio.gather(*[broker.close_gateway() for broker in self._brokers])

    async def transfers(self) -> TransferReport:
        """What all brokers move and hold. One that ends meanwhile is left out."""
        asked = [broker.transfers() for broker in self._there()]
        reports = await asyncio.gather(*asked, return_exceptions=True)
        found = [report for report in reports if isinstance(report, TransferReport)]
        moved = sum(report.moved for report in found)
        return TransferReport(moved, [view for report in found for view in report.transfers])

    async def history(self, message_id: str) -> list[HistoryStep]:
        """What all brokers have recorded of messages with an id."""
        return await gather_history(
            message_id,
            {
                broker.gateway: protocol.NODES.remote(broker.channel)
                for broker in self._open
                if broker.channel is not None
            },
        )

    def set_recording(self, recording: HistoryRecording) -> None:
        """Have all brokers record the history of these entities, also those that are started later."""
        self._recording = recording
        self._tell_all(lambda broker: broker.set_recording(recording))

    async def connections(self, query: ConnectionQuery) -> ConnectionReport:
        """The connections of the clients of all brokers."""
        return await connections_of(self._there(), query)

    async def close_connection(self, id: str) -> bool:
        """Close a connection at the broker that has it; whether one has it."""
        return await close_connection_of(self._there(), id)

    def _there(self) -> list[protocol.NodeApi]:
        channels = [broker.channel for broker in self._open if broker.channel is not None]
        return [protocol.NODES.remote(channel) for channel in channels]

    def set_log_level(self, level: str) -> None:
        """Change the level of the log of all brokers."""
        for broker in self._there():
            broker.set_log_level(level)

    async def figures(self) -> list[ProcessFigures]:
        """What all brokers have done. One that does not answer soon is left out."""
        return await figures_of(self._there())

    async def nodes(self) -> list[NodeView]:
        """What all brokers show of themselves. One that does not answer soon has its name alone."""
        return [*await asyncio.gather(*[self._view(broker) for broker in self._brokers])]

    async def _view(self, broker: BrokerProcess) -> NodeView:
        if broker not in self._open or broker.channel is None:
            return NodeView(broker.name, "starting")
        with contextlib.suppress(ChannelClosed, TimeoutError):
            async with asyncio.timeout(VIEW_SECONDS):
                return await protocol.NODES.remote(broker.channel).view()
        return NodeView(broker.name, "silent")

    async def _replace(self, name: str) -> None:
        """Start a broker again, after its clients were notified. Returns when it gets clients."""
        broker = self._by_name[name]
        await broker.close_gateway()
        self._ready.discard(broker)
        self._retired.discard(broker)
        broker.end_by_plan()
        while broker not in self._ready:
            await asyncio.sleep(0.02)

    def accept_delay(self) -> float:
        """0 if one more client can be handed over now, else the seconds to wait."""
        return 0.0 if any(self._takes(broker) for broker in self._ready) else 0.05

    def dispatch(self, client: socket.socket) -> None:
        takers = [
            broker.fd_socket for broker in self._brokers if broker in self._ready and self._takes(broker)
        ]
        fd_senders = [fd_socket for fd_socket in takers if fd_socket is not None]
        if fd_senders:
            min(fd_senders, key=lambda fd_socket: fd_socket.connection_count).send(CLIENT, client)
        else:
            client.close()

    def _takes(self, broker: BrokerProcess) -> bool:
        return broker.fd_socket is not None and not broker.fd_socket.is_full and broker not in self._retired

    async def _join(self, broker: BrokerProcess) -> None:
        """Open the gateway of a broker that has been started, and connect it with the others."""
        try:
            settings = msgspec.structs.replace(
                self._settings[broker],
                owners=self._claims.owners,
                brokers=self._claims.brokers,
                gateway=broker.gateway,
                recording=self._recording,
            )
            await broker.open_gateway(settings)
            for other in self._open:
                self._connect(broker, other)
                self._connect(other, broker)
            self._open.add(broker)
            await self._connect_peers(broker)
            self._ready.add(broker)
            self.moves.members_changed()
        except ChannelClosed:
            pass  # it ended, and is started again
        except Exception:
            _log.exception("%s cannot open its gateway", broker.name)
            broker.give_up()

    async def _connect_peers(self, broker: BrokerProcess) -> None:
        others = [other.name for other in self._open if other is not broker]
        if broker.channel is not None:
            await protocol.NODES.remote(broker.channel).connect_peers(others)

    def _lost(self, broker: BrokerProcess, left: list[socket.socket]) -> None:
        self._open.discard(broker)
        self._ready.discard(broker)
        self.moves.members_changed()
        for client in left:
            self.dispatch(client)

    # ---- rule 2 ----

    def _connect(self, here: BrokerProcess, there: BrokerProcess) -> None:
        """Make a channel from the gateway of one broker to the stores of the other."""
        if here.fd_socket is None or there.fd_socket is None:  # one of them has just ended
            return
        try:
            leading, served = socket.socketpair()
        except OSError as error:
            _log.error("%s cannot be introduced to %s: %s", here.name, there.name, error)
            return  # it will ask
        self._introduced[here.name, there.name] = asyncio.get_running_loop().time()
        here.fd_socket.send(f"{PEER} {there.name}", leading)
        there.fd_socket.send(f"{SERVED} {here.name} {here.gateway}", served)

    def _misses(self, broker: BrokerProcess, name: str) -> None:
        """Make a channel to another broker again. One that is not there yet is connected when it is."""
        now = asyncio.get_running_loop().time()
        lately = now - self._introduced.get((broker.name, name), 0.0) < INTRODUCED_SECONDS
        other = next((one for one in self._open if one.name == name), None)
        if broker in self._open and other is not None and not lately:
            _log.warning("%s and %s have lost each other and are introduced again", broker.name, name)
            self._connect(broker, other)
