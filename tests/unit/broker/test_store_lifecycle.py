"""The life of a store without a thread or a clock: every phase with every input, and what follows when all is well again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from uuid import uuid4

import pytest

from busbar.broker.commit_loop import CommitLoop
from busbar.broker.file_watch import SOON, WATCH_INTERVAL
from busbar.broker.host_api import StoreState
from busbar.broker.job import GroupFailed, Job
from busbar.broker.refusals import StoreHung
from busbar.broker.reopening import MAX_BACKOFF, MISSING_FILE_GRACE
from busbar.broker.slot import Slot
from busbar.broker.store_lifecycle import FULL_PAUSE, TRANSITIONS, StoreLifecycle
from busbar.broker.store_operations import (
    Admit,
    LookAtFile,
    Looked,
    Phase,
    Recreate,
    StoreAccess,
    StoreOperation,
)
from busbar.fragment.changes import empty_head
from busbar.fragment.machine import Fragment
from busbar.model.effects import Delivered, Effect, Refused, Sent
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import Fenced, OutcomeUnknown, StoreFull
from busbar.store.location import StoreLocation, StoreMissing
from harness.memory_store import Disk, Fault, MemoryStore
from tests.unit.broker.hosting import PLAIN, demand, send


class Shell:
    """Runs what the lifecycle asks for, one thing at a time, when the test says so."""

    def __init__(self, has_place: bool = True) -> None:
        self.disk = Disk()
        self.now = 1_000
        self.file = 1
        self.said: list[Effect] = []
        self.job: Job | None = None
        self.operations: list[StoreOperation] = []
        self.opened: list[MemoryStore] = []
        nonces = count(1)
        self.loop = CommitLoop(lambda: next(nonces), RuleCompiler(uuid4))
        self.life = StoreLifecycle("s", self.loop, has_place=has_place, on_change=lambda: None)
        place = StoreLocation("memory", self.recreate, lambda: 0, lambda: self.file)
        self.access = StoreAccess(self.open, place if has_place else None)
        self.life.opened(self.access.open(), self.now, self.now)
        self.add()
        self.proceed()

    def open(self) -> MemoryStore:
        self.opened.append(MemoryStore(self.disk))
        return self.opened[-1]

    def recreate(self) -> MemoryStore:
        self.disk = Disk()
        return self.open()

    def add(self) -> None:
        heads = {int(head.fragment): head for head in self.access.use(lambda store: store.heads())}
        for fragment in (1, 2):
            if fragment not in self.loop.slots:
                head = heads.get(fragment) or empty_head(fragment)
                self.loop.add(Slot(fragment, Fragment(fragment, PLAIN, head, 0, [])))

    def proceed(self) -> None:
        """What the lifecycle asks for is noted, and effects are performed."""
        self.operations += self.life.take_operations()
        while self.life.has_turn:
            step = self.life.step(self.now, self.now)
            if step.job is not None:
                assert self.job is None, "one job at a time"
                self.job = step.job
            self.said += step.effects
            self.operations += self.life.take_operations()
        handles = [operation for operation in self.operations if not isinstance(operation, LookAtFile)]
        assert len(handles) <= 1, "one operation with the handle at a time"

    def finish_job(self, fault: Fault | None = None) -> None:
        assert self.job is not None
        job, self.job = self.job, None
        if fault is not None:
            self.opened[-1].fail_next_commit(fault)
        try:
            self.access.commit(job)
        except Exception as error:
            self.life.job_failed(error, self.now)
        else:
            self.life.job_done(self.now)
        self.proceed()

    def finish(self, operation: StoreOperation, error: Exception | None = None) -> None:
        self.operations.remove(operation)
        if error is not None:
            self.life.operation_failed(operation, error, self.now, self.now)
        else:
            result: object = None
            if isinstance(operation, Admit):
                self.add()
            else:
                result = self.access.perform(operation)
            self.life.operation_done(operation, result, self.now, self.now)
        self.proceed()

    def handle_operation(self) -> StoreOperation:
        return next(operation for operation in self.operations if not isinstance(operation, LookAtFile))

    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.life.timer(self.now, self.now)
        self.proceed()

    def submit(self, *commands: object) -> None:
        self.life.submit(commands, self.now)  # type: ignore[arg-type]
        self.proceed()

    def heal(self) -> None:
        """Nothing fails any more: the store is open in the end, unless it was taken by another owner."""
        self.life.bring_online(self.now, self.now)
        self.proceed()
        for _ in range(50):
            if self.job is not None:
                self.finish_job()
            elif self.operations:
                self.finish(self.operations[0])
            elif self.life.state is StoreState.OPEN or self.life.is_fenced:
                break
            else:
                self.pass_time(MAX_BACKOFF)
        self.pass_time(FULL_PAUSE)

    def answers(self, request: int) -> list[Effect]:
        return [effect for effect in self.said if effect.request == request]


def steady(shell: Shell) -> None:
    """As it is."""


def rolling_back(shell: Shell) -> None:
    shell.finish_job(Fault.FULL)


def releasing(shell: Shell) -> None:
    shell.finish_job()
    shell.life.take_offline(shell.now)
    shell.proceed()


def reopening(shell: Shell) -> None:
    shell.finish_job(Fault.UNHEARD)


def waiting(shell: Shell) -> None:
    reopening(shell)
    shell.finish(shell.handle_operation(), OutcomeUnknown("still broken"))


def admitting(shell: Shell) -> None:
    reopening(shell)
    shell.finish(shell.handle_operation())


def checking_locks(shell: Shell) -> None:
    admitting(shell)
    shell.finish(shell.handle_operation())


def recreating(shell: Shell) -> None:
    reopening(shell)
    shell.finish(shell.handle_operation(), StoreMissing("gone"))
    shell.pass_time(MISSING_FILE_GRACE)
    shell.finish(shell.handle_operation(), StoreMissing("gone"))
    shell.pass_time(MAX_BACKOFF)
    assert isinstance(shell.handle_operation(), Recreate)


def admitting_empty(shell: Shell) -> None:
    recreating(shell)
    shell.finish(shell.handle_operation())


WAYS: dict[Phase, Callable[[Shell], None]] = {
    Phase.STEADY: steady,
    Phase.ROLLING_BACK: rolling_back,
    Phase.RELEASING: releasing,
    Phase.WAITING: waiting,
    Phase.REOPENING: reopening,
    Phase.ADMITTING: admitting,
    Phase.CHECKING_LOCKS: checking_locks,
    Phase.RECREATING: recreating,
    Phase.ADMITTING_EMPTY: admitting_empty,
}


def _fail_group(shell: Shell) -> None:
    """A group fails when no job is under way: what is being committed is whole."""
    while shell.job is not None:
        shell.finish_job()
    shell.life.fail(GroupFailed(), shell.now)


def _finish(shell: Shell, error: Exception | None) -> None:
    if shell.life._phase in TRANSITIONS:
        shell.finish(shell.handle_operation(), error)


INPUTS: dict[str, Callable[[Shell], None]] = {
    "nothing": lambda shell: None,
    "done": lambda shell: _finish(shell, None),
    "failed": lambda shell: _finish(shell, OutcomeUnknown("broken")),
    "hung": lambda shell: _finish(shell, StoreHung(1, began=True)),
    "missing": lambda shell: _finish(shell, StoreMissing("gone")),
    "full": lambda shell: _finish(shell, StoreFull("full")),
    "an accident": lambda shell: _finish(shell, ZeroDivisionError()),
    "fenced": lambda shell: _finish(shell, Fenced("another owner")),
    "offline": lambda shell: shell.life.take_offline(shell.now),
    "online": lambda shell: shell.life.bring_online(shell.now, shell.now),
    "reset": lambda shell: shell.life.reset(shell.now),
    "offline and reset": lambda shell: (shell.life.take_offline(shell.now), shell.life.reset(shell.now)),  # type: ignore[dict-item, func-returns-value]
    "disk answers": lambda shell: shell.life.disk_answers(shell.now),
    "another failure": lambda shell: shell.life.fail(OutcomeUnknown("broken"), shell.now),
    "a failed group": _fail_group,
    "time": lambda shell: shell.pass_time(MAX_BACKOFF),
    "reopened at the start": lambda shell: shell.life.start_reopening(shell.now),
}


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("phase", Phase)
def test_from_every_phase_and_after_every_input_the_store_serves_again(phase: Phase, given: str) -> None:
    """Every request is answered once. A consumer's credit survives. What was acknowledged is there, unless the store was
    re-created."""
    shell = Shell()
    shell.submit(demand(1, 100), send(1, 1), send(2, 2))
    WAYS[phase](shell)
    assert shell.life._phase is phase
    shell.submit(send(2, 3))
    INPUTS[given](shell)
    shell.proceed()
    shell.submit(send(2, 4))
    was_fenced = shell.life.is_fenced
    out_of_service = shell.life.state is StoreState.CLOSED
    shell.heal()
    for request in (1, 2, 3, 4):
        assert len(shell.answers(request)) == 1, (request, shell.answers(request))
    if out_of_service:
        assert was_fenced or given == "an accident"
        shell.submit(send(1, 5))
        assert isinstance(shell.answers(5)[0], Refused)
    else:
        assert shell.life.state is StoreState.OPEN
        check_that_it_serves(shell)


def check_that_it_serves(shell: Shell) -> None:
    shell.submit(send(1, 5), send(2, 6))
    shell.heal()
    last = shell.answers(5)[0]
    assert isinstance(last, Sent)
    assert isinstance(shell.answers(6)[0], Sent)
    delivered = [effect for effect in shell.said if isinstance(effect, Delivered)]
    numbers = [record.n for effect in delivered for record in effect.records]
    assert last.numbers[0] in numbers, "its consumer has credit"
    if shell.life.loss is None:
        there = shell.disk.fragments[2].lanes[0].records
        told = [shell.answers(request)[0] for request in (2, 3, 4, 6)]
        assert {effect.numbers[0] for effect in told if isinstance(effect, Sent)} <= {*there}
        certainly_not = [effect for effect in told if isinstance(effect, Refused) and effect.certain]
        assert len(there) <= len(told) - len(certainly_not)


def test_every_phase_with_an_operation_has_its_transitions() -> None:
    assert TRANSITIONS.keys() == {*Phase} - {Phase.STEADY, Phase.WAITING}


def test_a_look_that_was_asked_for_before_the_file_was_closed_says_nothing() -> None:
    shell = Shell()
    first = shell.operations[0]
    assert isinstance(first, LookAtFile)
    shell.finish(first)
    shell.pass_time(WATCH_INTERVAL)
    late = next(operation for operation in shell.operations if isinstance(operation, LookAtFile))
    shell.submit(send(1, 1))
    reopening(shell)
    while shell.life.state is not StoreState.OPEN:
        shell.finish(shell.handle_operation())
    shell.operations.remove(late)
    shell.life.operation_done(late, Looked("another file", has_more=False), shell.now, shell.now)
    assert shell.life.state is StoreState.OPEN


def test_a_store_with_work_of_its_own_is_looked_at_again_soon_unless_it_is_busy() -> None:
    shell = Shell()
    shell.finish(shell.operations[0])
    shell.pass_time(WATCH_INTERVAL)
    look = shell.operations.pop(0)
    shell.life.operation_done(look, Looked(shell.file, has_more=True), shell.now, shell.now)
    shell.pass_time(SOON)
    assert [type(operation) for operation in shell.operations] == [LookAtFile]
    shell.finish(shell.operations[0])
    shell.pass_time(SOON)
    assert shell.operations == []


def test_an_idle_store_whose_file_is_replaced_is_unavailable() -> None:
    shell = Shell()
    shell.finish(shell.operations[0])
    shell.file = 2
    shell.pass_time(WATCH_INTERVAL)
    shell.finish(shell.operations[0])
    assert shell.life.state is StoreState.UNAVAILABLE
    assert "removed or replaced" in shell.life.reason


def test_a_store_without_a_place_is_not_watched() -> None:
    shell = Shell(has_place=False)
    assert shell.operations == [] and shell.life.wake_at == 0
