"""Sessions are awaited, offered, accepted and renewed; their states are read and written.

Rules
- A named session can be accepted if no consumer holds it: it may be empty, or new. Accepting the next one takes the first in
  the line.
- An AwaitSession is answered once, by an offer, when there is a session; nothing is locked by that. Offers are made in the
  order of the awaits, as many as sessions wait, so that a single session does not wake all clients. The next accept uses up
  an offer. If an offer was not used for Bounds.offer_ms, another await gets one.
- If a message of a session has expired when the session is about to be offered or accepted, the session is not handed out.
  The fragment holds it itself and removes its messages first (session_serving.py). If a consumer accepts it by name
  meanwhile, the rest is removed while that consumer holds it.
- Renewing sets the end of the session lock, and with it of all locks under it, to now + the lock duration.
- Only the holder writes the state. The holder reads it, and so does an inspection, which changes nothing.
- The state counts in the entity's size together with the session's id, because a receiver can create any number of sessions.
  A state that would take the entity over its quota is refused.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment import session_holds
from busbar.fragment.changes import state_size
from busbar.fragment.consumers import Consumer
from busbar.fragment.reads import Read, ReadSession, ReadSessionIds
from busbar.fragment.serving import add_credit, refuse_receiving
from busbar.fragment.session_serving import expire_session
from busbar.fragment.sessions import Key, MessageSession, MessageSessions
from busbar.fragment.state import State
from busbar.model.commands import (
    AcceptSession,
    AwaitSession,
    CancelAwait,
    Command,
    GetSessionState,
    InspectSession,
    ListSessions,
    RenewSession,
    SetSessionState,
)
from busbar.model.effects import (
    Done,
    Renewed,
    SessionAccepted,
    SessionInspected,
    SessionOffered,
    SessionState,
)
from busbar.model.effects import SessionList as SessionIds
from busbar.model.errors import (
    InvalidOperation,
    OperationTimeout,
    QuotaExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from busbar.model.message import ACTIVE

# ---- awaiting ----


def await_session(sessions: MessageSessions, command: AwaitSession) -> None:
    key: Key = (command.origin, command.request)
    sessions.awaits[key] = True


def cancel_await(sessions: MessageSessions, command: CancelAwait) -> None:
    key: Key = (command.origin, command.awaited)
    if key in sessions.awaits:
        del sessions.awaits[key]
    elif sessions.offers > 0:
        sessions.offers -= 1  # it got an offer and does not use it: another await may get one


def forget_awaits(sessions: MessageSessions, origin: i64) -> None:
    """Remove the awaits of an origin that is gone."""
    gone = [key for key in sessions.awaits if key[0] == origin]
    for key in gone:
        del sessions.awaits[key]


def offer(state: State, sessions: MessageSessions, now: i64) -> None:
    """Offer the sessions that wait to pending awaits."""
    if not sessions.awaits or not state.serves(ACTIVE):
        return
    if sessions.offers > 0 and now >= sessions.offered_at + sessions.bounds.offer_ms:
        sessions.offers = 0
    if not _front_is_good(state, sessions, now):
        return
    count: i64 = len(sessions.line)
    while sessions.awaits and sessions.offers < count:
        key, _ = sessions.awaits.popitem(last=False)
        sessions.offers += 1
        sessions.offered_at = now
        state.effects.append(SessionOffered(key[0], key[1]))


def _front_is_good(state: State, sessions: MessageSessions, now: i64) -> bool:
    """Whether the first session in the line, as far as it is known, can be accepted. Expired ones are taken out before."""
    line = sessions.line
    first = line.first()
    while first is not None and first.overdue(now):
        if not first.exact:
            return False
        in_hand = len(sessions.held) - len(sessions.by_consumer)
        if in_hand >= sessions.bounds.sessions_at_once:
            return False
        session = MessageSession(first.id, None, 0, 0, sessions.bounds)
        expire_session(state, session)
        sessions.hold(session)
        first = line.first()
    return first is not None


def could_offer(state: State, sessions: MessageSessions, now: i64) -> bool:
    """Whether an await is pending and a turn could bring it closer to its offer at once."""
    if not sessions.awaits or not state.serves(ACTIVE):
        return False
    first = sessions.line.first()
    if first is None:
        return not sessions.line.complete
    return first.overdue(now) or sessions.offers < len(sessions.line)


def line_reads(state: State, sessions: MessageSessions, now: i64) -> list[Read]:
    if not sessions.awaits or not state.serves(ACTIVE):
        return []
    return sessions.line.reads(now)


def offer_ends(sessions: MessageSessions) -> i64:
    """When offers that were not used go to others; 0: never."""
    if sessions.offers == 0 or not sessions.awaits or len(sessions.line) == 0:
        return 0
    return sessions.offered_at + sessions.bounds.offer_ms


# ---- accepting ----


def accept_reads(state: State, sessions: MessageSessions, command: AcceptSession, now: i64) -> list[Read]:
    if command.session is not None or not state.serves(ACTIVE):
        return []
    return sessions.line.reads(now)


def accept(state: State, sessions: MessageSessions, command: AcceptSession, now: i64) -> None:
    if not state.serves(ACTIVE):
        refuse_receiving(state, command)
        return
    if sessions.of(command.origin, command.consumer) is not None:
        text = "The receiver holds a session already; it can hold one."
        state.refuse(command, InvalidOperation.condition, text)
        return
    id = command.session
    if id is None:
        if sessions.offers > 0:
            sessions.offers -= 1
        first = sessions.line.first() if _front_is_good(state, sessions, now) else None
        if first is None:
            text = "There is no session with messages that is not held by another receiver."
            state.refuse(command, OperationTimeout.condition, text)
            return
        id = first.id
    until = now + state.settings.lock_ms
    session = sessions.held.get(id)
    if session is None:
        session = MessageSession(id, None, 0, 0, sessions.bounds)
    elif session.consumer is not None:
        text = f"The session '{id}' is held by another receiver."
        state.refuse(command, SessionCannotBeLocked.condition, text)
        return
    _take(state, sessions, session, command, until)
    state.effects.append(SessionAccepted(command.origin, command.request, command.consumer, id, until))


def _take(
    state: State, sessions: MessageSessions, session: MessageSession, command: AcceptSession, until: i64
) -> None:
    key: Key = (command.origin, command.consumer)
    consumer = state.consumers.get(key)
    if consumer is None:
        consumer = Consumer(command.origin, command.consumer, ACTIVE, False)
        state.consumers[key] = consumer
    elif consumer.waiting:  # with credit, and no session so far
        consumer.waiting = False
        state.window_of(consumer).waiting.remove(consumer)
    session.consumer = consumer
    session.request = command.request
    session.until = until
    session.holder = command.holder
    sessions.hold(session)
    session_holds.write(state, session)
    sessions.lost.pop(key, None)
    add_credit(state, consumer, 0)


# ---- the holder's own ----


NOT_HELD: Final = "The session lock has expired or was released; accept the session again."


def _held_by(sessions: MessageSessions, origin: i64, consumer: i64, now: i64) -> MessageSession | None:
    session = sessions.of(origin, consumer)
    return session if session is not None and session.until > now else None


def _of_holder(
    state: State, sessions: MessageSessions, command: Command, consumer: i64, now: i64
) -> MessageSession | None:
    session = _held_by(sessions, command.origin, consumer, now)
    if session is None:
        state.refuse(command, SessionLockLost.condition, NOT_HELD)
    return session


def renew(state: State, sessions: MessageSessions, command: RenewSession, now: i64) -> None:
    session = _of_holder(state, sessions, command, command.consumer, now)
    if session is not None:
        sessions.renew(session, now + state.settings.lock_ms)
        session_holds.write(state, session)
        state.effects.append(Renewed(command.origin, command.request, session.until))


def state_reads(sessions: MessageSessions, origin: i64, consumer: i64, with_state: bool) -> list[Read]:
    session = sessions.of(origin, consumer)
    if session is None or (session.state_size >= 0 and not with_state):
        return []
    return [ReadSession(session.id, with_state)]


def apply_to_state(state: State, sessions: MessageSessions, command: Command, now: i64) -> None:
    if isinstance(command, GetSessionState):
        read_state(state, sessions, command, now)
    elif isinstance(command, SetSessionState):
        write_state(state, sessions, command, now)
    elif isinstance(command, InspectSession):
        inspect(state, sessions, command, now)


def read_state(state: State, sessions: MessageSessions, command: GetSessionState, now: i64) -> None:
    session = _of_holder(state, sessions, command, command.consumer, now)
    if session is not None:
        found = _supplied(state, session)
        state.effects.append(SessionState(command.origin, command.request, found))


def write_state(state: State, sessions: MessageSessions, command: SetSessionState, now: i64) -> None:
    refusal = state_refusal(state, sessions, command, now)
    if refusal is not None:
        state.refuse(command, refusal[0], refusal[1])
        return
    set_state(state, sessions, command, now)
    state.effects.append(Done(command.origin, command.request))


def state_refusal(
    state: State, sessions: MessageSessions, command: SetSessionState, now: i64
) -> tuple[str, str] | None:
    """Why a state cannot be set; None if it can."""
    session = _held_by(sessions, command.origin, command.consumer, now)
    if session is None:
        return SessionLockLost.condition, NOT_HELD
    _supplied(state, session)
    before = session.state_size
    after = state_size(session.id, command.state)
    quota = state.settings.quota_bytes if state.shared_quota == 0 else state.shared_quota
    size = state.ledger.head.size + state.topic_bytes
    if after > before and quota > 0 and size + after - before > quota:
        text = (
            f"The maximum entity size has been reached: the entity holds {size} bytes, a session state that counts {after} "
            f"bytes instead of {before} would exceed its maximum of {quota} bytes."
        )
        return QuotaExceeded.condition, text
    return None


def set_state(state: State, sessions: MessageSessions, command: SetSessionState, now: i64) -> None:
    """Set a state that `state_refusal` has no objection to."""
    session = _held_by(sessions, command.origin, command.consumer, now)
    assert session is not None, "it was looked at"
    after = state_size(session.id, command.state)
    state.ledger.set_state(session.id, now, command.state, after - session.state_size)
    session.state_size = after


def _supplied(state: State, session: MessageSession) -> bytes | None:
    """The state that was read, if it was. Its size is noted."""
    for read in state.supplied:
        if isinstance(read, ReadSession) and read.session == session.id:
            session.state_size = read.size if read.size > 0 else 0
            return read.state
    return None


# ---- enumeration and inspection ----


def list_reads(state: State, command: ListSessions) -> list[Read]:
    most = state.bounds.turn_messages
    top: i64 = command.top if command.top < most else most
    return [ReadSessionIds(command.updated_after, command.after, top)] if top > 0 else []


def list_sessions(state: State, command: ListSessions) -> None:
    ids: list[str] = []
    for read in state.supplied:
        if isinstance(read, ReadSessionIds):
            ids = read.ids
    state.effects.append(SessionIds(command.origin, command.request, ids))


def inspect_reads(command: InspectSession) -> list[Read]:
    return [ReadSession(command.session, command.with_state)]


def inspect(state: State, sessions: MessageSessions, command: InspectSession, now: i64) -> None:
    size: i64 = -1
    stored: bytes | None = None
    for read in state.supplied:
        if isinstance(read, ReadSession) and read.session == command.session:
            size = read.size
            stored = read.state
    until: i64 = 0
    locked: i64 = 0
    session = sessions.held.get(command.session)
    if session is not None and session.consumer is not None and session.until > now:
        until = session.until
        locked = len(session.numbers)
    state.effects.append(SessionInspected(command.origin, command.request, until, locked, size, stored))
