"""The path of a message through a broker without sockets, threads and disk: what it costs in processor time alone.

Client and server have an event loop each (virtual_loop.py), and bytes go from one to the other in memory. The server is the
real gateway, the real host with its commit loop and machines, and the encoder of the journal; only the write is left out.
A `Counter` runs while the server has its turn, and not while the client has its own.

    path = HotPath(counter)
    path.cycle(500)         send so many messages, receive and settle them
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Protocol, TypeVar, cast

from busbar.broker.dispatcher import EffectDispatcher
from busbar.broker.history import HistoryRecorder
from busbar.broker.store_host import LocalStoreHost
from busbar.clock import wall_clock
from busbar.fragment.changes import Changes
from busbar.fragment.reads import Read
from busbar.gateway.amqp.connection import GatewayConnection
from busbar.gateway.authority import Authority
from busbar.gateway.gateway_quota import GatewayQuota
from busbar.gateway.link_registry import LinkRegistry
from busbar.gateway.listening.connection_limiter import ConnectionLimiter, TrackedConnection
from busbar.gateway.services import GatewayServices
from busbar.model.api import Commands, EntityChangeSink, EntityView
from busbar.model.entities import QueueDescription
from busbar.model.history import HistoryRecording
from busbar.model.limits import Limits
from busbar.model.sas import SasRule
from busbar.store.journal.changes_encoder import ChangesEncoder
from harness.amqp_driver import KEY_NAME, LoadConnection, Receiver, Sender
from harness.memory_store import Disk, MemoryStore
from harness.simulated_store_thread import SimulatedDisk, SimulatedStoreThread
from harness.virtual_loop import VirtualClock, VirtualLoop

QUEUE = "orders"
FRAGMENTS = 16
IN_FLIGHT = 500
BODY = b"x" * 1024
_KEY = "SAS_KEY_VALUE"
T = TypeVar("T")


class Counter(Protocol):
    """Counts between its start and its stop."""

    def start(self) -> object: ...

    def stop(self) -> object: ...


class EncodingStore(MemoryStore):
    """Encodes commits as the journal does, and keeps nothing of them: no message stays long enough to be read."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.fragments: set[int] = set()
        self._encoder = ChangesEncoder()

    def commit(self, batches: Sequence[Changes]) -> None:
        for changes in batches:
            self.fragments.add(changes.fragment)
        self._encoder.encode(batches)

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        raise AssertionError("the hot path reads from the store")


class _Disk(SimulatedDisk):
    def __init__(self) -> None:
        super().__init__(Random(1), 0.0)
        self.encoding = EncodingStore(self.disk)

    def open(self) -> MemoryStore:
        return self.encoding


class _Route:
    """All commands go to one host."""

    def __init__(self, host: LocalStoreHost) -> None:
        self._host = host

    def submit(self, commands: Commands) -> Commands:
        self._host.submit(commands)
        return []


class _Broker(EffectDispatcher):
    """A broker with one queue, whose fragments are in one store."""

    def __init__(self, loop: VirtualLoop, is_partitioned: bool, records_history: bool) -> None:
        super().__init__()
        recorder = HistoryRecorder(self)
        recorder.set_recording(HistoryRecording(records_history))
        self.disk = disk = _Disk()

        def thread(name: str, loop: asyncio.AbstractEventLoop, patience: float) -> SimulatedStoreThread:
            return SimulatedStoreThread(name, loop, patience, disk)

        self._nonce = 0
        self.host = LocalStoreHost(
            "store",
            disk.open,
            loop,
            wall_clock,
            self._next_nonce,
            self.dispatch,
            thread=thread,
            history=recorder.switch,
        )
        self.routes = _Route(self.host)
        description = QueueDescription(enable_partitioning=is_partitioned)
        self._settings = description.fragment_settings()
        fragments = tuple(range(1, FRAGMENTS + 1)) if is_partitioned else (1,)
        self._view = EntityView(QUEUE, description, fragments, stores=("store",) * len(fragments))

    async def open(self) -> None:
        await self.host.open()
        settings = self._settings
        await self.host.add_fragments(dict.fromkeys(self._view.fragments, settings))

    def _next_nonce(self) -> int:
        self._nonce += 1
        return self._nonce

    async def entity(self, path: str) -> EntityView:
        return self._view

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        return lambda: None

    def in_use(self, paths: Sequence[str]) -> None:
        """Ignored: the queue is never deleted."""


