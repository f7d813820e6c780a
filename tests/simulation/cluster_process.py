"""Simulated broker processes and their controller: the real classes of a broker process, without sockets and threads.

A broker process has a ClusterBroker, the hosts of its stores, and channels to and from every other one. The controller is
simulated as far as brokers depend on it: it introduces them to each other, says which of them have ended, lets others claim
their stores, and starts them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import cast
from uuid import UUID

from busbar.broker.dispatcher import BROKER_ORIGIN
from busbar.broker.host_api import StoreHost
from busbar.broker.store_host import LocalStoreHost
from busbar.cluster import protocol
from busbar.cluster.claims import StoreClaims
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.hand_over import hand_over
from busbar.cluster.peer_server import PeerServer, PeerServers, state_of
from busbar.cluster.store_route import StoreRoute
from busbar.model.effects import Effect
from busbar.model.errors import BusbarError, ServerBusy
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import StoreError
from busbar.store.location import StoreLocation
from harness.byte_streams import ByteStream, StreamEnd
from harness.memory_store import MemoryStore
from harness.simulated_store_thread import SimulatedDisk, SimulatedStoreThread
from harness.virtual_loop import VirtualLoop, VirtualScheduler

STARTED = 1_700_000_000_000
"""The wall clock when a simulation begins, in ms."""
PATIENCE = 0.5
RESTART_PAUSE = 0.1
INTRODUCED_SECONDS = 0.5
LEASE_SECONDS, SILENT_SECONDS = 5.0, 6.0


@dataclass(slots=True)
class SimulatedStore:
    name: str
    disk: SimulatedDisk
    fragments: dict[int, FragmentSettings] = field(default_factory=dict)


@dataclass(slots=True)
class Surroundings:
    """What all processes of a simulation share."""

    random: Random
    scheduler: VirtualScheduler
    stores: dict[str, SimulatedStore]
    latency: float
    """Of streams, in seconds."""
    note: Callable[[str], None]
    emitted: Callable[[list[Effect]], None]
    """Gets the effects of stores when the process that has the store performs them."""
    fenced: Callable[[str], None]
    """Gets the name of a process whose store another one has claimed."""
    has_nodes: bool
    """Whether the processes are on several machines: a frozen one cannot be killed, and others claim its stores."""
    nonces: count[int] = field(default_factory=lambda: count(1))

    def wall(self) -> int:
        return STARTED + int(self.scheduler.clock.now * 1000)

    def delay(self) -> float:
        return self.random.random() * self.latency

    def make_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128))


class Lease:
    """What an owner has lately shown of itself in its store. After LEASE_SECONDS without a look it performs no effect, and
    after SILENT_SECONDS others may claim the store: two processes take themselves for its owner then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.host: LocalStoreHost | None = None
        self._clock = clock
        self._at = clock()

    def look(self) -> int:
        assert self.host is not None
        store = self.host._access.store
        if isinstance(store, MemoryStore):
            store.heads([])  # raises if it is another's
        self._at = self._clock()
        return 1

    @property
    def silence(self) -> float:
        return self._clock() - self._at

    def may_speak(self) -> bool:
        return self.silence < LEASE_SECONDS


class ToController:
    """The controller, as a broker reaches it: it can only ask for a channel to another broker."""

    def __init__(self, introduce: Callable[[str], None]) -> None:
        self.introduce = introduce


