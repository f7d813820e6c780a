"""Which reads a command needs before it is applied, and which part gets what was read."""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment import (
    browsing,
    forwarding,
    moving,
    scheduling,
    sending,
    serving,
    session_accepting,
    session_holds,
    session_serving,
    taking,
    tap_reading,
    transacting,
)
from busbar.fragment.reads import Read, ReadByNumber, ReadExpiry, ReadOutbox, ReadPage, ReadWaitingSessions
from busbar.fragment.sessions import MessageSessions
from busbar.fragment.state import State
from busbar.fragment.sub_queues import sub_queue_of
from busbar.model.commands import (
    AcceptSession,
    CancelScheduled,
    Command,
    Demand,
    FindTime,
    GetSessionState,
    InspectSession,
    ListSessions,
    Peek,
    Probe,
    PullOutbox,
    Purge,
    ReadTap,
    ReceiveDeferred,
    RemoveMoved,
    Send,
    SetSessionState,
    TakeMoved,
    Tick,
    Transact,
)
from busbar.model.hold_commands import ResumeSession
from busbar.model.message import ACTIVE


def reads_of(state: State, command: Command, now: i64) -> list[Read]:
    """What must be read from the store before the command is applied."""
    if isinstance(command, Send):
        return sending.send_reads(state, command)
    elif isinstance(command, Demand):
        here = sub_queue_of(command.sub)
        if command.credit > 0 and state.serves(here) and (state.sessions is None or here != ACTIVE):
            return serving.window_reads(state, state.window(here))
    elif isinstance(command, Tick):
        reads = scheduling.due_reads(state, now)
        reads += state.duplicates.tick_reads(now, state.settings.duplicate_window_ms)
        if state.taps is not None:
            reads += state.taps.tick_reads(state.ledger.head)
        for window in (state.main, state.dead, state.transfer_dead):
            if serving.could_serve(state, window):
                reads += serving.window_reads(state, window)
            elif forwarding.could_forward(state, window):
                reads += forwarding.forward_reads(state, window)
        if state.sessions is not None:
            reads += session_serving.session_reads(state.sessions, now)
            reads += session_accepting.line_reads(state, state.sessions, now)
        return reads
    elif isinstance(command, ReceiveDeferred):
        return serving.deferred_reads(state, command)
    elif isinstance(command, Peek):
        return browsing.peek_reads(state, command)
    elif isinstance(command, CancelScheduled):
        return scheduling.cancel_reads(state, command)
    elif isinstance(command, Purge):
        return serving.purge_reads(state, command)
    elif isinstance(command, ReadTap):
        return tap_reading.tap_reads(state, command)
    elif isinstance(command, FindTime):
        return tap_reading.time_reads(state, command)
    elif isinstance(command, (Transact, Probe)):
        return transacting.part_reads(state, command.parts)
    elif isinstance(command, TakeMoved):
        return taking.take_reads(state, command)
    elif isinstance(command, PullOutbox):
        return moving.pull_reads(state, command)
    elif isinstance(command, RemoveMoved):
        return moving.remove_reads(state, command)
    elif state.sessions is not None:
        return _session_reads(state, state.sessions, command, now)
    return []


def _session_reads(state: State, sessions: MessageSessions, command: Command, now: i64) -> list[Read]:
    if isinstance(command, AcceptSession):
        return session_accepting.accept_reads(state, sessions, command, now)
    if isinstance(command, GetSessionState):
        return session_accepting.state_reads(sessions, command.origin, command.consumer, True)
    if isinstance(command, SetSessionState):
        return session_accepting.state_reads(sessions, command.origin, command.consumer, False)
    if isinstance(command, ListSessions):
        return session_accepting.list_reads(state, command)
    if isinstance(command, InspectSession):
        return session_accepting.inspect_reads(command)
    if isinstance(command, ResumeSession):
        return session_holds.resume_reads(state, sessions, command)
    return []


def take_reads(state: State, reads: list[Read]) -> None:
    """Give each filled read to the part that asked for it; what the command needs for its own rules is `supplied`."""
    held = state.locks.held
    last = state.ledger.head.last
    rest: list[Read] = []
    for read in reads:
        if isinstance(read, ReadPage):
            if (
                state.main.absorb_page(read, held, last)
                or state.dead.absorb_page(read, held, last)
                or state.transfer_dead.absorb_page(read, held, last)
            ):
                continue
        elif isinstance(read, ReadByNumber) and (
            state.main.absorb_stubs(read)
            or state.dead.absorb_stubs(read)
            or state.transfer_dead.absorb_stubs(read)
        ):
            continue
        elif isinstance(read, ReadOutbox):
            moving.absorb(state, read)
            continue
        if state.sessions is None or not _take_session_read(state, state.sessions, read):
            rest.append(read)
    state.supplied = rest


def _take_session_read(state: State, sessions: MessageSessions, read: Read) -> bool:
    head = state.ledger.head
    if isinstance(read, ReadPage):
        session = sessions.held.get(read.session) if read.session is not None else None
        if session is None or not session.window.absorb_page(read, state.locks.held, head.last):
            return False
        session.complete = read.complete or not read.records
        sessions.changed[session.id] = session
        return True
    if isinstance(read, ReadWaitingSessions):
        return sessions.line.absorb(read, set(sessions.held), head.turn)
    if isinstance(read, ReadExpiry):
        return session_serving.absorb_expiry(sessions, read)
    if isinstance(read, ReadByNumber):
        for session in sessions.asked:
            if session.window.absorb_stubs(read):
                sessions.changed[session.id] = session
                return True
    return False
