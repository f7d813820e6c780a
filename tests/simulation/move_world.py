"""Processes with stores and a mover each, whose fragments move messages to each other, in virtual time and with faults.

Hosts are the real ones (harness/simulated_host.py: commit loop, lifecycle, loading of fragments), and so is the mover
(broker/mover.py). A process has one store or all of them. The mover of a process gives its commands to the hosts of the
process at once, and to others by a link. A link has an order, and it can break: then each request that is not answered is
refused as uncertain, and the commands that it had not delivered yet may still arrive later. They may even arrive at the
process that took the place of their receiver. Channels between brokers end with the process; fragments do not rely on that.

The world says when a turn is taken, when the thread of a store works, what fails, when links carry something, and when a
process ends. move_checker.py says what is checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from uuid import UUID

from busbar.broker.fragment_loading import DurableState
from busbar.broker.host_api import StoreState
from busbar.broker.mover import Mover, TargetQuestion
from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.entities import RuleDescription, SqlAction, TrueFilter
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.model.settings import FragmentSettings, TapSettings
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import StoreError
from harness.memory_fragment import MemoryFragment
from harness.memory_place import MemoryPlace
from harness.memory_store import Disk
from harness.observed_machine import MachineObserver
from harness.simulated_host import JobFault, SimulatedHost
from tests.simulation.move_checker import CommittedPart, MoveChecker, name_of, watched_fragments
from tests.simulation.small_bounds import small_bounds
from tests.simulation.trace import Trace

START = 1_000_000
ROUNDS = 20_000
CLIENT, LATE, FIRST_LINK = 1, 2, 1_000
QUEUES, TOPIC = 10, 30
LETTERS = {TOPIC + 1: "a", TOPIC + 2: "b"}
NOBODY = 99
"""A fragment that never was."""

Answer = Callable[[e.Effect | None], None]
"""What follows from an effect. None: the process ended, and whether the command was done is not known."""


def bounds_of(seed: int) -> Bounds:
    bounds = small_bounds(seed)
    r = Random(f"outbox of {seed}")
    bounds.outbox_records = r.choice([1, 3, 20])
    bounds.outbox_bytes = r.choice([100, 400, 5000])
    bounds.forwarded_records = r.choice([1, 3, 20])
    bounds.forwarded_bytes = r.choice([100, 400, 5000])
    bounds.outbox_run = r.choice([1, 2, 5])
    return bounds


def topic_settings() -> TopicSettings:
    """Every subscription selects everything, and adds its letter to the trail."""
    rules = [
        RuleSet(
            (("rule", RuleDescription(TrueFilter(), SqlAction(f"SET trail = trail + '{letter}'"))),), True
        )
        for letter in LETTERS.values()
    ]
    return TopicSettings(0, tuple(LETTERS), TopicRules(tuple(rules)))


@dataclass
class Held:
    """A lock of a client."""

    fragment: int
    n: int
    nonce: int
    name: str


@dataclass(eq=False)
class Link:
    """What a mover sends to a store of another process, and what comes back."""

    origin: int
    commands: deque[c.TakeMoved] = field(default_factory=deque)
    answers: deque[e.Effect] = field(default_factory=deque)
    unanswered: list[int] = field(default_factory=list)


class Process:
    """One mover, and the stores whose fragments it moves messages out of."""

    def __init__(
        self, stores: list[int], epoch_of: Callable[[int], int], patience_ms: int, ahead_bytes: int
    ) -> None:
        self.stores = stores
        self.mover = Mover(epoch_of, patience_ms, ahead_bytes=ahead_bytes)
        self.links: dict[int, Link] = {}
        """By store."""
        self.questions: list[TargetQuestion] = []


class _Unobserved:
    def before_apply(self, command: c.Command, now: int) -> None:
        """The checker follows commits."""

    def applied(self, command: c.Command, effects: list[e.Effect]) -> None:
        """The checker follows commits."""

    def undone(self, effects: list[e.Effect]) -> None:
        """The checker follows commits."""


class _StoreObserver:
    """Reports what happens in one host to the world."""

    def __init__(self, world: MoveWorld, store: int) -> None:
        self._world = world
        self._store = store

    def machine_observer(self, fragment: int) -> MachineObserver:
        return _Unobserved()

    def loaded(self, fragment: int, durable: DurableState) -> None:
        self._world.trace.add(f"fragment {fragment} is loaded")

    def job_started(self, fragments: list[int]) -> None:
        """The checker follows commits that were made."""

    def job_made(self, fragments: list[int]) -> None:
        self._world.job_made(self._store)

    def job_done(self, fragments: list[int]) -> None:
        """The checker follows commits that were made."""

    def performed(self, effects: list[e.Effect]) -> None:
        self._world.performed(self._store, effects)


class MoveWorld:
    def __init__(
        self,
        seed: int,
        queues: int,
        stores: int,
        *,
        together: bool = False,
        with_topic: bool = False,
        with_tap: bool = False,
        with_sessions: bool = False,
        patience_ms: int = 20,
        bounds: Bounds | None = None,
    ) -> None:
        """`together`: all stores are of one process."""
        self.now = START
        self.trace = Trace()
        self.bounds = bounds or bounds_of(seed)
        self.held: list[Held] = []
        self.sent_takes: list[c.TakeMoved] = []
        """The last ones that movers sent: any of them may arrive once more."""
        self.late: list[c.TakeMoved] = []
        self.unfound: set[int] = set()
        """Fragments that exist and are not found by movers: they are not in service yet."""
        self.awaited: dict[int, tuple[int, Answer]] = {}
        self._patience_ms = patience_ms
        self._ahead_bytes = 1 << 30 if seed % 4 == 3 else 1
        """Most movers pull the next page while a target takes one."""
        self._nonces = count(100)
        self._requests = count(1)
        self._origins = count(FIRST_LINK)
        ids = Random(f"uuids of {seed}")
        self._rules = RuleCompiler(lambda: UUID(int=ids.getrandbits(128)))
        self._topic = topic_settings()
        self.home = {QUEUES + i: i % stores for i in range(queues)}
        self.session_queue = QUEUES + 1 if with_sessions else 0
        self.tapped = QUEUES if with_tap else 0
        if with_topic:
            self.home |= dict.fromkeys((TOPIC, *LETTERS), stores - 1)
        self.checker = MoveChecker(LETTERS, lambda fragment: TOPIC if fragment in LETTERS else fragment)
        self._parts: list[list[CommittedPart]] = [[] for _ in range(stores)]
        self.disk_of = [MemoryPlace(self._disk_maker(self._parts[store])) for store in range(stores)]
        self.settings = {fragment: self.make_settings(fragment) for fragment in self.home}
        groups = [list(range(stores))] if together else [[store] for store in range(stores)]
        self.processes = [self._new_process(group) for group in groups]
        self.hosts = [self._new_host(store) for store in range(stores)]
        self._states = [StoreState.CLOSED] * stores
        for host in self.hosts:
            host.open(is_new=True)

    @staticmethod
    def _disk_maker(parts: list[CommittedPart]) -> Callable[[], Disk]:
        return lambda: Disk(fragment_class=watched_fragments(parts))

    def make_settings(self, fragment: int, **changed: object) -> FragmentSettings:
        given: dict[str, object] = {
            "lock_ms": 50,
            "max_deliveries": 5,
            "ttl_ms": 0,
            "dead_letter_on_expiration": False,
            "quota_bytes": 0,
            "can_send": True,
            "can_receive": True,
            "path": f"entity {fragment}",
            "requires_session": fragment == self.session_queue,
            "topic": self._topic if fragment == TOPIC else None,
            "taps": [TapSettings(1, "tap")] if fragment == self.tapped else None,
        }
        return FragmentSettings(**(given | changed))  # type: ignore[arg-type]

    # ---- processes ----

    def _new_process(self, stores: list[int]) -> Process:
        return Process(stores, self._epoch_of, self._patience_ms, self._ahead_bytes)

    def _new_host(self, store: int) -> SimulatedHost:
        return SimulatedHost(
            self.disk_of[store],
            {fragment: of for fragment, of in self.settings.items() if self.home[fragment] == store},
            lambda: self.now,
            lambda: next(self._nonces),
            self._rules,
            lambda fragment: self.bounds,
            _StoreObserver(self, store),
        )

    def _epoch_of(self, fragment: int) -> int:
        store = self.home.get(fragment)
        return 0 if store is None else self.hosts[store].lifecycle.epoch

    def process_of(self, store: int) -> Process:
        return next(process for process in self.processes if store in process.stores)

    def crash(self, process: Process, landed: bool) -> None:
        """All memory of the process is gone; what the threads were given has reached the disk or not."""
        self.trace.add(f"crash of the process of stores {process.stores}, commits made: {landed}")
        for store in process.stores:
            self.hosts[store].crash(landed)
        self._start_again(process)

    def restart(self, process: Process) -> None:
        """A clean end and a new start: locks are kept."""
        self.trace.add(f"restart of the process of stores {process.stores}")
        kept: set[int] = set()
        for store in process.stores:
            kept |= self.hosts[store].stop()
        self._start_again(process, kept)

    def _start_again(self, process: Process, kept: Iterable[int] = ()) -> None:
        here = {fragment for fragment, store in self.home.items() if store in process.stores}
        gone = here - set(kept)
        self.held = [one for one in self.held if one.fragment not in gone]
        for store in list(process.links):
            self.late += process.links.pop(store).commands
        for other in self.processes:
            for store in process.stores:
                if other is not process:
                    self.break_link(other, store)
        for request, (store, answer) in list(self.awaited.items()):
            if store in process.stores:
                del self.awaited[request]
                answer(None)
        self.processes[self.processes.index(process)] = self._new_process(process.stores)
        for store in process.stores:
            self._states[store] = StoreState.CLOSED
            self.hosts[store] = self._new_host(store)
            self.hosts[store].open()

    # ---- commands of clients ----

    def fragments(self) -> list[int]:
        return sorted(self.home)

    def submit(self, command: c.Command, answer: Answer | None = None) -> None:
        store = self.home[int(command.fragment)]
        if answer is not None:
            command.request = next(self._requests)
            self.awaited[int(command.request)] = (store, answer)
        self.trace.add("submit", command)
        self.hosts[store].submit([command])

    def change(self, fragment: int, settings: FragmentSettings) -> None:
        self.trace.add(f"settings of {fragment}", settings)
        self.settings[fragment] = settings
        self.hosts[self.home[fragment]].change_fragments({fragment: settings})

    def delete(self, fragment: int) -> None:
        """The entity is deleted with all that it holds, if its store is open."""
        host = self.hosts[self.home[fragment]]
        self.drain(host)
        if not host.is_serving or not host.is_idle:
            return
        self.trace.add(f"fragment {fragment} is deleted")
        self.checker.deleted(fragment, self.stores())
        host.remove_fragment(fragment)
        del self.home[fragment], self.settings[fragment]
        self.held = [one for one in self.held if one.fragment != fragment]

    # ---- movers and links ----

    def move(self, process: Process, most: int = 500) -> None:
        """A turn of the mover. Its pages have at most so many records."""
        self.trace.add(f"move out of stores {process.stores}")
        mover = process.mover
        mover.wake(self.now)
        batches: dict[int, list[c.Command]] = {}
        for command in mover.take_commands(self.now):
            self.trace.add("mover", command)
            if isinstance(command, c.PullOutbox):
                command.count = min(int(command.count), most)
            if isinstance(command, c.TakeMoved):
                self.sent_takes = [*self.sent_takes[-5:], command]
            store = self.home.get(int(command.fragment))
            is_unfound = isinstance(command, c.TakeMoved) and command.fragment in self.unfound
            if store is None or is_unfound:
                self._refuse(mover, int(command.request), EntityNotFound.condition)
            elif store in process.stores:
                batches.setdefault(store, []).append(command)
            else:
                assert isinstance(command, c.TakeMoved), "only targets are in other processes"
                self._send(process, store, command)
        for store, commands in batches.items():
            self.hosts[store].submit(commands)
        process.questions += mover.take_questions()

    def _refuse(self, mover: Mover, request: int, condition: str) -> None:
        if request > 0:
            certain = condition == EntityNotFound.condition
            mover.handle([e.Refused(e.MOVER_ORIGIN, request, condition, "", certain)], self.now)

    def _send(self, process: Process, store: int, command: c.TakeMoved) -> None:
        link = process.links.get(store)
        if link is None:
            link = process.links[store] = Link(next(self._origins))
        link.commands.append(_copied(command, link.origin, int(command.request)))
        link.unanswered.append(int(command.request))

    def links(self) -> list[tuple[Process, int, Link]]:
        return [(process, store, link) for process in self.processes for store, link in process.links.items()]

    def carry(self, process: Process, store: int, link: Link, is_answer: bool) -> None:
        """A link delivers its first command, or its first answer."""
        if is_answer and link.answers:
            effect = link.answers.popleft()
            self.trace.add("answer by link", effect)
            link.unanswered.remove(int(effect.request))
            process.mover.handle([effect], self.now)
        elif not is_answer and link.commands:
            command = link.commands.popleft()
            self.trace.add("command by link", command)
            if int(command.fragment) in self.home:
                self.hosts[store].submit([command])
            else:
                refused = e.Refused(
                    link.origin, command.request, EntityNotFound.condition, "The entity is gone."
                )
                link.answers.append(refused)

    def break_link(self, process: Process, store: int) -> None:
        link = process.links.pop(store, None)
        if link is not None:
            self.trace.add(f"the link to store {store} breaks")
            self.late += link.commands
            for request in link.unanswered:
                self._refuse(process.mover, request, ServerBusy.condition)

    def repeat(self, command: c.TakeMoved) -> None:
        """A TakeMoved arrives late, or once more. Its answer reaches no mover."""
        if int(command.fragment) in self.home:
            self.submit(_copied(command, LATE, next(self._requests)))

    def answer_question(self, process: Process, known: bool = True) -> None:
        """The catalogue answers a question of the mover; not `known`: it cannot be asked."""
        if process.questions:
            question = process.questions.pop(0)
            exists = question.target in self.home if known else None
            self.trace.add(f"does fragment {question.target} exist: {exists}")
            process.mover.answer(question, exists, self.now)

    # ---- time, turns and work ----

    def pass_time(self, ms: int) -> None:
        self.trace.add(f"{ms} ms pass")
        self.now += ms
        self.fire()

    def fire(self) -> None:
        for host in self.hosts:
            if 0 < host.wake_at <= self.now:
                host.fire()

    def work(self, host: SimulatedHost, fault: JobFault | None = None) -> None:
        if host.thread:
            at = self.hosts.index(host)
            self.trace.add(f"store {at}: {host.thread[0]}: {fault.name if fault else 'done'}")
            host.work(fault)

    def drain(self, host: SimulatedHost) -> None:
        """Until nothing is under way in this host."""
        for _ in range(ROUNDS):
            if host.thread and not host.hangs:
                self.work(host)
            elif host.has_turn:
                host.turn()
            else:
                return
        raise AssertionError("the host never comes to rest")

    def refuse_opening(self, store: int) -> None:
        self.trace.add(f"store {store} cannot be opened")
        self.disk_of[store].refusal = StoreError("it cannot be opened (injected)")

    # ---- what hosts report ----

    def job_made(self, store: int) -> None:
        parts = [part for part in self._parts[store] if part.changes.weight]
        self._parts[store].clear()
        self.checker.committed(parts, self.now)

    def performed(self, store: int, effects: list[e.Effect]) -> None:
        for effect in effects:
            self.trace.add("performed", effect)
            origin, request = int(effect.origin), int(effect.request)
            if origin == e.MOVER_ORIGIN:
                self.process_of(store).mover.handle([effect], self.now)
            elif origin >= FIRST_LINK:
                for process in self.processes:
                    for link in process.links.values():
                        if link.origin == origin:
                            link.answers.append(effect)
            elif isinstance(effect, e.Delivered):
                fragment, nonce = int(effect.fragment), int(effect.nonce)
                self.held += [Held(fragment, int(r.n), nonce, name_of(r)) for r in effect.records]
            elif request in self.awaited:
                self.awaited.pop(request)[1](effect)

    # ---- checks ----

    def stores(self) -> dict[int, MemoryFragment]:
        """What is durable, by fragment."""
        found: dict[int, MemoryFragment] = {}
        for place in self.disk_of:
            assert place.disk is not None
            found |= {key: of for key, of in place.disk.fragments.items() if key in self.home}
        return found

    def check(self) -> None:
        self._note_openings()
        for host in self.hosts:
            assert not any(slot.broken for slot in host.commit_loop.slots.values()), "a machine failed"
            if host.is_idle and host.is_serving:
                mine = [request for request, (at, _) in self.awaited.items() if self.hosts[at] is host]
                assert not mine, "each request is answered"
        self.checker.check(self.stores(), self.now)

    def _note_openings(self) -> None:
        for store, host in enumerate(self.hosts):
            state = host.lifecycle.state
            if state is StoreState.OPEN and self._states[store] not in (state, StoreState.ROLLING_BACK):
                for process in self.processes:
                    process.mover.on_store_open(
                        lambda fragment, store=store: self.home.get(fragment) == store  # type: ignore[misc]
                    )
            self._states[store] = state

    @property
    def quiet_checks(self) -> int:
        return self.checker.checks

    # ---- the end ----

    def heal(self) -> None:
        """All faults are over, and everything takes messages: every outbox empties."""
        self.unfound = set()
        for store, place in enumerate(self.disk_of):
            place.refusal = None
            if self.hosts[store].lifecycle.is_offline:
                self.hosts[store].bring_online()
        for fragment in self.fragments():
            self.change(fragment, self.make_settings(fragment))
        for _ in range(ROUNDS):
            if self._proceed():
                continue
            self.check()
            if self._is_at_rest():
                return
            times = [host.wake_at for host in self.hosts] + [one.mover.wake_at() for one in self.processes]
            due = min(at for at in times if at)
            self.pass_time(max(1, due - self.now))
        raise AssertionError("an outbox does not empty")

    def _proceed(self) -> bool:
        """Do all that can be done now; whether there was anything."""
        before = self.trace.lines
        for host in self.hosts:
            while host.thread or host.has_turn:
                if host.thread:
                    self.work(host)
                else:
                    self.trace.add("turn")
                    host.turn()
        self._note_openings()
        for process, store, link in self.links():
            self.carry(process, store, link, False)
            self.carry(process, store, link, True)
        for process in self.processes:
            self.answer_question(process)
        did = self.trace.lines > before
        if not did:
            for process in self.processes:
                moves = self.trace.lines + 1
                self.move(process)
                did = did or self.trace.lines > moves or bool(process.questions)
        return did

    def _is_at_rest(self) -> bool:
        return all(host.is_serving for host in self.hosts) and not any(
            store.outbox for store in self.stores().values()
        )


def _copied(command: c.TakeMoved, origin: int, request: int) -> c.TakeMoved:
    """As it is sent to another process."""
    return c.TakeMoved(
        command.fragment,
        origin,
        request,
        command.source,
        command.fence,
        [*command.numbers],
        [*command.drafts],
    )


__all__ = ["NOBODY", "Held", "MoveWorld", "Process"]