class SimulatedBroker:
    """One broker process, from its start to its death."""

    def __init__(
        self,
        name: str,
        around: Surroundings,
        claims: StoreClaims,
        gateways: Callable[[], list[str]],
        misses: Callable[[str], None],
    ) -> None:
        """`gateways` are those that live. `misses` gets the name of a broker to which there is no channel."""
        self.name = name
        self.gateway = f"{name}.{around.random.getrandbits(32):08x}"
        self.loop: VirtualLoop = around.scheduler.make_loop()
        self.broker = ClusterBroker()
        self.hosts: dict[str, LocalStoreHost] = {}
        self.leases: dict[str, Lease] = {}
        self.routes: dict[str, StoreRoute] = {}
        self.peers: list[PeerServer] = []
        self.served = PeerServers(self.broker)
        self.is_started = False
        self._around = around
        self._gateways = gateways
        self._ended: set[str] = set()
        """Gateways that have ended, as the controller said."""
        self._claiming: list[asyncio.Task[None]] = []
        self._sockets_arrive = self._words_arrive = 0.0
        with self.loop.running():
            for store in around.stores.values():
                owner = claims.owners[store.name]
                route = StoreRoute(store.name, owner, self.loop, around.wall, self.broker.dispatch)
                route.names_holders = around.has_nodes
                self.routes[store.name] = route
                if owner == name:
                    route.use_own(self._own(store), name, self.gateway)
            others = [other for other in claims.brokers if other != name]
            self.broker.configure(
                cast(protocol.ControllerApi, ToController(misses)), self.routes.values(), others
            )
            for store in around.stores.values():
                fragments = [*store.fragments]
                self.broker.routes.assign(fragments, [self.routes[store.name]] * len(fragments))

    @property
    def is_dead(self) -> bool:
        return self.loop.is_killed

    def _own(self, store: SimulatedStore) -> LocalStoreHost:
        """The host of a store that this process owns."""
        around = self._around

        def thread(name: str, loop: asyncio.AbstractEventLoop, patience: float) -> SimulatedStoreThread:
            return SimulatedStoreThread(name, loop, patience, store.disk)

        lease = self.leases[store.name] = Lease(lambda: around.scheduler.clock.now)
        place = StoreLocation("memory", store.disk.open, lambda: 0, lease.look, may_speak=lease.may_speak)
        host = lease.host = LocalStoreHost(
            store.name,
            store.disk.open,
            self.loop,
            around.wall,
            partial(next, around.nonces),
            self._emit,
            lambda: around.fenced(self.name),
            place if around.has_nodes else None,
            patience=PATIENCE,
            rules=RuleCompiler(around.make_id),
            thread=thread,
        )

        async def admit(_: StoreHost, recreated: bool) -> None:
            host.gateways = {*self._gateways()} - self._ended
            await host.add_fragments(store.fragments)

        host.shown = partial(self._show, host)
        host.admit = admit
        self.hosts[store.name] = host
        return host

    def _emit(self, effects: list[Effect]) -> None:
        self._around.emitted(effects)
        others = [effect for effect in effects if effect.origin != BROKER_ORIGIN]
        if others:
            self.broker.dispatch(others)

    def _show(self, host: LocalStoreHost) -> None:
        self._around.note(f"{self.name} shows {host.name} {host.state.value} {host.reason}")
        state = state_of(host)
        for peer in self.peers:
            peer.write(state)
        if host.is_open:
            self.routes[host.name].own_opened()

    # ---- what the controller asks for ----

    def start(self, is_first: bool, done: Callable[[], None]) -> None:
        """Open the stores. After a death they come back as stores do that were unavailable."""

        async def opening() -> None:
            for name, host in [*self.hosts.items()]:
                try:
                    if not is_first:
                        raise StoreError("its broker process ended")
                    await host.open()
                    await host.add_fragments(self._around.stores[name].fragments)
                except StoreError as error:
                    await self._claim(host, str(error))
            self.is_started = True
            done()

        with self.loop.running():
            self._opening = self.loop.create_task(opening())

    def hand_over(self, taken: Callable[[], None]) -> None:
        """Sockets arrive in the order in which they were handed over, and later than that."""
        self._sockets_arrive = max(self._sockets_arrive, self.loop.time()) + self._around.delay()
        self.loop.call_at(self._sockets_arrive, taken)

    async def _claim(self, host: LocalStoreHost, reason: str) -> None:
        await host.mark_unavailable(reason)
        host.start_reopening()

    def hear_of_end(self, broker: str, gateway: str, moved: dict[str, str]) -> None:
        """The controller says that another broker has ended, and which brokers claim its stores. That need not come before
        or after sockets."""
        self._words_arrive = max(self._words_arrive, self.loop.time() + self._around.delay())
        self.loop.call_at(self._words_arrive, self._heard_of_end, broker, gateway, moved)

    def _heard_of_end(self, broker: str, gateway: str, moved: dict[str, str]) -> None:
        self.served.settle(broker, gateway)
        self._ended.add(gateway)
        for host in self.hosts.values():
            host.gateway_ended(gateway)
        self._moved(moved)

    def _moved(self, moved: dict[str, str]) -> None:
        for store, owner in moved.items():
            if owner == self.name:
                self.routes[store].use_own(self._own(self._around.stores[store]), owner, self.gateway)
                claim = self._claim(self.hosts[store], "its broker process ended")
                self._claiming.append(self.loop.create_task(claim))
            else:
                self.routes[store].leave_own()
                self.broker.store_moved(store, owner)

    def hear_of_silence(self, broker: str) -> None:
        """The controller says that another broker is silent, and that others claim its stores."""
        self._words_arrive = max(self._words_arrive, self.loop.time() + self._around.delay())
        self.loop.call_at(self._words_arrive, self.broker.drop_peer, broker)

    def hear_of_move(self, moved: dict[str, str]) -> None:
        """The controller says that stores were handed over, and to whom."""
        self._words_arrive = max(self._words_arrive, self.loop.time() + self._around.delay())
        self.loop.call_at(self._words_arrive, self._moved, moved)

    def release(self, store: str, done: Callable[[bool], None]) -> None:
        """The controller asks this broker to hand a store over. `done` gets whether it has released it."""

        async def releasing() -> None:
            host = self.hosts.get(store)
            try:
                if host is None:
                    raise ServerBusy("it is not here yet")
                await hand_over(host, self.routes[store], self.served, self.gateway)
            except BusbarError as error:
                self._around.note(f"{self.name} keeps {store}: {error}")
                done(False)
                return
            del self.hosts[store]
            await host.close()
            done(True)

        def begin() -> None:
            self._claiming.append(self.loop.create_task(releasing()))

        self._words_arrive = max(self._words_arrive, self.loop.time() + self._around.delay())
        self.loop.call_at(self._words_arrive, begin)

    def take_peer(self, broker: str, end: StreamEnd) -> None:
        """A stream to the stores of another broker."""
        channel = self.broker.add_peer(broker)
        self.loop.call_later(self._around.delay(), end.begin, channel)

    def take_served(self, broker: str, gateway: str, end: StreamEnd) -> None:
        """A stream over which another broker uses the stores of this one."""
        served = self.served.serve(broker, gateway, lambda: [*self.hosts.values()], self.peers.remove)
        self.peers.append(served)
        self.loop.call_later(self._around.delay(), end.begin, served)


