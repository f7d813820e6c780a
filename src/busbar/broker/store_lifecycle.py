"""The life of one messaging store: served, rolled back, unavailable, opened again, re-created. No thread, no clock, no I/O.

In: commands, the outcomes of jobs and operations, the time, and what operators ask for. Out: `take_operations` returns what
is to be done with the store next, `wake_at` is when `timer` is due. The lifecycle drives the commit loop. The host
(store_host.py) and the simulation run both together. Times here are ms of a clock that never goes back; the commit loop
has the wall clock.

Rules of failure:
1. A group that was refused for certain (the store is full, or a machine of a topic failed) is undone, with all that was
   applied after it. Locks and credit come back, and clients that wait for an answer get an error after which they retry.
   For FULL_PAUSE after a store was full, new messages are refused at once and those that are due wait. So settlements can
   drain it.
2. After an unknown outcome the store is closed and never written again: it is unavailable. The same holds when it cannot be
   opened at the start, and when an operator takes it offline. In that case what was given to the store is finished. It is
   opened again with growing pauses, or when the operator asks for it.
3. While a store is unavailable, commands that have an answer are refused at once, and certainly changed nothing. What
   consumers asked for is kept (offline_buffer.py). When the store is open again, the undo is done against what it really
   has. Locks of messages that are not there any more are dropped. If another owner had it meanwhile, all fragments are
   loaded again.
4. A store whose file is gone is not created again silently. If that happened while it was served, it is re-created empty
   after MISSING_FILE_GRACE, and what was lost is reported by count. Otherwise it is re-created only when an operator resets
   it. Numbers go on from where they were. If these are not known, they go on from the time in ms, which no fragment has
   reached by counting. Taps report that what was before is lost.
5. A store that another owner has claimed is not ours: its fragments stop and refuse everything.
6. What consumers asked for survives every failure: the machines get credit and drains back, and are ticked to serve them.
7. A store whose disk does not answer is unavailable too (rule 2), after a patience. The outcome of work that was given to
   its thread is unknown; other work certainly did not take place. The store is opened again when the call that hung has
   returned, and not before. Only then is its outcome known, and only one thread touches a store.

One operation that changes the store's handle is under way at a time: that of the phase. `TRANSITIONS` has what follows when
it is done, and what follows if it fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from busbar.broker.commit_loop import GROUP_FAILED, CommitLoop
from busbar.broker.file_watch import FileWatch
from busbar.broker.fragment_loading import DurableState, LastKnownNumbers, predecessor_of
from busbar.broker.host_api import IN_SERVICE, StoreState
from busbar.broker.job import GroupFailed, RolledBack, Step
from busbar.broker.offline_buffer import OfflineBuffer
from busbar.broker.refusals import (
    OFFLINE,
    STORE_FENCED,
    STORE_FULL,
    STORE_UNAVAILABLE,
    busy,
    never_began,
    refusals,
)
from busbar.broker.reopening import ReopenSchedule
from busbar.broker.slot import Slot
from busbar.broker.store_operations import (
    Admit,
    CheckLocks,
    LookAtFile,
    Phase,
    Recreate,
    Release,
    Reload,
    Reopen,
    StoreOpened,
    StoreOperation,
)
from busbar.fragment.changes import Head
from busbar.model.commands import Command, Tick
from busbar.model.errors import BusbarError, ServerBusy
from busbar.model.message import message_count
from busbar.store.contract import Fenced, StoreError, StoreFull
from busbar.store.location import StoreLoss, StoreMissing, StoreTakenOffline

FULL_PAUSE = 1_000

_log = logging.getLogger(__name__)


class StoreLifecycle:
    """The state of one store, and of the commit loop on it."""

    def __init__(
        self, name: str, commit_loop: CommitLoop, *, has_place: bool, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when the state, the reason or the loss is another one. A store that `has_place` is watched,
        and can be re-created there."""
        self.name = name
        self.state = StoreState.CLOSED
        self.reason = ""
        """Why it is unavailable."""
        self.loss: StoreLoss | None = None
        self.is_fenced = False
        self.predecessor: Callable[[int], LastKnownNumbers] | None = None
        """Until a re-created store is admitted: where the numbers of its fragments go on."""
        self.commit_loop = commit_loop
        self._has_place = has_place
        self._on_change = on_change
        self._buffer = OfflineBuffer()
        self._phase = Phase.STEADY
        self._operations: list[StoreOperation] = []
        self._under_way: StoreOperation | None = None
        self._reopening = ReopenSchedule()
        self._discarded: list[RolledBack] = []
        self._discarded_answered = True
        self._undone: list[Slot] = []
        self._rollback_cause: BaseException | None = None
        self._durable: dict[int, DurableState] = {}
        self._heads: dict[int, Head] = {}
        self._truncated: set[int] = set()
        self._opened = StoreOpened(0, 0, {})
        self._has_served = False
        self._full_until = 0
        self._watch = FileWatch()

    # ---- what the shell sees ----

    @property
    def is_open(self) -> bool:
        return self.state in IN_SERVICE

    @property
    def is_offline(self) -> bool:
        """Whether an operator has taken the store offline."""
        return self._reopening.offline

    @property
    def epoch(self) -> int:
        """The epoch with which the store was last claimed."""
        return self._opened.epoch

    @property
    def unavailable_text(self) -> str:
        """The error text for clients. Where the store lies and what exactly is wrong with it is for operators."""
        return f"{STORE_UNAVAILABLE} ({self.name} is unavailable.)"

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    def take_operations(self) -> list[StoreOperation]:
        """What is to be done with the store now. Each is answered by `operation_done` or `operation_failed`."""
        operations, self._operations = self._operations, []
        return operations

    @property
    def wake_at(self) -> int:
        """When `timer` is due, in ms (0: never)."""
        if self._phase is Phase.WAITING:
            return self._reopening.next_attempt
        look_at = self._watch.next_look
        if self._full_until and look_at:
            return min(self._full_until, look_at)
        return self._full_until or look_at

    # ---- commands and jobs ----

    def submit(self, commands: Iterable[Command], now: int) -> None:
        """Pass commands on. Every command with an answer gets it: its effect, or Refused. `now` is the wall clock's."""
        if self.is_open:
            self.commit_loop.submit(commands, now)
            return
        unavailable = self.state is StoreState.UNAVAILABLE
        text = self.unavailable_text if unavailable else STORE_FENCED
        for command in commands:
            if command.request > 0:
                self.commit_loop.emit([busy(command.origin, command.request, text)])
            elif unavailable:
                self._keep(command)

    def _keep(self, command: Command) -> None:
        if not isinstance(command, Tick):
            drained = self._buffer.add(command)
            if drained is not None:
                self.commit_loop.emit([drained])

    def drop_fragment(self, fragment: int) -> None:
        """Drop what consumers asked of a fragment that is deleted."""
        self._buffer.drop(fragment)

    def job_done(self, now: int) -> None:
        self.commit_loop.job_done()
        if self.is_offline and self.is_open:
            self.fail(StoreTakenOffline(), now)
        elif self.commit_loop.group_failed:
            self.fail(GroupFailed(), now)

    def job_failed(self, error: BaseException, now: int) -> None:
        self.commit_loop.job_failed()
        self.fail(error, now)

    def step(self, now: int, wall: int) -> Step:
        """The next job and the effects to perform."""
        if self.commit_loop.group_failed:
            self.fail(GroupFailed(), now)
        return self.commit_loop.step(wall)

    @property
    def has_turn(self) -> bool:
        return self.commit_loop.has_turn or self.commit_loop.group_failed

    def timer(self, now: int, wall: int) -> None:
        """Do what is due by now."""
        if self._full_until and self._full_until <= now:
            self._full_until = 0
            self.commit_loop.accept_sends(wall)
        look = self._watch.take_due(now, is_busy=self.commit_loop.job_under_way)
        if look is not None:
            self._operations.append(look)
        if self._phase is Phase.WAITING and self._reopening.is_due(now):
            self._attempt(now)
        self.commit_loop.timer(wall)

    # ---- opening and closing ----

    def opened(self, opened: StoreOpened, now: int, wall: int) -> None:
        """Serve a store that was opened at the start, or created."""
        self._opened = opened
        self._enter(StoreState.OPEN, now=now)
        self.commit_loop.resume(wall)

    def mark_unavailable(self, reason: str) -> None:
        """Do not serve the store: it could not be opened, or is another one. It is not tried before `start_reopening`."""
        self._has_served = False
        self.commit_loop.pause()
        self._enter(StoreState.UNAVAILABLE, reason)

    def start_reopening(self, now: int) -> None:
        """Open the store when that is possible."""
        if self.state is StoreState.UNAVAILABLE and self._phase is Phase.STEADY:
            self._begin_reopening(now)

    def stop(self, error: BusbarError) -> None:
        """Stop serving. What is under way with the store is ignored when it ends."""
        self._refuse_discarded(error.text, certain=True)  # the store did not commit what was rolled back
        self._phase = Phase.STEADY
        self._under_way = None
        self._operations = []
        self._full_until = 0
        self._enter(StoreState.CLOSED)
        self.commit_loop.stop()
        self.commit_loop.refuse_queued(error)

    # ---- another owner ----

    def begin_hand_over(self) -> bool:
        """Apply no more commands, since another broker will have the store. False if that cannot begin now."""
        if self.state is not StoreState.OPEN or self.is_offline or self._full_until:
            return False
        self.commit_loop.hold_back()
        self._enter(StoreState.MOVING)
        return True

    def stay(self, now: int, wall: int) -> None:
        """Go on with the store: it does not go to another broker."""
        if self.state is StoreState.MOVING:
            self._enter(StoreState.OPEN, now=now)
            self.commit_loop.resume(wall)

    def give_up(self) -> list[Command] | None:
        """Leave an unavailable store to another broker, which may reach it. Returns the commands by which clients go on
        there: the sessions that they hold, and what they asked for. None if an operator has taken it offline."""
        if self.state is not StoreState.UNAVAILABLE or self.is_offline:
            return None
        commands = self._replace_machines() + self._buffer.replay()
        self._enter(StoreState.MOVING)
        return commands

    def _enter(self, state: StoreState, reason: str = "", *, now: int = 0) -> None:
        self.state, self.reason = state, reason
        self._watch.stop()
        if state is StoreState.OPEN:
            self._has_served = True
            if self._has_place:
                self._operations.append(self._watch.start(now))
        self._on_change()

    # ---- what operators ask for ----

    def take_offline(self, now: int) -> None:
        """Ignore the store until `bring_online`: what was given to it is finished, and the file closed."""
        self._reopening.take_offline()
        if self.state is StoreState.UNAVAILABLE:
            self.reason = OFFLINE
            self._on_change()
        elif self.state is StoreState.OPEN:
            self.commit_loop.pause()
            if not self.commit_loop.job_under_way:
                self.fail(StoreTakenOffline(), now)

    def bring_online(self, now: int, wall: int) -> None:
        """Open the store now. If it was not closed yet, since a job was under way, go on."""
        self._reopening.bring_online()
        if self.state is StoreState.OPEN and self._phase is Phase.STEADY:
            self.commit_loop.resume(wall)
        self._attempt_if_waiting(now)

    def reset(self, now: int) -> None:
        """Create an empty store in place of one that is unavailable; what is there is renamed. A store that is open again by
        then stays as it is, also if it fails later."""
        if self.state is StoreState.UNAVAILABLE:
            self._reopening.reset()
            self._attempt_if_waiting(now)

    def disk_answers(self, now: int) -> None:
        """Try the store again: a call that hung has returned."""
        self._attempt_if_waiting(now)

    def _attempt_if_waiting(self, now: int) -> None:
        if self._phase is Phase.WAITING:
            self._reopening.hurry()
            self._attempt(now)

    # ---- failures ----

    def fail(self, error: BaseException, now: int) -> None:
        """Handle a failed job or another failed use: apply nothing more until all that is not durable is undone."""
        if not self.is_open or self._phase is not Phase.STEADY:
            return
        self.commit_loop.pause()
        self._discarded = self.commit_loop.roll_back()
        self._discarded_answered = False
        if isinstance(error, StoreFull | GroupFailed):
            self._rollback_cause = error
            self._enter(StoreState.ROLLING_BACK)
            self._start(Phase.ROLLING_BACK, Reload([item.slot.id for item in self._discarded]))
        elif isinstance(error, StoreTakenOffline):
            _log.warning("store %s was taken offline", self.name)
            self._become_unavailable(OFFLINE, certain=True)  # the store was given nothing of it
            self._start(Phase.RELEASING, Release())
        else:
            self._lose(error, now)

    def _lose(self, error: BaseException, now: int) -> None:
        """Stop using the store: it failed, or another owner has it."""
        _log.error("store %s: %s: %s", self.name, type(error).__name__, error)
        if isinstance(error, Fenced):
            self._stop_fenced()
        else:
            self._become_unavailable(str(error), certain=never_began(error))
            self._begin_reopening(now)

    def _rolled_back(self, durable: dict[int, DurableState], now: int, wall: int) -> None:
        """Refuse the commands of a group that the store certainly did not commit, and undo it."""
        full = isinstance(self._rollback_cause, StoreFull)
        if full:
            self._full_until = now + FULL_PAUSE
            self.commit_loop.refuse_sends(ServerBusy(STORE_FULL))
        self._refuse_discarded(STORE_FULL if full else GROUP_FAILED, certain=True)
        for slot in self._undo(durable):
            slot.tick()
        self._phase = Phase.STEADY
        self._enter(StoreState.OPEN, now=now)
        if self.is_offline:
            self.fail(StoreTakenOffline(), now)
        else:
            self.commit_loop.resume(wall)

    def _rollback_failed(self, error: Exception, now: int, wall: int) -> None:
        if not isinstance(error, StoreError):
            raise error
        self._phase = Phase.STEADY
        self._lose(error, now)

    def _become_unavailable(self, reason: str, *, certain: bool) -> None:
        """Refuse all commands that wait for an answer, at once (rule 3), and keep the rest. `certain`: nothing of what was
        given to the store took place."""
        loop = self.commit_loop
        self._enter(StoreState.UNAVAILABLE, OFFLINE if self.is_offline else reason)
        self._refuse_discarded(self.unavailable_text, certain=certain)
        for slot in loop.slots.values():
            if not slot.broken:
                self._buffer.seed(slot.id, slot.machine.demands(), slot.machine.awaits())
        for command in loop.take_queued(ServerBusy(self.unavailable_text)):
            self._keep(command)

    def _stop_fenced(self) -> None:
        """Another owner has claimed the store. Refuse all pending commands and stop."""
        self.is_fenced = True
        self.stop(ServerBusy(STORE_FENCED))

    def _refuse_discarded(self, text: str, *, certain: bool) -> None:
        """Refuse the commands of the group that failed, once."""
        if not self._discarded_answered:
            self._discarded_answered = True
            for item in self._discarded:
                self.commit_loop.emit(refusals(item, text, certain=certain))

    def _undo(self, durable: dict[int, DurableState]) -> list[Slot]:
        """Bring the machines back to what is durable. Returns the slots to tick, so that consumers that got credit back are
        served."""
        undone = []
        discarded, self._discarded = self._discarded, []
        for item in discarded:
            slot = item.slot
            if slot.broken:
                continue
            known = durable[slot.id]
            try:
                slot.machine.undo(
                    item.batches,
                    item.effects,
                    known.head,
                    known.next_due,
                    known.taps,
                    known.writers,
                    known.outbox,
                    known.holds,
                )
            except Exception:
                self.commit_loop.quarantine(slot)
            else:
                undone.append(slot)
        return undone

    # ---- opening again ----

    def _begin_reopening(self, now: int) -> None:
        self._reopening.begin(replaces=self._has_served and self._has_place)
        self._attempt(now)

    def _attempt(self, now: int) -> None:
        """Open the store as it is, or create an empty one. The operator's commands and the schedule decide which."""
        if self._reopening.recreates(now):
            self._recreate()
        elif self._reopening.offline:
            self._phase = Phase.WAITING
        else:
            self._start(Phase.REOPENING, Reopen([item.slot.id for item in self._discarded]))

    def _recreate(self) -> None:
        """Create an empty store. Numbers of fragments that were known before a failed attempt are still known."""
        machines = [slot.machine for slot in self.commit_loop.slots.values() if not slot.broken]
        self._heads = {machine.id: machine.head() for machine in machines} or self._heads
        self._truncated |= {machine.id for machine in machines if machine.has_truncated_tap()}
        self._start(Phase.RECREATING, Recreate())

    def _released(self, result: object, now: int, wall: int) -> None:
        self._begin_reopening(now)

    def _reopened(self, opened: StoreOpened, now: int, wall: int) -> None:
        if self.is_offline:  # an operator took it offline while it was being opened
            self._start(Phase.RELEASING, Release())
            return
        before = self._opened
        if self.commit_loop.slots and opened.epoch - before.epoch != opened.claims - before.claims:
            _log.warning("store %s was changed by another owner; all is loaded again", self.name)
            self._replace_machines()
        self._opened, self._durable = opened, opened.durable
        if self.predecessor is not None:  # it was re-created, and could not be admitted
            self._start(Phase.ADMITTING_EMPTY, Admit(recreated=True))
        else:
            self._start(Phase.ADMITTING, Admit(recreated=False))

    def _admitted(self, result: object, now: int, wall: int) -> None:
        self._undone = self._undo(self._durable)
        slots = self.commit_loop.slots.values()
        held = {slot.id: slot.machine.locks() for slot in slots if not slot.broken}
        self._start(Phase.CHECKING_LOCKS, CheckLocks(held))

    def _locks_checked(self, lost: dict[int, list[int]], now: int, wall: int) -> None:
        """Drop the locks of messages that a commit of unknown outcome has removed."""
        for fragment, numbers in lost.items():
            slot = self.commit_loop.slots.get(fragment)
            if slot is not None:
                slot.machine.forget_locks(numbers)
        self._serve_again(now, wall)

    def _recreated(self, opened: StoreOpened, now: int, wall: int) -> None:
        heads, truncated, started = self._heads, self._truncated, wall
        self.predecessor = lambda fragment: predecessor_of(
            heads.get(fragment), started, fragment in truncated
        )
        self._opened = opened
        self._replace_machines()
        self._start(Phase.ADMITTING_EMPTY, Admit(recreated=True))

    def _empty_admitted(self, result: object, now: int, wall: int) -> None:
        heads = self._heads.values()
        known = bool(heads) or self._has_served
        messages = sum(message_count(head.counts) for head in heads) if known else -1
        self.loss = StoreLoss(wall, messages, sum(head.size for head in heads))
        if known:
            _log.error(
                "store %s was re-created empty: %d messages (%d bytes) were lost with the old one",
                self.name,
                messages,
                self.loss.size,
            )
        else:
            _log.error("store %s was re-created empty; what the old one held is not known", self.name)
        self._serve_again(now, wall)

    def _serve_again(self, now: int, wall: int) -> None:
        _log.warning("store %s is back", self.name)
        self.predecessor = None
        self._durable, self._heads, self._truncated = {}, {}, set()
        self._reopening.succeeded()
        self._phase = Phase.STEADY
        self._enter(StoreState.OPEN, now=now)
        # Ticks serve consumers. So they come behind what was kept: one that was drained meanwhile, or left, gets nothing.
        for slot in self.commit_loop.slots.values():
            slot.drop_tick()
        self.commit_loop.submit(self._buffer.replay(), wall)
        undone, self._undone = self._undone, []
        for slot in undone:
            slot.tick()
        if self.is_offline:
            self.fail(StoreTakenOffline(), now)
        else:
            self.commit_loop.resume(wall)

    def _replace_machines(self) -> list[Command]:
        """Remove all machines, since others will be loaded. What consumers wait for is asked of these again, together with
        what was not durable. Returns the sessions that consumers hold, as commands that resume them at another owner."""
        loop = self.commit_loop
        held: list[Command] = []
        self._undo(
            {
                item.slot.id: DurableState(item.slot.machine.head(), 0, [], [], [], {})
                for item in self._discarded
            }
        )
        for slot in loop.slots.values():
            if not slot.broken:
                machine = slot.machine
                held += [one for one in machine.resumptions() if not self._buffer.has_left(one)]
                loop.emit([busy(one.origin, one.request, self.unavailable_text) for one in machine.awaits()])
                loop.emit(self._buffer.reset(slot.id, machine.demands()))
        loop.clear()
        return held

    def _attempt_failed(self, error: Exception, now: int, wall: int) -> None:
        """Try again later, unless the store is another owner's."""
        if isinstance(error, Fenced):
            self._stop_fenced()
            return
        if self._reopening.falls_back():
            self._recreate()
            return
        reason = str(error) or type(error).__name__
        if reason != self.reason and not self.is_offline:
            _log.error("store %s is still unavailable: %s: %s", self.name, type(error).__name__, reason)
            self.reason = reason
            self._on_change()
        if not isinstance(error, StoreError | BusbarError | OSError):
            _log.debug("store %s: this was not expected", self.name, exc_info=error)
        self._reopening.failed(now, missing=isinstance(error, StoreMissing))
        self._phase = Phase.WAITING

    def _release_failed(self, error: Exception, now: int, wall: int) -> None:
        """Begin to open the store again, as after a clean release. It was closed like a broken store."""
        self._begin_reopening(now)

    # ---- operations ----

    def _start(self, phase: Phase, operation: StoreOperation) -> None:
        self._phase = phase
        self._under_way = operation
        self._operations.append(operation)

    def operation_done(self, operation: StoreOperation, result: Any, now: int, wall: int) -> None:
        """Continue after an operation. `now` is of the clock that never goes back, `wall` of the wall clock."""
        if isinstance(operation, LookAtFile):
            if self._watch.has_changed(operation, result, now) and not self.commit_loop.job_under_way:
                self.fail(StoreMissing("its file was removed or replaced while in use"), now)
        elif operation is self._under_way:
            self._follow(TRANSITIONS[self._phase][0], result, now, wall)

    def operation_failed(self, operation: StoreOperation, error: Exception, now: int, wall: int) -> None:
        if isinstance(operation, LookAtFile):
            if self._watch.is_current(operation):
                self.fail(error, now)
        elif operation is self._under_way:
            self._follow(TRANSITIONS[self._phase][1], error, now, wall)

    def _follow(self, transition: Transition, outcome: Any, now: int, wall: int) -> None:
        self._under_way = None
        try:
            transition(self, outcome, now, wall)
        except Exception:
            _log.exception("store %s: the recovery failed; its fragments are out of service", self.name)
            self.stop(ServerBusy(STORE_UNAVAILABLE))


Transition = Callable[[StoreLifecycle, Any, int, int], None]

TRANSITIONS: dict[Phase, tuple[Transition, Transition]] = {
    # phase: what follows when its operation is done, and when it failed
    Phase.ROLLING_BACK: (StoreLifecycle._rolled_back, StoreLifecycle._rollback_failed),
    Phase.RELEASING: (StoreLifecycle._released, StoreLifecycle._release_failed),
    Phase.REOPENING: (StoreLifecycle._reopened, StoreLifecycle._attempt_failed),
    Phase.ADMITTING: (StoreLifecycle._admitted, StoreLifecycle._attempt_failed),
    Phase.CHECKING_LOCKS: (StoreLifecycle._locks_checked, StoreLifecycle._attempt_failed),
    Phase.RECREATING: (StoreLifecycle._recreated, StoreLifecycle._attempt_failed),
    Phase.ADMITTING_EMPTY: (StoreLifecycle._empty_admitted, StoreLifecycle._attempt_failed),
}
