"""Messages in SQL: what a commit writes and what a read finds.

Every call into SQLite gives up the interpreter's lock and must win it back from a busy event loop, which costs more
than the call. So many rows go through one statement: rows in chunks whose sizes are powers of two (each size is one
prepared statement, kept), numbers as JSON. `executemany` takes tens of times as long (bench/store_layouts.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from json import dumps

from busbar.fragment.changes import Changes, Head, Keep, MessageEdit, empty_head
from busbar.fragment.reads import ReadByNumber, ReadDue, ReadPage
from busbar.model.message import KEPT, LANES, SCHEDULED, Record
from busbar.store.number_runs import number_runs
from busbar.store.overlay_codec import decode_overlay, encode_overlay

Value = int | bytes | str | None
Row = Sequence[Value]

LARGEST_CHUNK = 1024
_MAX_NUMBER = 2**63 - 1

# How a lane is written. SQLite changes a row in place if its length stays the same. Otherwise it writes the whole row again,
# with its content. The numbers 0 and 1 and an empty text take no byte, the numbers of other lanes one. So a message that
# goes from ACTIVE to KEPT keeps its length.
LANE_KEYS: tuple[int | str, ...] = tuple("" if lane == KEPT else lane for lane in range(LANES))

_PUT = (
    "INSERT INTO msg(fragment, lane, n, enqueued, ttl, due, deliveries, size, overlay, content, session, dead)"
    " VALUES {rows}"
)
_PUT_WIDTH = 12

_PUT_MOVED = (  # the few messages that were moved before, or are about to be
    "INSERT INTO msg(fragment, lane, n, enqueued, ttl, due, deliveries, size, overlay, content, session, dead,"
    " hops, target, kind) VALUES {rows}"
)
_PUT_MOVED_WIDTH = 15

_EDIT = (
    "WITH edit(fragment, lane, n, lane_after, deliveries, overlay, dead, size) AS (VALUES {rows})"
    " UPDATE msg SET lane = edit.lane_after, deliveries = edit.deliveries, overlay = edit.overlay, dead = edit.dead,"
    " size = CASE WHEN edit.size < 0 THEN msg.size ELSE edit.size END FROM edit"
    " WHERE msg.fragment = edit.fragment AND msg.lane = edit.lane AND msg.n = edit.n"
)
_EDIT_WIDTH = 8

# CROSS JOIN fixes the order: for each run of numbers one range of the index.
_IN_RUNS = (
    "id IN (SELECT msg.id FROM json_each(?) AS run CROSS JOIN msg INDEXED BY msg_place"
    " WHERE msg.fragment = json_extract(run.value, '$[0]') AND msg.lane = json_extract(run.value, '$[1]')"
    " AND msg.n BETWEEN json_extract(run.value, '$[2]') AND json_extract(run.value, '$[3]'))"
)
_DELETE = f"DELETE FROM msg WHERE {_IN_RUNS}"
_KEEP = f"UPDATE msg SET lane = ? WHERE {_IN_RUNS}"
_Run = tuple[int, int | str, int, int]
"""Of one fragment and lane: the numbers from one to another."""

HEAD_COLUMNS = (
    "id, last, active, dead, deferred, scheduled, dead_deferred, kept, kept_dead, outbox, transfer_dead,"
    " transfer_dead_deferred, size, ids, dropped, turn,"
    " last_dead, last_event, events, kept_size, kept_dead_size"
)
_HEAD = f"INSERT OR REPLACE INTO fragment({HEAD_COLUMNS}) VALUES {{rows}}"
_HEAD_WIDTH = len(HEAD_COLUMNS.split(","))

# What only messages have that are moved is one column, empty for all others: each column that is read costs.
COLUMNS = (
    "n, enqueued, ttl, due, deliveries, size, overlay, content, session, dead,"
    " CASE WHEN hops OR kind THEN hops || ' ' || target || ' ' || kind END"
)

_PAGE = f"SELECT {COLUMNS} FROM msg INDEXED BY msg_place WHERE fragment = ? AND lane = ? AND n >= ? ORDER BY n LIMIT ?"
_SESSION_PAGE = (
    f"SELECT {COLUMNS} FROM msg INDEXED BY msg_session WHERE fragment = ? AND session = ? AND lane = ? AND n >= ?"
    " ORDER BY n LIMIT ?"
)
_MANY = (
    f"SELECT {COLUMNS} FROM msg INDEXED BY msg_place WHERE fragment = ? AND lane = ?"
    " AND n IN (SELECT value FROM json_each(?)) ORDER BY n"
)
_DUE = (
    f"SELECT {COLUMNS} FROM msg INDEXED BY msg_due WHERE fragment = ? AND lane = {SCHEDULED} AND due <= ?"
    " ORDER BY due, n LIMIT ?"
)
_NEXT_DUE = (
    f"SELECT due FROM msg INDEXED BY msg_due WHERE fragment = ? AND lane = {SCHEDULED} AND (due, n) > (?, ?)"
    " ORDER BY due, n LIMIT 1"
)


def write(connection: sqlite3.Connection, batches: Sequence[Changes]) -> None:
    """Perform the changes, inside the caller's transaction: puts, edits, keeps, deletes, heads."""
    puts: list[Value] = []
    moved_puts: list[Value] = []
    edits: list[Value] = []
    keeps: dict[tuple[int, int], list[_Run]] = {}
    runs: list[_Run] = []
    heads: list[Value] = []
    for changes in batches:
        fragment = changes.fragment
        for lane, records in changes.puts.items():
            key = LANE_KEYS[lane]
            for r in records:
                overlay = encode_overlay(r.overlay) if r.overlay is not None else None
                row = (
                    fragment,
                    key,
                    r.n,
                    r.enqueued,
                    r.ttl,
                    r.due,
                    r.deliveries,
                    r.size,
                    overlay,
                    r.content,
                    r.session_id,
                    r.dead_letter_number,
                )
                if r.hops or r.kind:
                    moved_puts += (*row, r.hops, r.target, r.kind)
                else:
                    puts += row
        if changes.edits:
            for lane, edit in _net(changes.edits):
                overlay = encode_overlay(edit.overlay)
                before, after = LANE_KEYS[lane], LANE_KEYS[edit.to]
                edits += (fragment, before, edit.n, after, edit.deliveries, overlay, edit.dead, edit.size)
        for step, keep in _steps(changes.keeps):
            key = LANE_KEYS[keep.lane]
            kept = keeps.setdefault((step, keep.to), [])
            kept += [(fragment, key, first, last) for first, last in number_runs(keep.numbers)]
        for lane, numbers in changes.deletes.items():
            key = LANE_KEYS[lane]
            runs += [(fragment, key, first, last) for first, last in number_runs(numbers)]
        if changes.head is not None:
            heads += _head_row(changes.head)
    in_chunks(connection, _PUT, _PUT_WIDTH, puts)
    in_chunks(connection, _PUT_MOVED, _PUT_MOVED_WIDTH, moved_puts)
    in_chunks(connection, _EDIT, _EDIT_WIDTH, edits)
    for (_, to), moved in sorted(keeps.items()):
        connection.execute(_KEEP, (LANE_KEYS[to], dumps(moved)))
    if runs:
        connection.execute(_DELETE, (dumps(runs),))
    in_chunks(connection, _HEAD, _HEAD_WIDTH, heads)


