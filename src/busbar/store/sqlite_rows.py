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

from busbar.fragment.changes import Changes, Edit, Head
from busbar.fragment.reads import ReadDue, ReadMany, ReadPage
from busbar.model.message import SCHEDULED, Record
from busbar.store.overlay import decode_overlay, encode_overlay

Value = int | bytes | str | None
Row = Sequence[Value]

LARGEST_CHUNK = 1024
_MAX_NUMBER = 2**63 - 1

_PUT = (
    "INSERT INTO msg(fragment, lane, n, enqueued, ttl, due, deliveries, size, overlay, content, session)"
    " VALUES {rows}"
)
_PUT_WIDTH = 11

_EDIT = (
    "WITH edit(fragment, lane, n, target, deliveries, overlay) AS (VALUES {rows})"
    " UPDATE msg SET lane = edit.target, deliveries = edit.deliveries, overlay = edit.overlay FROM edit"
    " WHERE msg.fragment = edit.fragment AND msg.lane = edit.lane AND msg.n = edit.n"
)
_EDIT_WIDTH = 6

# CROSS JOIN fixes the order: for each run of numbers one range of the index.
_DELETE = (
    "DELETE FROM msg WHERE id IN (SELECT msg.id FROM json_each(?) AS run CROSS JOIN msg INDEXED BY msg_place"
    " WHERE msg.fragment = json_extract(run.value, '$[0]') AND msg.lane = json_extract(run.value, '$[1]')"
    " AND msg.n BETWEEN json_extract(run.value, '$[2]') AND json_extract(run.value, '$[3]'))"
)

_HEAD = "INSERT OR REPLACE INTO fragment VALUES {rows}"
_HEAD_WIDTH = 11

COLUMNS = "n, enqueued, ttl, due, deliveries, size, overlay, content, session"

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
    """Perform the changes, inside the caller's transaction: puts, edits, deletes, heads."""
    puts: list[Value] = []
    edits: list[Value] = []
    runs: list[tuple[int, int, int, int]] = []
    heads: list[Value] = []
    for changes in batches:
        fragment = changes.fragment
        for lane, records in changes.puts.items():
            for r in records:
                overlay = encode_overlay(r.overlay) if r.overlay is not None else None
                puts += (
                    fragment,
                    lane,
                    r.n,
                    r.enqueued,
                    r.ttl,
                    r.due,
                    r.deliveries,
                    r.size,
                    overlay,
                    r.content,
                    r.session_id,
                )
        if changes.edits:
            for lane, edit in _net(changes.edits):
                edits += (fragment, lane, edit.n, edit.to, edit.deliveries, encode_overlay(edit.overlay))
        for lane, numbers in changes.deletes.items():
            runs += [(fragment, lane, first, last) for first, last in _runs(numbers)]
        if changes.head is not None:
            heads += _head_row(changes.head)
    in_chunks(connection, _PUT, _PUT_WIDTH, puts)
    in_chunks(connection, _EDIT, _EDIT_WIDTH, edits)
    if runs:
        connection.execute(_DELETE, (dumps(runs),))
    in_chunks(connection, _HEAD, _HEAD_WIDTH, heads)


def _head_row(head: Head) -> Row:
    return (head.fragment, head.last, *head.counts, head.size, head.ids, head.dropped, head.turn)


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


def _net(edits: Iterable[Edit]) -> Iterable[tuple[int, Edit]]:
    """For each message that was edited: a lane it may start from, and its last edit if it does.

    Where a message stands is not known here, and edits that name another lane do nothing: so one message may come with
    several lanes, of which at most one is right.
    """
    ways: dict[int, dict[int, Edit]] = {}
    for edit in edits:
        way = ways.setdefault(edit.n, {})
        for start, last in way.items():
            if last.to == edit.lane:
                way[start] = edit
        way.setdefault(edit.lane, edit)
    return [(start, last) for way in ways.values() for start, last in way.items()]


def _runs(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The numbers as runs of consecutive ones: completing goes mostly in order."""
    ordered = sorted(numbers)
    if not ordered:
        return
    first = last = ordered[0]
    for n in ordered:
        if n > last + 1:
            yield first, last
            first = n
        last = n
    yield first, last


def read_page(connection: sqlite3.Connection, fragment: int, read: ReadPage) -> None:
    if read.session is None:
        rows = connection.execute(_PAGE, (fragment, read.lane, read.start, read.limit))
    else:
        rows = connection.execute(_SESSION_PAGE, (fragment, read.session, read.lane, read.start, read.limit))
    read.records, exhausted = _up_to(read.max_bytes, rows)
    read.complete = exhausted and len(read.records) < read.limit


def read_many(connection: sqlite3.Connection, fragment: int, read: ReadMany) -> None:
    rows = connection.execute(_MANY, (fragment, read.lane, dumps(list(read.numbers))))
    read.records = [record_of(row) for row in rows]


def read_due(connection: sqlite3.Connection, fragment: int, read: ReadDue) -> None:
    rows = connection.execute(_DUE, (fragment, read.until, read.limit))
    read.records, _ = _up_to(read.max_bytes, rows)
    last = read.records[-1] if read.records else None
    after = (read.until, _MAX_NUMBER) if last is None else (last.due, last.n)
    read.next_due = next_due(connection, fragment, after)


def next_due(connection: sqlite3.Connection, fragment: int, after: tuple[int, int] = (0, 0)) -> int:
    found = connection.execute(_NEXT_DUE, (fragment, *after)).fetchone()
    return 0 if found is None else int(found[0])


def record_of(row: Row) -> Record:
    n, enqueued, ttl, due, deliveries, size, overlay, content, session = row
    return Record(n, enqueued, ttl, due, deliveries, size, content, decode_overlay(overlay), session)  # type: ignore[arg-type]


def _up_to(max_bytes: int, rows: sqlite3.Cursor) -> tuple[list[Record], bool]:
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
