"""Ids of duplicate detection in SQL. fragment/changes.py describes segments."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from json import dumps

from busbar.fragment.changes import Changes
from busbar.fragment.reads import ReadIdPage, ReadIds
from busbar.store.sqlite.rows import LARGEST_CHUNK, Value, in_chunks, statement

_REMEMBER = "INSERT OR REPLACE INTO dup VALUES {rows}"
_REMEMBER_WIDTH = 5

_FORGET = "DELETE FROM dup WHERE fragment = ? AND (shelf, id) <= (?, ?)"

# CROSS JOIN fixes the order: one look-up of the key for each segment and id.
_FIND = (
    "WITH wanted(id) AS (VALUES {rows})"
    " SELECT dup.id, dup.at, dup.n FROM json_each(?) AS shelf CROSS JOIN wanted CROSS JOIN dup"
    " WHERE dup.fragment = ? AND dup.shelf = shelf.value AND dup.id = wanted.id"
)

_PAGE = (
    "SELECT shelf, id, at, n FROM dup WHERE fragment = ? AND (shelf, id) > (?, ?) ORDER BY shelf, id LIMIT ?"
)

_DROP = (
    "DELETE FROM dup WHERE fragment = ?1"
    " AND (shelf, id) IN (SELECT shelf, id FROM dup WHERE fragment = ?1 ORDER BY shelf, id LIMIT ?2)"
)

_SEGMENTS = (
    "WITH RECURSIVE next(shelf) AS (SELECT min(shelf) FROM dup WHERE fragment = ?1 UNION ALL"
    " SELECT (SELECT min(shelf) FROM dup WHERE fragment = ?1 AND shelf > next.shelf) FROM next"
    " WHERE next.shelf IS NOT NULL) SELECT shelf FROM next WHERE shelf IS NOT NULL"
)


def write(connection: sqlite3.Connection, batches: Sequence[Changes]) -> None:
    """Delete and insert the ids of the changes, inside the caller's transaction."""
    values: list[Value] = []
    for changes in batches:
        fragment = changes.fragment
        if changes.ids_upto is not None:
            connection.execute(_FORGET, (fragment, *changes.ids_upto))
        if changes.ids:
            for segment, id, at, n in sorted(changes.ids):  # in the order of the key, which is faster
                values += (fragment, segment, id, at, n)
    in_chunks(connection, _REMEMBER, _REMEMBER_WIDTH, values)


def read_ids(connection: sqlite3.Connection, fragment: int, read: ReadIds) -> None:
    found: dict[bytes, tuple[int, int]] = {}
    segments = dumps(sorted(read.segments))
    at, left = 0, len(read.ids)
    while left:
        count = min(1 << (left.bit_length() - 1), LARGEST_CHUNK)
        some = read.ids[at : at + count]
        for id, time, n in connection.execute(statement(_FIND, 1, count), (*some, segments, fragment)):
            if id not in found or found[id] < (time, n):
                found[id] = (time, n)
        at += count
        left -= count
    read.found = found


def read_id_page(connection: sqlite3.Connection, fragment: int, read: ReadIdPage) -> None:
    read.rows = connection.execute(_PAGE, (fragment, read.segment, read.after, read.limit)).fetchall()


def id_segments(connection: sqlite3.Connection, fragment: int) -> list[int]:
    return [segment for (segment,) in connection.execute(_SEGMENTS, (fragment,))]


def drop(connection: sqlite3.Connection, fragment: int, limit: int) -> int:
    """Delete up to `limit` ids of a fragment; returns their number."""
    return connection.execute(_DROP, (fragment, limit)).rowcount
