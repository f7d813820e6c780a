"""Messages as taps see them in SQL: over several lanes, in the order of their positions.

Each lane is a range of an index, so the lanes are merged as they are read, and a page costs what it returns: of the other
lanes one row each is looked at. The lane stands in the text of a statement, since one that is being read cannot be begun
a second time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

from busbar.fragment.reads import ReadKept, ReadSpan, ReadTime
from busbar.model.message import KEPT_DEAD, Record
from busbar.store.overlay import decode_overlay
from busbar.store.sqlite_rows import COLUMNS, LANE_KEYS

_BY_NUMBER = "FROM msg INDEXED BY msg_place WHERE fragment = ?1 AND lane = {lane} AND n > ?2 AND n <= ?3"
_BY_DEAD = "FROM msg INDEXED BY msg_dead WHERE fragment = ?1 AND lane = {lane} AND dead > ?2 AND dead <= ?3 AND dead > 0"

_KEPT = f"SELECT n, dead, size, enqueued {_BY_NUMBER} ORDER BY n LIMIT ?4"
_KEPT_DEAD = f"SELECT n, dead, size, enqueued {_BY_DEAD} ORDER BY dead LIMIT ?4"

_LAST = f"SELECT n, enqueued {_BY_NUMBER} ORDER BY n DESC LIMIT 1"
# The index has both, so that no message is looked at.
_LAST_DEAD = f"SELECT dead {_BY_DEAD} AND enqueued < ?4 ORDER BY dead DESC LIMIT 1"

_MAX_NUMBER = 2**63 - 1

Ahead = tuple[int, int, Any, Iterator[Any]]
"""The next row of a lane: its position, the lane, the row, and those that follow."""


@cache
def _of_lane(template: str, lane: int) -> str:
    return template.format(lane=repr(LANE_KEYS[lane]))


_SPAN = f"SELECT {COLUMNS} {_BY_NUMBER} ORDER BY n"
_SPAN_DEAD = f"SELECT {COLUMNS} {_BY_DEAD} ORDER BY dead"
_N, _DEAD = (COLUMNS.split(", ").index(name) for name in ("n", "dead"))


def read_span(connection: sqlite3.Connection, fragment: int, read: ReadSpan) -> None:
    template, place = (_SPAN_DEAD, _DEAD) if read.by_dead else (_SPAN, _N)
    cursors = []
    try:
        ahead: list[Ahead] = []
        for lane in read.lanes:
            cursor = connection.execute(_of_lane(template, lane), (fragment, read.after, read.upto))
            cursors.append(cursor)
            first = next(cursor, None)
            if first is not None:
                ahead.append((first[place], lane, first, cursor))
        read.complete = _merge(ahead, place, read)
    finally:
        for cursor in cursors:
            cursor.close()  # one that was not read to its end would keep the log from being begun anew


def _merge(ahead: list[Ahead], place: int, read: ReadSpan) -> bool:
    """Take rows of the lane that is behind the others until it has passed the next one. True if that were all."""
    records: list[Record] = []
    lanes: list[int] = []
    read.records, read.lanes_of = records, lanes
    room, left = int(read.max_bytes), int(read.limit)
    while ahead:
        ahead.sort(reverse=True)  # positions differ
        _, lane, first, rows = ahead.pop()
        until = ahead[-1][0] if ahead else _MAX_NUMBER
        for row in chain((first,), rows):
            if row[place] > until:
                ahead.append((row[place], lane, row, rows))
                break
            n, enqueued, ttl, due, deliveries, size, overlay, content, session, dead = row
            room -= size
            left -= 1
            if left < 0 or (room < 0 and records):
                return False
            properties = None if overlay is None else decode_overlay(overlay)
            records.append(
                Record(n, enqueued, ttl, due, deliveries, size, content, properties, session, dead)
            )
            lanes.append(lane)
    return True


def read_kept(connection: sqlite3.Connection, fragment: int, read: ReadKept) -> None:
    template = _KEPT_DEAD if read.lane == KEPT_DEAD else _KEPT
    read.rows = connection.execute(
        _of_lane(template, read.lane), (fragment, 0, read.upto, read.limit)
    ).fetchall()


def read_time(connection: sqlite3.Connection, fragment: int, read: ReadTime) -> None:
    find = _last_dead_before if read.by_dead else _last_before
    read.position = max((find(connection, fragment, lane, read.before) for lane in read.lanes), default=0)


def _last_before(connection: sqlite3.Connection, fragment: int, lane: int, before: int) -> int:
    """By halving: times rise with numbers."""
    statement = _of_lane(_LAST, lane)
    low, high, found = 0, _MAX_NUMBER, 0
    while low < high:
        # The first look tells where the lane ends, and mostly that is what is asked for.
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
    """Dead letters come in any order of time, so the index is walked from its end."""
    row = connection.execute(_of_lane(_LAST_DEAD, lane), (fragment, 0, _MAX_NUMBER, before)).fetchone()
    return 0 if row is None else int(row[0])
