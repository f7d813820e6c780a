"""Messages as taps see them in SQL: over several lanes, in the order of their positions.

Each lane is a range of an index, so the lanes are merged as they are read, and a page costs what it returns: of the other
lanes one row each is looked at. The lane stands in the text of a statement, since one that is being read cannot be begun
a second time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from json import loads

from busbar.fragment.changes import OVERHEAD
from busbar.fragment.reads import ReadKept, ReadSpan, ReadTime, Rest, SpanRow
from busbar.model.message import KEPT_DEAD, Record
from busbar.store.overlay import decode_overlay
from busbar.store.sqlite_rows import LANE_KEYS

_BY_NUMBER = "FROM msg INDEXED BY msg_place WHERE fragment = ?1 AND lane = {lane} AND n > ?2 AND n <= ?3"
_BY_DEAD = "FROM msg INDEXED BY msg_dead WHERE fragment = ?1 AND lane = {lane} AND dead > ?2 AND dead <= ?3 AND dead > 0"

_KEPT = f"SELECT n, dead, size, enqueued {_BY_NUMBER} ORDER BY n LIMIT ?4"
_KEPT_DEAD = f"SELECT n, dead, size, enqueued {_BY_DEAD} ORDER BY dead LIMIT ?4"

_LAST = f"SELECT n, enqueued {_BY_NUMBER} ORDER BY n DESC LIMIT 1"
# The index has both, so that no message is looked at.
_LAST_DEAD = f"SELECT dead {_BY_DEAD} AND enqueued < ?4 ORDER BY dead DESC LIMIT 1"

_MAX_NUMBER = 2**63 - 1

# A column costs more than the expression that leaves it out, so what most messages do not have comes in one, or not at all.
_OVERLAY = "CASE WHEN overlay IS NOT NULL THEN hex(overlay) END"
_FOR_READERS = f"""CASE WHEN deliveries OR dead OR overlay IS NOT NULL
    THEN json_array(0, deliveries, dead, length(content) + {OVERHEAD}, {_OVERLAY}, NULL) END"""
_WHOLE = f"""CASE WHEN due OR deliveries OR dead OR size <> length(content) + {OVERHEAD} OR overlay IS NOT NULL
    OR session IS NOT NULL THEN json_array(due, deliveries, dead, size, {_OVERLAY}, session) END"""
_ROW = "SELECT n, enqueued, ttl, content, {rest} "  # SpanRow
_NUMBERED = f"{_BY_NUMBER} ORDER BY n"
_DEAD = f"{_BY_DEAD} ORDER BY dead"
_SPANS = {
    (by_dead, whole): _ROW.format(rest=_WHOLE if whole else _FOR_READERS) + (_DEAD if by_dead else _NUMBERED)
    for by_dead in (False, True)
    for whole in (False, True)
}

Ahead = tuple[int, int, Record, Iterator[SpanRow]]
"""The next message of a lane: its position, the lane, itself, and those that follow."""


@cache
def _of_lane(template: str, lane: int) -> str:
    return template.format(lane=repr(LANE_KEYS[lane]))


def _rest_of(encoded: str) -> Rest:
    due, deliveries, dead, size, overlay, session = loads(encoded)
    found = None if overlay is None else decode_overlay(bytes.fromhex(overlay))
    return due, deliveries, dead, size, found, session


def read_span(connection: sqlite3.Connection, fragment: int, read: ReadSpan) -> None:
    template = _SPANS[read.by_dead, read.whole]
    cursors = []
    try:
        ahead: list[Ahead] = []
        for lane in read.lanes:
            rows = connection.execute(_of_lane(template, lane), (fragment, read.after, read.upto))
            cursors.append(rows)
            first = next(rows, None)
            if first is not None:
                record = read.record_of(first, _rest_of)
                ahead.append((read.position(record), lane, record, rows))
        _merge(ahead, read)
    finally:
        for cursor in cursors:
            cursor.close()  # one that was not read to its end would keep the log from being begun anew


def _merge(ahead: list[Ahead], read: ReadSpan) -> None:
    """Take messages of the lane that is behind the others until it has passed the next one."""
    read.complete = True
    while ahead and read.complete:
        ahead.sort(reverse=True)  # positions differ
        _, lane, first, rows = ahead.pop()
        until = ahead[-1][0] if ahead else _MAX_NUMBER
        behind = read.take(lane, first, rows, until, _rest_of)
        if behind is not None:
            ahead.append((read.position(behind), lane, behind, rows))


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
