"""ForwardTo and ForwardDeadLetteredMessagesTo: available messages go to the outbox instead of to receivers.

Rules
- After each command the fragment takes what is available in the sub-queue, in order and within the turn's budget, as a
  receiver would. An expired message expires, a locked one is forwarded when its lock ends, a deferred one stays. A disabled
  entity, a tap that consumes and a full store stop forwarding.
- Each message gets the next number in the outbox, and the old one is deleted (taps may keep it). What one group of commands
  puts and deletes leaves no trace in the store, so passing through costs one put.
- If there are no taps and nothing is available before it, an arriving message is put straight into the outbox.
- The fragment that a message goes to is chosen here, once, by its key (partitioning.py), and stored.
- A move counts as a hop. A message with MAX_HOPS of them is not moved again but dead-lettered (outbox.py). So is a message
  whose target is missing or disabled, or whose keys contradict each other.
- A dead letter whose target is missing or disabled stays where it is.
- An entity with sessions has no window of its own: its messages are read page by page, by ticks.
- The record has the bytes, the overlay, the time to live as the entity bounded it, the hops, and the sequence number that it
  had here. It does not have the delivery count and the lock.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment.moving import put_dead, why_not_moved
from busbar.fragment.outbox import BACK, DISABLED, HOPS, MISSING, UNACCEPTABLE, destination_of
from busbar.fragment.reads import Read, ReadPage
from busbar.fragment.serving import take_expired, window_reads
from busbar.fragment.state import State
from busbar.fragment.text import dead_letter, merged, reason_of
from busbar.fragment.window import Window
from busbar.model.commands import Tick
from busbar.model.effects import DEAD_LETTERED, FORWARDED
from busbar.model.errors import EntityDisabled, EntityNotFound, InvalidOperation
from busbar.model.message import ACTIVE, DEAD, DEAD_FORWARD, FORWARD, MAX_HOPS, Draft, Overlay, Record
from busbar.model.partitioning import NUMBER_BITS, key_of
from busbar.model.settings import TARGET_DISABLED, TARGET_MISSING, TARGET_OPEN, ForwardSettings

TOO_MANY_HOPS: Final = "MaxTransferHopCountExceeded"


# ---- whether there is something to do ----


def _settings_of(state: State, sub: i64) -> ForwardSettings | None:
    if sub == ACTIVE:
        return state.settings.forward
    return state.settings.forward_dead_letters if sub == DEAD else None


def _may_forward(state: State, sub: i64, forward: ForwardSettings) -> bool:
    if state.holds_due or not state.lets_out(sub):
        return False
    if forward.takes != TARGET_OPEN or not forward.fragments:
        return sub == ACTIVE  # to the dead-letter queue; a dead letter stays
    return not (sub == DEAD and forward is state.not_forwarded) and state.outbox.has_room(forward)


def could_forward(state: State, window: Window) -> bool:
    """Whether there is something to forward, in memory or in the store, and it may be forwarded now."""
    forward = _settings_of(state, window.lane)
    if forward is None or not _may_forward(state, window.lane, forward):
        return False
    if state.sessions is not None and window.lane == ACTIVE:
        return state.ledger.head.counts[ACTIVE] > state.locks.counts[ACTIVE]
    return window.available() > 0 or state.unread(window) > 0


def forward_reads(state: State, window: Window) -> list[Read]:
    """What a tick must read before it can forward what comes first."""
    if state.sessions is None or window.lane != ACTIVE:
        return window_reads(state, window)
    bounds = state.bounds
    locked: i64 = state.locks.counts[ACTIVE]
    size = bounds.page_bytes
    for lock in state.locks.held.values():
        size += lock.record.size
    return [ReadPage(ACTIVE, 1, bounds.page_records + locked, size)]


# ---- what is available ----


def forward_available(state: State, now: i64, budget: i64) -> i64:
    """Forward what is in memory of both sub-queues; returns what is left of the budget."""
    if state.settings.forward is not None and state.sessions is None:
        budget = _forward_window(state, state.main, FORWARD, now, budget)
    if state.settings.forward_dead_letters is not None:
        if now >= state.forward_again:
            state.not_forwarded = None
        budget = _forward_window(state, state.dead, DEAD_FORWARD, now, budget)
    return budget


def _forward_window(state: State, window: Window, kind: i64, now: i64, budget: i64) -> i64:
    forward = _settings_of(state, window.lane)
    clock: i64 = now if window.lane == ACTIVE else 0  # time 0: nothing has expired
    while budget > 0 and forward is not None and _may_forward(state, window.lane, forward):
        records = window.take(_burst(state, budget), state.bounds.forwarded_bytes, clock)
        if records:
            budget -= len(records)
            _forward(state, window.lane, records, forward, kind, now)
            continue
        expired = take_expired(window, clock, budget)
        if not expired:
            break  # nothing is there, or a read is needed first
        budget -= len(expired)
        state.expire(window.lane, expired)
    return budget


def _burst(state: State, budget: i64) -> i64:
    most = state.bounds.forwarded_records
    return budget if budget < most else most


def forward_sessions(state: State, command: Tick, now: i64) -> None:
    """Forward the page that a tick has read of an entity with sessions."""
    forward = state.settings.forward
    sessions = state.sessions
    if forward is None or sessions is None or not _may_forward(state, ACTIVE, forward):
        return
    held = state.locks.held
    for read in state.supplied:
        if isinstance(read, ReadPage) and read.lane == ACTIVE and read.session is None:
            found = [record for record in read.records if record.n not in held]
            expired = [record for record in found if record.expired(now)]
            state.expire(ACTIVE, expired)
            left = [record for record in found if not record.expired(now)]
            _forward(state, ACTIVE, left[: state.bounds.page_records], forward, FORWARD, now)
            if found:
                sessions.forget_read()


def _forward(
    state: State, lane: i64, records: list[Record], forward: ForwardSettings, kind: i64, now: i64
) -> None:
    """Move available messages of a lane, which are in no window any more, to the outbox."""
    leaving: list[Record] = []
    entering: list[Record] = []
    size: i64 = 0
    refused: list[tuple[Record, int, Overlay]] = []
    n = state.ledger.head.last
    base = forward.index << NUMBER_BITS
    for record in records:
        target: i64 = 0
        why = _obstacle(record.hops, forward)
        if why is None:
            try:
                target = _target_of(state, record, None, forward)
            except InvalidOperation as contradiction:
                why = (UNACCEPTABLE, why_not_moved(contradiction.condition, forward.path, contradiction.text))
        if why is not None:
            refused.append((record, why[0], why[1]))
            continue
        n += 1
        moved = Record(n, now, record.ttl, base | record.n, 0, record.size, record.content, record.overlay)
        moved.session_id = record.session_id
        moved.hops = record.hops + 1
        moved.target = target
        moved.kind = kind
        leaving.append(record)
        entering.append(moved)
        size += record.size
    if entering:
        state.outbox.add(state.ledger, entering, size, forward.path)
        state.ledger.given(n)
        state.delete(lane, leaving, FORWARDED)
    for record, cause, overlay in refused:
        _refuse(state, lane, record, destination_of(kind, cause), overlay, now)


def _refuse(state: State, lane: i64, record: Record, to: i64, overlay: Overlay, now: i64) -> None:
    """Dead-letter a message that cannot be forwarded: in its own entity, or out of its dead-letter queue."""
    assert to != BACK, "what stays is not taken out of its window"
    both = merged(record.overlay, overlay)
    if to == DEAD:
        state.dead_letter(lane, record, record.deliveries, both)
    else:
        state.delete(lane, [record], DEAD_LETTERED)
        state.figures.dead_letter(reason_of(overlay))
        put_dead(state, record, to, both, now)


def _obstacle(hops: i64, forward: ForwardSettings) -> tuple[int, Overlay] | None:
    """Why a message is not forwarded, whatever its keys are: the cause, and the properties of the dead letter."""
    if hops >= MAX_HOPS:
        text = f"The message was forwarded {hops} times, which is the most that is allowed."
        return HOPS, dead_letter(TOO_MANY_HOPS, text)
    if forward.takes == TARGET_DISABLED:
        text = "The entity is disabled for sending."
        return DISABLED, why_not_moved(EntityDisabled.condition, forward.path, text)
    if forward.takes == TARGET_MISSING or not forward.fragments:
        return MISSING, why_not_moved(EntityNotFound.condition, forward.path, "The entity does not exist.")
    return None


def _target_of(state: State, record: Record, draft: Draft | None, forward: ForwardSettings) -> i64:
    """The fragment that a message goes to. Raises InvalidOperation if its keys contradict each other."""
    if len(forward.fragments) == 1:
        return state.outbox.choose(forward, None)
    if draft is None:
        read_draft = state.draft_of
        content = record.content
        assert read_draft is not None and content is not None, (
            "a partitioned target needs the keys of messages"
        )
        draft = read_draft(content)
    return state.outbox.choose(forward, key_of(draft, forward.detects_duplicates))


# ---- what arrives ----


def passes_straight(state: State, unread: i64) -> bool:
    """Whether an arriving message may go straight to the outbox. `unread` is of the main window."""
    forward = state.settings.forward
    return (
        forward is not None
        and forward.takes == TARGET_OPEN
        and unread == 0
        and state.main.available() == 0
        and state.taps is None
        and state.sessions is None
        and _may_forward(state, ACTIVE, forward)
    )


def put_straight(state: State, records: list[Record], drafts: list[Draft] | None, now: i64) -> list[Record]:
    """Put arriving messages straight into the outbox while that is possible; returns the rest, in order."""
    forward = state.settings.forward
    assert forward is not None, "it passes straight"
    entering: list[Record] = []
    size: i64 = 0
    count: i64 = 0
    base = forward.index << NUMBER_BITS
    room = state.bounds.forwarded_records if len(forward.fragments) == 1 else len(records)
    while count < len(records) and count < room and records[count].hops < MAX_HOPS:
        record = records[count]
        try:
            target = _target_of(state, record, drafts[count] if drafts is not None else None, forward)
        except InvalidOperation:
            break  # the sweep dead-letters it
        record.due = base | record.n
        record.hops += 1
        record.target = target
        record.kind = FORWARD
        entering.append(record)
        size += record.size
        count += 1
    state.outbox.add(state.ledger, entering, size, forward.path)
    if state.history is not None:
        state.history.note_all(entering, FORWARDED, now, forward.path)
    return records[count:] if count > 0 else records
