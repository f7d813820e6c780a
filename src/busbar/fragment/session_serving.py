"""Messages of sessions come in, go out and expire.

Rules
- The holder of a session gets its messages by rising number, as far as its credit goes; those that come later too. A message
  that comes back (abandoned) is the lowest again and so the next. While no consumer holds a session, its messages stay in
  the store.
- Time to live holds for the whole session. When one of its unlocked messages has expired, all that it has are removed or
  dead-lettered; locked ones when they are given back. This is checked only when a consumer could get a message. That is the
  case if the holder has credit, or if an accept would get the session (session_accepting.py).
- Messages for holders are read for many sessions at once. Their demands are noted, and the next tick reads for all sessions
  that are `hungry`. So a hundred sessions that begin at the same time cost one or two reads of the store, not a hundred.
- An index of the store has the times at which messages expire; in memory is a bound. When it has passed, the time is looked
  up.
- A drain is answered when the credit is used up, or nothing is available, or no more may be in flight.
"""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment.changes import OVERHEAD
from busbar.fragment.locks import FOREVER
from busbar.fragment.reads import Read, ReadExpiry
from busbar.fragment.session_ending import give_up
from busbar.fragment.sessions import UNKNOWN, MessageSession, MessageSessions, earlier, expiry
from busbar.fragment.state import State
from busbar.model.effects import RECEIVED_AND_DELETED, Delivered, Drained
from busbar.model.message import ACTIVE, Record

# ---- messages come ----


def arrive(state: State, sessions: MessageSessions, record: Record) -> None:
    """Take in a new active message, whose changes are in the ledger."""
    id = record.session_id
    if id is None:
        return
    expires = expiry(record)
    session = sessions.held.get(id)
    if session is not None:
        state.ledger.into_session(id, False)
        if session.expires != UNKNOWN:
            session.expires = earlier(session.expires, expires)
        consumer = session.consumer
        window = session.window
        if session.complete and consumer is not None and consumer.credit > 0 and window.has_room():
            window.arrive(record, 0)
        else:
            session.complete = False
        sessions.changed[id] = session
        return
    waiting = sessions.line.find(id)
    turn = state.ledger.into_session(id, waiting is None)
    if waiting is None:
        sessions.line.join(id, turn, expires, True)
    elif expires > 0 and (waiting.expires == 0 or expires < waiting.expires):
        waiting.expires = expires


# ---- what is to be done ----


def _wants(state: State, session: MessageSession) -> bool:
    consumer = session.consumer
    if consumer is None:
        return True
    return consumer.credit > 0 and state.serves(ACTIVE) and len(session.numbers) < state.bounds.session_locks


def _needs_read(session: MessageSession, now: i64) -> bool:
    """Whether the next step for a session that has something to do needs a read."""
    window = session.window
    if window.available() == 0 and not session.complete:
        return True
    if session.sweeping:
        return False
    return session.overdue(now) or window.blocked()


def _look(state: State, sessions: MessageSessions, session: MessageSession, now: i64) -> None:
    """Find out what is to be done for a session to which something has happened."""
    if session.verified:
        session.verified = False
        if session.overdue(now):
            expire_session(state, session)
    id = session.id
    consumer = session.consumer
    wants = _wants(state, session)
    if wants:
        sessions.count(session)  # what was just read is about to be served
    else:
        sessions.account(session)
    hungry = wants and _needs_read(session, now)
    if hungry:
        sessions.hungry[id] = session
    else:
        sessions.hungry.pop(id, None)
    if not hungry and (consumer is None or consumer.draining or (wants and session.window.available() > 0)):
        sessions.ready[id] = session
    else:
        sessions.ready.pop(id, None)


def expire_session(state: State, session: MessageSession) -> None:
    """Mark all messages that a session has now as expired, because one of them has."""
    session.doomed = state.ledger.head.last
    session.sweeping = True
    session.expires = 0


def has_work(state: State, sessions: MessageSessions) -> bool:
    return bool(sessions.ready or sessions.hungry or sessions.changed)


# ---- reading ----


def session_reads(sessions: MessageSessions, now: i64) -> list[Read]:
    reads: list[Read] = []
    sessions.asked = []
    for session in sessions.hungry.values():
        if len(sessions.asked) >= sessions.bounds.sessions_at_once:
            break
        sessions.asked.append(session)
        reads += _reads(session, now)
    return reads


