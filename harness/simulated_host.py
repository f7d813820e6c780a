"""The host of one store in a simulation: the real commit loop and lifecycle, with a thread that works on request.

It is to the simulation what broker/store_host.py is to a broker. Nothing happens by itself:

    submit, change_fragments    what gateways and the catalogue ask for; commands are applied where they can be
    turn                        one turn of the event loop: a job is given to the thread, effects are performed
                                (or the event loop does it: see `inlines`)
    work(fault)                 the thread does the first piece of its work, well or not
    hang                        the piece under way takes longer than the patience; `work` still ends it later
    fire                        the timer, whether it is due or not
    stop, crash                 the end of the process: clean, or a crash

Time is the caller's `clock`, for both clocks that the lifecycle has. A `MemoryPlace` (memory_place.py)
outlives hosts, as a file does.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Protocol, cast

from busbar.broker.commit_loop import CommitLoop
from busbar.broker.fragment_loading import DurableState, build_machine, load, save_locks
from busbar.broker.fragment_machine import FragmentMachine
from busbar.broker.hand_over import locks_to_keep
from busbar.broker.host_api import StoreState
from busbar.broker.job import Job
from busbar.broker.refusals import STORE_UNAVAILABLE, StoreHung
from busbar.broker.slot import Slot
from busbar.broker.store_lifecycle import StoreLifecycle
from busbar.broker.store_operations import (
    Admit,
    CheckLocks,
    LookAtFile,
    Recreate,
    Reopen,
    StoreAccess,
    StoreOperation,
)
from busbar.fragment.bounds import Bounds
from busbar.fragment.machine import Fragment
from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.errors import ServerBusy
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import Fenced, Store, StoreError
from busbar.store.location import StoreMissing
from harness.memory_place import MemoryPlace, PlacedStore
from harness.memory_store import Fault
from harness.observed_machine import MachineObserver, ObservedMachine

PATIENCE = 5.0
MEMBER = "member"
"""The entry of its catalogue by which a store is known."""


class JobFault(Enum):
    """What a job, or an operation, comes to."""

    FULL = auto()  # certainly not made: no space
    LOST = auto()  # not made, outcome unknown
    UNHEARD = auto()  # made, outcome unknown
    TORN = auto()  # made, but a read after it fails


class NotAdmitted(StoreError):
    """The catalogue does not accept the store."""


@dataclass(slots=True, eq=False)
class Work:
    """A job, or an operation of the lifecycle, that the thread was given."""

    task: Job | StoreOperation
    given_up: bool = False

    @property
    def waits_however_long(self) -> bool:
        return isinstance(self.task, Reopen | Recreate | CheckLocks | Admit)

    def __str__(self) -> str:
        if not isinstance(self.task, Job):
            return type(self.task).__name__
        commits = ",".join(str(changes.fragment) for changes in self.task.batches)
        reads = ",".join(str(fragment) for fragment, _ in self.task.reads)
        return f"job of commits [{commits}] and reads [{reads}]"


class HostObserver(Protocol):
    """What happens in the host, in order."""

    def machine_observer(self, fragment: int) -> MachineObserver: ...

    def loaded(self, fragment: int, durable: DurableState) -> None:
        """Another machine is in service from now on."""

    def job_started(self, fragments: list[int]) -> None:
        """Their changes were given to the thread."""

    def job_made(self, fragments: list[int]) -> None:
        """The store has made their changes. The host may not get the result."""

    def job_done(self, fragments: list[int]) -> None:
        """The host is about to get the result."""

    def performed(self, effects: list[Effect]) -> None: ...


class SimulatedHost:
    def __init__(
        self,
        place: MemoryPlace,
        fragments: Mapping[int, FragmentSettings],
        clock: Callable[[], int],
        nonces: Callable[[], int],
        rules: RuleCompiler,
        bounds: Callable[[int], Bounds],
        observer: HostObserver,
    ) -> None:
        self.place = place
        self.fragments = dict(fragments)
        self.commit_loop = CommitLoop(nonces, rules)
        self.lifecycle = StoreLifecycle("memory", self.commit_loop, has_place=True, on_change=lambda: None)
        self.access = StoreAccess(place.open, place.location())
        self.thread: deque[Work] = deque()
        self.inlines: Callable[[], bool] = lambda: False
        """Whether the event loop commits the next group itself. It does so only if the thread has no work."""
        self._clock = clock
        self._bounds = bounds
        self._observer = observer
        self._stopped = False
        self._failure: BaseException | None = None

    # ---- what is there ----

    @property
    def is_serving(self) -> bool:
        """The store is open, and commands are applied."""
        return self.lifecycle.state is StoreState.OPEN and self.commit_loop._running

    @property
    def refuses_sends(self) -> bool:
        """The store was full a moment ago."""
        return self.commit_loop._sends_refused is not None

    @property
    def hangs(self) -> bool:
        return bool(self.thread) and self.thread[0].given_up

    @property
    def job_under_way(self) -> Job | None:
        return next((work.task for work in self.thread if isinstance(work.task, Job)), None)

    def slot(self, fragment: int) -> Slot | None:
        return self.commit_loop.slots.get(fragment)

    def machine(self, fragment: int) -> Fragment:
        """The machine itself."""
        return cast(ObservedMachine, self.commit_loop.slots[fragment].machine).machine

    def is_quiet(self, fragment: int) -> bool:
        """Nothing is to be done for the fragment at once."""
        slot = self.slot(fragment)
        return (
            slot is not None
            and self.is_serving
            and not slot.broken
            and not slot.inbox
            and slot.reads is None
            and not slot.machine.has_work(self._clock())
        )

    @property
    def is_idle(self) -> bool:
        return self.commit_loop.idle and not self.thread and not self.lifecycle.has_turn

    # ---- opening ----

    def open(self, *, is_new: bool = False) -> None:
        """At the start of a process. A store that cannot be opened is opened when that is possible."""
        now = self._clock()
        try:
            opened = self.access.open()
            if not is_new:
                self.access.use(_check_member)
        except StoreError as error:
            self.access.close()
            self.lifecycle.mark_unavailable(str(error))
            self.lifecycle.start_reopening(now)
        else:
            self.lifecycle.opened(opened, now, now)
            self._load_missing()
        self._proceed()

    def _admit(self, recreated: bool) -> None:
        """Do what the catalogue does: recognize the store by what was written into it, and load its fragments."""
        if not recreated:
            self.access.use(_check_member)
        self._load_missing()

    def _load_missing(self) -> None:
        missing = {key: of for key, of in self.fragments.items() if key not in self.commit_loop.slots}
        predecessor = self.lifecycle.predecessor
        loaded = self.access.use(lambda store: load(store, missing, predecessor))
        added = []
        for fragment, durable in loaded.items():
            machine = build_machine(fragment, missing[fragment], durable, self._bounds(fragment))
            observed = ObservedMachine(machine, self._observer.machine_observer(fragment), self._failed)
            added.append(Slot(fragment, cast(FragmentMachine, observed)))
            self.commit_loop.add(added[-1])
            self._observer.loaded(fragment, durable)
        for slot in added:
            if slot.machine.settings.topic is not None:
                self.commit_loop.link_topic(slot, self._clock())
        self.access.use(lambda store: store.write_definitions({MEMBER: b""}))

    def break_machine(self, fragment: int) -> None:
        """Have the machine of a fragment raise at the next command."""
        cast(ObservedMachine, self.commit_loop.slots[fragment].machine).fails_next = True

    # ---- what others ask for ----

    def submit(self, commands: Iterable[Command]) -> None:
        self.lifecycle.submit(commands, self._clock())
        self._proceed()

    def change_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        self.fragments.update(fragments)
        now = self._clock()
        for fragment, settings in fragments.items():
            slot = self.slot(fragment)
            if slot is not None:
                slot.machine.settings = settings
                if settings.topic is not None:
                    self.commit_loop.link_topic(slot, now)
        for fragment in fragments:
            slot = self.commit_loop.slots.get(fragment)
            if slot is not None:
                self.commit_loop.tick(slot, now)
        self._proceed()

    def remove_fragment(self, fragment: int) -> None:
        """Take a fragment out of service and delete its messages. The store is open, nothing is under way, and no fault
        happens to this."""
        del self.fragments[fragment]
        self.commit_loop.remove(fragment)
        self.lifecycle.drop_fragment(fragment)
        self._proceed()
        cast(PlacedStore, self.access.store).forget_faults()
        while not self.access.use(lambda store: store.drop(fragment, 1_000)):
            pass

    def take_offline(self) -> None:
        self.lifecycle.take_offline(self._clock())
        self._proceed()

    def bring_online(self) -> None:
        self.lifecycle.bring_online(self._clock(), self._clock())
        self._proceed()

    def reset(self) -> None:
        self.lifecycle.reset(self._clock())
        self._proceed()

    def fire(self) -> None:
        """The timer: the wake-ups of fragments, the next attempt to open, the next look at the file."""
        now = self._clock()
        self.lifecycle.timer(now, now)
        self._proceed()

    @property
    def wake_at(self) -> int:
        """When `fire` is due (0: never)."""
        times = [at for at in (self.commit_loop.wake_at, self.lifecycle.wake_at) if at]
        return min(times, default=0)

    # ---- turns ----

    @property
    def has_turn(self) -> bool:
        return self.lifecycle.has_turn

    def turn(self, fault: JobFault | None = None) -> None:
        """Give the thread its next job, or do it, and perform what may be performed. The fault is that of a job that is done
        here."""
        has_more = True
        while has_more:
            now = self._clock()
            step = self.lifecycle.step(now, now)
            effects = step.effects
            has_more = step.has_more
            if step.job is not None:
                self._observer.job_started(_fragments(step.job))
                if not self.thread and not has_more and not step.job.reads and self.inlines():
                    _, error = self._outcome(step.job, fault)
                    self._job_ended(step.job, error)
                    effects = effects + self.commit_loop.take_effects()
                else:
                    self.thread.append(Work(step.job))
        self._proceed()
        if effects:
            self._observer.performed(effects)

    def _proceed(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        for operation in self.lifecycle.take_operations():
            work = Work(operation)
            waits = work.waits_however_long and not isinstance(operation, Reopen | Recreate)
            if self.hangs and not waits:
                now = self._clock()
                self.lifecycle.operation_failed(operation, StoreHung(PATIENCE, began=False), now, now)
                self._proceed()
            else:
                self.thread.append(work)
        if self.lifecycle.state is StoreState.CLOSED and not self._stopped:
            assert self.lifecycle.is_fenced, "the recovery failed"

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    # ---- the thread ----

    def work(self, fault: JobFault | None = None) -> None:
        """Do the first piece of work. A fault that cannot happen to it does not."""
        work = self.thread.popleft()
        result, error = self._outcome(work.task, fault)
        if work.given_up:
            if not self.hangs:
                self.lifecycle.disk_answers(self._clock())
        else:
            self._returned(work, result, error)
        self._proceed()

    def _outcome(
        self, task: Job | StoreOperation, fault: JobFault | None
    ) -> tuple[object, StoreError | None]:
        fault = self._inject(task, fault)
        try:
            return self._perform(task), None
        except StoreError as raised:
            self._check_expected(raised, fault)
            return None, raised
        finally:
            self.place.breaks_after = -1

    def _perform(self, task: Job | StoreOperation) -> object:
        if isinstance(task, Admit):
            self._admit(task.recreated)
            return None
        if not isinstance(task, Job):
            return self.access.perform(task)
        disk = self.place.disk
        before = 0 if disk is None else disk.commits
        try:
            self.access.commit(task)
        finally:
            if disk is not None and disk.commits > before:
                self._observer.job_made(_fragments(task))
        return None

    def _returned(self, work: Work, result: object, error: StoreError | None) -> None:
        now = self._clock()
        task = work.task
        if isinstance(task, Job):
            self._job_ended(task, error)
            self.turn()
        elif error is None:
            self.lifecycle.operation_done(task, result, now, now)
        else:
            self.lifecycle.operation_failed(task, error, now, now)

    def _job_ended(self, job: Job, error: StoreError | None) -> None:
        if error is None:
            self._observer.job_done(_fragments(job))
            self.lifecycle.job_done(self._clock())
        else:
            self.lifecycle.job_failed(error, self._clock())

    @property
    def can_hang(self) -> bool:
        """There is work, and it is not waited for however long it takes."""
        return bool(self.thread) and not self.hangs and not self.thread[0].waits_however_long

    def hang(self) -> None:
        """The first piece of work does not return in time: it is given up. What waits behind it is taken back."""
        work, *rest = self.thread
        work.given_up = True
        self.thread = deque([work, *[other for other in rest if other.waits_however_long]])
        for other in rest:
            if not other.waits_however_long:
                self._returned(other, None, StoreHung(PATIENCE, began=False))
        self._returned(work, None, StoreHung(PATIENCE, began=True))
        self._proceed()

    def _inject(self, task: Job | StoreOperation, fault: JobFault | None) -> JobFault | None:
        store = cast(PlacedStore | None, self.access.store)
        if isinstance(task, Job):
            if fault is JobFault.TORN and not task.reads:
                fault = JobFault.UNHEARD
            if store is None or fault is None or (fault is JobFault.FULL and not task.batches):
                return None
            if not task.batches:
                store.break_after(0)
            elif fault is JobFault.TORN:
                store.break_after(len(task.reads))  # the commit and all reads but the last succeed
            else:
                store.fail_next_commit(Fault[fault.name])
            return fault
        if fault is None or fault is JobFault.FULL or isinstance(task, LookAtFile):
            return None
        calls = 0 if fault is JobFault.LOST else 1
        if isinstance(task, Reopen | Recreate):
            self.place.breaks_after = calls
        elif store is not None:
            store.break_after(calls)
        return fault

    def _check_expected(self, error: StoreError, fault: JobFault | None) -> None:
        """What the store raises without a fault is one of the simulation or of the broker."""
        store = self.access.store
        is_broken = isinstance(store, PlacedStore) and store.is_broken_by_fault
        if not (
            fault
            or is_broken
            or isinstance(error, Fenced | StoreMissing | NotAdmitted)
            or error is self.place.refusal
        ):
            raise AssertionError(f"the store failed: {error}") from error

    # ---- the end of the process ----

    def stop(self) -> set[int]:
        """A clean end: keep locks and release the store. The fragments whose locks were kept."""
        is_clean = self.lifecycle.state is StoreState.OPEN and not self.thread
        self._stopped = True
        self.lifecycle.stop(ServerBusy(STORE_UNAVAILABLE))
        self.turn()
        kept: set[int] = set()
        if is_clean:
            with contextlib.suppress(StoreError):
                for fragment, held in locks_to_keep(self.lifecycle.commit_loop).items():
                    self.access.use(partial(save_locks, fragment=fragment, held=held))
                    kept.add(fragment)
                self.access.use(lambda store: store.release())
        self.access.close()
        return kept

    def crash(self, landed: bool) -> None:
        """The process ends. A commit that the thread was given reaches the disk, or not."""
        self._stopped = True
        job = self.job_under_way
        if landed and job is not None:
            with contextlib.suppress(StoreError):
                self._perform(Job(job.batches, []))
        self.access.close()


def _check_member(store: Store) -> None:
    if MEMBER not in store.definitions():
        raise NotAdmitted("it is not the store that should be there")


def _fragments(job: Job) -> list[int]:
    return [int(changes.fragment) for changes in job.batches]
