"""The ids and committed batches of repeating writers, in SQL.

In the key, an id is behind its batch, so that a batch is deleted as one range. A writer has one or two batches at a time. An
id has eight bytes of the hash of its writer's name instead of the name, because there are millions of ids.

A mark (fragment/writers.py) is a row without ids: to write one costs one statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from json import dumps

from busbar.fragment.changes import Changes
from busbar.fragment.reads import ReadWritten
from busbar.fragment.writers import MARK
from busbar.store.sqlite.rows import LARGEST_CHUNK, Value, in_chunks, statement

_REMEMBER = "INSERT OR REPLACE INTO written VALUES {rows}"
_REMEMBER_WIDTH = 4
_FORGET_BATCHES = "DELETE FROM written WHERE fragment = ? AND writer = ? AND batch < ?"
_FORGET_ALL = "DELETE FROM written WHERE fragment = ? AND writer = ?"
_COMMIT = "INSERT OR REPLACE INTO writer VALUES (?, ?, ?, ?)"
_REMOVE = "DELETE FROM writer WHERE fragment = ? AND name = ?"
_ALL = "SELECT name, batch, at FROM writer WHERE fragment = ?"

_BATCHES = (
    "WITH RECURSIVE next(batch) AS (SELECT min(batch) FROM written WHERE fragment = ?1 AND writer = ?2 UNION ALL"
    " SELECT (SELECT min(batch) FROM written WHERE fragment = ?1 AND writer = ?2 AND batch > next.batch) FROM next"
    " WHERE next.batch IS NOT NULL) SELECT batch FROM next WHERE batch IS NOT NULL"
)
# CROSS JOIN fixes the order: one look-up of the key for each batch and id.
_FIND = (
    "WITH wanted(id) AS (VALUES {rows})"
    " SELECT written.id FROM json_each(?) AS batch CROSS JOIN wanted CROSS JOIN written"
    " WHERE written.fragment = ? AND written.writer = ? AND written.batch = batch.value AND written.id = wanted.id"
)
_DROP = (
    "DELETE FROM written WHERE fragment = ?1 AND (writer, batch, id) IN"
    " (SELECT writer, batch, id FROM written WHERE fragment = ?1 ORDER BY writer, batch, id LIMIT ?2)"
)


def _key(writer: str) -> int:
    return int.from_bytes(blake2b(writer.encode(), digest_size=8).digest(), "big", signed=True)


def write(connection: sqlite3.Connection, batches: Sequence[Changes]) -> None:
    """Insert and delete what the changes have of writers, inside the caller's transaction."""
    ids: list[Value] = []
    for changes in batches:
        if changes.written:
            keys = {writer: _key(writer) for writer, _, _ in changes.written}
            # In the order of the key, which is faster.
            for key, batch, id in sorted((keys[writer], batch, id) for writer, batch, id in changes.written):
                ids += (changes.fragment, key, batch, id)
    in_chunks(connection, _REMEMBER, _REMEMBER_WIDTH, ids)
    for changes in batches:
        fragment = changes.fragment
        for writer, committed in changes.writers.items():
            if committed is None:
                connection.execute(_FORGET_ALL, (fragment, _key(writer)))
                connection.execute(_REMOVE, (fragment, writer))
            else:
                if not writer.startswith(MARK):
                    connection.execute(_FORGET_BATCHES, (fragment, _key(writer), committed[0]))
                connection.execute(_COMMIT, (fragment, writer, *committed))


def writers(connection: sqlite3.Connection, fragment: int) -> dict[str, tuple[int, int]]:
    return {name: (batch, at) for name, batch, at in connection.execute(_ALL, (fragment,))}


def read_written(connection: sqlite3.Connection, fragment: int, read: ReadWritten) -> None:
    read.found = set()
    key = _key(read.writer)
    batches = [batch for (batch,) in connection.execute(_BATCHES, (fragment, key))]
    at, left = 0, len(read.ids) if batches else 0
    while left:
        count = min(1 << (left.bit_length() - 1), LARGEST_CHUNK)
        some = read.ids[at : at + count]
        values = (*some, dumps(batches), fragment, key)
        read.found.update(id for (id,) in connection.execute(statement(_FIND, 1, count), values))
        at += count
        left -= count


def drop(connection: sqlite3.Connection, fragment: int, limit: int) -> bool:
    """Delete up to `limit` ids of a fragment, and with the last one its writers; returns whether all is gone."""
    connection.execute(_DROP, (fragment, limit))
    if connection.execute("SELECT 1 FROM written WHERE fragment = ? LIMIT 1", (fragment,)).fetchone():
        return False
    connection.execute("DELETE FROM writer WHERE fragment = ?", (fragment,))
    return True
