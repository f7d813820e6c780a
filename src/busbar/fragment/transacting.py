"""Transactions: several commands of one client are done in one commit, or none of them is.

Rules
- Parts are Send, Settle, CancelScheduled and SetSessionState. All are checked before the first one is done. If one cannot be
  done, the transaction is refused for that reason, and nothing has changed.
- They are done in this order: settlements, cancellations, session states, sends. The sends of all parts are one atomic send.
- A lock, and a scheduled message, can be named once in a transaction. Every lock must be held, as in an atomic settlement.
- Room for the sends counts what the transaction itself frees: a full queue can still be worked off.
- Duplicates are looked for among the ids that are known and among the messages of the transaction.
- Probe is the check alone, without the quota. Its answer is no promise.
- A number that was reserved goes to the message that names it, if that is still to be scheduled; else the message gets a new
  one. A number that is not reserved here any more refuses the transaction. Reserved numbers are kept in memory: the
  commit that reserves them only raises the last number, so that no other message ever gets them.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment import scheduling, sending, session_accepting, settling
from busbar.fragment.intake import Intake, Refusal
from busbar.fragment.reads import Read
from busbar.fragment.state import State
from busbar.model.commands import (
    COMPLETE,
    CancelScheduled,
    Probe,
    ReserveNumbers,
    Send,
    SetSessionState,
    Settle,
    Transact,
    TransactionPart,
)
from busbar.model.effects import Done, NumbersReserved
from busbar.model.errors import ArgumentOutOfRange, NotImplementedHere
from busbar.model.message import Draft, Publication, Record, Selection

NO_SESSIONS: Final = "The entity has no sessions."


def part_reads(state: State, parts: list[TransactionPart]) -> list[Read]:
    """The reads without which the parts cannot be checked."""
    reads: list[Read] = []
    drafts = _drafts(parts)
    if drafts and state.settings.duplicate_window_ms > 0:
        reads += state.duplicates.reads(drafts)
    for part in parts:
        if isinstance(part, CancelScheduled):
            reads += scheduling.cancel_reads(state, part)
        elif isinstance(part, SetSessionState) and state.sessions is not None:
            reads += session_accepting.state_reads(state.sessions, part.origin, part.consumer, False)
    return reads


def _drafts(parts: list[TransactionPart]) -> list[Draft]:
    """The messages that the parts send, as those of one send."""
    drafts: list[Draft] = []
    for part in parts:
        if isinstance(part, Send):
            drafts += part.drafts
    return drafts


def to_publish(state: State, parts: list[TransactionPart], now: i64) -> list[Publication]:
    """What a topic publishes of the messages that the parts send."""
    intake = Intake(state, _drafts(parts), now, True)
    intake.room = 1 << 62
    return [] if intake.refusal() is not None else intake.to_publish()


@final
class PartsCheck:
    """What a fragment finds out about the parts of a transaction before it does any of them."""

    def __init__(self, state: State, parts: list[TransactionPart], now: i64) -> None:
        self._state = state
        self._parts = parts
        self._now = now
        self.drafts = _drafts(parts)
        self.intake: Intake | None = None
        self.freed: i64 = 0  # bytes

    def refusal(self, selected: Selection | None, freed: i64, quota: bool, rules: bool) -> Refusal | None:
        """Why the parts cannot be done; None if they can. `freed` are bytes that the transaction frees elsewhere.

        The quota is checked only with `quota`, the rules of a topic only with `rules`."""
        refusal = self._refusal_of_settlements()
        if refusal is None:
            refusal = self._refusal_of_cancellations()
        if refusal is None:
            refusal = self._refusal_of_states()
        if refusal is None and self.drafts:
            refusal = self._refusal_of_sends(selected, freed, quota, rules)
        return refusal

    def _refusal_of_settlements(self) -> Refusal | None:
        seen: set[int] = set()
        for part in self._parts:
            if isinstance(part, Settle):
                refusal = settling.refusal(self._state, part, self._now, seen)
                if refusal is not None:
                    return refusal
                if part.outcome == COMPLETE:
                    for n in part.numbers:
                        self.freed += self._state.locks.held[n].record.size
        return None

    def _refusal_of_cancellations(self) -> Refusal | None:
        seen: set[int] = set()
        for part in self._parts:
            if isinstance(part, CancelScheduled):
                found = [r for r in scheduling.to_cancel(self._state, part) if r.n not in seen]
                refusal = scheduling.cancel_refusal(part, found)
                if refusal is not None:
                    return refusal
                for record in found:
                    seen.add(record.n)
                    self.freed += record.size
        return None

    def _refusal_of_states(self) -> Refusal | None:
        sessions = self._state.sessions
        for part in self._parts:
            if isinstance(part, SetSessionState):
                if sessions is None:
                    return NotImplementedHere.condition, NO_SESSIONS
                refusal = session_accepting.state_refusal(self._state, sessions, part, self._now)
                if refusal is not None:
                    return refusal
        return None

    def _refusal_of_sends(
        self, selected: Selection | None, freed: i64, quota: bool, rules: bool
    ) -> Refusal | None:
        state = self._state
        intake = Intake(state, self.drafts, self._now, True)
        intake.room += self.freed + freed
        if not quota:
            intake.room = 1 << 62
        refusal = intake.refusal()
        sending.release_ids(state)
        if refusal is None and state.settings.topic is not None and rules:
            refusal = intake.select(selected)
        self.intake = intake
        return refusal

    def do(self) -> i64:
        """Do what was checked. Returns how many messages were dropped as duplicates."""
        state = self._state
        for part in self._parts:
            if isinstance(part, Settle):
                settling.end_checked(state, part)
        cancelled: list[Record] = []
        for part in self._parts:
            if isinstance(part, CancelScheduled):
                cancelled += scheduling.to_cancel(state, part)
        scheduling.delete_cancelled(state, cancelled)
        sessions = state.sessions
        for part in self._parts:
            if isinstance(part, SetSessionState) and sessions is not None:
                session_accepting.set_state(state, sessions, part, self._now)
        intake = self.intake
        if intake is None:
            return 0
        for draft in self.drafts:
            intake.take(draft)
        intake.store()
        return len(intake.repeated) if intake.repeated is not None else 0


def transact(state: State, command: Transact, now: i64) -> None:
    check = PartsCheck(state, command.parts, now)
    refusal = check.refusal(command.selected, command.freed, quota=True, rules=True)
    if refusal is not None:
        state.refuse(command, refusal[0], refusal[1])
        return
    done = Done(command.origin, command.request)
    done.dropped = check.do()
    state.effects.append(done)


def probe(state: State, command: Probe, now: i64) -> None:
    refusal = PartsCheck(state, command.parts, now).refusal(None, 0, quota=False, rules=False)
    if refusal is not None:
        state.refuse(command, refusal[0], refusal[1])
    else:
        state.effects.append(Done(command.origin, command.request))


def reserve(state: State, command: ReserveNumbers) -> None:
    most = state.bounds.turn_messages
    if not 0 < command.count <= most:
        text = f"From 1 to {most} sequence numbers can be reserved at once, not {command.count}."
        state.refuse(command, ArgumentOutOfRange.condition, text)
        return
    first = state.ledger.head.last + 1
    state.ledger.passed_on(command.count)
    state.ledger.given(first + command.count - 1)
    reserved = state.reserved
    number: int = first
    for n in range(number, number + command.count):
        reserved[n] = True
    while len(reserved) > state.bounds.reserved_numbers:
        del reserved[next(iter(reserved))]
    state.effects.append(NumbersReserved(command.origin, command.request, first))
