"""Messages as taps read them: over several lanes, in the order of their positions.

Each lane is a range of an index. The server takes a page of each, merges them, and sends what fits.
"""

from __future__ import annotations

from typing import Final

from busbar.fragment.reads import ReadKept, ReadSpan, ReadTapPage, ReadTime
from busbar.model.message import KEPT_DEAD
from busbar.store.postgresql.connection import DatabaseConnection
from busbar.store.postgresql.rows import COLUMNS, record_of

_MANY: Final = 512  # messages of a page that are read at a time
_MAX_NUMBER: Final = 2**63 - 1

_SPAN: Final = f"""SELECT total, lane, {COLUMNS} FROM (
        SELECT *, sum(size) OVER in_order AS upto, row_number() OVER in_order AS place, count(*) OVER () AS total FROM (
            SELECT m.* FROM unnest($2::smallint[]) AS l(lane) CROSS JOIN LATERAL (
                SELECT lane, {COLUMNS} FROM msg WHERE fragment = $1 AND lane = l.lane
                AND {{position}} > $3 AND {{position}} <= $4{{only}} ORDER BY {{position}} LIMIT $5) AS m
            ORDER BY m.{{position}} LIMIT $5) AS found
        WINDOW in_order AS (ORDER BY {{position}})) AS p
    WHERE place = 1 OR upto <= $6 ORDER BY {{position}}"""
_BY_NUMBER: Final = _SPAN.format(position="n", only="")
_BY_DEAD: Final = _SPAN.format(position="dead", only=" AND dead > 0")

_KEPT: Final = (
    "SELECT n, dead, size, enqueued FROM msg WHERE fragment = $1 AND lane = $2::smallint AND n <= $3"
    " ORDER BY n LIMIT $4"
)
_KEPT_DEAD: Final = (
    "SELECT n, dead, size, enqueued FROM msg WHERE fragment = $1 AND lane = $2::smallint AND dead <= $3 AND dead > 0"
    " ORDER BY dead LIMIT $4"
)
# Times rise with numbers: the last message before a time is found by halving. The first look finds where a lane ends, and
# mostly that is the answer.
_LAST: Final = f"""WITH RECURSIVE look(lane, low, high, found) AS (
        SELECT lane, 0::bigint, {_MAX_NUMBER}::bigint, 0::bigint FROM unnest($2::smallint[]) AS l(lane)
        UNION ALL
        SELECT look.lane,
            CASE WHEN m.n IS NULL OR m.enqueued < $3 THEN middle ELSE low END,
            CASE WHEN m.enqueued >= $3 THEN m.n - 1 ELSE high END,
            CASE WHEN m.enqueued < $3 THEN m.n ELSE found END
        FROM look
        CROSS JOIN LATERAL (
            SELECT CASE WHEN high = {_MAX_NUMBER} THEN high ELSE (low + high + 1) / 2 END AS middle) AS half
        LEFT JOIN LATERAL (
            SELECT n, enqueued FROM msg WHERE fragment = $1 AND lane = look.lane AND n > look.low AND n <= half.middle
            ORDER BY n DESC LIMIT 1) AS m ON true
        WHERE low < high)
    SELECT coalesce(max(found), 0)::bigint FROM look"""
_LAST_DEAD: Final = (
    "SELECT coalesce(max(dead), 0) FROM unnest($2::smallint[]) AS l(lane) CROSS JOIN LATERAL (SELECT dead FROM msg"
    " WHERE fragment = $1 AND lane = l.lane AND dead > 0 AND enqueued < $3 ORDER BY dead DESC LIMIT 1) AS m"
)


def read_span(connection: DatabaseConnection, fragment: int, read: ReadSpan) -> None:
    statement = _BY_DEAD if read.by_dead else _BY_NUMBER
    # One more than the limit shows whether there are more.
    rows = connection.fetch(
        statement, fragment, read.lanes, read.after, read.upto, read.limit + 1, read.max_bytes
    )
    read.records = [record_of(row) for row in rows[: read.limit]]
    read.complete = not rows or (rows[0][0] == len(rows) and len(rows) <= read.limit)


def read_packed(connection: DatabaseConnection, fragment: int, read: ReadTapPage) -> None:
    statement = _BY_DEAD if read.by_dead else _BY_NUMBER
    packing, after = read.packing, read.after
    read.complete = False
    while not packing.full:
        most = min(max(packing.room(), 1), _MANY)
        rows = connection.fetch(statement, fragment, read.lanes, after, read.upto, most, read.max_bytes)
        for row in rows:
            record = record_of(row)
            if not packing.add(record, row[1]):
                return
            after = record.dead_letter_number if read.by_dead else record.n
        if not rows or (rows[0][0] == len(rows) and len(rows) < most):
            read.complete = True
            return


def read_kept(connection: DatabaseConnection, fragment: int, read: ReadKept) -> None:
    statement = _KEPT_DEAD if read.lane == KEPT_DEAD else _KEPT
    read.rows = [
        tuple(row) for row in connection.fetch(statement, fragment, read.lane, read.upto, read.limit)
    ]


def read_time(connection: DatabaseConnection, fragment: int, read: ReadTime) -> None:
    statement = _LAST_DEAD if read.by_dead else _LAST
    read.position = connection.fetch(statement, fragment, read.lanes, read.before)[0][0]