def _reads(session: MessageSession, now: i64) -> list[Read]:
    reads: list[Read] = []
    window = session.window
    bounds = window.bounds
    if window.available() == 0 and not session.complete:
        consumer = session.consumer
        limit = bounds.page_records
        if consumer is not None and not session.sweeping:
            wanted = consumer.credit
            if wanted < bounds.session_page:
                wanted = bounds.session_page
            if wanted < limit:
                limit = wanted
        reads.append(window.ask_page(limit, bounds.page_bytes))
    elif window.blocked() and not session.sweeping:
        reads.append(window.ask_stubs())
    if not session.sweeping and session.overdue(now):
        # As many more as are locked: those do not count.
        reads.append(ReadExpiry(session.id, len(session.numbers) + 1))
    return reads


def absorb_expiry(sessions: MessageSessions, read: ReadExpiry) -> bool:
    session = sessions.held.get(read.session)
    if session is None:
        return sessions.line.absorb_expiry(read)
    session.expires = 0
    for expires, n in read.rows:
        if n not in session.numbers:
            session.expires = expires
            break
    session.verified = True
    sessions.changed[session.id] = session
    return True


# ---- serving ----


def serve(state: State, sessions: MessageSessions, now: i64, nonce: i64, budget: i64) -> i64:
    """Serve the sessions that can be served from memory, touching at most `budget` messages. Returns what is left of it."""
    receiving = state.serves(ACTIVE)
    if sessions.receiving != receiving:
        sessions.receiving = receiving
        for session in sessions.held.values():
            sessions.changed[session.id] = session
    while True:
        if sessions.changed:
            for session in list(sessions.changed.values()):
                _look(state, sessions, session, now)
            sessions.changed.clear()
        if budget <= 0 or not sessions.ready:
            return budget
        for session in list(sessions.ready.values()):
            if budget <= 0:
                break
            del sessions.ready[session.id]
            budget = _serve(state, sessions, session, now, nonce, budget)


def _serve(
    state: State, sessions: MessageSessions, session: MessageSession, now: i64, nonce: i64, budget: i64
) -> i64:
    sessions.changed[session.id] = session
    if session.sweeping:
        budget = _sweep(state, session, budget)
    # If the holder can get nothing more, its drain is answered before the sweep ends: nothing is read for it.
    if session.sweeping and _wants(state, session):
        sessions.account(session)
        return budget
    consumer = session.consumer
    if consumer is None:
        give_up(state, sessions, session)
        return budget
    wants = _wants(state, session)
    if wants and session.window.available() > 0 and not _needs_read(session, now):
        budget -= _deliver(state, session, nonce, budget)
        wants = _wants(state, session)
    sessions.account(session)
    if consumer.draining and (not wants or (session.window.available() == 0 and session.complete)):
        session.window.draining.remove(consumer)
        consumer.draining = False
        consumer.credit = 0
        if consumer.waiting:
            consumer.waiting = False
            session.window.waiting.remove(consumer)
        state.effects.append(Drained(consumer.origin, consumer.consumer))
    return budget


def _sweep(state: State, session: MessageSession, budget: i64) -> i64:
    """Remove messages that expired with the session. The sweep ends when those that are left came later."""
    window = session.window
    expired: list[Record] = []
    while len(expired) < budget:
        record = window.first()
        if record is None:
            session.sweeping = not session.complete
            break
        if record.n > session.doomed:
            session.sweeping = False
            break
        window.drop_first()
        expired.append(record)
    state.expire(ACTIVE, expired)
    return budget - len(expired)


def _deliver(state: State, session: MessageSession, nonce: i64, budget: i64) -> i64:
    """Deliver a burst to the holder; returns how many messages it has."""
    consumer = session.consumer
    if consumer is None:
        return 0
    limit = state.bounds.session_locks - len(session.numbers)
    if consumer.credit < limit:
        limit = consumer.credit
    if budget < limit:
        limit = budget
    window = session.window
    records = window.take(limit, state.bounds.burst_bytes, 0)  # time 0: no message expires by itself
    count: i64 = len(records)
    state.figures.went(count, window.taken_bytes - count * OVERHEAD)
    consumer.credit -= count
    if consumer.credit == 0 and consumer.waiting:
        consumer.waiting = False
        window.waiting.remove(consumer)
    fragment = state.ledger.head.fragment
    if consumer.delete:
        state.delete(ACTIVE, records, RECEIVED_AND_DELETED)
        state.effects.append(Delivered(consumer.origin, consumer.consumer, fragment, records, 0, 0))
    else:
        state.locks.take(records, ACTIVE, nonce, FOREVER, state.room())
        for record in records:
            session.numbers.add(record.n)
        state.effects.append(
            Delivered(consumer.origin, consumer.consumer, fragment, records, nonce, session.until)
        )
    return count
