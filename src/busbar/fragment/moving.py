"""Records leave the outbox: the mover pulls them, their target takes them, and they are removed.

Rules
- A page (PullOutbox) has the first records of a target, ascending and without gaps. Effects wait for the commit of all that
  was applied before. So a page shows only what is durable, and leaves out only what has durably left.
- While a target takes a page, the mover can ask for the page behind it. That one has only records in memory.
- A record leaves the outbox only by RemoveMoved: its target has taken it, or refuses it and has taken all before it. A
  RemoveMoved can be repeated without harm.
- A refused record goes where the table in outbox.py has it. If a target is full, its records wait for at most
  FragmentSettings.transfer_patience_ms since it was first full. The time starts again whenever something is taken.
- A dead letter that comes back to the queue from which it was to be forwarded is not forwarded before the settings change or
  a pause is over. The pause begins with BACK_PAUSE_MS and doubles up to MAX_BACK_PAUSE_MS, until a target takes something.
  With several brokers the source may get the settings of a target that is enabled again before the target does.
- What leaves the outbox for a dead-letter queue gets a new number. The move that failed does not count as a hop.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment.outbox import (
    BACK,
    FULL,
    WAITS,
    OutboxPair,
    cause_of,
    destination_of,
)
from busbar.fragment.reads import Read, ReadOutbox
from busbar.fragment.state import State
from busbar.fragment.text import NEEDS_SESSION, NO_SESSION, dead_letter, merged, reason_of
from busbar.model.commands import PullOutbox, RemoveMoved
from busbar.model.effects import DEAD_LETTERED, MOVER_ORIGIN, OutboxPage, OutboxReady
from busbar.model.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MessageSizeExceeded,
    NoMatchingSubscription,
    QuotaExceeded,
)
from busbar.model.message import DEAD, VIA, Overlay, Record

BACK_PAUSE_MS: Final = 1_000
MAX_BACK_PAUSE_MS: Final = 60_000
_REASONS: Final[dict[str, str]] = {
    EntityNotFound.condition: "MessagingEntityNotFoundException",
    EntityDisabled.condition: "MessagingEntityDisabledException",
    QuotaExceeded.condition: "QuotaExceededException",
    MessageSizeExceeded.condition: "MessageSizeExceededException",
    NoMatchingSubscription.condition: "NoMatchingSubscriptionException",
    InvalidOperation.condition: "InvalidOperationException",
}
"""Dead-letter reasons by the condition of a target. Any other condition is used as the reason itself."""


def why_not_moved(condition: str, path: str, text: str) -> Overlay:
    """The reason and the description of a message that could not be moved to an entity."""
    reason = NO_SESSION if text == NEEDS_SESSION else _REASONS.get(condition, condition)
    return dead_letter(reason, f"The message could not be moved to '{path}': {text}")


def announce(state: State) -> None:
    """Send the mover an OutboxReady for each target that has records now."""
    outbox = state.outbox
    fragment = state.ledger.head.fragment
    for target in outbox.unannounced:
        if target in outbox.pairs:
            state.effects.append(OutboxReady(MOVER_ORIGIN, fragment, target))
    outbox.unannounced = []


# ---- pages ----


def pull_reads(state: State, command: PullOutbox) -> list[Read]:
    pair = state.outbox.pairs.get(command.target)
    if pair is None or pair.ready or command.after > 0:
        return []
    return [_first_records(state, pair)]


def _first_records(state: State, pair: OutboxPair) -> ReadOutbox:
    bounds = state.bounds
    return ReadOutbox(pair.target, 0, bounds.outbox_records, bounds.outbox_bytes)


def absorb(state: State, read: ReadOutbox) -> None:
    pair = state.outbox.pairs.get(read.target)
    if pair is not None:
        pair.absorb(read.records)


def pull(state: State, command: PullOutbox) -> None:
    pair = state.outbox.pairs.get(command.target)
    records: list[Record] = []
    size: i64 = 0
    path = ""
    if pair is not None:
        path = pair.path
        ready = pair.ready
        for at in range(_count_upto(ready, command.after), len(ready)):
            record = ready[at]
            size += record.size
            if records and (len(records) >= command.count or size > command.max_bytes):
                break
            records.append(record)
    page = OutboxPage(command.origin, command.request, command.target, path, state.settings.path, records)
    state.effects.append(page)


# ---- what became of them ----


def remove_reads(state: State, command: RemoveMoved) -> list[Read]:
    pair = state.outbox.pairs.get(command.target)
    if pair is None or len(pair.ready) == pair.count:
        return []
    ready = pair.ready
    known = _count_upto(ready, command.upto)
    if known < len(ready) and known + command.refused <= len(ready):
        return []
    if ready and ready[-1].n == command.upto and command.refused == 0:
        return []
    return [_first_records(state, pair)]


def _count_upto(records: list[Record], upto: i64) -> i64:
    count: i64 = 0
    for record in records:
        if record.n > upto:
            break
        count += 1
    return count


def remove(state: State, command: RemoveMoved, now: i64) -> None:
    outbox = state.outbox
    pair = outbox.pairs.get(command.target)
    if pair is None:
        return
    taken = _count_upto(pair.ready, command.upto)
    if taken > 0:
        pair.full_since = 0
        state.back_pause = 0
        outbox.remove(state.ledger, pair, taken)
    if command.refused > 0 and pair.count > 0:
        _refuse(state, pair, command, now)


def _refuse(state: State, pair: OutboxPair, command: RemoveMoved, now: i64) -> None:
    """Handle the first records, which their target refuses, all for one reason."""
    cause = cause_of(command.condition)
    if cause == FULL and _is_waited_for(state, pair, now):
        return
    left = command.refused
    while left > 0 and pair.ready:
        to = destination_of(pair.ready[0].kind, cause)
        if to == WAITS:
            break
        (record,) = state.outbox.remove(state.ledger, pair, 1)
        left -= 1
        if to == BACK:
            put_dead(state, record, DEAD, record.overlay, now)
            _pause_forwarding(state, now)
        else:
            why = why_not_moved(command.condition, pair.path, command.text)
            state.figures.dead_letter(reason_of(why))
            put_dead(state, record, to, merged(record.overlay, why), now)


def _pause_forwarding(state: State, now: i64) -> None:
    """Forward no dead letters for a while: one has come back."""
    forward = state.settings.forward_dead_letters
    if state.not_forwarded is forward:
        return  # others of the same page
    pause = 2 * state.back_pause
    if pause < BACK_PAUSE_MS:
        pause = BACK_PAUSE_MS
    elif pause > MAX_BACK_PAUSE_MS:
        pause = MAX_BACK_PAUSE_MS
    state.not_forwarded = forward
    state.back_pause = pause
    state.forward_again = now + pause


def _is_waited_for(state: State, pair: OutboxPair, now: i64) -> bool:
    if pair.full_since == 0:
        pair.full_since = now
    return now - pair.full_since < state.settings.transfer_patience_ms


def put_dead(state: State, record: Record, lane: i64, overlay: Overlay | None, now: i64) -> None:
    """Dead-letter a message that is in no lane any more, in one of the two queues, under a new number."""
    window = state.window(lane)
    unread = state.unread(window)
    ledger = state.ledger
    n = ledger.head.last + 1
    hops = record.hops if record.kind in (0, VIA) else record.hops - 1
    number: i64 = ledger.next_dead() if lane == DEAD else 0
    size = record.size_with(overlay)
    dead = Record(n, now, record.ttl, 0, 0, size, record.content, overlay, record.session_id, number, hops)
    ledger.put(lane, [dead], size)
    ledger.given(n)
    window.arrive(dead, unread)
    if lane == DEAD and state.taps is not None:
        state.record_event(dead, DEAD_LETTERED, 0, reason_of(overlay))
    elif state.history is not None:
        state.note_step(dead, DEAD_LETTERED, 0, reason_of(overlay))
