"""Applies commands in bounded turns, commits their changes in groups, and emits their effects. No thread, no clock, no I/O.

In: `submit` (commands), `job_done` and `job_failed` (what became of a job), `timer` (time has passed), each with the time.
Out: `step` returns the next job for the store and the effects to perform; `wake_at` is when `timer` is due. The caller
steps whenever `has_turn`. The lifecycle of the store (store_lifecycle.py), which the host of the store (store_host.py) runs,
is the caller. The simulation is another one.

Rules:
1. Commands of a fragment are applied in their order, at once where nothing has to be read first. If the machine needs a
   read, that fragment alone waits. The read is done right after the commit of what the fragment changed before.
2. Group commit is self-clocked: a job starts with the next step. If another job is under way, it starts with the step after
   that one has returned. What is applied meanwhile gathers in the next group (group.py), from all fragments. While a group
   is full, further commands stay in their inboxes, unapplied.
3. Effects are emitted in apply order, and only when all earlier changes of their fragment are durable. The effects of a
   fragment with nothing to commit are emitted by the next step.
4. A step applies at most TURN_COMMANDS commands. The work of a topic's rules counts, too: STEPS_OF_A_COMMAND are one.
5. A machine that raises takes its own fragment out of service, and its topic's if it is a subscription's. If a topic or a
   subscription of it has gathered changes then, the whole group fails. Nothing of it is committed, and all of it is undone.
6. The rules of a topic are evaluated right before the machine applies a command (topic_selection.py). What the topic's
   fragment passes on is applied to the fragments of its subscriptions at once. So it is in the same group: all of it is
   durable or nothing. None of the subscriptions may wait for a read then (rule 1). So a topic waits for the reads that its
   subscriptions have under way, and while it waits they begin no others. If a send makes too many copies for a turn, they
   are passed on in several turns, each a group of its own. Other sends wait until that is done, and so keep their order.
7. A transaction whose parts are of a topic and of its subscriptions comes to the topic's fragment. It waits as in rule 6.
   All machines check their parts before the first one applies any. So the transaction is in one group as a whole, or is
   refused. If a subscription needs a read for its parts after all, the transaction is refused as busy.
8. Before the store goes to another owner, what was applied is committed. Other commands stay in their inboxes, unapplied.
9. Of an express entity, effects are emitted before the changes are durable, where these need not be (group.py). The changes
   are committed when they are due (express.py), and before a read of the fragment.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import final

from busbar.broker.group import CommitGroup, drafts_of
from busbar.broker.job import Job, RolledBack, Step
from busbar.broker.slot import Slot
from busbar.broker.timers import FragmentTimers
from busbar.broker.topic_selection import select
from busbar.broker.topic_usage import set_usage
from busbar.broker.transactions import check, divide, is_divided
from busbar.fragment.history import HistorySwitch
from busbar.model.commands import Command, StoreCopies, Tick, Transact
from busbar.model.effects import Effect, Refused
from busbar.model.errors import BusbarError, EntityNotFound, InternalError, error_of
from busbar.rules.selection import RuleCompiler

TURN_COMMANDS = 1_000
EXPRESS_PAUSE = 1_000
STEPS_OF_A_COMMAND = 10_000

_log = logging.getLogger(__name__)
GROUP_FAILED = (
    "A fragment failed in whose group the operation was to be committed; nothing was changed. Retry."
)
_BROKEN = InternalError("The fragment has failed and is out of service until the broker is restarted.")


@final
class CommitLoop:
    """The commands, changes and effects of one store's fragments."""

    def __init__(
        self, nonces: Callable[[], int], rules: RuleCompiler, history: HistorySwitch | None = None
    ) -> None:
        """`nonces` gives a number for the locks of each command. `history` decides which entities record theirs."""
        self.slots: dict[int, Slot] = {}
        self._sends_refused: BusbarError | None = None
        self._nonces = nonces
        self._rules = rules
        self._history = history if history is not None else HistorySwitch()
        self._timers = FragmentTimers()
        self._running = False
        self._holding_back = False
        self._winding_down = False
        self._ready: deque[Slot] = deque()  # have commands and wait for no read
        self._group = CommitGroup()
        self._reading: list[Slot] = []  # wait for a read that no job has taken yet
        self._await_room: list[Slot] = []  # would have to write before they read, and the store is full
        self._flight: list[Slot] = []  # have changes in the job under way
        self._job_reads: list[Slot] = []  # wait for a read of the job under way
        self._supplied: list[Slot] = []  # their read is done; the next step applies what waited for it
        self._job_under_way = False
        self._group_failed = False
        self._out: list[Effect] = []

    # ---- fragments ----

    def add(self, slot: Slot) -> None:
        self.slots[slot.id] = slot
        slot.machine.history = self._history
        self._timers.want(slot, slot.machine.wake_at())

    def link_topic(self, topic: Slot, now: int) -> None:
        """Give a topic, which is new or has other settings, the fragments of its subscriptions and their rules (rule 6)."""
        before, topic.subscriptions = topic.subscriptions, []
        for one in before:
            one.topic = None
        settings = topic.machine.settings.topic
        if settings is not None:
            topic.selector = self._rules.selector(settings, topic.selector)
            topic.subscriptions = [self.slots[fragment] for fragment in settings.fragments]
        for one in topic.subscriptions:
            one.topic = topic
        if topic.reads_awaited and self._subscriptions_ready(topic):
            self._resume_topic(topic, now)
        for one in before:
            if one.yields_to_topic and one.topic is None:
                one.yields_to_topic = False
                self._queue(one)

    def remove(self, fragment: int) -> Slot | None:
        """Take a fragment out of service. A commit of it that is under way still ends as usual."""
        slot = self.slots.pop(fragment, None)
        if slot is not None:
            self._close_slot(slot, EntityNotFound(f"fragment {fragment}"))
        return slot

    def tick(self, slot: Slot, now: int) -> None:
        """Queue a tick, by which the fragment applies its settings and what is due."""
        slot.tick()
        self._queue(slot)
        self._apply_ready(now)

    def clear(self) -> None:
        """Take all fragments out of service: others will be added in their place."""
        for slot in self.slots.values():
            slot.broken = True  # for what still refers to it: timers, the list of the ready
            self._group.remove(slot)
        self.slots = {}

    def quarantine(self, slot: Slot) -> None:
        """Take a fragment that failed out of service. What the machine gathered may not be whole, so it is not committed."""
        if slot.broken:
            return
        _log.exception("fragment %d failed and is out of service until the broker is restarted", slot.id)
        topic = slot.topic or slot
        gathered = any(one.dirty for one in (topic, *topic.subscriptions))
        self._close_slot(slot, _BROKEN)
        if topic is not slot:
            self._close_slot(topic, _BROKEN)
        if gathered and topic.subscriptions:
            self.pause()
            self._group_failed = True

    # ---- running ----

    def resume(self, now: int) -> None:
        """Apply commands from now on, and schedule every fragment again: a tick that waited for a read may be lost."""
        if self._group_failed:  # it is rolled back first
            return
        self._running = True
        self._holding_back, self._group.writes_at_once = False, self._winding_down
        for slot in self.slots.values():
            if not slot.broken:
                self._schedule(slot, now)
        self._apply_ready(now)

    def pause(self) -> None:
        """Apply nothing from now on; commands gather in the inboxes."""
        self._running = False

    def refuse_sends(self, refusal: BusbarError) -> None:
        """Refuse new messages. Scheduled messages that are due wait."""
        self._sends_refused = refusal
        self._hold_due(True)

    def accept_sends(self, now: int) -> None:
        self._sends_refused = None
        self._hold_due(False)
        waiting, self._await_room = self._await_room, []
        for slot in waiting:
            self._start_reading(slot)
        if self._running:
            self.resume(now)

    def _hold_due(self, held: bool) -> None:
        for slot in self.slots.values():
            if not slot.broken:
                slot.machine.hold_due(held)

    def stop_timers(self) -> None:
        """Begin nothing that no client asked for: what is due waits for the next owner. Commands are still applied."""
        self._winding_down = True
        self._group.write_all(self.slots.values())

    def stop(self) -> None:
        self.pause()
        self._timers.clear()
        self._group.express.clear()

    def hold_back(self) -> None:
        """Apply nothing from now on, and commit what was applied (rule 8)."""
        self._holding_back = True
        self._drop_reads()
        self._group.write_all(self.slots.values())

    def apply_first(self, slot: Slot, command: Command, now: int) -> None:
        """Apply a command that needs no read before those that are held back."""
        self._apply_checked(slot, command, now)
        self._out += self._group.hold(slot, slot.machine.take_effects())

    @property
    def is_settled(self) -> bool:
        """Whether all that was applied is durable, and all effects were performed."""
        return not (self._job_under_way or self._out or self._group.slots or self._flight)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return self.is_settled and not (self._ready or self._reading or self._supplied)

    @property
    def job_under_way(self) -> bool:
        return self._job_under_way

    @property
    def group_failed(self) -> bool:
        """Whether what is gathered must be rolled back (rule 5). What is being committed ends first."""
        return self._group_failed and not self._job_under_way

    @property
    def has_turn(self) -> bool:
        """Whether a step has something to do."""
        if self._out:
            return True
        return self._running and bool(
            self._supplied
            or (self._ready and not self._group.is_full and not self._holding_back)
            or (not self._job_under_way and (self._group.slots or self._reading))
        )

    # ---- when a group failed ----

    def roll_back(self) -> list[RolledBack]:
        """Drop all that is not durable, and waiting reads: after an undo another page may be needed."""
        self._drop_reads()
        discarded = []
        for slot in dict.fromkeys((*self._flight, *self._group.clear())):
            gathered = None if slot.broken else slot.machine.take_changes()
            batches = [changes for changes in (gathered, slot.committing) if changes is not None]
            effects = slot.committing_effects + slot.gathered_effects
            discarded.append(RolledBack(slot, batches, effects, len(slot.committing_effects)))
            slot.commit_finished()
            slot.gathered_effects = []
        self._flight = []
        self._group_failed = False
        return discarded

    def _drop_reads(self) -> None:
        for slot in (*self._supplied, *self._job_reads, *self._reading, *self._await_room):
            slot.reads = None
        self._supplied, self._job_reads, self._reading, self._await_room = [], [], [], []
        for slot in self.slots.values():
            if slot.reads_awaited:
                slot.reads_awaited, slot.reads = 0, None
            slot.yields_to_topic = False

    def emit(self, effects: Iterable[Effect]) -> None:
        """Have the next step perform effects that rest on nothing."""
        self._out += effects

    def refuse_queued(self, error: BusbarError) -> None:
        """Refuse every command that has an answer; keep the others, which come from consumers and timers."""
        for slot in self.slots.values():
            if slot.inbox:
                for command in slot.inbox:
                    self._refuse(command, error)
                slot.inbox = deque([command for command in slot.inbox if command.request == 0])

    def take_queued(self, error: BusbarError) -> list[Command]:
        """Refuse every command that has an answer, and take the others out of the inboxes."""
        self.refuse_queued(error)
        return self.take_unapplied()

    def take_unapplied(self) -> list[Command]:
        """Take all commands out of the inboxes. Those of a fragment are in their order."""
        taken: list[Command] = []
        for slot in self.slots.values():
            taken += slot.inbox
            slot.inbox.clear()
            slot.tick_queued = False
        return taken

    # ---- commands ----

    def submit(self, commands: Iterable[Command], now: int) -> None:
        """Apply what can be applied now; the rest waits its turn. Every command with an answer gets one."""
        slots = self.slots
        for command in commands:
            slot = slots.get(command.fragment)
            if slot is None:
                self._refuse(command, EntityNotFound(f"fragment {command.fragment}"))
                continue
            slot.inbox.append(command)
            if not slot.queued:
                self._queue(slot)
        self._apply_ready(now)

    def _queue(self, slot: Slot) -> None:
        if (
            slot.inbox
            and not slot.queued
            and slot.reads is None
            and not slot.reads_awaited
            and not slot.yields_to_topic
        ):
            slot.queued = True
            self._ready.append(slot)

    def _apply_ready(self, now: int) -> None:
        """Apply commands until none can be, the group is full, or the turn has lasted long enough."""
        ready = self._ready
        budget = 0 if self._holding_back else TURN_COMMANDS
        while ready and budget > 0 and self._running and not self._group.is_full:
            slot = ready.popleft()
            slot.queued = False
            budget = self._apply_inbox(slot, now, budget)

    def _apply_inbox(self, slot: Slot, now: int, budget: int) -> int:
        """Apply commands of one fragment. Returns what is left of the turn's budget."""
        inbox = slot.inbox
        machine = slot.machine
        group = self._group
        if slot.broken:
            self._close_slot(slot, _BROKEN)
            return budget
        try:
            while inbox and budget > 0 and not group.is_full:
                command = inbox[0]
                if self._sends_refused is not None and drafts_of(command):
                    self._refuse(inbox.popleft(), self._sends_refused)
                    continue
                if not group.fits(slot, command):
                    slot.queued = True  # it keeps its place: others would fill the next group, too
                    self._ready.appendleft(slot)
                    break
                if slot.subscriptions and drafts_of(command) and machine.owes_copies():
                    slot.tick_first()
                    continue
                reads = machine.needs(command, now)
                if reads:
                    if slot.topic is not None and slot.topic.reads_awaited:
                        slot.yields_to_topic = True
                        break
                    slot.reads = reads
                    self._start_reading(slot)
                    break
                if slot.subscriptions and not self._subscriptions_ready(slot):
                    break
                self._apply(slot, command, now)
                budget -= 1
                if slot.subscriptions:
                    budget -= slot.take_spent() // STEPS_OF_A_COMMAND
            self._schedule(slot, now)
        except Exception:
            self.quarantine(slot)
        return budget

    def _start_reading(self, slot: Slot) -> None:
        """Have the next job read for a fragment, after what it has in memory alone is written (rule 9)."""
        is_unwritten = slot.machine.unwritten_bytes() > 0
        waits = is_unwritten and self._sends_refused is not None
        (self._await_room if waits else self._reading).append(slot)
        if not waits and (is_unwritten or slot.machine.settings.express_ms):
            self._group.write(slot)

    def _apply(self, slot: Slot, command: Command, now: int) -> None:
        machine = slot.machine
        if type(command) is Tick:
            slot.tick_queued = False
        elif command.origin:  # what the broker itself asks is no use of the entity
            slot.last_used = now
        if type(command) is Transact and is_divided(command):
            self._apply_divided(slot, command, now)
            return
        if slot.subscriptions or slot.topic is not None:
            set_usage(slot, command)
        if slot.selector is not None:
            slot.spent += select(machine, slot.selector, command, now)
        machine.apply(command, now, self._nonces())
        if slot.subscriptions:
            self._apply_copies(slot, machine.take_copies(), now)
        slot.inbox.popleft()  # only now: a command on which the machine raised is refused with the rest of the inbox
        self._out += self._group.collect(slot, command)

    # ---- topics ----

    def _subscriptions_ready(self, topic: Slot) -> bool:
        """Whether no subscription waits for a read. If one does, the topic goes on when all have theirs."""
        topic.reads_awaited = sum([one.reads is not None for one in topic.subscriptions])
        return not topic.reads_awaited

    def _apply_copies(self, topic: Slot, copies: list[StoreCopies], now: int) -> None:
        """Apply what a topic passes on."""
        is_express = topic.machine.settings.express_ms > 0
        if is_express:
            self._apply_express_copies(topic, copies, now)
        for command in copies:
            slot = self.slots[command.fragment]
            if not is_express:
                _check_in_service(slot)
                self._apply_checked(slot, command, now)
            self._out += self._group.hold(slot, slot.machine.take_effects())
            self._schedule(slot, now)

    def _apply_express_copies(self, topic: Slot, copies: list[StoreCopies], now: int) -> None:
        """Apply what an express topic passes on. If the effects of one of the fragments wait for a commit, those of all do.
        So a send that is refused is undone in all of them."""
        applied: list[tuple[Slot, StoreCopies]] = []
        for command in copies:
            slot = self.slots[command.fragment]
            try:
                _check_in_service(slot)
                slot.machine.apply(command, now, self._nonces())
            except Exception:
                topic.machine.require_write()
                self._group.count_together(topic, applied)  # so that it is undone with the group (rule 5)
                self.quarantine(slot)
                raise
            applied.append((slot, command))
        self._group.count_together(topic, applied)

    def _apply_divided(self, topic: Slot, command: Transact, now: int) -> None:
        """Apply a transaction over a topic and its subscriptions to all their machines at once (rule 7)."""
        try:
            parts = divide(topic, command)
        except EntityNotFound as error:
            self._refuse(topic.inbox.popleft(), error)
            return
        for slot, part in parts.items():
            set_usage(slot, part)
        refusal = check(topic, parts, now)
        if refusal is not None:
            self._refuse(topic.inbox.popleft(), error_of(*refusal))
            return
        for slot, part in reversed(parts.items()):
            self._apply_checked(slot, part, now)
        self._apply_copies(topic, topic.machine.take_copies(), now)
        topic.inbox.popleft()
        # The answer rests on the changes of all of them, so it is held by one that has some.
        holder = next((slot for slot in parts if slot.holds), topic)
        self._out += self._group.hold(holder, topic.machine.take_effects())
        for slot, part in parts.items():
            self._out += self._group.collect(slot, part)
            self._schedule(slot, now)

    def _apply_checked(self, slot: Slot, command: Command, now: int) -> None:
        """Apply a command that the machine cannot refuse, as part of another one's."""
        try:
            slot.machine.apply(command, now, self._nonces())
        except Exception:
            self.quarantine(slot)
            raise
        self._group.count(slot, command)

    def _read_done(self, slot: Slot, now: int) -> None:
        """Let the topic of a subscription, which now waits for no read, go on if it has waited for that."""
        topic = slot.topic
        if topic is None or not topic.reads_awaited:
            return
        topic.reads_awaited -= 1
        if topic.reads_awaited == 0:
            self._resume_topic(topic, now)

    def _resume_topic(self, topic: Slot, now: int) -> None:
        """Apply the commands of a topic before anything else that waits: a subscription could begin to read again."""
        if topic.reads is not None:
            self._supply(topic, now)
        elif topic.inbox and not topic.queued:
            topic.queued = True
            self._ready.appendleft(topic)
        self._stop_yielding(topic)

    def _stop_yielding(self, topic: Slot) -> None:
        for one in topic.subscriptions:
            if one.yields_to_topic:
                one.yields_to_topic = False
                self._queue(one)

    # ---- what comes next ----

    def _schedule(self, slot: Slot, now: int) -> None:
        """Queue the fragment, with a tick if a turn was cut short, and set its timer."""
        machine = slot.machine
        if slot.reads is None and not self._winding_down and machine.has_work(now):
            slot.tick()
        self._queue(slot)
        self._timers.want(slot, machine.wake_at())

    @property
    def wake_at(self) -> int:
        """When `timer` is due, in ms (0: never)."""
        at, express_at = self._timers.next_at, self._group.express.next_at
        return min(at, express_at) if at and express_at else at or express_at

    def timer(self, now: int) -> None:
        """Tick the fragments whose time has come."""
        for slot in self._timers.take_due(now):
            if slot.broken or self._winding_down:
                continue
            at = slot.machine.wake_at()
            if at and at <= now:
                slot.tick()
                self._queue(slot)
            else:
                self._timers.want(slot, at)
        if self._running and self._sends_refused is None:
            self._group.write_due(now)
        else:
            self._group.express.postpone(now, EXPRESS_PAUSE)
        self._apply_ready(now)

    # ---- steps, and the group commit ----

    def step(self, now: int) -> Step:
        """Start a job if one can be, else apply what waits. Effects come last, since performing them may submit commands."""
        job = self._next_job()
        if job is not None and (self._supplied or self._ready):
            return Step(job, [], True)
        if self._running:
            supplied, self._supplied = self._supplied, []
            for slot in supplied:
                self._supply(slot, now)
            self._apply_ready(now)
        if job is None:
            job = self._next_job()
        return Step(job, self.take_effects(), False)

    def _next_job(self) -> Job | None:
        """Commit what was gathered, then read what fragments wait for."""
        if self._job_under_way or not self._running or not (self._group.slots or self._reading):
            return None
        self._flight, batches = self._group.take()
        reads = [(slot.id, slot.reads) for slot in self._reading if slot.reads is not None]
        self._job_reads, self._reading = self._reading, []
        self._job_under_way = True
        return Job(batches, reads)

    def job_done(self) -> None:
        """Note that the job under way was committed, and that its reads are filled in."""
        self._job_under_way = False
        for slot in self._flight:
            self._out += slot.committing_effects
            if slot.committing is not None and slot.committing.head is not None:
                slot.machine.is_written(slot.committing)
            slot.commit_finished()
        self._flight = []
        self._supplied, self._job_reads = self._job_reads, []

    def take_effects(self) -> list[Effect]:
        """What can be performed now. A caller that has done the job of a step at once performs this with its effects."""
        effects, self._out = self._out, []
        return effects

    def job_failed(self) -> None:
        """Note that the job under way has failed. What it was to commit stays until `roll_back`."""
        self._job_under_way = False

    def _supply(self, slot: Slot, now: int) -> None:
        """Apply the command whose read is done, without asking the machine again what it needs."""
        if slot.subscriptions and not slot.broken and not self._subscriptions_ready(slot):
            return
        reads, slot.reads = slot.reads, None
        if not slot.broken and reads is not None:
            try:
                slot.machine.supply(reads)
                self._apply(slot, slot.inbox[0], now)
                self._schedule(slot, now)
            except Exception:
                self.quarantine(slot)
        self._read_done(slot, now)

    # ---- refusals ----

    def _refuse(self, command: Command, error: BusbarError) -> None:
        if command.request > 0:
            self._out.append(Refused(command.origin, command.request, error.condition, error.text))

    def _close_slot(self, slot: Slot, error: BusbarError) -> None:
        slot.broken = True
        slot.reads_awaited = 0
        self._stop_yielding(slot)
        for effect in slot.gathered_effects:
            if effect.request > 0:
                self._out.append(Refused(effect.origin, effect.request, error.condition, error.text))
        slot.gathered_effects = []
        self._group.remove(slot)
        for command in slot.inbox:
            self._refuse(command, error)
        slot.inbox.clear()


def _check_in_service(slot: Slot) -> None:
    if slot.broken:
        raise InternalError(f"fragment {slot.id} of a subscription is out of service")