class _Pipe(asyncio.Transport):
    """One direction: what is written arrives in the next turn of the other side's loop, all of a turn at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._parts: list[bytes] = []
        self.receiver: asyncio.Protocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._parts:
            self._loop.call_soon(self._arrive)
        self._parts.append(bytes(data))

    def _arrive(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        assert self.receiver is not None
        self.receiver.data_received(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is taken at once."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        raise AssertionError("the server does not keep up")

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        raise AssertionError("the connection was aborted")


class HotPath:
    """A queue, a client that sends to it, and one that receives and settles."""

    def __init__(
        self,
        counter: Counter,
        *,
        is_partitioned: bool = False,
        batch: int = 1,
        payload: Callable[[int], bytes] | None = None,
        records_history: bool = False,
    ) -> None:
        self._counter = counter
        self._clock = VirtualClock()
        self._server, self._client = (VirtualLoop(self._clock, self._failed) for _ in range(2))
        self._error = ""
        with self._server.running():
            self._broker = broker = _Broker(self._server, is_partitioned, records_history)
            authority = Authority(
                [SasRule(KEY_NAME, (_KEY,), frozenset(("Manage", "Send", "Listen")))], lambda path: ()
            )
            limits = Limits()
            quota = GatewayQuota(limits)
            self._service = GatewayServices(
                cast(Any, broker), authority, limits, LinkRegistry(quota), "hot-path", "hot-path"
            )
            self._limiter = ConnectionLimiter(limits, quota)
        self._run(self._server, broker.open())
        self._sender = self._run(self._client, self._attach_sender(payload, batch))
        self._receiver = self._run(self._client, self._attach_receiver())

    @property
    def settled(self) -> int:
        """Messages that were sent, received and settled."""
        return self._receiver.confirmed

    @property
    def fragments(self) -> set[int]:
        """The fragments that have had messages."""
        return self._broker.disk.encoding.fragments

    def cycle(self, count: int) -> None:
        """Send so many messages, and wait until they are settled."""
        self._run(self._client, self._cycle(count))

    async def _cycle(self, count: int) -> None:
        await self._sender.send(count)
        await self._receiver.settled(self._sender.acknowledged)
        assert not self._sender.refused and not self._receiver.denied

    async def _attach_sender(self, payload: Callable[[int], bytes] | None, batch: int) -> Sender:
        connection = await self._connect()
        return await connection.sender(QUEUE, payload, in_flight=IN_FLIGHT, batch=batch, body=BODY)

    async def _attach_receiver(self) -> Receiver:
        return await (await self._connect()).receiver(QUEUE, credit=IN_FLIGHT)

    async def _connect(self) -> LoadConnection:
        to_server, to_client = _Pipe(self._server), _Pipe(self._client)
        with self._server.running():
            tracked = TrackedConnection(self._limiter, 0.0, to_client.abort)
            tracked.start()
            served = GatewayConnection(tracked, self._service)
            served.connection_made(to_client)
        client = LoadConnection(_KEY)
        to_server.receiver, to_client.receiver = served, client
        client.connection_made(to_server)
        await client.begun
        return client

    def _run(self, loop: VirtualLoop, work: Awaitable[T]) -> T:
        """Give turns to both sides until the work is done. Only turns of the server count."""
        with loop.running():
            task = asyncio.ensure_future(work, loop=loop)
        server, client, counter = self._server, self._client, self._counter
        while not task.done():
            if server._soon or server.due == self._clock.now:
                counter.start()
                server.turn()
                counter.stop()
            elif client._soon or client.due == self._clock.now:
                client.turn()
            else:
                due = [at for at in (server.due, client.due) if at is not None]
                assert due, "nothing is due, and the work is not done"
                self._clock.now = min(due)
            if self._error:
                raise AssertionError(self._error)
        return task.result()

    def _failed(self, error: str) -> None:
        self._error = error
