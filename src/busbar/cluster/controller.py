"""The controller among nodes: it has the catalogue, and decides which broker process of which node owns which store.

Rules:
1. Broker processes of all nodes connect to the controller, which has no processes of its own. A broker that connects
   reports the stores that it owns. It keeps them: another controller before this one may have assigned them.
2. If no connected broker has a store, and its owner has ended or is silent, the store is assigned to the connected broker
   with the fewest stores (owner_watch.py). That broker claims it when it is free. A store that its broker cannot reach goes
   to one that can.
3. A broker that does not answer a ping in time is silent: its channel is ended, and rule 2 follows.
4. A gateway has ended when its broker reports that it leaves, when its node has started the broker again, or when the whole
   node was killed (dead_nodes.py). A channel that ended proves nothing: clients of that gateway may hold sessions. A broker
   whose gateway was taken for ended has to be started again.
5. Stores are moved for balance, and by operators, as between the processes of one machine (store_moves.py).
6. A broker that connects again goes on with the entities and stores that it has. What changed meanwhile is brought to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any

import msgspec

from busbar.broker.fragment_loading import ANY_GATEWAY
from busbar.broker.host_api import StoreHost, StoreState
from busbar.cluster import protocol
from busbar.cluster.broker_connection import BrokerConnection
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.claims import StoreClaims
from busbar.cluster.connection_counter import ConnectionCounter, CountedGateway
from busbar.cluster.connection_reports import close_connection_of, connections_of
from busbar.cluster.gathering import figures_of
from busbar.cluster.hello import TAKEN_FOR_ENDED, Hello
from busbar.cluster.history_gathering import gather_history
from busbar.cluster.node_settings import NodeSettings, node_of, share_of
from busbar.cluster.owner_watch import OwnerWatch
from busbar.cluster.remote_store import OUT_OF_REACH
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.cluster.store_moves import StoreMoves
from busbar.cluster.supervisor import VIEW_SECONDS
from busbar.model.api import TransferReport
from busbar.model.connection_views import ConnectionQuery, ConnectionReport
from busbar.model.errors import BusbarError, ServerBusy
from busbar.model.figures import ProcessFigures
from busbar.model.history import HistoryRecording, HistoryStep
from busbar.model.node_views import NodeView, StoreFigures
from busbar.store.contract import StoreError
from busbar.store.location import OwnerSilence

PINGS = 12
"""In each lease. A broker is silent if two of them are not answered."""
SHORTEST_PATIENCE = 0.75
"""Seconds for an answer to a ping: a busy process takes some time."""
REMEMBERED_GATEWAYS = 256
GONE_SECONDS = 30.0
"""After this time without a channel, the connections of a broker are not counted any more."""
STARTING = "*"
"""Stands for all gateways that have not connected yet, while the controller begins."""

_log = logging.getLogger(__name__)


class AttachedBroker:
    """A broker process that has connected."""

    def __init__(self, hello: Hello) -> None:
        self.name = hello.broker
        self.gateway = hello.gateway
        self.address = hello.address
        self.held = hello.held
        """Stores that it owned when it connected."""
        self.hosts: dict[str, RemoteStoreHost] = {}
        self.channel: BrokerConnection | None = None
        self.is_open = False
        """Whether it has a gateway, by this controller."""
        self.is_leaving = False
        """Whether it is about to end, and gets no stores."""

    @property
    def there(self) -> protocol.NodeApi:
        assert self.channel is not None
        return protocol.NODES.remote(self.channel)

    @property
    def is_connected(self) -> bool:
        return self.channel is not None and self.channel.is_connected


class ClusterController:
    def __init__(
        self, members: CataloguePublisher, counter: ConnectionCounter, lease: float, settle: float
    ) -> None:
        """`lease` is that of stores; pings and looks at owners derive from it. `settle` is for how long stores are not moved
        after a broker has come or gone. Both are in seconds."""
        self._recording = HistoryRecording()
        self.takeovers: Counter[str] = Counter()
        """By store, how often it was claimed because its owner was not there."""
        self.unchanged: Callable[[StoreHost], AbstractAsyncContextManager[None]] = lambda host: nullcontext()
        """Inside it no entity changes, since that store goes to another broker."""
        self._claims = StoreClaims([])
        self.moves = StoreMoves(
            self._claims,
            lambda: {broker.name for broker in self._open_brokers() if not broker.is_leaving},
            self._hand_over,
            settle,
        )
        self._counter = counter
        self._counter.expect(STARTING)  # until the brokers that were there before have connected
        self._members = members
        self._ping_seconds = lease / PINGS
        self._owner_watch = OwnerWatch(self, lease)
        self._brokers: dict[str, AttachedBroker] = {}
        self._hosts: dict[str, RemoteStoreHost] = {}
        self._ended: deque[tuple[str, str]] = deque(maxlen=REMEMBERED_GATEWAYS)
        """Broker and gateway of processes that have certainly ended."""
        self._settings: NodeSettings | None = None
        self._readmit: Callable[[StoreHost], Awaitable[None]] | None = None
        self._joined = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_abandoned = False

    # ---- brokers ----

    def attach(self, hello: Hello) -> Channel | str:
        """The channel for a broker that connects, or the reason for which it may not."""
        if (hello.broker, hello.gateway) in self._ended:
            return TAKEN_FOR_ENDED
        broker = AttachedBroker(hello)
        if hello.catalogue:
            self._counter.expect(broker.gateway)
        else:  # it is new, and has no clients
            self._counter.report(broker.gateway, {})
        broker.channel = BrokerConnection(
            broker.hosts,
            lambda: self._lost(broker),
            self._members.broker,
            quota=CountedGateway(self._counter, broker.gateway),
            leaving=lambda: self._note_ended(broker.name, broker.gateway),
            release=lambda: self._release(broker),
            may_have_others=True,
            is_ready=lambda: self._settings is not None,
        )
        asyncio.get_running_loop().call_soon(self._start, self._join(broker, hello))
        return broker.channel

    async def _join(self, broker: AttachedBroker, hello: Hello) -> None:
        before = self._brokers.get(broker.name)
        if before is not None and before.channel is not None:
            before.channel.abort()
            self._lost(before)
        self._brokers[broker.name] = broker
        self._claims.begin(broker.name)
        for gateway in hello.ended:
            self._note_ended(broker.name, gateway)
        for store in broker.held:
            self._keep(store, broker)
        try:
            await broker.there.ping()  # now the states of its stores are known
            self._joined.set()
            self._start(self._watch(broker))
            if self._settings is not None:
                await self._open(broker)
        except ChannelClosed:
            pass  # it connects again
        except Exception:
            _log.exception("%s cannot take part", broker.name)
            if broker.channel is not None:
                broker.channel.abort()

    def _keep(self, store: str, broker: AttachedBroker) -> None:
        """Leave a store to a broker that owns it (rule 1)."""
        host = self._hosts.get(store)
        if host is None:
            return
        other = self._brokers.get(self._claims.owners.get(store, ""))
        if other is not None and other is not broker and other.hosts.get(store) is host:
            if host.is_open:
                return  # it was claimed by another one meanwhile, and this one will find out
            del other.hosts[store]
            if other.is_connected:
                self._start(_close_there(other, store))
        self._give(host, broker)
        self._publish({store: broker.name})

    def _give(self, host: RemoteStoreHost, broker: AttachedBroker) -> None:
        self._claims.move(host.name, broker.name)
        host.broker = broker.name
        broker.hosts[host.name] = host
        assert broker.channel is not None
        host.attach_channel(broker.channel)

    def _lost(self, broker: AttachedBroker) -> None:
        channel = broker.channel
        if channel is None or self._is_abandoned:
            return
        broker.channel = None
        if broker.is_open:
            self._members.remove_broker(channel)
        for host in broker.hosts.values():
            if host.is_reached_over(channel):
                host.disconnected(OUT_OF_REACH)
        if self._brokers.get(broker.name) is broker:
            _log.warning("the channel to %s has ended", broker.name)
            asyncio.get_running_loop().call_later(GONE_SECONDS, self._free_connections, broker)
        self.moves.members_changed()

    def _free_connections(self, broker: AttachedBroker) -> None:
        """Count the connections of a broker no more that has not come back: its machine may be off. If it does come back, it
        reports them."""
        now = self._brokers.get(broker.name)
        if now is None or now.gateway != broker.gateway or not now.is_connected:
            self._counter.ended(broker.gateway)

    def addresses(self, node: str) -> list[str] | None:
        """Where the brokers of a node were when they were last connected. None if one of them is."""
        brokers = [broker for broker in self._brokers.values() if node_of(broker.name) == node]
        if any(broker.is_connected for broker in brokers):
            return None
        return [broker.address for broker in brokers if broker.address]

    def note_node_ended(self, node: str, gateways: Sequence[str]) -> None:
        """Note that all processes of a node have ended."""
        for gateway in gateways:
            broker = gateway.rpartition(".")[0]
            if (broker, gateway) not in self._ended:
                _log.warning("the node %s has ended: sessions of its clients are free", node)
                self._note_ended(broker, gateway)

    def _note_ended(self, broker: str, gateway: str) -> None:
        """Report the end of a gateway to all, for whom its clients hold no sessions any more (rule 4)."""
        self._counter.ended(gateway)
        if (broker, gateway) not in self._ended:
            self._ended.append((broker, gateway))
            for other in self._open_brokers():
                other.there.broker_ended(broker, gateway)

    async def _watch(self, broker: AttachedBroker) -> None:
        """Ping a broker (rule 3)."""
        while broker.is_connected:
            try:
                async with asyncio.timeout(max(2 * self._ping_seconds, SHORTEST_PATIENCE)):
                    await broker.there.ping()
            except TimeoutError:
                if broker.channel is not None:
                    _log.warning("%s does not answer", broker.name)
                    broker.channel.abort()
            except ChannelClosed:
                return
            await asyncio.sleep(self._ping_seconds)

    def _open_brokers(self) -> list[AttachedBroker]:
        return [broker for broker in self._brokers.values() if broker.is_open and broker.is_connected]

    # ---- stores ----

    def add_store(self, host: RemoteStoreHost, *, is_new: bool) -> None:
        """Add a store. One that is new is assigned at once. Others are kept by the brokers that own them, or assigned by
        `assign_orphans`."""
        self._hosts[host.name] = host
        host.gateways = lambda: [ANY_GATEWAY]
        host.on_open = lambda: self._tell_ended(host)
        takers = self.takers()
        owners = [broker for broker in takers if host.name in broker.held]
        if owners:
            self._keep(host.name, owners[0])
        elif is_new and takers:
            self._give(host, takers[0])

    def remove_store(self, store: str) -> None:
        """Drop a store that is none of the namespace any more, and is closed."""
        del self._hosts[store]
        self._claims.remove(store)
        for broker in self._brokers.values():
            broker.hosts.pop(store, None)

    def takers(self, without: str = "") -> list[AttachedBroker]:
        """The brokers that can own stores, those with the fewest first."""
        connected = [
            broker for broker in self._brokers.values() if broker.is_connected and broker.name != without
        ]
        return sorted(connected, key=lambda broker: (broker.is_leaving, len(broker.hosts), broker.name))

    def _tell_ended(self, host: RemoteStoreHost) -> None:
        broker = self._brokers.get(host.broker)
        if broker is not None and broker.is_connected:
            for name, gateway in self._ended:
                broker.there.broker_ended(name, gateway)

    def _broker_of(self, host: RemoteStoreHost) -> AttachedBroker | None:
        """The connected broker that has a store."""
        broker = self._brokers.get(self._claims.owners.get(host.name, ""))
        return broker if broker is not None and broker.is_connected and host.name in broker.hosts else None

    def orphans(self) -> list[RemoteStoreHost]:
        """Stores that no connected broker has. A broker that was started again does not have those of its predecessor."""
        return [host for host in self._hosts.values() if self._broker_of(host) is None]

    def unreached(self) -> list[RemoteStoreHost]:
        """Stores that are unavailable at connected brokers, and not by an operator's wish."""
        if self._settings is None:
            return []
        return [
            host
            for host in self._hosts.values()
            if host.state is StoreState.UNAVAILABLE and not host.is_offline and self._broker_of(host)
        ]

    async def assign_orphans(self) -> None:
        """Look at the stores whose brokers are not connected, and assign those that may be claimed (rule 2)."""
        await self._owner_watch.take_over_all()

    def assign(self, host: RemoteStoreHost, taker: AttachedBroker, seen: OwnerSilence) -> None:
        """Have a broker claim a store whose owner is not there, or silent."""
        before = self._brokers.get(self._claims.owners.get(host.name, ""))
        if before is not None:
            before.hosts.pop(host.name, None)
        if self._settings is not None:
            host.disconnected(OUT_OF_REACH)  # also one that had no broker yet has to be brought back
        self._give(host, taker)
        host.owner_seen(seen)
        if self._settings is not None:
            self.takeovers[host.name] += 1
            _log.warning("%s is claimed by %s", host.name, taker.name)
            if before is not None and not before.is_connected:
                for other in self._open_brokers():
                    other.there.broker_lost(before.name)
            self._publish({host.name: taker.name})
            host.start_restoring()

    async def move_unreached(self, host: RemoteStoreHost, taker: str) -> None:
        """Move a store to a broker that reaches it. Raises ServerBusy if it stays."""
        await self.moves.hand_over(host.name, taker)

    def _publish(self, owners: dict[str, str]) -> None:
        for broker in self._open_brokers():
            broker.there.stores_moved(owners)

    # ---- serving ----

    async def wait_for_brokers(self, count: int, patience: float) -> None:
        """Wait for so many brokers, but after `patience` seconds only for the first one. Then the states of the stores that
        they own are known."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while len(self.takers()) < count:
            self._joined.clear()
            left = deadline - loop.time()
            if left <= 0 and self.takers():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._joined.wait(), left if left > 0 else None)
        pings = [broker.there.ping() for broker in self.takers()]
        await asyncio.gather(*pings, return_exceptions=True)

    async def serve(self, settings: NodeSettings, readmit: Callable[[StoreHost], Awaitable[None]]) -> None:
        """Open the gateways of all brokers, also of those that connect later. `readmit` brings a store up to date that was
        open before."""
        self._settings = settings
        self._readmit = readmit
        self._counter.ended(STARTING)
        await asyncio.gather(
            *[self._open_or_wait(broker) for broker in self._brokers.values() if broker.is_connected]
        )
        self._start(self._owner_watch.run())

    async def _open_or_wait(self, broker: AttachedBroker) -> None:
        with contextlib.suppress(ChannelClosed):
            await self._open(broker)

    async def _open(self, broker: AttachedBroker) -> None:
        """Let a broker take part, with a gateway. It may have one from an earlier controller."""
        assert self._settings is not None and self._readmit is not None and broker.channel is not None
        names = sorted(self._brokers)
        others = [other for other in self._open_brokers() if other is not broker]
        opened = broker.there.open_gateway(
            msgspec.structs.replace(
                self._settings,
                limits=share_of(self._settings.limits, names.index(broker.name), len(names)),
                owners={store: self._claims.owners.get(store, "") for store in self._hosts},
                brokers=names,
                gateway=broker.gateway,
                addresses={other.name: other.address for other in others},
                has_nodes=True,
                recording=self._recording,
            )
        )
        self._members.add_broker(broker.channel, is_new=False)
        broker.is_open = True
        await opened
        for other in others:
            other.there.broker_joined(broker.name, broker.address)
        for name, gateway in self._ended:
            broker.there.broker_ended(name, gateway)
        for host in [*broker.hosts.values()]:
            if host.is_open:
                with contextlib.suppress(
                    StoreError, BusbarError
                ):  # then it is unavailable, and is admitted later
                    await self._readmit(host)
        await broker.there.connect_peers([other.name for other in others])
        self.moves.members_changed()

    async def _hand_over(self, store: str, to: str) -> None:
        """Hand a store over to another broker. Returns when it is open there, or it takes too long. Raises ServerBusy if it
        stays, and ChannelClosed if the channel to one of the two has ended."""
        host, there = self._hosts[store], self._brokers[to]
        async with self.unchanged(host):
            here = self._broker_of(host)
            if here is None:
                raise ServerBusy(f"No broker has the store '{store}' now. Retry later.")
            if host.detached:  # the broker has never opened it
                self._start(_close_there(here, store))
                host.disconnected(OUT_OF_REACH)
            else:
                await host.hand_over(even_unavailable=True)
            here.hosts.pop(store, None)
            if there.is_connected:  # else it is an orphan now
                self._give(host, there)
                host.start_restoring()
                self._publish({store: to})
                await host.until_open()

    async def _release(self, broker: AttachedBroker) -> None:
        """Hand the stores of a broker that leaves over to others."""
        broker.is_leaving = True
        for store in [*broker.hosts]:
            takers = [taker for taker in self.takers() if taker.is_open and not taker.is_leaving]
            if not takers:
                return
            try:
                await self.moves.hand_over(store, takers[0].name)
            except BusbarError as error:
                _log.warning("%s is not handed over by %s: %s", store, broker.name, error)

    async def history(self, message_id: str) -> list[HistoryStep]:
        """What all brokers have recorded of messages with an id."""
        return await gather_history(
            message_id, {broker.gateway: broker.there for broker in self._open_brokers()}
        )

    def set_recording(self, recording: HistoryRecording) -> None:
        """Have all brokers record the history of these entities, also those that connect later."""
        self._recording = recording
        for broker in self._open_brokers():
            broker.there.set_recording(recording)

    async def nodes(self) -> list[NodeView]:
        """What all broker processes show of themselves, with the takeovers that this controller has counted."""
        found = await asyncio.gather(*[_view(broker) for _, broker in sorted(self._brokers.items())])
        taken = [StoreFigures(store, takeovers=count) for store, count in self.takeovers.items()]
        if found and taken:
            found[0] = replace(found[0], figures=[*found[0].figures, *taken])
        return [*found]

    def set_log_level(self, level: str) -> None:
        """Change the level of the log of all brokers."""
        for broker in [one.there for one in self._open_brokers()]:
            broker.set_log_level(level)

    async def figures(self) -> list[ProcessFigures]:
        """What all broker processes have done. One that does not answer is left out."""
        return await figures_of([broker.there for broker in self._open_brokers()])

    async def transfers(self) -> TransferReport:
        """What all brokers move and hold. One that ends meanwhile is left out."""
        asked = [broker.there.transfers() for broker in self._open_brokers()]
        reports = await asyncio.gather(*asked, return_exceptions=True)
        found = [report for report in reports if isinstance(report, TransferReport)]
        moved = sum(report.moved for report in found)
        return TransferReport(moved, [view for report in found for view in report.transfers])

    async def connections(self, query: ConnectionQuery) -> ConnectionReport:
        """The connections of the clients of all brokers."""
        return await connections_of([broker.there for broker in self._open_brokers()], query)

    async def close_connection(self, id: str) -> bool:
        """Close a connection at the broker that has it; whether one has it."""
        return await close_connection_of([broker.there for broker in self._open_brokers()], id)

    async def abandon(self) -> None:
        """Stop being the controller. Brokers keep their stores and clients, and connect to the next one."""
        self._is_abandoned = True
        await self.moves.stop()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for broker in self._brokers.values():
            if broker.channel is not None:
                broker.channel.abort()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _view(broker: AttachedBroker) -> NodeView:
    if broker.is_connected:
        with contextlib.suppress(ChannelClosed, TimeoutError):
            async with asyncio.timeout(VIEW_SECONDS):
                return replace(await broker.there.view(), address=broker.address)
    return NodeView(broker.name, "silent", address=broker.address)


async def _close_there(broker: AttachedBroker, store: str) -> None:
    """Have a broker give up a store that it could not claim."""
    assert broker.channel is not None
    with contextlib.suppress(ChannelClosed):
        await protocol.STORE.remote(broker.channel, store).close()
