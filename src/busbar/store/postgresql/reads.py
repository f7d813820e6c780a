"""Reads of messages, ids, sessions, events and writers.

Pages and reads by number of all fragments of a job are one statement each. A page is bounded by bytes in the server, so that
no content is sent that is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from busbar.fragment.reads import (
    Read,
    ReadByNumber,
    ReadDue,
    ReadEvents,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadKept,
    ReadOutbox,
    ReadPage,
    ReadSession,
    ReadSessionIds,
    ReadSpan,
    ReadTapPage,
    ReadTime,
    ReadWaitingSessions,
    ReadWritten,
)
from busbar.model.effects import MessageEvent
from busbar.model.message import OUTBOX, SCHEDULED
from busbar.store.contract import StoreError
from busbar.store.postgresql import tap_reads
from busbar.store.postgresql.connection import DatabaseConnection
from busbar.store.postgresql.group_statement import writer_key
from busbar.store.postgresql.journal import to_bytes, to_text
from busbar.store.postgresql.rows import COLUMNS, record_of

Jobs = Sequence[tuple[int, Sequence[Read]]]

_MAX_NUMBER: Final = 2**63 - 1

_PAGES: Final = f"""SELECT q.i, p.total, {COLUMNS}
    FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[])
        AS q(i, fragment, lane, start, most, max_bytes, of_session)
    CROSS JOIN LATERAL (
        SELECT {COLUMNS}, sum(size) OVER by_n AS upto, row_number() OVER by_n AS place, count(*) OVER () AS total FROM (
            SELECT {COLUMNS} FROM msg WHERE fragment = q.fragment AND lane = q.lane AND n >= q.start{{of_session}}
            ORDER BY n LIMIT q.most) AS found
        WINDOW by_n AS (ORDER BY n)) AS p
    WHERE p.place = 1 OR p.upto <= q.max_bytes ORDER BY q.i, p.n"""
_PLAIN_PAGES: Final = _PAGES.format(of_session="")
_SESSION_PAGES: Final = _PAGES.format(of_session=" AND session = q.of_session")

_MANY: Final = (
    f"SELECT q.i, 0, {COLUMNS.replace('n,', 'msg.n,', 1)}"
    " FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[]) AS q(i, fragment, lane, n)"
    " JOIN msg ON msg.fragment = q.fragment AND msg.lane = q.lane AND msg.n = q.n ORDER BY q.i, msg.n"
)
_BOUNDED: Final = f"""SELECT 0, 0, {COLUMNS} FROM (
        SELECT {COLUMNS}, sum(size) OVER in_order AS upto, row_number() OVER in_order AS place FROM (
            SELECT {COLUMNS} FROM msg WHERE fragment = $1 AND {{condition}} ORDER BY {{order}} LIMIT $2) AS found
        WINDOW in_order AS (ORDER BY {{order}})) AS p
    WHERE place = 1 OR upto <= $3 ORDER BY {{order}}"""
_DUE: Final = _BOUNDED.format(condition=f"lane = {SCHEDULED} AND due <= $4", order="due, n")
_OUT: Final = _BOUNDED.format(condition=f"lane = {OUTBOX} AND target = $4 AND n > $5", order="n")
_NEXT_DUE: Final = (
    f"SELECT due FROM msg WHERE fragment = $1 AND lane = {SCHEDULED} AND (due, n) > ($2::bigint, $3::bigint)"
    " ORDER BY due, n LIMIT 1"
)

# LIMIT fixes the order: one look-up of the key for each segment, or batch, and id.
_FIND_IDS: Final = (
    "SELECT d.id, d.at, d.n FROM unnest($2::bigint[]) AS s(segment) CROSS JOIN unnest($3::bytea[]) AS w(id)"
    " CROSS JOIN LATERAL (SELECT id, at, n FROM dup"
    " WHERE fragment = $1 AND dup.segment = s.segment AND dup.id = w.id LIMIT 1) AS d"
)
_ID_PAGE: Final = (
    "SELECT segment, id, at, n FROM dup WHERE fragment = $1 AND (segment, id) > ($2::bigint, $3::bytea)"
    " ORDER BY segment, id LIMIT $4"
)
_LINE: Final = (
    "SELECT id, turn, coalesce((SELECT enqueued + ttl FROM msg WHERE msg.fragment = session.fragment"
    " AND msg.session = session.id AND lane = 0 AND ttl > 0 ORDER BY enqueued + ttl LIMIT 1), 0)"
    " FROM session WHERE fragment = $1 AND turn > $2 ORDER BY turn LIMIT $3"
)
_EXPIRY: Final = (
    "SELECT enqueued + ttl, n FROM msg WHERE fragment = $1 AND session = $2 AND lane = 0 AND ttl > 0"
    " ORDER BY enqueued + ttl, n LIMIT $3"
)
_STATE: Final = (
    "SELECT size, CASE WHEN $3::boolean THEN state END FROM session_state WHERE fragment = $1 AND id = $2"
)
_SESSION_IDS: Final = (
    "SELECT id FROM ((SELECT id FROM session WHERE fragment = $1 AND id {behind} $2 ORDER BY id LIMIT $3)"
    " UNION (SELECT id FROM session_state WHERE fragment = $1 AND id {behind} $2 ORDER BY id LIMIT $3)) AS ids"
    " ORDER BY id LIMIT $3"
)
_UPDATED_IDS: Final = (
    "SELECT id FROM session_state WHERE fragment = $1 AND id {behind} $2 AND at > $4 ORDER BY id LIMIT $3"
)
_EVENTS: Final = (
    "SELECT at, n, outcome, time, enqueued, deliveries, reason FROM event"
    " WHERE fragment = $1 AND at > $2 AND at <= $3 ORDER BY at LIMIT $4"
)
_BATCHES: Final = (
    "WITH RECURSIVE next(batch) AS ((SELECT batch FROM written WHERE fragment = $1 AND writer = $2 ORDER BY batch LIMIT 1)"
    " UNION ALL SELECT (SELECT batch FROM written WHERE fragment = $1 AND writer = $2 AND batch > next.batch"
    " ORDER BY batch LIMIT 1) FROM next WHERE next.batch IS NOT NULL)"
)
_FIND_WRITTEN: Final = (
    f"{_BATCHES} SELECT d.id FROM next CROSS JOIN unnest($3::bytea[]) AS w(id) CROSS JOIN LATERAL (SELECT id FROM written"
    " WHERE fragment = $1 AND writer = $2 AND written.batch = next.batch AND written.id = w.id LIMIT 1) AS d"
)


def perform(connection: DatabaseConnection, jobs: Jobs) -> None:
    """Fill in all reads."""
    pages: list[tuple[int, ReadPage]] = []
    session_pages: list[tuple[int, ReadPage]] = []
    numbers: list[tuple[int, ReadByNumber]] = []
    for fragment, reads in jobs:
        for read in reads:
            if isinstance(read, ReadPage):
                (pages if read.session is None else session_pages).append((fragment, read))
            elif isinstance(read, ReadByNumber):
                numbers.append((fragment, read))
            else:
                _read_one(connection, fragment, read)
    if pages:
        _read_pages(connection, _PLAIN_PAGES, pages)
    if session_pages:
        _read_pages(connection, _SESSION_PAGES, session_pages)
    if numbers:
        _read_by_number(connection, numbers)


def _read_one(connection: DatabaseConnection, fragment: int, read: Read) -> None:
    if isinstance(read, ReadDue):
        _read_due(connection, fragment, read)
    elif isinstance(read, ReadOutbox):
        rows = connection.fetch(_OUT, fragment, read.limit, read.max_bytes, read.target, read.after)
        read.records = [record_of(row) for row in rows]
    elif isinstance(read, ReadIds):
        _read_ids(connection, fragment, read)
    elif isinstance(read, ReadIdPage):
        rows = connection.fetch(_ID_PAGE, fragment, read.segment, read.after, read.limit)
        read.rows = [tuple(row) for row in rows]
    elif isinstance(read, ReadWaitingSessions):
        rows = connection.fetch(_LINE, fragment, read.after, read.limit)
        read.rows = [(to_text(id), turn, expiry) for id, turn, expiry in rows]
    elif isinstance(read, ReadExpiry):
        rows = connection.fetch(_EXPIRY, fragment, to_bytes(read.session), read.limit)
        read.rows = [tuple(row) for row in rows]
    elif isinstance(read, ReadSession):
        found = connection.fetch(_STATE, fragment, to_bytes(read.session), read.with_state)
        read.size, read.state = found[0] if found else (-1, None)
    elif isinstance(read, ReadSessionIds):
        _read_session_ids(connection, fragment, read)
    elif isinstance(read, ReadSpan):
        tap_reads.read_span(connection, fragment, read)
    elif isinstance(read, ReadTapPage):
        tap_reads.read_packed(connection, fragment, read)
    elif isinstance(read, ReadKept):
        tap_reads.read_kept(connection, fragment, read)
    elif isinstance(read, ReadTime):
        tap_reads.read_time(connection, fragment, read)
    elif isinstance(read, ReadEvents):
        rows = connection.fetch(_EVENTS, fragment, read.after, read.upto, read.limit)
        read.events = [
            MessageEvent(at, n, outcome, time, enqueued, deliveries, to_text(reason))
            for at, n, outcome, time, enqueued, deliveries, reason in rows
        ]
    elif isinstance(read, ReadWritten):
        rows = connection.fetch(_FIND_WRITTEN, fragment, writer_key(read.writer), list(read.ids))
        read.found = {id for (id,) in rows}
    else:
        raise StoreError(f"no store knows the read {type(read).__name__}")


def _read_pages(connection: DatabaseConnection, statement: str, pages: list[tuple[int, ReadPage]]) -> None:
    rows = connection.fetch(
        statement,
        list(range(len(pages))),
        [fragment for fragment, _ in pages],
        [read.lane for _, read in pages],
        [read.start for _, read in pages],
        [read.limit for _, read in pages],
        [read.max_bytes for _, read in pages],
        [None if read.session is None else to_bytes(read.session) for _, read in pages],
    )
    for _, read in pages:
        read.records, read.complete = [], True
    for row in rows:
        read = pages[row[0]][1]
        read.records.append(record_of(row))
        read.complete = row[1] < read.limit and row[1] == len(read.records)


def _read_by_number(connection: DatabaseConnection, wanted: list[tuple[int, ReadByNumber]]) -> None:
    keys = [
        (i, fragment, read.lane, n)
        for i, (fragment, read) in enumerate(wanted)
        for n in dict.fromkeys(read.numbers)
    ]
    for _, read in wanted:
        read.records = []
    if keys:
        for row in connection.fetch(_MANY, *[list(column) for column in zip(*keys, strict=True)]):
            wanted[row[0]][1].records.append(record_of(row))


def _read_due(connection: DatabaseConnection, fragment: int, read: ReadDue) -> None:
    rows = connection.fetch(_DUE, fragment, read.limit, read.max_bytes, read.until)
    read.records = [record_of(row) for row in rows]
    last = read.records[-1] if read.records else None
    after = (read.until, _MAX_NUMBER) if last is None else (last.due, last.n)
    read.next_due = next_due(connection, fragment, after)


def next_due(connection: DatabaseConnection, fragment: int, after: tuple[int, int] = (0, 0)) -> int:
    found = connection.fetch(_NEXT_DUE, fragment, *after)
    return int(found[0][0]) if found else 0


def _read_ids(connection: DatabaseConnection, fragment: int, read: ReadIds) -> None:
    found: dict[bytes, tuple[int, int]] = {}
    for id, time, n in connection.fetch(_FIND_IDS, fragment, list(read.segments), list(read.ids)):
        if id not in found or found[id] < (time, n):
            found[id] = (time, n)
    read.found = found


def _read_session_ids(connection: DatabaseConnection, fragment: int, read: ReadSessionIds) -> None:
    behind = ">=" if read.after is None else ">"
    values: list[Any] = [fragment, to_bytes(read.after or ""), read.top]
    if read.updated_after:
        rows = connection.fetch(_UPDATED_IDS.format(behind=behind), *values, read.updated_after)
    else:
        rows = connection.fetch(_SESSION_IDS.format(behind=behind), *values)
    read.ids = [to_text(id) for (id,) in rows]