def _head_row(head: Head) -> Row:
    return (
        head.fragment,
        head.last,
        *head.counts,
        head.size,
        head.ids,
        head.dropped,
        head.turn,
        head.last_dead,
        head.last_event,
        head.events,
        head.kept_size,
        head.kept_dead_size,
    )


def head_of(row: Row) -> Head:
    key, last, *counts_and_rest = row
    return Head(key, last, counts_and_rest[:LANES], *counts_and_rest[LANES:])  # type: ignore[arg-type]


@cache
def statement(template: str, width: int, count: int) -> str:
    row = "(" + ",".join("?" * width) + ")"
    return template.format(rows=",".join([row] * count))


def in_chunks(connection: sqlite3.Connection, template: str, width: int, values: list[Value]) -> None:
    at, left = 0, len(values) // width
    while left:
        count = min(1 << (left.bit_length() - 1), LARGEST_CHUNK)
        connection.execute(statement(template, width, count), values[at : at + count * width])
        at += count * width
        left -= count


def _net(edits: Iterable[MessageEdit]) -> Iterable[tuple[int, MessageEdit]]:
    """For each message that was edited: a lane it may start from, and its last edit if it does.

    The lane of a message is not known here, and an edit that names another lane does nothing. So one message may come with
    several lanes, of which at most one is right.
    """
    ways: dict[int, dict[int, MessageEdit]] = {}
    for edit in edits:
        way = ways.setdefault(edit.n, {})
        for start, last in way.items():
            if last.to == edit.lane:
                way[start] = edit
        way.setdefault(edit.lane, edit)
    return [(start, last) for way in ways.values() for start, last in way.items()]


