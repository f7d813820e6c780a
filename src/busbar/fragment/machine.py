"""The fragment machine: all semantics of a queue's fragment, as a function of commands and time.

How the host drives it
1. `needs(command, now)`: what must be read first. If anything, the host commits all earlier changes, reads, and calls
   `supply`. No other command of the fragment is applied meanwhile, so a read sees everything that was applied.
2. `to_publish(command, now)`, of a topic: what rules are evaluated for. The host sets `command.selected`.
3. `apply(command, now, nonce)`: never raises for what a client can send; a command that cannot be done is
   answered by Refused.
4. `take_changes` (to be made durable) and `take_effects` (to be performed when they are, in order).
5. `has_work(now)`: a turn was cut short, or a consumer could be served after a read: submit a Tick.
   `wake_at()`: submit one then.
6. `undo` when commits have failed.

What a turn does: it ends locks whose time has come, applies the command, and then serves consumers. A command that acts on
records which were read comes before the ends of locks: until then the records are as they were read. A turn touches at most
Bounds.turn_messages messages beyond those that its command names, however many have expired or are due. A tick also deletes
what is kept for no tap any more (Bounds.swept).

The rules of each part stand at the top of its file: sending, settling, serving, browsing. Further parts are duplicates
(remembered ids), window (the order of messages and what is in memory), locks, and ledger (counters and changes). If the
entity requires sessions: sessions, session_waiting (what is in memory), session_accepting, session_serving, session_ending,
session_holds (durable locks). If it has taps: taps (what is kept) and tap_reading. Writers that repeat what they send:
writers. Topics and subscriptions: publishing. Before a topic applies what may be passed on, its host calls `set_topic_usage`
and `to_publish`. Afterwards it applies `take_copies` to the subscriptions. While it `owes_copies`, ticks come before sends.

Undo. The failed changes are discarded, with all effects that were to follow them. Locks that ended (Changes.unlocked) are
held again; of several for one message, the oldest. Locks taken by discarded deliveries are not held. Windows are read again,
and counters come from the store. A consumer gets back the credit of what was not delivered. A drain that was not answered
is pending again. What consumers asked for (Demand, Leave) stays: it was never durable. Of sessions: session_ending.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mypy_extensions import i64

from busbar.fragment import (
    browsing,
    forwarding,
    moving,
    publishing,
    reading,
    scheduling,
    sending,
    serving,
    session_accepting,
    session_ending,
    session_holds,
    session_serving,
    settling,
    taking,
    tap_reading,
    transacting,
    waking,
)
from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow
from busbar.fragment.figures import FragmentWork, own_figures
from busbar.fragment.history import HistorySwitch, StepLog
from busbar.fragment.ledger import Ledger
from busbar.fragment.publishing import AT_ONCE
from busbar.fragment.reads import Read
from busbar.fragment.sending import is_written_at_once
from busbar.fragment.sessions import MessageSessions
from busbar.fragment.state import State
from busbar.fragment.taps import TapSet
from busbar.fragment.transacting import PartsCheck
from busbar.model.commands import (
    AcceptSession,
    AdvanceTap,
    AvoidTargets,
    AwaitSession,
    CancelAwait,
    CancelScheduled,
    Command,
    CommitWrites,
    Demand,
    FindTime,
    ForgetMarks,
    GetSessionState,
    Inspect,
    InspectDuplicates,
    InspectSession,
    Leave,
    ListSessions,
    Peek,
    Probe,
    PullOutbox,
    Purge,
    ReadTap,
    ReceiveDeferred,
    RemoveMoved,
    Renew,
    RenewSession,
    ReserveNumbers,
    ResumeTap,
    Send,
    SetSessionState,
    Settle,
    ShowTaps,
    StoreCopies,
    TakeMoved,
    Tick,
    Transact,
)
from busbar.model.effects import MOVER_ORIGIN, DeferredReceived, Delivered, Drained, Effect
from busbar.model.errors import NotImplementedHere
from busbar.model.hold_commands import KeepHolds, ReleaseHolds, ResumeSession
from busbar.model.message import Draft, Publication, Record
from busbar.model.settings import FragmentSettings


@final
class Fragment:
    def __init__(
        self,
        id: i64,
        settings: FragmentSettings,
        head: Head,
        next_due: i64,
        locks: list[Lock],
        bounds: Bounds | None = None,
        segments: list[int] | None = None,
        taps: list[TapRow] | None = None,
        writers: dict[str, tuple[int, int]] | None = None,
        outbox: dict[int, OutboxRow] | None = None,
        draft_of: Callable[[bytes], Draft] | None = None,
        sizes_of: Callable[[bytes], tuple[int, int]] | None = None,
        holds: list[SessionHold] | None = None,
        figures: FragmentWork | None = None,
    ) -> None:
        """Create a fragment from its rows in the store. `locks` were kept over a clean shutdown, and `segments` hold ids.
        `writers` has their committed batches and when those were, `outbox` its targets. `holds` are session locks whose
        holders may resume them. `draft_of` reads the keys of a message from its content: without it nothing can be forwarded
        to a partitioned entity. `sizes_of` measures a content: the whole message, and all of it that is not the body.
        Without it headers are not limited. `figures` go on from an earlier machine of the fragment."""
        self.id = id
        self.settings = settings
        self.bounds = bounds if bounds is not None else Bounds()
        self.history = HistorySwitch()  # the host sets that of its process
        self._state = State(
            settings,
            head,
            next_due,
            locks,
            self.bounds,
            segments if segments is not None else [],
            [row.copy() for row in taps] if taps is not None else [],
            writers if writers is not None else {},
            outbox if outbox is not None else {},
            draft_of,
            sizes_of,
            figures or own_figures(),
        )
        if holds is not None and self._state.sessions is not None:
            session_holds.load(self._state.sessions, holds)

    # ---- a command's way through ----

    def needs(self, command: Command, now: i64) -> list[Read]:
        """What must be read from the store before the command is applied; nothing: apply it at once."""
        state = self._state
        state.settings = self.settings
        state.now = now
        return reading.reads_of(state, command, now)

    def supply(self, reads: list[Read]) -> None:
        """Take the reads that `needs` asked for, filled. `apply` of the same command follows."""
        reading.take_reads(self._state, reads)

    def to_publish(self, command: Command, now: i64) -> list[Publication]:
        """Of a topic, right before `apply` of a Send, Tick, TakeMoved or Transact: the messages to evaluate rules for, in
        order."""
        state = self._state
        state.settings = self.settings
        state.now = now
        if self.settings.topic is not None:
            if isinstance(command, Send):
                return sending.to_publish(state, command, now)
            if isinstance(command, Tick):
                return scheduling.due_to_publish(state)
            if isinstance(command, TakeMoved):
                return taking.to_publish(state, command, now)
            if isinstance(command, Transact):
                return transacting.to_publish(state, command.parts, now)
        return []

    def apply(self, command: Command, now: i64, nonce: i64) -> None:
        """Apply a command. `nonce` (48 random bits, new each time) marks the locks that are taken."""
        state = self._state
        state.settings = self.settings
        state.now = now
        state.ledger.is_express = self.settings.express_ms > 0
        if state.ledger.is_express and (self.settings.forward is not None or is_written_at_once(command)):
            state.ledger.require_write()
        if state.taps is not None or self.settings.taps:
            self._begin_with_taps(command, now)
        if self.history.is_on or state.history is not None:
            self._begin_history(command)
        budget = state.bounds.turn_messages
        # The end of a lock changes what was read for these commands, so they come first. The lock still hides its message.
        first = isinstance(command, (ReceiveDeferred, Purge, Peek, ListSessions))
        if first:
            self._apply_first(command, now, nonce)
        budget -= settling.expire_locks(state, now, budget)
        if state.sessions is not None:
            budget -= session_ending.expire_sessions(state, state.sessions, now, budget)
        if not first:
            self._apply_in_turn(command, now)
        if state.supplied:
            state.supplied = []
        if self.settings.forward is not None or self.settings.forward_dead_letters is not None:
            budget = forwarding.forward_available(state, now, budget)
        if state.outbox.unannounced:
            moving.announce(state)
        if state.sessions is not None:
            session_accepting.offer(state, state.sessions, now)
            budget = session_serving.serve(state, state.sessions, now, nonce, budget)
        serving.serve(state, now, nonce, budget)
        if state.taps is not None:
            self._end_with_taps(state.taps, now)
        if state.history is not None:
            state.history.end(self.id, self.settings.path, now, state.effects)

    def _apply_in_turn(self, command: Command, now: i64) -> None:
        state = self._state
        if state.history is not None:
            # The mover of another process has an origin like a client's.
            state.history.by = MOVER_ORIGIN if isinstance(command, TakeMoved) else command.origin
        if isinstance(command, Send):
            sending.send(state, command, now)
        elif isinstance(command, Demand):
            serving.demand(state, command)
        elif isinstance(command, Settle):
            settling.settle(state, command, now)
        elif isinstance(command, StoreCopies):
            publishing.store_copies(state, command, now)
        elif isinstance(command, Tick):
            scheduling.activate(state, command, now)
            scheduling.forget_ids(state, now)
            state.writers.tick(state.ledger, now)
            if self.settings.forward is not None and state.sessions is not None:
                forwarding.forward_sessions(state, command, now)
        elif isinstance(command, TakeMoved):
            taking.take_moved(state, command, now)
        elif isinstance(command, Transact):
            transacting.transact(state, command, now)
        else:
            self._apply_rare(command, now)
        if state.history is not None:
            state.history.by = 0

    def _begin_history(self, command: Command) -> None:
        """Note steps in this turn if the switch covers the entity."""
        state = self._state
        if not self.history.is_on or not self.history.covers(self.settings.path):
            state.history = None
            return
        log = StepLog()
        log.by = command.origin if isinstance(command, (ReceiveDeferred, Purge)) else 0
        log.first_effect = len(state.effects)
        state.history = log

    def _begin_with_taps(self, command: Command, now: i64) -> None:
        state = self._state
        taps = state.taps
        if taps is None:
            taps = TapSet(state.bounds, [], self.settings)
            state.taps = taps
        taps.reconcile(self.settings, state.ledger, now)
        taps.end_leases(now)
        if isinstance(command, Tick):
            tap_reading.tick(state)

    def _end_with_taps(self, taps: TapSet, now: i64) -> None:
        state = self._state
        taps.enforce(state.ledger, now)
        if not self.settings.taps and taps.idle(state.ledger.head):
            state.taps = None

    def _apply_first(self, command: Command, now: i64, nonce: i64) -> None:
        state = self._state
        if isinstance(command, ReceiveDeferred):
            serving.receive_deferred(state, command, now, nonce)
        elif isinstance(command, Purge):
            serving.purge(state, command)
        elif isinstance(command, Peek):
            browsing.peek(state, command)
        elif isinstance(command, ListSessions) and state.sessions is not None:
            session_accepting.list_sessions(state, command)
        else:
            self._refuse_unknown(command)
        if state.history is not None:
            state.history.by = 0

    def _apply_rare(self, command: Command, now: i64) -> None:
        state = self._state
        if isinstance(command, Renew):
            settling.renew(state, command, now)
        elif isinstance(command, Leave):
            serving.leave(state, command)
            if state.sessions is not None and command.consumer == 0:
                session_accepting.forget_awaits(state.sessions, command.origin)
        elif isinstance(command, CancelScheduled):
            scheduling.cancel(state, command)
        elif isinstance(command, Inspect):
            browsing.inspect(state, command)
        elif isinstance(command, InspectDuplicates):
            browsing.inspect_duplicates(state, command)
        elif isinstance(command, ReadTap):
            tap_reading.read_tap(state, command, now)
        elif isinstance(command, ShowTaps):
            tap_reading.show(state, command)
        elif isinstance(command, AdvanceTap):
            tap_reading.advance(state, command, now)
        elif isinstance(command, ResumeTap):
            tap_reading.resume(state, command)
        elif isinstance(command, FindTime):
            tap_reading.find_time(state, command)
        elif isinstance(command, CommitWrites):
            sending.commit_writes(state, command, now)
        elif isinstance(command, Probe):
            transacting.probe(state, command, now)
        elif isinstance(command, ReserveNumbers):
            transacting.reserve(state, command)
        elif isinstance(command, PullOutbox):
            moving.pull(state, command)
        elif isinstance(command, RemoveMoved):
            moving.remove(state, command, now)
        elif isinstance(command, AvoidTargets):
            state.outbox.avoid(command.targets)
        elif isinstance(command, ForgetMarks):
            taking.forget_marks(state, command, now)
        elif state.sessions is not None:
            self._apply_to_sessions(state.sessions, command, now)
        else:
            self._refuse_unknown(command)

    def _refuse_unknown(self, command: Command) -> None:
        if command.request > 0:
            text = "The entity has no sessions, or a fragment does not know this command."
            self._state.refuse(command, NotImplementedHere.condition, text)

    def _apply_to_sessions(self, sessions: MessageSessions, command: Command, now: i64) -> None:
        state = self._state
        if isinstance(command, AcceptSession):
            session_accepting.accept(state, sessions, command, now)
        elif isinstance(command, AwaitSession):
            session_accepting.await_session(sessions, command)
        elif isinstance(command, CancelAwait):
            session_accepting.cancel_await(sessions, command)
        elif isinstance(command, RenewSession):
            session_accepting.renew(state, sessions, command, now)
        elif isinstance(command, (GetSessionState, SetSessionState, InspectSession)):
            session_accepting.apply_to_state(state, sessions, command, now)
        elif isinstance(command, (ResumeSession, ReleaseHolds, KeepHolds)):
            session_holds.apply(state, sessions, command)
        else:
            self._refuse_unknown(command)

    # ---- what came of it ----

    def take_changes(self) -> Changes | None:
        """All changes since the last call, with the counters after them; None if there are none."""
        return self._state.ledger.take()

    def take_effects(self) -> list[Effect]:
        """All effects since the last call, in the order of the commands."""
        effects = self._state.effects
        self._state.effects = []  # also when empty: the caller may add to the list it got
        return effects

    def take_copies(self) -> list[StoreCopies]:
        """Of a topic: what its subscriptions get, to be applied to their fragments at once, in the same group."""
        return publishing.take_copies(self._state)

    def owes_copies(self) -> bool:
        """Of a topic: a send was too large to be passed on in one turn. Until nothing is owed, apply ticks before sends."""
        state = self._state
        return state.due == AT_ONCE and self.settings.topic is not None

    def hold_due(self, held: bool) -> None:
        """Set whether due or owed messages wait: while the store is full, their commit fails with all that is in it."""
        self._state.holds_due = held

    def change_count(self) -> i64:
        """How many messages the changes touch that take_changes would return now."""
        return self._state.ledger.change_count()

    # ---- express entities: what is in memory alone ----

    def must_write(self) -> bool:
        """Whether the gathered changes must be durable before their effects. If not, the host performs the effects and
        calls `acknowledge`."""
        ledger = self._state.ledger
        bounds = self.bounds
        return (
            ledger.must_write()
            or ledger.change_count() > bounds.unwritten_messages
            or ledger.unwritten.bytes > bounds.unwritten_bytes
        )

    def require_write(self) -> None:
        self._state.ledger.require_write()

    def acknowledge(self) -> None:
        self._state.ledger.acknowledge()

    def is_written(self, changes: Changes) -> None:
        """Note that a commit of an express entity is durable."""
        self._state.ledger.is_written(changes)

    def unwritten_bytes(self) -> i64:
        return self._state.ledger.unwritten.bytes

    def write_at(self) -> i64:
        """When the oldest message that only memory has is to be written; 0: there is none."""
        oldest = self._state.ledger.unwritten.oldest()
        return 0 if oldest == 0 else oldest + self.settings.express_ms

    def wake_at(self) -> i64:
        """When the next lock ends, a scheduled message is due, ids can be forgotten or an offer is too old; 0: never."""
        return waking.wake_at(self._state, self.settings)

    def has_work(self, now: i64) -> bool:
        """Whether there is something to do at once, so that the host should submit a Tick."""
        state = self._state
        state.settings = self.settings
        state.now = now
        wake = self.wake_at()
        if 0 < wake <= now:
            return True
        sessions = state.sessions
        if sessions is not None and (
            session_serving.has_work(state, sessions) or session_accepting.could_offer(state, sessions, now)
        ):
            return True
        for window in (state.main, state.dead, state.transfer_dead):
            if serving.could_serve(state, window) or forwarding.could_forward(state, window):
                return True
        return False

    # ---- transactions over several fragments ----

    def check_parts(self, command: Transact, now: i64) -> tuple[tuple[str, str] | None, int]:
        """Why the parts of a transaction cannot be done, the quota and the rules of a topic left out, and the bytes that
        they free."""
        check = self._parts_check(command, now)
        refusal = check.refusal(None, 0, quota=False, rules=False)
        return refusal, check.freed

    def refusal_of(self, command: Transact, now: i64) -> tuple[str, str] | None:
        """Why the machine would refuse the transaction now: condition and text; None if it would not."""
        return self._parts_check(command, now).refusal(
            command.selected, command.freed, quota=True, rules=True
        )

    def _parts_check(self, command: Transact, now: i64) -> PartsCheck:
        state = self._state
        state.settings = self.settings
        state.now = now
        return PartsCheck(state, command.parts, now)

    # ---- when things go wrong, and at the end ----

    def undo(
        self,
        batches: list[Changes],
        effects: list[Effect],
        head: Head,
        next_due: i64,
        taps: list[TapRow] | None = None,
        writers: dict[str, tuple[int, int]] | None = None,
        outbox: dict[int, OutboxRow] | None = None,
        holds: list[SessionHold] | None = None,
    ) -> None:
        """Return to the state of the store: commits have failed, and none of the effects was performed.

        The batches are newest first; all from `head` on is the store's. The host has taken all changes and effects before.
        """
        state = self._state
        held = state.locks.held
        for batch in batches:
            for locks in reversed(batch.unlocked):
                for lock in locks:
                    held[lock.record.n] = lock
        for effect in effects:
            if isinstance(effect, (Delivered, DeferredReceived)):
                self._drop_locks(effect.records, effect.nonce)
        state.locks.restore(list(held.values()))
        state.ledger = Ledger(head)
        for batch in reversed(batches):
            if batch.acknowledged and batch.head is not None and batch.head.last > head.last:
                state.ledger.restore(batch.acknowledged)  # the store does not have them
        state.duplicates.undo(batches, effects)
        state.ledger.head.dropped = state.duplicates.dropped
        self._undo_taps(taps)
        state.writers.undo(batches, writers if writers is not None else state.writers.rows())
        state.outbox.undo(outbox if outbox is not None else state.outbox.rows())
        state.reserved = {n: True for n in state.reserved if n <= head.last}
        state.due = next_due
        state.main.forget(1)
        state.dead.forget(1)
        state.transfer_dead.forget(1)
        state.supplied = []
        if state.sessions is not None:
            session_ending.undo(state, state.sessions, effects)
            if holds is not None:
                session_holds.undo(state, state.sessions, holds)
        for effect in effects:
            if isinstance(effect, Delivered):
                self._give_credit_back(effect.origin, effect.consumer, len(effect.records), False)
            elif isinstance(effect, Drained):
                self._give_credit_back(effect.origin, effect.consumer, 0, True)

    def _undo_taps(self, rows: list[TapRow] | None) -> None:
        state = self._state
        taps = state.taps
        if taps is None:
            taps = TapSet(state.bounds, [], self.settings)
            state.taps = taps  # until the next turn, if there is nothing of them
        taps.undo([row.copy() for row in rows] if rows is not None else taps.rows())

    def _drop_locks(self, records: list[Record], nonce: i64) -> None:
        held = self._state.locks.held
        for record in records:
            lock = held.get(record.n)
            if lock is not None and lock.nonce == nonce:
                del held[record.n]

    def _give_credit_back(self, origin: i64, consumer: i64, credit: i64, drain: bool) -> None:
        found = self._state.consumers.get((origin, consumer))
        if found is not None:
            serving.add_credit(self._state, found, credit)
            if drain:
                serving.start_draining(self._state, found)

    def locks(self) -> list[Lock]:
        """Every lock that is held."""
        return list(self._state.locks.held.values())

    def forget_locks(self, numbers: list[int]) -> None:
        """Remove locks whose messages are gone from the store."""
        state = self._state
        gone = set(numbers) - state.ledger.unwritten.records.keys()
        state.locks.restore([lock for n, lock in state.locks.held.items() if n not in gone])
        if state.sessions is not None:
            for session in state.sessions.held.values():
                session.numbers -= gone

    def size(self) -> i64:
        """Bytes that count towards the entity's quota."""
        return self._state.ledger.head.size

    def set_topic_usage(self, size: i64, quota: i64 = 0) -> None:
        """Set the bytes that other fragments keep towards the same quota. A topic needs those of its subscriptions before a
        send. A subscription needs those of its topic and the others, and the topic's quota, before a session state."""
        self._state.topic_bytes = size
        self._state.shared_quota = quota

    # ---- for a host whose store is unavailable ----

    def head(self) -> Head:
        """The counters as they are now."""
        return self._state.ledger.head.copy()

    def has_truncated_tap(self) -> bool:
        """Whether a tap is truncated, so that its reader has yet to find out that something was lost."""
        taps = self._state.taps
        return taps is not None and any(row.truncated for row in taps.rows())

    def demands(self) -> list[Demand]:
        """The credit of every consumer, as the command that gives it."""
        return [
            Demand(self.id, c.origin, c.consumer, c.sub, c.credit, c.draining, c.delete)
            for c in self._state.consumers.values()
        ]

    def has_absent_holders(self) -> bool:
        """Whether a session is held by a consumer that has not resumed it since the fragment was loaded."""
        sessions = self._state.sessions
        return sessions is not None and sessions.has_absent()

    def resumptions(self) -> list[ResumeSession]:
        """Every session that is held, as the command that resumes it at another owner."""
        return session_holds.resumptions(self._state, self.id)

    def awaits(self) -> list[AwaitSession]:
        """Every pending await of a session, as the command that asks for it."""
        sessions = self._state.sessions
        if sessions is None:
            return []
        return [AwaitSession(self.id, origin, request) for origin, request in sessions.awaits]