class Controller:
    """What the controller does for brokers."""

    def __init__(self, names: list[str], around: Surroundings) -> None:
        self.streams: list[ByteStream] = []
        """Between brokers."""
        self.processes: dict[str, SimulatedBroker] = {}
        self.on_start: Callable[[SimulatedBroker], None] = lambda process: None
        """Gets a broker that clients may connect to."""
        self.loop = around.scheduler.make_loop()
        self._around = around
        self._known: list[str] = []
        """Brokers that have not ended, as far as the controller knows."""
        self._places: dict[str, list[StreamEnd]] = {name: [] for name in names}
        """By broker: the ends of streams that would notice its death."""
        self.claims = StoreClaims(names)
        self._introduced: dict[tuple[str, str], float] = {}
        self._moving: set[str] = set()
        for store in around.stores:
            self.claims.add(store)
        for name in names:
            self._start(name, is_first=True)

    def alive(self) -> list[SimulatedBroker]:
        """Brokers that clients can be connected to."""
        return [process for process in self.processes.values() if process.is_started and not process.is_dead]

    def kill(self, name: str) -> None:
        """The process dies: its memory is gone; others notice after a while. It is started again."""
        process = self.processes[name]
        assert not process.is_dead
        process.loop.kill()
        for end in self._places[name]:
            end.break_off(self._around.delay() + self._around.random.choice([0.0, 0.0, 1.0]))
        self._places[name] = []
        self.loop.call_later(self._around.delay(), self._heard_of_death, name)

    def _heard_of_death(self, name: str) -> None:
        self._known.remove(name)
        self._moving -= {*self.claims.stores_of(name)}
        gateway = self.processes[name].gateway
        moved = self.claims.end(name)
        self._around.note(f"{name} has ended; its stores are claimed: {moved}")
        for other in self._known:
            self.processes[other].hear_of_end(name, gateway, moved)
        pause = RESTART_PAUSE * self._around.random.choice([1, 2, 20])
        self.loop.call_later(pause, self._start, name)

    def move(self, store: str, to: str) -> None:
        """Have a store handed over to another broker."""
        owner = self.claims.owners[store]
        here, there = self.processes[owner], self.processes[to]
        if store in self._moving or owner == to or not here.is_started or not there.is_started:
            return
        self._moving.add(store)
        self._around.note(f"{owner} is to hand {store} over to {to}")

        def released(is_free: bool) -> None:
            self.loop.call_later(self._around.delay(), ended, is_free)

        def ended(is_free: bool) -> None:
            self._moving.discard(store)
            if is_free and not here.is_dead and owner in self._known and to in self._known:
                self._around.note(f"{store} is handed over to {to}")
                self.claims.move(store, to)
                for other in self._known:
                    self.processes[other].hear_of_move({store: to})
            elif is_free and owner in self._known and self.processes[owner] is here:
                self._around.note(f"{store} goes back to {owner}")
                for other in self._known:
                    self.processes[other].hear_of_move({store: owner})

        here.release(store, released)

    def usurp(self, name: str) -> None:
        """Let others claim the stores of a broker that is frozen and not dead."""
        process = self.processes[name]
        others = [other for other in self._known if other != name and self.processes[other].is_started]
        if process.is_dead or name not in self._known or not others:
            return
        moved: dict[str, str] = {}
        for store in self.claims.stores_of(name):
            lease = process.leases.get(store)
            if store not in self._moving and lease is not None and lease.silence >= SILENT_SECONDS:
                moved[store] = self._around.random.choice(others)
                self.claims.move(store, moved[store])
        if moved:
            self._around.note(f"{name} is silent, and not dead; its stores are claimed: {moved}")
            for other in others:
                self.processes[other].hear_of_silence(name)
            for other in self._known:
                self.processes[other].hear_of_move(moved)

    def _start(self, name: str, is_first: bool = False) -> None:
        around = self._around
        process = self.processes[name] = SimulatedBroker(
            name,
            around,
            self.claims,
            lambda: [self.processes[known].gateway for known in self._known],
            lambda other: self._asked_for(process, other),
        )
        self._known.append(name)
        self.claims.begin(name)
        around.note(f"{name} is started")
        process.start(is_first, lambda: self._joined(process))

    def _joined(self, process: SimulatedBroker) -> None:
        """It has opened its stores, or tries to: introduce it to the others."""
        for other in [*self._known]:
            if other != process.name and self.processes[other].is_started:
                self._connect(process.name, other)
                self._connect(other, process.name)
        self.on_start(process)

    def _asked_for(self, process: SimulatedBroker, other: str) -> None:
        self.loop.call_later(self._around.delay(), self._misses, process.name, other)

    def _misses(self, here: str, there: str) -> None:
        lately = self.loop.time() - self._introduced.get((here, there), -1.0) < INTRODUCED_SECONDS
        joined = [name for name in self._known if self.processes[name].is_started]
        if here in joined and there in joined and not lately:
            self._connect(here, there)

    def _connect(self, here: str, there: str) -> None:
        """A stream from the gateway of one to the stores of the other."""
        self._introduced[here, there] = self.loop.time()
        one, another = self.processes[here], self.processes[there]
        stream = ByteStream(self._around.random, self._around.latency, one.loop, another.loop)
        self.streams = [stream, *[each for each in self.streams if not each.is_over]]
        leading, served = stream.ends
        self._places[there].append(leading)
        self._places[here].append(served)
        one.hand_over(lambda: one.take_peer(there, leading))
        another.hand_over(lambda: another.take_served(here, one.gateway, served))
        for dead, end in ((one.is_dead, served), (another.is_dead, leading)):
            if dead:  # and nobody has noticed
                end.break_off(self._around.delay())
        self._around.note(f"{here} is introduced to {there}")
