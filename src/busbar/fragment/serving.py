"""Messages go out: to consumers with credit, by number (deferred ones), and by purge.

Rules
- Consumers of a sub-queue stand in a line, in the order in which they got credit. The first gets a burst of
  the lowest available numbers: at most its credit, Bounds.burst_bytes (but at least one message) and what is left
  of the turn. If it still has credit then, it goes to the end of the line.
- Each message is delivered with a lock. With `delete` it has no lock and is removed with its delivery.
- Time to live is checked only here, when a consumer could get the message. Expired messages at the head are removed or
  dead-lettered. In the dead-letter sub-queue nothing expires.
- A drain is answered when the credit is used up or nothing is available, neither in memory nor in the
  store.
- While the entity is disabled for receiving, or a tap consumes the sub-queue, no consumer is served, and a drain is answered
  at once.
- Where the entity requires sessions, the rules of session_serving.py hold for consumers of the main sub-queue. A consumer
  that holds no session gets SessionLost, and one that leaves gives up its session.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment.changes import OVERHEAD
from busbar.fragment.consumers import Consumer
from busbar.fragment.locks import FOREVER
from busbar.fragment.reads import Read, ReadByNumber, ReadPage
from busbar.fragment.session_ending import give_up
from busbar.fragment.sessions import MessageSession
from busbar.fragment.state import State
from busbar.fragment.sub_queues import deferred_lane, in_dead_letter_queue, sub_queue_of
from busbar.fragment.window import Window
from busbar.model.commands import Command, Demand, Leave, Purge, ReceiveDeferred
from busbar.model.effects import (
    EXPIRED,
    PURGED,
    RECEIVED_AND_DELETED,
    DeferredReceived,
    Delivered,
    Drained,
    Purged,
    SessionLost,
)
from busbar.model.errors import EntityDisabled, InvalidOperation, MessageNotFound, SessionLockLost
from busbar.model.message import ACTIVE, DEAD, DEFERRED, TRANSFER_DEAD, Record

FORWARDS: Final = "Cannot create a message receiver on an entity with auto-forwarding enabled."
NO_LOCK: Final = "The receiver does not hold the session of the message."

# ---- consumers ----


def demand(state: State, command: Demand) -> None:
    key: tuple[int, int] = (command.origin, command.consumer)
    sub = sub_queue_of(command.sub)
    sessions = state.sessions
    if sessions is not None and sub == ACTIVE:
        session = sessions.by_consumer.get(key)
        if session is None:
            if key not in sessions.lost and key not in sessions.unresumed:  # it has not got SessionLost yet
                state.effects.append(SessionLost(command.origin, command.consumer))
            return
        sessions.changed[session.id] = session
    consumer = state.consumers.get(key)
    if consumer is None or consumer.sub != sub:
        if consumer is not None:
            _remove(state, consumer)
        consumer = Consumer(command.origin, command.consumer, sub, command.delete)
        state.consumers[key] = consumer
    consumer.delete = command.delete
    add_credit(state, consumer, command.credit)
    if command.drain:
        start_draining(state, consumer)


def add_credit(state: State, consumer: Consumer, credit: i64) -> None:
    """Change the credit (it never falls below 0), and with it the consumer's place in the line."""
    consumer.credit += credit
    window = state.window_of(consumer)
    if consumer.credit > 0:
        if not consumer.waiting:
            consumer.waiting = True
            window.waiting.append(consumer)
    else:
        consumer.credit = 0
        if consumer.waiting:
            consumer.waiting = False
            window.waiting.remove(consumer)


def start_draining(state: State, consumer: Consumer) -> None:
    if not consumer.draining:
        consumer.draining = True
        state.window_of(consumer).draining.append(consumer)


def leave(state: State, command: Leave) -> None:
    sessions = state.sessions
    if sessions is not None:
        sessions.left(command.origin, command.consumer)
    if command.consumer == 0:
        for consumer in list(state.consumers.values()):
            if consumer.origin == command.origin:
                _remove(state, consumer)
    else:
        found = state.consumers.get((command.origin, command.consumer))
        if found is not None:
            _remove(state, found)


def _remove(state: State, consumer: Consumer) -> None:
    key: tuple[int, int] = (consumer.origin, consumer.consumer)
    sessions = state.sessions
    if sessions is not None:
        session = sessions.by_consumer.get(key)
        if session is not None:
            give_up(state, sessions, session)
        sessions.lost.pop(key, None)
    del state.consumers[key]
    window = state.window_of(consumer)
    if consumer.waiting:
        window.waiting.remove(consumer)
    if consumer.draining:
        window.draining.remove(consumer)


# ---- serving them ----


