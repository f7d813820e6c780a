"""Several brokers over byte streams that are delayed and cut, with stores that fail, and clients at each of them.

Everything random comes from one seed, time is virtual, and no thread runs: a seed replays exactly. The driver of the world
(cluster_life.py) decides what happens. The world itself looks after its clients, and checks:

- each request is answered once, and a refusal that is certain is one of something that did not take place;
- what was acknowledged is there once, and delivered at last; what was completed never comes back;
- a session has one holder at most, as the holders see it, and gets its messages in order;
- when all faults are over, nothing that was asked for is forgotten: requests, drains, credit, those who await sessions;
- when all clients have left, nothing is left of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from busbar.broker.fragment_machine import FragmentMachine
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, SCHEDULED
from busbar.model.settings import FragmentSettings
from harness.memory_fragment import MemoryFragment
from harness.simulated_store_thread import SimulatedDisk
from harness.virtual_loop import VirtualScheduler
from tests.simulation.cluster_client import ClientConsumer, Notes, SimulatedClient
from tests.simulation.cluster_process import Controller, SimulatedBroker, SimulatedStore, Surroundings
from tests.simulation.cluster_truth import Truth

SECONDS_TO_HEAL = 40.0
"""After the last fault: longer than every lock, pause and hang together."""
SECONDS_TO_LEAVE = 5.0
ROUNDS = 300
"""In so many rounds of receiving and completing all messages are received at last."""
GRACE = 1_000
"""So many ms after the end of its session lock a client that was told nothing closes its link."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a world is made of."""

    brokers: int
    stores: int
    """Of each broker."""
    fragments: int
    """Of each store."""
    lock_ms: int
    max_deliveries: int
    latency: float
    disk_latency: float
    has_nodes: bool = False
    """Whether brokers are on several machines. A frozen one cannot be killed then; others claim its stores."""


