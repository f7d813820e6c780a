"""Reads that change nothing: peek and counters.

Rules of peek
- A sub-queue shows its lanes (sub_queues.py), locked messages too, by rising number. The outbox shows its own.
- A page shows what the store holds, expired messages included. The count and the bytes that were asked for bound it, but
  it has at least one message.
- Each lane is read by itself and may be cut short. Nothing beyond the end of such a lane is shown. The caller continues
  behind the last number it has seen, and would never see the rest.
- With a session, only its messages are shown. No lock is needed for that.
- If it was asked for, each message has the end of its lock. The lock of a message of a session ends with the session's.
"""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment.locks import FOREVER
from busbar.fragment.reads import Read, ReadPage
from busbar.fragment.state import State
from busbar.fragment.sub_queues import peeked_lanes
from busbar.model.commands import Inspect, InspectDuplicates, Peek
from busbar.model.effects import DuplicateReport, Inspected, Peeked
from busbar.model.message import ACTIVE, Record


def peek_reads(state: State, command: Peek) -> list[Read]:
    start: i64 = command.from_number if command.from_number > 1 else 1
    most = state.bounds.turn_messages
    count: i64 = command.count if command.count < most else most
    head = state.ledger.head
    reads: list[Read] = []
    if count > 0 and start <= head.last:
        for lane in peeked_lanes(command.sub):
            if head.counts[lane] > 0:
                reads.append(ReadPage(lane, start, count, command.max_bytes, command.session))
    return reads


def peek(state: State, command: Peek) -> None:
    found: list[tuple[int, int, Record]] = []
    end: int = state.ledger.head.last
    for read in state.supplied:
        if isinstance(read, ReadPage) and read.records:
            records = read.records
            lane: int = read.lane
            for record in records:
                found.append((record.n, lane, record))
            last: int = records[-1].n
            all_shown = command.session is None and len(records) >= state.ledger.head.counts[lane]
            if last < end and not read.complete and not all_shown:
                end = last
    found.sort(key=_number)
    shown: list[Record] = []
    lanes: list[int] = []
    size: i64 = 0
    for n, lane, record in found:
        size += record.size
        if n > end or len(shown) >= command.count or (shown and size > command.max_bytes):
            break
        shown.append(record)
        lanes.append(lane)
    locked = [_locked_until(state, record) for record in shown] if command.with_locks else []
    state.effects.append(Peeked(command.origin, command.request, shown, lanes, locked))


def _locked_until(state: State, record: Record) -> int:
    """The end of the lock of a message; 0 if it is not locked."""
    lock = state.locks.held.get(record.n)
    if lock is None:
        return 0
    if lock.until != FOREVER:
        return lock.until if lock.until > state.now else 0
    sessions, id = state.sessions, record.session_id
    session = sessions.held.get(id) if sessions is not None and id is not None else None
    return 0 if session is None else session.until


def _number(entry: tuple[int, int, Record]) -> int:
    return entry[0]


def inspect(state: State, command: Inspect) -> None:
    head = state.ledger.head
    dropped = state.duplicates.dropped
    waiting: dict[int, int] | None = None
    if state.outbox.pairs:
        waiting = {target: int(pair.count) for target, pair in state.outbox.pairs.items()}
    state.effects.append(
        Inspected(
            command.origin,
            command.request,
            list(head.counts),
            head.size,
            head.last,
            dropped,
            waiting,
            state.locks.counts[ACTIVE],
            _oldest(state),
        )
    )


def _oldest(state: State) -> i64:
    """When the first active message was enqueued, by what is in memory: the first one that is available, and the lock that
    has been held longest. 0: it is not known without a read."""
    first = state.main.first()
    oldest: i64 = first.enqueued if first is not None else 0
    for lock in state.locks.held.values():
        if lock.lane == ACTIVE and (oldest == 0 or lock.record.enqueued < oldest):
            oldest = lock.record.enqueued
        break
    return oldest


def inspect_duplicates(state: State, command: InspectDuplicates) -> None:
    duplicates = state.duplicates
    ids: list[str] = []
    times: list[int] = []
    numbers: list[int] = []
    for id, at, n in duplicates.latest:
        ids.append(id)
        times.append(at)
        numbers.append(n)
    state.effects.append(
        DuplicateReport(
            command.origin,
            command.request,
            duplicates.dropped,
            state.ledger.head.ids,
            ids,
            times,
            numbers,
        )
    )