def serve(state: State, now: i64, nonce: i64, budget: i64) -> None:
    """Serve the sub-queues, touching at most `budget` messages."""
    main = state.main
    dead = state.dead
    transfer_dead = state.transfer_dead
    if main.waiting and state.sessions is None and state.serves(ACTIVE):
        budget = _serve(state, main, now, now, nonce, budget)
    if dead.waiting and state.serves(DEAD):
        budget = _serve(state, dead, now, 0, nonce, budget)  # time 0: nothing has expired
    if transfer_dead.waiting and state.serves(TRANSFER_DEAD):
        _serve(state, transfer_dead, now, 0, nonce, budget)
    if main.draining:
        _end_drains(state, main)
    if dead.draining:
        _end_drains(state, dead)
    if transfer_dead.draining:
        _end_drains(state, transfer_dead)


def _serve(state: State, window: Window, now: i64, clock: i64, nonce: i64, budget: i64) -> i64:
    waiting = window.waiting
    until = now + state.settings.lock_ms
    burst_bytes = state.bounds.burst_bytes
    fragment = state.ledger.head.fragment
    figures = state.figures
    while budget > 0 and waiting:
        consumer: Consumer = waiting[0]
        limit = consumer.credit if consumer.credit < budget else budget
        records = window.take(limit, burst_bytes, clock)
        count: i64 = len(records)
        if count == 0:
            expired = take_expired(window, clock, budget)
            if not expired:
                break  # nothing is there, or a read is needed first
            budget -= len(expired)
            state.expire(window.lane, expired)
            continue
        budget -= count
        figures.messages_out += count
        figures.bytes_out += window.taken_bytes - count * OVERHEAD
        consumer.credit -= count
        if consumer.credit == 0:
            consumer.waiting = False
            waiting.popleft()
        elif len(waiting) > 1:
            waiting.rotate(-1)
        if consumer.delete:
            state.delete(window.lane, records, RECEIVED_AND_DELETED)
            state.effects.append(Delivered(consumer.origin, consumer.consumer, fragment, records, 0, 0))
        else:
            state.locks.take(records, window.lane, nonce, until, state.room())
            state.effects.append(
                Delivered(consumer.origin, consumer.consumer, fragment, records, nonce, until)
            )
    return budget


def take_expired(window: Window, now: i64, limit: i64) -> list[Record]:
    """Take out the first messages of a window, as far as they have expired."""
    expired: list[Record] = []
    while len(expired) < limit:
        record = window.first()
        if record is None or not record.expired(now):
            break
        window.drop_first()
        expired.append(record)
    return expired


def _end_drains(state: State, window: Window) -> None:
    over = not state.serves(window.lane) or (
        window.available() == 0 and (state.unread(window) == 0 or _has_no_messages(state, window))
    )
    for consumer in list(window.draining):
        if over or consumer.credit == 0:
            window.draining.remove(consumer)
            consumer.draining = False
            add_credit(state, consumer, -consumer.credit)
            state.effects.append(Drained(consumer.origin, consumer.consumer))


def _has_no_messages(state: State, window: Window) -> bool:
    return state.sessions is not None and window.lane == ACTIVE


def could_serve(state: State, window: Window) -> bool:
    """Whether a consumer waits and there is a message for it, in memory or in the store."""
    if not window.waiting or not state.serves(window.lane) or _has_no_messages(state, window):
        return False
    return window.available() > 0 or state.unread(window) > 0


def window_reads(state: State, window: Window) -> list[Read]:
    """What must be read before the first of the window can be served."""
    if window.available() == 0:
        if state.unread(window) == 0:
            return []
        # As much as may be ready: the fragment waits for each page, and with it all that is sent to it.
        bounds = state.bounds
        records = bounds.ready_records if bounds.ready_records > bounds.page_records else bounds.page_records
        size = bounds.ready_bytes if bounds.ready_bytes > bounds.page_bytes else bounds.page_bytes
        return [window.ask_page(records, size)]
    return [window.ask_stubs()] if window.blocked() else []


def refuse_receiving(state: State, command: Command) -> None:
    """Refuse a command because the sub-queue is not served now."""
    if state.settings.forward is not None and state.lets_out(ACTIVE):
        state.refuse(command, InvalidOperation.condition, FORWARDS)
    elif state.settings.can_receive:
        text = "A tap consumes the entity: while its lease runs, nobody else receives from it."
        state.refuse(command, InvalidOperation.condition, text)
    else:
        state.refuse(command, EntityDisabled.condition, "The entity is disabled for receiving.")


# ---- deferred messages ----


def deferred_reads(state: State, command: ReceiveDeferred) -> list[Read]:
    lane = deferred_lane(command.sub)
    numbers = state.known_numbers(command.numbers)
    if not numbers or state.ledger.head.counts[lane] == 0:
        return []
    return [ReadByNumber(lane, numbers)]


