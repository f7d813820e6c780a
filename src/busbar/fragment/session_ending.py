"""Sessions end: closed by their holder, by time, or undone.

Rules
- | how it ends          | locked messages                                | the holder             |
  | it leaves (closes)   | available again, nothing is counted            | has asked for it       |
  | by time              | delivery count + 1 (settling.py), the rest too | gets SessionLost       |
  | with the process     | available again, nothing is counted            | has lost its link too, |
  |                      |                                                | or resumes (session_holds.py) |
- If it has messages left, or that is not known, it goes to the end of the line.
- Messages that expired with the session while they were locked go now.

Undo
- A session whose SessionAccepted was discarded is not held, and its consumer is forgotten. One whose SessionLost was
  discarded is held again, and ends again at the next turn, unless its consumer has left since. A
  renewal and a close stay: they were never durable.
- Message locks of a session that is not held are not held either.
- What was read of sessions and of their line is forgotten and read again.
- The host refuses an await whose offer was discarded, so that the client must await again.
"""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment.changes import Lock
from busbar.fragment.locks import FOREVER
from busbar.fragment.sessions import Key, MessageSession, MessageSessions, earlier, expiry
from busbar.fragment.settling import fail_delivery
from busbar.fragment.state import State
from busbar.model.effects import LOCK_EXPIRED, RELEASED, Effect, SessionAccepted, SessionLost
from busbar.model.message import ACTIVE


def give_up(state: State, sessions: MessageSessions, session: MessageSession) -> None:
    """End the hold of a session without counting a delivery."""
    locks = _let_go(state, sessions, session)
    left = False
    for lock in locks:
        state.note_step(lock.record, RELEASED, lock.record.deliveries, "")
        if lock.lane == ACTIVE:
            if lock.record.n <= session.doomed:
                state.expire(ACTIVE, [lock.record])
            else:
                left = True
                session.expires = earlier(session.expires, expiry(lock.record))
    _join_line(state, sessions, session, left)


def expire_sessions(state: State, sessions: MessageSessions, now: i64, limit: i64) -> i64:
    """End the sessions whose time has come; returns their number plus that of their locked messages.

    The last session may exceed the limit.
    """
    count: i64 = 0
    while count < limit:
        session = sessions.overdue(now)
        if session is None:
            break
        key = session.key()
        locks = _let_go(state, sessions, session)
        state.figures.locks_lost += len(locks)
        left = False
        for lock in locks:
            record = fail_delivery(state, lock, lock.record.overlay, LOCK_EXPIRED)
            if record is not None and lock.lane == ACTIVE:
                if record.n <= session.doomed:
                    state.expire(ACTIVE, [record])
                else:
                    left = True
                    session.expires = earlier(session.expires, expiry(record))
        if locks:
            state.ledger.note_unlocked(locks)
        _join_line(state, sessions, session, left)
        if not session.is_absent():
            sessions.lost[key] = session
            state.effects.append(SessionLost(key[0], key[1]))
        count += len(locks) + 1
    return count


def _let_go(state: State, sessions: MessageSessions, session: MessageSession) -> list[Lock]:
    """Take the session from its holder. Returns the message locks that end with it, by rising number."""
    sessions.let_go(session)
    unplace(session)
    if session.holder:
        state.ledger.drop_hold(session.id)
    held = state.locks.held
    locks: list[Lock] = []
    for n in sorted(session.numbers):
        lock = held.pop(n, None)
        if lock is not None:
            locks.append(lock)
    session.numbers = set()
    state.locks.released(locks)
    return locks


def unplace(session: MessageSession) -> None:
    """Take the holder of a session out of the lines of those that wait for messages."""
    consumer = session.consumer
    if consumer is not None:
        if consumer.waiting:
            consumer.waiting = False
            session.window.waiting.remove(consumer)
        if consumer.draining:
            consumer.draining = False
            session.window.draining.remove(consumer)


def _join_line(state: State, sessions: MessageSessions, session: MessageSession, left: bool) -> None:
    known = session.complete
    if left or not known or session.window.available() > 0:
        turn = state.ledger.move_session(session.id)
        if left or session.window.available() > 0:
            sessions.line.join(session.id, turn, session.expires, session.expires == 0)
        else:
            sessions.line.complete = False  # whether it waits must be read from the store


def undo(state: State, sessions: MessageSessions, effects: list[Effect]) -> None:
    """Undo what happened to sessions. Called after the message locks were restored, and before anything is served."""
    for effect in effects:
        if isinstance(effect, SessionAccepted):
            key: Key = (effect.origin, effect.consumer)
            session = sessions.by_consumer.get(key)
            if session is not None and session.id == effect.session and session.request == effect.request:
                sessions.let_go(session)
                unplace(session)
                state.consumers.pop(key, None)
            gone = sessions.lost.get(key)
            if gone is not None and gone.id == effect.session and gone.request == effect.request:
                del sessions.lost[key]
                state.consumers.pop(key, None)
    for session in list(sessions.held.values()):
        if session.consumer is None:
            sessions.let_go(session)
    for effect in effects:
        if isinstance(effect, SessionLost):
            key = (effect.origin, effect.consumer)
            lost = sessions.lost.pop(key, None)
            if key in sessions.unresumed:
                state.effects.append(effect)  # nothing else would report that
            elif lost is not None and key not in sessions.by_consumer and lost.id not in sessions.held:
                sessions.hold(lost)
    for session in sessions.held.values():
        session.numbers = set()
        session.forget()
        consumer = session.consumer
        if consumer is not None and consumer.credit > 0 and not consumer.waiting:
            consumer.waiting = True
            session.window.waiting.append(consumer)
        sessions.account(session)
        sessions.changed[session.id] = session
    _drop_orphans(state, sessions)
    last = state.ledger.head.last
    for session in sessions.held.values():
        if session.doomed > last:  # numbers above it will be given to other messages
            session.doomed = last
        if session.doomed > 0:
            session.sweeping = True
    sessions.line.forget()
    sessions.asked = []


def _drop_orphans(state: State, sessions: MessageSessions) -> None:
    locks = state.locks
    kept: list[Lock] = []
    for lock in locks.held.values():
        if lock.until == FOREVER:
            id = lock.record.session_id
            session = sessions.held.get(id) if id is not None else None
            if session is None:
                continue
            session.numbers.add(lock.record.n)
        kept.append(lock)
    locks.restore(kept)