def _steps(keeps: Iterable[Keep]) -> Iterable[tuple[int, Keep]]:
    """Number the steps of the keeps: within one step, no message can be moved twice, or to one of two lanes."""
    step = 0
    sources: set[int] = set()
    targets: set[int] = set()
    ways: dict[tuple[int, int], int] = {}  # by lane and number: the lane to which it goes
    for keep in keeps:
        lane, to = keep.lane, keep.to
        if lane in targets or to in sources or any(ways.get((lane, n), to) != to for n in keep.numbers):
            step += 1
            sources, targets, ways = set(), set(), {}
        sources.add(lane)
        targets.add(to)
        for n in keep.numbers:
            ways[lane, n] = to
        yield step, keep


def create(connection: sqlite3.Connection, fragment: int) -> None:
    blank = f"INSERT INTO fragment({HEAD_COLUMNS}) VALUES {{rows}} ON CONFLICT DO NOTHING"
    connection.execute(statement(blank, _HEAD_WIDTH, 1), _head_row(empty_head(fragment)))


def drop(connection: sqlite3.Connection, fragment: int, limit: int) -> tuple[list[int], list[int]]:
    """Delete up to `limit` messages of a fragment; returns how many by lane, and their bytes."""
    some = "FROM msg INDEXED BY msg_place WHERE fragment = ? ORDER BY lane, n LIMIT ?"
    counts, sizes = [0] * LANES, [0] * LANES
    totals = f"SELECT lane, count(*), sum(size) FROM (SELECT lane, size {some}) GROUP BY lane"
    for key, count, total in connection.execute(totals, (fragment, limit)):
        lane = LANE_KEYS.index(key)
        counts[lane], sizes[lane] = count, total
    connection.execute(f"DELETE FROM msg WHERE id IN (SELECT id {some})", (fragment, limit))
    return counts, sizes


def read_page(connection: sqlite3.Connection, fragment: int, read: ReadPage) -> None:
    if read.session is None:
        rows = connection.execute(_PAGE, (fragment, LANE_KEYS[read.lane], read.start, read.limit))
    else:
        values = (fragment, read.session, LANE_KEYS[read.lane], read.start, read.limit)
        rows = connection.execute(_SESSION_PAGE, values)
    read.records, exhausted = up_to(read.max_bytes, rows)
    read.complete = exhausted and len(read.records) < read.limit


def read_many(connection: sqlite3.Connection, fragment: int, read: ReadByNumber) -> None:
    rows = connection.execute(_MANY, (fragment, LANE_KEYS[read.lane], dumps(list(read.numbers))))
    read.records = [record_of(row) for row in rows]


def read_due(connection: sqlite3.Connection, fragment: int, read: ReadDue) -> None:
    rows = connection.execute(_DUE, (fragment, read.until, read.limit))
    read.records, _ = up_to(read.max_bytes, rows)
    last = read.records[-1] if read.records else None
    after = (read.until, _MAX_NUMBER) if last is None else (last.due, last.n)
    read.next_due = next_due(connection, fragment, after)


def next_due(connection: sqlite3.Connection, fragment: int, after: tuple[int, int] = (0, 0)) -> int:
    found = connection.execute(_NEXT_DUE, (fragment, *after)).fetchone()
    return 0 if found is None else int(found[0])


def record_of(row: Row) -> Record:
    n, enqueued, ttl, due, deliveries, size, overlay, content, session, dead, moved = row
    overlay = decode_overlay(overlay)  # type: ignore[arg-type,assignment]
    record = Record(n, enqueued, ttl, due, deliveries, size, content, overlay, session, dead)  # type: ignore[arg-type]
    if moved is not None:
        record.hops, record.target, record.kind = map(int, str(moved).split())
    return record


def up_to(max_bytes: int, rows: sqlite3.Cursor) -> tuple[list[Record], bool]:
    """The first records that fit, but at least one; and whether these were all the rows."""
    page: list[Record] = []
    total = 0
    for row in rows:
        record = record_of(row)
        total += record.size
        if page and total > max_bytes:
            return page, False
        page.append(record)
    return page, True
