"""Session locks that outlive the process that granted them.

Rules
- The lock of a session is durable (SessionHold) if its holder is connected to the gateway of another process. That holder
  can outlive the owner of the fragment. An accept and a renewal are answered when the hold is durable. When the session
  ends, the hold is deleted.
- A fragment that is loaded gets the holds of gateways that live. Such a session is held by an absent consumer. No consumer
  accepts it, and nothing of it is delivered. It ends when its time is over, when its gateway resumes it, or when it is
  certain that its holder has left (ReleaseHolds).
- ResumeSession names the holder and the message locks that it has. If the holder has the session, the new consumer takes
  the place of the one before. The named messages are locked, all others of the session are available. Otherwise the
  consumer gets SessionLost.
- Before a fragment goes to another owner, the locks of all its holders are written (KeepHolds), since all of them outlive
  this one. Their gateways resume them there.
- Undo: a hold in the store whose session is not held any more is deleted again. One that is missing there is written again.
"""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment.changes import Lock, SessionHold
from busbar.fragment.consumers import Consumer
from busbar.fragment.locks import FOREVER
from busbar.fragment.reads import Read, ReadByNumber
from busbar.fragment.session_ending import give_up, unplace
from busbar.fragment.sessions import ABSENT, Key, MessageSession, MessageSessions
from busbar.fragment.state import State
from busbar.model.commands import Command
from busbar.model.effects import SessionLost
from busbar.model.hold_commands import KeepHolds, ReleaseHolds, ResumeSession, holder_name
from busbar.model.message import ACTIVE, DEFERRED, Record


def load(sessions: MessageSessions, holds: list[SessionHold]) -> None:
    """Hold the sessions of a fragment that is being loaded, each by an absent consumer."""
    for number, hold in enumerate(holds):
        consumer = Consumer(ABSENT, number, ACTIVE, False)
        session = MessageSession(hold.session, consumer, 0, hold.until, sessions.bounds)
        session.holder = hold.holder
        sessions.hold(session)


def write(state: State, session: MessageSession) -> None:
    """Write the lock of a session that was accepted or renewed, if it must be durable."""
    if session.holder:
        state.ledger.set_hold(session.id, session.holder, session.until)


def apply(state: State, sessions: MessageSessions, command: Command) -> None:
    if isinstance(command, ResumeSession):
        resume(state, sessions, command)
    elif isinstance(command, ReleaseHolds):
        release(state, sessions, command)
    elif isinstance(command, KeepHolds):
        keep(state, sessions, command)


# ---- resuming ----


def resume_reads(state: State, sessions: MessageSessions, command: ResumeSession) -> list[Read]:
    session = _held_by(sessions, command)
    held = state.locks.held
    missing = [n for n in state.known_numbers(command.numbers) if n not in held]
    if session is None or not missing:
        return []
    return [ReadByNumber(ACTIVE, missing), ReadByNumber(DEFERRED, missing)]


def resume(state: State, sessions: MessageSessions, command: ResumeSession) -> None:
    session = _held_by(sessions, command)
    if session is None:
        sessions.unresumed[command.origin, command.consumer] = True
        state.effects.append(SessionLost(command.origin, command.consumer))
        return
    before = session.key()
    unplace(session)
    sessions.by_consumer.pop(before, None)
    state.consumers.pop(before, None)
    key: Key = (command.origin, command.consumer)
    consumer = Consumer(command.origin, command.consumer, ACTIVE, False)
    session.consumer = consumer
    state.consumers[key] = consumer
    sessions.by_consumer[key] = session
    _lock_named(state, session, command)
    session.forget()
    if session.doomed > 0:
        session.sweeping = True
    sessions.account(session)
    sessions.changed[session.id] = session


def _held_by(sessions: MessageSessions, command: ResumeSession) -> MessageSession | None:
    session = sessions.held.get(command.session)
    if session is None or not command.holder or session.holder != command.holder:
        return None
    return session


def _lock_named(state: State, session: MessageSession, command: ResumeSession) -> None:
    """Lock what the holder names, and nothing else of the session."""
    named = dict(zip(command.numbers, command.nonces, strict=True))
    held = state.locks.held
    released: list[Lock] = []
    for n in sorted(session.numbers):
        lock = held.get(n)
        if lock is None or named.get(n) != lock.nonce:
            session.numbers.discard(n)
            if lock is not None:
                released.append(held.pop(n))
    state.locks.released(released)
    for read in state.supplied:
        if isinstance(read, ReadByNumber):
            for record in read.records:
                number: int = record.n
                if record.session_id == session.id and number not in held and number in named:
                    _lock(state, session, record, read.lane, named[number])


def _lock(state: State, session: MessageSession, record: Record, lane: i64, nonce: i64) -> None:
    state.locks.take([record], lane, nonce, FOREVER, state.room())
    session.numbers.add(record.n)


# ---- another owner ----


def keep(state: State, sessions: MessageSessions, command: KeepHolds) -> None:
    for session in sessions.held.values():
        consumer = session.consumer
        if consumer is not None and not session.holder:
            session.holder = holder_name(command.gateway, consumer.origin, consumer.consumer)
            write(state, session)


def resumptions(state: State, fragment: int) -> list[ResumeSession]:
    """The commands by which the holders of sessions go on with them, and with their message locks, at another owner."""
    commands: list[ResumeSession] = []
    if state.sessions is not None:
        for session in state.sessions.held.values():
            consumer = session.consumer
            if consumer is not None and not session.is_absent():
                numbers = sorted(session.numbers)
                nonces: list[int] = [state.locks.held[n].nonce for n in numbers]
                commands.append(
                    ResumeSession(fragment, consumer.origin, consumer.consumer, session.id, numbers, nonces)
                )
    return commands


# ---- holders that have left ----


def release(state: State, sessions: MessageSessions, command: ReleaseHolds) -> None:
    gateway = command.gateway + " "
    for session in list(sessions.held.values()):
        if session.is_absent() and session.holder.startswith(gateway):
            give_up(state, sessions, session)


def undo(state: State, sessions: MessageSessions, durable: list[SessionHold]) -> None:
    """Have the next commit write what the store lacks, after the sessions were undone."""
    stored = {hold.session: hold for hold in durable}
    for id in stored:
        session = sessions.held.get(id)
        if session is None or not session.holder:
            state.ledger.drop_hold(id)
    for session in sessions.held.values():
        known = stored.get(session.id)
        if session.holder and (
            known is None or known.holder != session.holder or known.until != session.until
        ):
            write(state, session)