class _Unexpected(logging.Handler):
    """Errors that are caught and logged are failures here: nothing in a simulation is expected to raise."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.name == "busbar.cluster.channel":
            failure = AssertionError(f"{record.name}: {record.getMessage()}")
            if record.exc_info:
                failure.__cause__ = record.exc_info[1]
            self._notes.failures.append(failure)


class World:
    def __init__(
        self, shape: Shape, random: Random, on_line: Callable[[str], None] = lambda line: None
    ) -> None:
        """`on_line` gets what happens, in short lines."""
        self.random = random
        self.notes = Notes(on_line)
        self.truth = Truth()
        self.clients: list[SimulatedClient] = []
        self.names = 0
        self.scheduler = VirtualScheduler(
            random, lambda text: self.notes.failures.append(AssertionError(text))
        )
        self.settings: dict[int, FragmentSettings] = {}
        self.deletes: set[int] = set()
        """Fragments whose consumers receive and delete."""
        self.stores: dict[str, SimulatedStore] = {}
        names = [f"broker-{number}" for number in range(shape.brokers)]
        for number in range(shape.brokers * shape.stores):
            disk = SimulatedDisk(random, shape.disk_latency)
            store = SimulatedStore(f"store-{number}", disk)
            self.stores[store.name] = store
            for _ in range(shape.fragments):
                fragment = len(self.settings) + 1
                self.settings[fragment] = store.fragments[fragment] = self._settings(fragment, shape)
        self._around = Surroundings(
            random,
            self.scheduler,
            self.stores,
            shape.latency,
            self.note,
            self._emitted,
            self._fenced,
            shape.has_nodes,
        )
        self.controller = Controller(names, self._around)

    def _settings(self, fragment: int, shape: Shape) -> FragmentSettings:
        """In turn: with sessions, plain, with duplicate detection, plain and received from in the other mode."""
        kind = fragment % 4
        if kind == 0:
            self.deletes.add(fragment)
        return FragmentSettings(
            shape.lock_ms,
            shape.max_deliveries,
            0,
            False,
            1 << 40,
            True,
            True,
            3_600_000 if kind == 3 else 0,
            kind == 1,
        )

    # ---- running ----

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What the broker logs as an error is noticed in this context."""
        handler = _Unexpected(self.notes)
        loggers = [logging.getLogger(name) for name in ("busbar.broker", "busbar.cluster")]
        before = [(logger.propagate, logger.level) for logger in loggers]
        for logger in loggers:
            logger.addHandler(handler)
            logger.propagate = False
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, (propagate, level) in zip(loggers, before, strict=True):
                logger.removeHandler(handler)
                logger.propagate = propagate
                logger.setLevel(level)
            self.scheduler.kill_all()

    def run(self, seconds: float) -> None:
        self.scheduler.run(seconds)
        for client in self.clients:
            self._close_stale(client)
        if self.notes.failures:
            raise self.notes.failures[0]

    def _close_stale(self, client: SimulatedClient) -> None:
        """A gateway closes the link of a session whose lock has ended, if its fragment cannot say so."""
        now = self.wall()
        if client.process.loop.is_frozen:
            return
        for consumer in [*client.consumers.values()]:
            if consumer.session is not None and consumer.until + GRACE < now:
                client.leave(consumer)

    def wall(self) -> int:
        return self._around.wall()

    def note(self, text: str) -> None:
        self.notes.write(f"{self.wall() % 1_000_000:6} {text}")

    def _emitted(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, e.Delivered):
                self.notes.emitted[effect.fragment, effect.nonce] = self.notes.now

    # ---- clients ----

    def connect(self, process: SimulatedBroker) -> SimulatedClient:
        self.names += 1
        client = SimulatedClient(f"client-{self.names}", process, self.truth, self.notes, self.wall)
        client.rivals = lambda: [other for other in self.clients if other is not client]
        self.clients.append(client)
        self.note(f"client-{self.names} connects to {process.name}")
        return client

    def disconnect(self, client: SimulatedClient) -> None:
        client.disconnect()
        self.clients.remove(client)

    # ---- faults ----

    def kill(self, process: SimulatedBroker) -> None:
        self.note(f"{process.name} dies")
        self.controller.kill(process.name)
        for client in [client for client in self.clients if client.process is process]:
            client.lose()
            self.clients.remove(client)

    def _fenced(self, name: str) -> None:
        """A process ends when it finds out that another one has claimed a store of its."""
        self.note(f"{name} is fenced")
        self.controller.loop.call_soon(self._end_fenced, self.controller.processes[name])

    def _end_fenced(self, process: SimulatedBroker) -> None:
        if not process.is_dead:
            self.kill(process)

    def heal(self) -> None:
        """No more faults: all that is broken recovers by itself."""
        self.note("no more faults")
        for store in self.stores.values():
            store.disk.heal()
        self.run(SECONDS_TO_HEAL)

    # ---- the end ----

    def finish(self) -> None:
        """Let all faults end and all clients leave, look whether anything was forgotten or left, and receive the rest."""
        self.heal()
        self._check_nothing_forgotten()
        for client in [*self.clients]:
            self.disconnect(client)
        self.run(SECONDS_TO_LEAVE)
        self._check_nothing_left()
        self._check_disks()
        self._receive_all()

    def machine(self, fragment: int) -> FragmentMachine:
        for process in self.controller.processes.values():
            for host in process.hosts.values():
                if fragment in host:
                    slot = host.commit_loop.slots[fragment]
                    assert not slot.broken, f"fragment {fragment} has failed"
                    return slot.machine
        raise AssertionError(f"fragment {fragment} is nowhere")

    def durable(self, fragment: int) -> MemoryFragment:
        (found,) = [
            disk.fragments[fragment]
            for store in self.stores.values()
            if fragment in (disk := store.disk.disk).fragments
        ]
        return found

    def _check_nothing_forgotten(self) -> None:
        for client in self.clients:
            awaits = {asked.command.fragment for asked in client.asked.values() if _awaits(asked.command)}
            unanswered = [asked.command for asked in client.asked.values() if not _awaits(asked.command)]
            assert not unanswered, f"{client.name} was never answered: {unanswered}"
            for fragment in awaits:
                offered = self.durable(fragment).sessions
                assert not offered, f"{client.name} awaits a session of {fragment} in vain: {offered}"
            for consumer in client.consumers.values():
                assert not consumer.is_draining, f"a drain of {client.name} was never answered: {consumer}"
                if consumer.credit > 0 and (left := self._available(consumer)):
                    raise AssertionError(f"{client.name} is not served: {consumer}, and there is {left}")

    def _available(self, consumer: ClientConsumer) -> set[int]:
        if self.settings[consumer.fragment].requires_session and consumer.sub == ACTIVE:
            return set()  # its lock has ended long ago
        locked = {lock.record.n for lock in self.machine(consumer.fragment).locks()}
        return {*self.durable(consumer.fragment).lanes[consumer.sub].order} - locked

    def _check_nothing_left(self) -> None:
        for process in self.controller.processes.values():
            broker = process.broker
            assert not broker._sinks and not broker._consuming and not broker._failed, process.name
            assert not any(peer.stranded or peer._origins for peer in process.peers)
            assert len(process.peers) == len(broker._peers) == len(self.controller.processes) - 1
            for route in process.routes.values():
                asked, drained, demands = route._standing.fail_all()
                assert not asked and not drained and not any(demands.values()), route.name
                assert not route._standing.resumptions() and not route._standing._sessions._asked
                assert not route._standing._sessions._locked and not route._standing._sessions._receiving
                assert not route._parking.replay(), f"{process.name} keeps something for {route.name}"
            for host in process.hosts.values():
                assert host.is_open and host.commit_loop.idle, f"{host.name} is {host.state}"
                assert not host._lifecycle._buffer.replay()
        for fragment in self.settings:
            machine = self.machine(fragment)
            assert not machine.demands() and not machine.awaits(), f"fragment {fragment} has consumers"
            assert not machine.has_absent_holders() and not self.durable(fragment).holds

    def _check_disks(self) -> None:
        for fragment, settings in self.settings.items():
            lanes = self.durable(fragment).lanes
            contents = [record.content for lane in lanes for record in lane.records.values()]
            assert all(content is not None for content in contents)
            self.truth.check(
                fragment,
                [content for content in contents if content is not None],
                detects_duplicates=settings.duplicate_window_ms > 0,
                at_most_once=fragment in self.deletes,
            )

    def _receive_all(self) -> None:
        """One client at one broker receives and completes everything, wherever it is."""
        client = self.connect(self.random.choice(self.controller.alive()))
        for fragment, settings in self.settings.items():
            assert not self.durable(fragment).lanes[SCHEDULED].order, "what is due was not enqueued"
            if not settings.requires_session:
                client.demand(client.consume(fragment, ACTIVE, False), 10_000, False)
            client.demand(client.consume(fragment, DEAD, False), 10_000, False)
        for _ in range(ROUNDS):
            left = {f: [lane.order for lane in self.durable(f).lanes if lane.order] for f in self.settings}
            if not any(left.values()):
                return
            for fragment, settings in self.settings.items():
                if settings.requires_session:
                    self._receive_sessions(client, fragment)
                self._receive_deferred(client, fragment)
            self.run(0.1)
            for lock in [*client.locks]:
                client.settle(lock, c.COMPLETE)
        raise AssertionError(f"these were never delivered: {left}")

    def _receive_sessions(self, client: SimulatedClient, fragment: int) -> None:
        lanes = self.durable(fragment).lanes
        ids = {one.session_id for lane in (ACTIVE, DEFERRED) for one in lanes[lane].records.values()}
        held = {one.session for one in client.consumers.values() if one.fragment == fragment}
        asked = {a.command.session for a in client.asked.values() if isinstance(a.command, c.AcceptSession)}
        for session in sorted(id for id in ids if id is not None and id not in held | asked):
            client.accept(fragment, session)
        for consumer in client.consumers.values():
            if consumer.fragment == fragment and consumer.session is not None and not consumer.credit:
                client.demand(consumer, 10_000, False)

    def _receive_deferred(self, client: SimulatedClient, fragment: int) -> None:
        locked = {lock.record.n for lock in self.machine(fragment).locks()}
        for sub, lane in ((ACTIVE, DEFERRED), (DEAD, DEAD_DEFERRED)):
            for record in [*self.durable(fragment).lanes[lane].records.values()]:
                session = record.session_id if sub == ACTIVE else None
                if record.n not in locked and (session is None or client.holds(fragment, session)):
                    client.receive_deferred(fragment, sub, record.n, session)


def _awaits(command: c.Command) -> bool:
    return isinstance(command, c.AwaitSession)
