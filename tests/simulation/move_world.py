"""Several fragments that move messages to each other, a mover, clients with transactions, and stores that fail.

A host has the fragments of one store. It is pipelined as the real one: changes are gathered, then in flight, then durable.
Effects are heard only when everything they rest on is durable. The mover follows the protocol of the outbox. Its requests
to a store that fails are lost; commands that it gave up may still arrive.

What is checked after every step, on what is durable:
1. Each accepted message is in one place: a lane of one fragment, completed, or dropped as a duplicate. A record of an outbox
   whose number is not above the mark of its target is no place.
2. Marks never fall, and no mark exceeds the last number of its source. A record never changes its target.
3. Messages of one outbox arrive at their target in the order of their numbers.
4. Of each transaction everything is there or nothing; all of it if it was answered as done, nothing if it was refused.
The reference store checks counters, rows of the outbox, rising numbers, and hops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes
from busbar.fragment.machine import Fragment
from busbar.fragment.writers import MARK, mark_source
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.errors import EntityNotFound
from busbar.model.message import ACTIVE, LANES, OUTBOX, Draft, Record
from busbar.model.settings import FragmentSettings
from tests.simulation.machine_world import small_bounds
from tests.unit.fragment.queue import draft_of
from tests.unit.fragment.reference_store import ReferenceStore

Answer = Callable[[e.Effect | None], None]
"""What follows from an effect. None: the answer is lost, and whether the command was done is not known, or it was not."""


def bounds_of(seed: int) -> Bounds:
    bounds = small_bounds(seed)
    r = Random(f"outbox of {seed}")
    bounds.outbox_records = r.choice([1, 3, 20])
    bounds.outbox_bytes = r.choice([100, 400, 5000])
    bounds.outbox_run = r.choice([1, 2, 5])
    return bounds


def name_of(record: Record) -> str:
    assert record.content is not None
    return record.content.split(b"|")[0].decode()


@dataclass
class Transaction:
    sent: list[str]
    completed: list[str]
    home: int
    outcome: str = "open"  # done, refused or unknown


@dataclass
class Held:
    """A lock of a client."""

    fragment: int
    n: int
    nonce: int
    name: str


class Host:
    """The fragments of one store."""

    def __init__(self, world: MoveWorld) -> None:
        self.world = world
        self.machines: dict[int, Fragment] = {}
        self.stores: dict[int, ReferenceStore] = {}
        self.epoch = 1
        self.gathered: list[tuple[int, e.Effect]] = []
        self.flying: list[tuple[int, e.Effect]] = []
        self.flight: dict[int, Changes] = {}
        self.awaited: dict[int, Answer] = {}  # by request

    def start(self, fragment: int, settings: FragmentSettings) -> None:
        store = self.stores.setdefault(fragment, ReferenceStore(fragment))
        self.machines[fragment] = Fragment(
            fragment,
            settings,
            store.head,
            store.next_due(),
            [],
            self.world.bounds,
            store.id_segments(),
            [],
            dict(store.writers),
            dict(store.outbox),
            draft_of,
        )

    def do(self, command: c.Command, answer: Answer | None = None) -> None:
        if answer is not None:
            self.awaited[command.request] = answer
        self._step(command)
        machine = self.machines[command.fragment]
        for _ in range(500):
            if not machine.has_work(self.world.now):
                return
            self._step(c.Tick(command.fragment))
        raise AssertionError("the machine never comes to rest")

    def _step(self, command: c.Command) -> None:
        fragment, now = command.fragment, self.world.now
        machine = self.machines[fragment]
        reads = machine.needs(command, now)
        if reads:
            for _ in range(2):
                self.land()
                self.take_off()
            self.land()
            self.stores[fragment].read(reads)
            machine.supply(reads)
        machine.apply(command, now, next(self.world.nonces))
        self.gathered += [(fragment, effect) for effect in machine.take_effects()]

    # ---- commits ----

    def take_off(self) -> None:
        if self.flight or self.flying:
            return
        self.flight = self._take_changes()
        self.flying, self.gathered = self.gathered, []

    def _take_changes(self) -> dict[int, Changes]:
        found = {fragment: machine.take_changes() for fragment, machine in self.machines.items()}
        return {fragment: changes for fragment, changes in found.items() if changes is not None}

    def land(self) -> None:
        self._commit()
        flying, self.flying = self.flying, []
        self.world.heard += [(self, fragment, effect) for fragment, effect in flying]

    def _commit(self) -> None:
        flight, self.flight = self.flight, {}
        for fragment, changes in flight.items():
            if fragment in self.machines:
                self.world.committing(fragment, changes)
                self.stores[fragment].commit(changes)

    def settle(self) -> None:
        """Make everything durable that there is, and all that follows from it."""
        while self._has_work():
            self.land()
            self.take_off()
            self.world.follow()

    def _has_work(self) -> bool:
        changed = any(machine.change_count() for machine in self.machines.values())
        return bool(changed or self.flight or self.flying or self.gathered or self.world.heard)

    def fail(self, landed: bool, certain: bool) -> None:
        """A commit is refused, or nobody knows whether it was made. All that rests on it is undone."""
        batches = [self._take_changes(), self.flight]
        if landed:
            self._commit()
        self.flight = {}
        effects, self.flying, self.gathered = [*self.flying, *self.gathered], [], []
        for fragment, machine in self.machines.items():
            undone = [batch[fragment] for batch in batches if fragment in batch]
            mine = [effect for f, effect in effects if f == fragment]
            if undone or mine:
                store = self.stores[fragment]
                machine.undo(
                    undone, mine, store.head, store.next_due(), [], dict(store.writers), dict(store.outbox)
                )
                lost = [k.record.n for k in machine.locks() if k.record.n not in store.lanes[k.lane]]
                machine.forget_locks(lost)
        self._lose_answers(certain)
        for fragment in list(self.machines):
            self.do(c.Tick(fragment))

    def crash(self, landed: bool) -> None:
        """The process of the store dies and is started again."""
        if landed:
            self._commit()
        self.flight, self.flying, self.gathered = {}, [], []
        self.epoch += 1
        for fragment, machine in list(self.machines.items()):
            self.start(fragment, machine.settings)
        self._lose_answers(False)
        self.world.process_died(self)
        for fragment in list(self.machines):
            self.do(c.Tick(fragment))

    def _lose_answers(self, certain: bool) -> None:
        awaited, self.awaited = self.awaited, {}
        for request, answer in awaited.items():
            answer(e.Refused(0, request, "busy", "", True) if certain else None)


@dataclass
class Mover:
    """Moves the records of all fragments; as much of its state as one process would have."""

    world: MoveWorld
    ready: list[tuple[int, int]] = field(default_factory=list)  # pairs for which something can be done
    busy: set[tuple[int, int]] = field(default_factory=set)  # pairs with a request that is not answered
    late: list[c.TakeMoved] = field(default_factory=list)  # given up, and perhaps still on their way
    last: c.TakeMoved | None = None
    attempts: int = 0

    def told(self, pair: tuple[int, int]) -> None:
        if pair not in self.ready:
            self.ready.append(pair)

    def act(self, r: Random) -> None:
        idle = [pair for pair in self.ready if pair not in self.busy]
        if not idle:
            return
        pair = r.choice(idle)
        source, target = pair
        host = self.world.host_of(source)
        if host is None:
            self.ready.remove(pair)
            return
        self.ready.remove(pair)
        self.busy.add(pair)
        size = r.choice([1, 3, 500])
        command = c.PullOutbox(source, e.MOVER_ORIGIN, self.world.request(), target, size, 1 << 20)
        host.do(command, self._of_this_process(host, lambda answer: self._pulled(pair, answer)))

    def _of_this_process(self, home: Host, answer: Answer) -> Answer:
        """An answer to a process that is dead reaches nobody."""
        epoch = home.epoch
        return lambda effect: answer(effect) if home.epoch == epoch else None

    def _pulled(self, pair: tuple[int, int], answer: e.Effect | None) -> None:
        self.busy.discard(pair)
        if not isinstance(answer, e.OutboxPage):
            self.told(pair)
            return
        if not answer.records:
            return
        source, target = pair
        host, home = self.world.host_of(target), self.world.host_of(source)
        if home is None:
            return
        self.told(pair)
        if host is None:
            count = len(answer.records)
            home.do(c.RemoveMoved(source, target, 0, count, EntityNotFound.condition, "It is gone."))
            return
        self.busy.add(pair)
        self.attempts += 1
        fence = c.fence_of(home.epoch, self.attempts)
        numbers = [record.n for record in answer.records]
        drafts = [self.world.draft_again(record) for record in answer.records]
        command = c.TakeMoved(target, e.MOVER_ORIGIN, self.world.request(), source, fence, numbers, drafts)
        self.last = command
        self.world.offered(command)
        if self.world.random.random() < 0.1:
            self.late.append(command)  # it hangs on the way: the mover gives it up
            self.busy.discard(pair)
        else:
            host.do(command, self._of_this_process(home, lambda answer: self._taken(pair, answer)))

    def _taken(self, pair: tuple[int, int], answer: e.Effect | None) -> None:
        self.busy.discard(pair)
        source, target = pair
        home = self.world.host_of(source)
        if home is None:
            return
        self.told(pair)
        if isinstance(answer, e.MovedTaken):
            answer_of = (answer.upto, answer.refused, answer.condition, answer.text)
            home.do(c.RemoveMoved(source, target, *answer_of))

    def again(self, r: Random) -> None:
        """A command arrives late, or once more."""
        command = self.late.pop(r.randrange(len(self.late))) if self.late and r.random() < 0.7 else self.last
        host = self.world.host_of(command.fragment) if command is not None else None
        if command is not None and host is not None:
            host.do(command)


class MoveWorld:
    def __init__(self, seed: int, fragments: int, stores: int) -> None:
        self.random = Random(seed)
        self.bounds = bounds_of(seed)
        self.now = 1_000
        self.nonces = count(100)
        self._requests = count(1)
        self.hosts = [Host(self) for _ in range(stores)]
        self.mover = Mover(self)
        self.accepted: set[str] = set()
        self.ended: set[str] = set()  # completed, received for good, or deleted with its fragment
        self.maybe_ended: set[str] = set()
        self.appeared: set[str] = set()
        self.transactions: list[Transaction] = []
        self.held: list[Held] = []
        self.heard: list[tuple[Host, int, e.Effect]] = []
        self.marks: dict[tuple[int, int], int] = {}
        self.targets: dict[tuple[int, int], int] = {}
        self.left: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)  # by pair: name to number
        self.seen: dict[int, set[str]] = defaultdict(set)  # ids that a fragment has had
        # From a generator of its own, so that older seeds go on to mean what they meant.
        r = Random(f"sessions of {seed}")
        self.with_sessions = {10 + r.randrange(fragments)} if r.random() < 0.3 else set()
        for number in range(fragments):
            fragment = 10 + number
            self.hosts[number % stores].start(fragment, self.settings(fragment))

    def settings(self, fragment: int, **changed: object) -> FragmentSettings:
        given: dict[str, object] = {
            "lock_ms": 50,
            "max_deliveries": 5,
            "ttl_ms": 0,
            "dead_letter_on_expiration": False,
            "quota_bytes": 0,
            "can_send": True,
            "can_receive": True,
            "path": "source",
            "requires_session": fragment in self.with_sessions,
        }
        return FragmentSettings(**(given | changed))  # type: ignore[arg-type]

    def request(self) -> int:
        return next(self._requests)

    def fragments(self) -> list[int]:
        return sorted(fragment for host in self.hosts for fragment in host.machines)

    def host_of(self, fragment: int) -> Host | None:
        return next((host for host in self.hosts if fragment in host.machines), None)

    def draft_again(self, record: Record) -> Draft:
        assert record.content is not None
        draft = draft_of(record.content)
        draft.hops, draft.ttl = record.hops, record.ttl
        return draft

    def offered(self, command: c.TakeMoved) -> None:
        """A target that detects duplicates may drop a message that it has had."""
        for draft in command.drafts:
            if draft.message_id in self.seen[command.fragment]:
                self.maybe_ended.add(draft.content.split(b"|")[0].decode())

    def process_died(self, host: Host) -> None:
        """What the mover of this process had under way is lost. Commands to a dead target do not arrive any more."""
        gone = set(host.machines)
        self.mover.busy -= {pair for pair in self.mover.busy if pair[0] in gone or pair[1] in gone}
        self.mover.late = [command for command in self.mover.late if command.fragment not in gone]
        if self.mover.last is not None and self.mover.last.fragment in gone:
            self.mover.last = None
        self.held = [one for one in self.held if one.fragment not in gone]

    # ---- what is heard ----

    def follow(self) -> None:
        """Do what follows from the effects that were heard. Never while a command is applied."""
        while self.heard:
            host, fragment, effect = self.heard.pop(0)
            if fragment in host.machines:
                self.hear(host, fragment, effect)

    def hear(self, host: Host, fragment: int, effect: e.Effect) -> None:
        if isinstance(effect, e.OutboxReady):
            self.mover.told((fragment, effect.target))
        elif isinstance(effect, e.Delivered):
            self.held += [Held(fragment, r.n, effect.nonce, name_of(r)) for r in effect.records]
        elif effect.request in host.awaited:
            host.awaited.pop(effect.request)(effect)

    def delete(self, fragment: int) -> None:
        """The entity is gone with all that it holds."""
        host = self.host_of(fragment)
        assert host is not None
        host.settle()
        store = host.stores[fragment]
        for lane in store.lanes:
            for record in lane.values():
                self.maybe_ended.add(name_of(record))
        del host.machines[fragment], host.stores[fragment]
        self.held = [one for one in self.held if one.fragment != fragment]
        self.marks = {key: n for key, n in self.marks.items() if fragment not in key}
        self.mover.late = [one for one in self.mover.late if one.fragment != fragment]

    # ---- what is checked ----

    def committing(self, fragment: int, changes: Changes) -> None:
        """Before a commit: arrivals from one outbox come in its order."""
        arriving = {
            name_of(record): (lane, record.target, record.n)
            for lane, records in changes.puts.items()
            for record in records
        }
        for name, row in changes.writers.items():
            if name.startswith(MARK) and row is not None:
                source = mark_source(name)
                before = self.marks.get((source, fragment), 0)
                assert row[0] >= before, "a mark never falls"
                left = self.left[source, fragment]
                moved = sorted((n, name) for name, n in left.items() if before < n <= row[0])
                found = [arriving[name] for _, name in moved if name in arriving]
                for place in {(lane, target) for lane, target, _ in found}:
                    numbers = [n for lane, target, n in found if (lane, target) == place]
                    assert numbers == sorted(numbers), "they arrive in their order"
                self.marks[source, fragment] = row[0]
        for lane, records in changes.puts.items():
            for record in records:
                self.appeared.add(name_of(record))
                if lane == OUTBOX:
                    self.left[fragment, record.target][name_of(record)] = record.n
                    self.targets[fragment, record.n] = record.target
        for _, id, _, _ in changes.ids:
            self.seen[fragment].update(name for name in arriving if id)

    def places(self) -> dict[str, list[tuple[int, int]]]:
        """Where each message is, durably: fragment and lane."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for host in self.hosts:
            for fragment, store in host.stores.items():
                for lane in range(LANES):
                    for record in store.lanes[lane].values():
                        if lane == OUTBOX:
                            target = record.target
                            assert self.targets[fragment, record.n] == target, "a record keeps its target"
                            there = self.host_of(target)
                            if there is not None and record.n <= self.marks.get((fragment, target), 0):
                                continue
                        found[name_of(record)].append((fragment, lane))
        return found

    def check(self) -> None:
        places = self.places()
        for name, where in places.items():
            assert len(where) <= 1, f"{name} is in {where}"
            assert name not in self.ended, f"{name} was completed and is in {where}"
        for name in self.accepted - self.ended - self.maybe_ended:
            assert name in places, f"{name} is lost"
        for (source, target), n in self.marks.items():
            home, there = self.host_of(source), self.host_of(target)
            if home is not None:
                assert n <= home.stores[source].head.last
            if there is not None:
                rows = there.stores[target].writers
                assert n == max(
                    (row[0] for mark, row in rows.items() if mark.endswith(f"/{source}")), default=0
                )
        for one in self.transactions:
            self._check_transaction(one, places)

    def _check_transaction(self, one: Transaction, places: dict[str, list[tuple[int, int]]]) -> None:
        there = [name in self.appeared for name in one.sent]
        assert all(there) or not any(there), "a transaction is there in full or not at all"
        if one.outcome == "done":
            assert all(there)
        if one.outcome == "refused":
            assert not any(there)
        if there and all(there):
            for name in one.completed:
                assert name not in places, "it was completed in the same commit"

    def heal(self) -> None:
        """All faults are over, and everything takes messages: every outbox empties."""
        for host in self.hosts:
            for fragment in host.machines:
                host.machines[fragment].settings = self.settings(fragment)
                host.do(c.Tick(fragment))
            host.settle()
        for _ in range(3_000):
            self.mover.act(self.random)
            for host in self.hosts:
                host.settle()
            if not self.mover.ready and not self.mover.busy:
                break
        self.check()
        waiting = {f: s.outbox for host in self.hosts for f, s in host.stores.items() if s.outbox}
        assert waiting == {}, "an outbox does not empty"


__all__ = ["ACTIVE", "Held", "Host", "MoveWorld", "Transaction", "name_of"]
