"""Messages as taps read them in SQL: over several lanes, in the order of their positions.

Each lane is a range of an index, so the lanes are merged as they are read, and a page costs what it returns. Of the other
lanes one row each is read. The lane is in the text of a statement, since a statement that is being read cannot be started a
second time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from json import loads
from typing import Any

from busbar.fragment.reads import ReadKept, ReadSpan, ReadTapPage, ReadTime
from busbar.model.message import KEPT_DEAD, Record
from busbar.model.tap_page import Changed, TapPageBuilder
from busbar.store.overlay_codec import decode_overlay
from busbar.store.sqlite.rows import COLUMNS, LANE_KEYS, Row, record_of

_BY_NUMBER = "FROM msg INDEXED BY msg_place WHERE fragment = ?1 AND lane = {lane} AND n > ?2 AND n <= ?3"
_BY_DEAD = "FROM msg INDEXED BY msg_dead WHERE fragment = ?1 AND lane = {lane} AND dead > ?2 AND dead <= ?3 AND dead > 0"

_KEPT = f"SELECT n, dead, size, enqueued {_BY_NUMBER} ORDER BY n LIMIT ?4"
_KEPT_DEAD = f"SELECT n, dead, size, enqueued {_BY_DEAD} ORDER BY dead LIMIT ?4"

_LAST = f"SELECT n, enqueued {_BY_NUMBER} ORDER BY n DESC LIMIT 1"
# The index has both, so that no message is read.
_LAST_DEAD = f"SELECT dead {_BY_DEAD} AND enqueued < ?4 ORDER BY dead DESC LIMIT 1"

_MAX_NUMBER = 2**63 - 1

_SPAN = f"SELECT {COLUMNS} {_BY_NUMBER} ORDER BY n"
_SPAN_BY_DEAD = f"SELECT {COLUMNS} {_BY_DEAD} ORDER BY dead"

# Packed. To give a row to Python costs as much as to find it, so SQLite puts many together: its group_concat takes the bytes
# of a blob as they are. The rows come in the order of the index that is read, and what most messages do not have comes by
# itself.
_LARGEST = 8_192  # a content: of larger ones a few fill a page, and they are read one by one
_MANY = 512
_FIRST_MANY = 64  # while their size is unknown
_FEW = 32

_FIRST = f"SELECT n {_BY_NUMBER} ORDER BY n LIMIT 1"
_NUMBERS = f"SELECT CAST(group_concat(n) AS BLOB) {_BY_NUMBER}"
_TOGETHER = f"""SELECT
    count(*),
    CAST(group_concat(CASE WHEN ttl THEN enqueued || ';' || ttl ELSE enqueued END) AS BLOB),
    CAST(group_concat(length(content)) AS BLOB),
    CAST(group_concat(content, '') FILTER (WHERE length(content) <= {_LARGEST}) AS BLOB),
    group_concat(json_array(n, deliveries, dead, CASE WHEN overlay IS NOT NULL THEN hex(overlay) END))
        FILTER (WHERE deliveries OR dead OR overlay IS NOT NULL)
    {_BY_NUMBER}"""

Ahead = tuple[int, int, Record, Iterator[Row]]
"""The next message of a lane: its position, the lane, itself, and those that follow."""


@cache
def _of_lane(template: str, lane: int) -> str:
    return template.format(lane=repr(LANE_KEYS[lane]))


def read_span(connection: sqlite3.Connection, fragment: int, read: ReadSpan) -> None:
    total = 0
    read.complete = False
    with _merged(connection, fragment, read, read.after) as messages:
        for record, _ in messages:
            total += record.size
            if len(read.records) >= read.limit or (read.records and total > read.max_bytes):
                return
            read.records.append(record)
    read.complete = True


def read_packed(connection: sqlite3.Connection, fragment: int, read: ReadTapPage) -> None:
    after = read.after if read.by_dead else _together(connection, fragment, read)
    if not read.packing.full:
        with _merged(connection, fragment, read, after) as messages:
            all(read.packing.add(record, lane) for record, lane in messages)
    read.complete = not read.packing.full


def _together(connection: sqlite3.Connection, fragment: int, read: ReadTapPage) -> int:
    """Read many messages at a time for as long as that pays. Returns the position up to which all were read."""
    packing = read.packing
    after = read.after
    if packing.room() <= _FEW or not _blobs_go_together():
        return after
    # The lanes that have messages, with a number before which they have none.
    lanes = [
        (first, lane) for lane in read.lanes if (first := _first(connection, fragment, lane, read, after))
    ]
    while lanes and (room := packing.room()):
        lanes.sort()
        first, lane = lanes[0]
        until = lanes[1][0] - 1 if len(lanes) > 1 else read.upto
        if until - first < _FEW and until < read.upto:
            break  # lanes alternate
        stop = min(until, first + min(_MANY if packing.count else _FIRST_MANY, room) - 1)
        span = (fragment, first - 1, stop)
        count, *columns = connection.execute(_of_lane(_TOGETHER, lane), span).fetchone()
        numbers = b""
        if count <= stop - first:  # there are gaps
            (numbers,) = connection.execute(_of_lane(_NUMBERS, lane), span).fetchone()
        if count and not _add(packing, lane, first, count, numbers, columns):
            return max(after, packing.last)  # full, or the next one is large
        after = stop
        if count < (stop - first) // 8:
            break  # wide gaps
        following = stop + 1 if stop < until else _first(connection, fragment, lane, read, stop)
        lanes[:1] = [(following, lane)] if following else []
    return read.upto if not lanes else after


def _first(connection: sqlite3.Connection, fragment: int, lane: int, read: ReadTapPage, after: int) -> int:
    row = connection.execute(_of_lane(_FIRST, lane), (fragment, after, read.upto)).fetchone()
    return 0 if row is None else int(row[0])


def _add(
    packing: TapPageBuilder, lane: int, first: int, count: int, numbers: bytes, columns: list[Any]
) -> bool:
    times, sizes, contents, encoded = columns
    changed: Changed = {}
    if encoded is not None:
        for n, deliveries, dead, overlay in loads(f"[{encoded}]"):
            changed[n] = deliveries, dead, decode_overlay(None if overlay is None else bytes.fromhex(overlay))
    contents = b"" if contents is None else contents
    return packing.add_columns(lane, first, count, numbers, times, sizes, contents, _LARGEST, changed)


@cache
def _blobs_go_together() -> bool:
    """Whether SQLite joins blobs as bytes: older versions end such a text at its first zero."""
    with closing(sqlite3.connect(":memory:")) as connection:
        joined = "SELECT CAST(group_concat(column1, '') AS BLOB) FROM (VALUES (x'6100'), (x'ff00'), (x''))"
        return bool(connection.execute(joined).fetchone()[0] == b"a\0\xff\0")


@contextmanager
def _merged(
    connection: sqlite3.Connection, fragment: int, read: ReadSpan | ReadTapPage, after: int
) -> Iterator[Iterator[tuple[Record, int]]]:
    """The messages of a span behind a position, one by one, with the lane of each."""
    template = _SPAN_BY_DEAD if read.by_dead else _SPAN
    cursors = []
    ahead: list[Ahead] = []
    try:
        for lane in read.lanes:
            rows = connection.execute(_of_lane(template, lane), (fragment, after, read.upto))
            cursors.append(rows)
            first = next(rows, None)
            if first is not None:
                record = record_of(first)
                ahead.append((record.dead_letter_number if read.by_dead else record.n, lane, record, rows))
        yield _merge(ahead, read.by_dead)
    finally:
        for cursor in cursors:
            cursor.close()  # an unfinished one would keep the log from being started again


def _merge(ahead: list[Ahead], by_dead: bool) -> Iterator[tuple[Record, int]]:
    """Take messages of the lane that is behind the others until it has passed the next one."""
    while ahead:
        ahead.sort(reverse=True)  # positions differ
        _, lane, first, rows = ahead.pop()
        until = ahead[-1][0] if ahead else _MAX_NUMBER
        yield first, lane
        for row in rows:
            record = record_of(row)
            position = record.dead_letter_number if by_dead else record.n
            if position > until:
                ahead.append((position, lane, record, rows))
                break
            yield record, lane


def read_kept(connection: sqlite3.Connection, fragment: int, read: ReadKept) -> None:
    template = _KEPT_DEAD if read.lane == KEPT_DEAD else _KEPT
    read.rows = connection.execute(
        _of_lane(template, read.lane), (fragment, 0, read.upto, read.limit)
    ).fetchall()


def read_time(connection: sqlite3.Connection, fragment: int, read: ReadTime) -> None:
    find = _last_dead_before if read.by_dead else _last_before
    read.position = max((find(connection, fragment, lane, read.before) for lane in read.lanes), default=0)


def _last_before(connection: sqlite3.Connection, fragment: int, lane: int, before: int) -> int:
    """The last message before a time, by halving: times rise with numbers."""
    statement = _of_lane(_LAST, lane)
    low, high, found = 0, _MAX_NUMBER, 0
    while low < high:
        # The first look finds where the lane ends, and mostly that is the answer.
        middle = high if high == _MAX_NUMBER else (low + high + 1) // 2
        row = connection.execute(statement, (fragment, low, middle)).fetchone()
        if row is None:
            low = middle
        elif row[1] < before:
            found = row[0]
            low = middle
        else:
            high = row[0] - 1
    return found


def _last_dead_before(connection: sqlite3.Connection, fragment: int, lane: int, before: int) -> int:
    """The last dead letter before a time. Dead letters have any order of time, so the index is read from its end."""
    row = connection.execute(_of_lane(_LAST_DEAD, lane), (fragment, 0, _MAX_NUMBER, before)).fetchone()
    return 0 if row is None else int(row[0])