def receive_deferred(state: State, command: ReceiveDeferred, now: i64, nonce: i64) -> None:
    lane = deferred_lane(command.sub)
    if not state.lets_out(sub_queue_of(lane)):
        refuse_receiving(state, command)
        return
    sessions = state.sessions
    session: MessageSession | None = None
    if sessions is not None and lane == DEFERRED:
        session = sessions.of(command.origin, command.consumer)
        if session is None or session.until <= now:
            state.refuse(command, SessionLockLost.condition, NO_LOCK)
            return
    found: dict[int, Record] = {}
    if state.supplied:
        for record in state.supplied[0].records:
            found[record.n] = record
    records: list[Record] = []
    expired: list[Record] = []
    missing: list[int] = []
    for n in dict.fromkeys(command.numbers):
        stored = found.get(n)
        if stored is None or n in state.locks.held:
            missing.append(n)
        elif lane == DEFERRED and stored.expired(now):
            expired.append(stored)
            missing.append(n)
        else:
            records.append(stored)
    if session is not None:
        for record in records + expired:
            if record.session_id != session.id:
                state.refuse(command, SessionLockLost.condition, NO_LOCK)
                return
    if expired:
        state.delete(lane, expired, EXPIRED)
    if missing:
        text = f"There is no deferred message with the sequence number {missing[0]}, or it is locked."
        state.refuse(command, MessageNotFound.condition, text)
        return
    size: i64 = 0
    for record in records:
        size += record.size - OVERHEAD
    state.figures.went(len(records), size)
    if command.delete:
        state.delete(lane, records, RECEIVED_AND_DELETED)
        state.effects.append(DeferredReceived(command.origin, command.request, records, 0, 0))
    elif session is not None:
        state.locks.take(records, lane, nonce, FOREVER, state.room())
        for record in records:
            session.numbers.add(record.n)
        state.effects.append(DeferredReceived(command.origin, command.request, records, nonce, session.until))
    else:
        until = now + state.settings.lock_ms
        state.locks.take(records, lane, nonce, until, state.room())
        state.effects.append(DeferredReceived(command.origin, command.request, records, nonce, until))


# ---- purge ----


def purge_reads(state: State, command: Purge) -> list[Read]:
    if state.sessions is not None and not in_dead_letter_queue(command.sub):
        return _session_purge_reads(state, command)
    window = state.window(command.sub)
    wanted = _purge_count(state, command) - window.available()
    if wanted <= 0 or state.unread(window) == 0:
        return []
    # Ask beyond the locked ones that lie ahead: else a page of nothing else would read as "nothing to purge".
    # (A message larger than a page behind locked ones is left to the next call.)
    size = state.bounds.page_bytes
    for lock in state.locks.held.values():
        if lock.lane == window.lane and lock.record.n >= window.cursor:
            wanted += 1
            size += lock.record.size
    return [window.ask_page(wanted, size)]


def purge(state: State, command: Purge) -> None:
    """Delete what was read. Numbers rise with time, so the first message that is too young ends the purge."""
    taps = state.taps
    sub = sub_queue_of(command.sub)
    if taps is not None and sub != TRANSFER_DEAD and taps.leased(sub, state.now):
        text = "A tap consumes the entity: while its lease runs, nothing is purged."
        state.refuse(command, InvalidOperation.condition, text)
        return
    if state.sessions is not None and sub == ACTIVE:
        _purge_sessions(state, command)
        return
    window = state.window(command.sub)
    limit = _purge_count(state, command)
    gone: list[Record] = []
    while len(gone) < limit:
        record = window.first()
        if record is None or record.enqueued >= command.before:
            break
        window.drop_first()
        gone.append(record)
    state.delete(window.lane, gone, PURGED)
    state.effects.append(Purged(command.origin, command.request, len(gone)))


def _purge_count(state: State, command: Purge) -> i64:
    most = state.bounds.turn_messages
    return command.count if command.count < most else most


def _session_purge_reads(state: State, command: Purge) -> list[Read]:
    count = _purge_count(state, command)
    if count <= 0 or state.ledger.head.counts[ACTIVE] == 0:
        return []
    size = state.bounds.page_bytes
    for lock in state.locks.held.values():
        if lock.lane == ACTIVE and (command.session is None or lock.record.session_id == command.session):
            count += 1
            size += lock.record.size
    return [ReadPage(ACTIVE, 1, count, size, command.session)]


def _purge_sessions(state: State, command: Purge) -> None:
    """Delete what is not locked of all sessions or of one, held or not. What was read of them is read again."""
    sessions = state.sessions
    limit = _purge_count(state, command)
    held = state.locks.held
    gone: list[Record] = []
    for read in state.supplied:
        for record in read.records:
            if record.enqueued >= command.before or len(gone) >= limit:
                break
            if record.n not in held:
                gone.append(record)
    state.delete(ACTIVE, gone, PURGED)
    if gone and sessions is not None:
        sessions.line.forget()
        for id in {record.session_id for record in gone if record.session_id is not None}:
            session = sessions.held.get(id)
            if session is not None:
                session.window.forget(1)
                session.complete = False
                sessions.account(session)
                sessions.changed[id] = session
    state.effects.append(Purged(command.origin, command.request, len(gone)))
