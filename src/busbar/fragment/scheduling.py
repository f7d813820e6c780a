"""Scheduled messages become due, or are cancelled; ids of duplicate detection expire.

Rules
- A scheduled message that is due is appended as a new message: new number, enqueued then, time to live counted from then.
  Until then it can be cancelled.
- An activation is never refused: its bytes are counted already.
"""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment.arriving import put_active
from busbar.fragment.intake import NOT_EVALUATED
from busbar.fragment.publishing import PassedOn, note_published
from busbar.fragment.reads import Read, ReadByNumber, ReadDue
from busbar.fragment.state import State
from busbar.model.commands import CancelScheduled, Tick
from busbar.model.effects import ACTIVATED, CANCELLED, COMPLETED, Done
from busbar.model.errors import MessageNotFound
from busbar.model.message import SCHEDULED, Publication, Record, Selection, copy_count


def due_reads(state: State, now: i64) -> list[Read]:
    if state.due == 0 or state.due > now or state.holds_due:
        return []
    return [ReadDue(now, state.bounds.page_records, state.bounds.page_bytes)]


def due_to_publish(state: State) -> list[Publication]:
    """What a tick of a topic publishes: the messages that were read because they are due, or owed."""
    found: list[Publication] = []
    most = state.settings.ttl_ms
    n = state.ledger.head.last
    for read in state.supplied:
        if isinstance(read, ReadDue):
            for old in read.records:
                n += 1
                ttl = old.ttl
                if most > 0 and (ttl <= 0 or ttl > most):
                    ttl = most
                assert old.content is not None, "what is due was read with its content"
                found.append(Publication(n, old.content, ttl))
    return found


def activate(state: State, command: Tick, now: i64) -> None:
    """Append the scheduled messages that were read because they are due."""
    selected = command.selected if command.selected is not None else NOT_EVALUATED
    for read in state.supplied:
        if isinstance(read, ReadDue):
            state.due = read.next_due
            due = read.records
            if due:
                count = _append(state, due, selected, now)
                if count < len(due):
                    state.due = due[count].due


def forget_ids(state: State, now: i64) -> None:
    """Let duplicate detection do its pending work, and delete the ids that have expired."""
    gone = state.duplicates.tick(state.supplied, now, state.settings.duplicate_window_ms)
    if gone:
        segment, id, _at, _n = gone[-1]
        state.ledger.forget_ids((segment, id), len(gone))


def _append(state: State, scheduled: list[Record], selected: Selection, now: i64) -> i64:
    """Append due messages; returns how many. A topic leaves the rest to the next tick if they are too many for this one."""
    most = state.settings.ttl_ms
    topic = PassedOn(state) if state.settings.topic is not None else None
    puts: list[Record] = []
    n = state.ledger.head.last
    size: i64 = 0
    count: i64 = 0
    for old in scheduled:
        copies = selected.copies.get(n + 1)
        if topic is not None and copies is None:
            break
        count += 1
        n += 1
        ttl = old.ttl
        if most > 0 and (ttl <= 0 or ttl > most):
            ttl = most
        if topic is not None and copies is not None:
            topic.collect_copies(copies, ttl, old.session_id, old.hops)
            if state.history is not None:
                note_published(state.history, n, now, copy_count(copies), old.content)
            continue
        record = Record(n, now, ttl, 0, 0, old.size, old.content, old.overlay, old.session_id)
        record.hops = old.hops
        puts.append(record)
        size += old.size
    state.delete(SCHEDULED, scheduled[:count], COMPLETED)
    if state.history is not None:
        state.history.note_all(puts, ACTIVATED, now)
    put_active(state, puts, size, now)
    state.ledger.given(n)
    return count


# ---- cancelling ----


def cancel_reads(state: State, command: CancelScheduled) -> list[Read]:
    numbers = state.known_numbers(command.numbers)
    if not numbers or state.ledger.head.counts[SCHEDULED] == 0:
        return []
    return [ReadByNumber(SCHEDULED, numbers)]


def to_cancel(state: State, command: CancelScheduled) -> list[Record]:
    """The scheduled messages to cancel, as far as the read found them."""
    wanted = set(command.numbers)
    found: dict[int, Record] = {}
    for read in state.supplied:
        if isinstance(read, ReadByNumber) and read.lane == SCHEDULED:
            for record in read.records:
                if record.n in wanted:
                    found[record.n] = record
    return list(found.values())


def cancel_refusal(command: CancelScheduled, found: list[Record]) -> tuple[str, str] | None:
    """Why nothing is cancelled; None if all is."""
    there = {record.n for record in found}
    for n in command.numbers:
        if n not in there:
            text = f"There is no scheduled message with the sequence number {n}; nothing was cancelled."
            return MessageNotFound.condition, text
    return None


def cancel(state: State, command: CancelScheduled) -> None:
    found = to_cancel(state, command)
    refusal = cancel_refusal(command, found)
    if refusal is not None:
        state.refuse(command, refusal[0], refusal[1])
        return
    delete_cancelled(state, found)
    state.effects.append(Done(command.origin, command.request))


def delete_cancelled(state: State, found: list[Record]) -> None:
    state.delete(SCHEDULED, found, COMPLETED)
    if state.history is not None:
        state.history.note_all(found, CANCELLED, state.now)
