"""The outbox in SQL: its messages by target, and a row for each target (fragment/changes.py describes it)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from busbar.fragment.changes import Changes, OutboxRow
from busbar.fragment.reads import ReadOutbox
from busbar.model.message import OUTBOX
from busbar.store.sqlite.rows import COLUMNS, Value, in_chunks, up_to

_ADD = (
    "INSERT INTO outbox(fragment, target, path, count) VALUES {rows}"
    " ON CONFLICT(fragment, target) DO UPDATE SET count = count + excluded.count"
)
_ADD_WIDTH = 4
_REMOVE = "DELETE FROM outbox WHERE fragment = ? AND target = ? AND count <= 0"
_ALL = "SELECT target, path, count FROM outbox WHERE fragment = ?"
_PAGE = (
    f"SELECT {COLUMNS} FROM msg INDEXED BY msg_out WHERE fragment = ? AND lane = {OUTBOX} AND target = ? AND n > ?"
    " ORDER BY n LIMIT ?"
)

_NEXT_GONE = (
    "SELECT target, count(*) FROM (SELECT lane, target FROM msg INDEXED BY msg_place WHERE fragment = ? ORDER BY lane, n"
    f" LIMIT ?) WHERE lane = {OUTBOX} GROUP BY target"
)


def write(connection: sqlite3.Connection, batches: Sequence[Changes]) -> None:
    """Write the rows of targets that the changes contain, inside the caller's transaction."""
    added: list[Value] = []
    fewer: list[tuple[int, int]] = []
    for changes in batches:
        for target, change in changes.outbox.items():
            if change.count:
                added += (changes.fragment, target, change.path, change.count)
            if change.count < 0:
                fewer.append((changes.fragment, target))
    in_chunks(connection, _ADD, _ADD_WIDTH, added)
    for key in fewer:
        connection.execute(_REMOVE, key)


def outbox(connection: sqlite3.Connection, fragment: int) -> dict[int, OutboxRow]:
    return {target: (path, count) for target, path, count in connection.execute(_ALL, (fragment,))}


def read_outbox(connection: sqlite3.Connection, fragment: int, read: ReadOutbox) -> None:
    rows = connection.execute(_PAGE, (fragment, read.target, read.after, read.limit))
    read.records, _ = up_to(read.max_bytes, rows)


def drop(connection: sqlite3.Connection, fragment: int, limit: int) -> None:
    """Take the messages off the rows that are among the next `limit` of a fragment to be deleted (rows.drop)."""
    gone = (
        connection.execute(_NEXT_GONE, (fragment, limit)).fetchall() if outbox(connection, fragment) else []
    )
    for target, count in gone:
        in_chunks(connection, _ADD, _ADD_WIDTH, [fragment, target, "", -count])
        connection.execute(_REMOVE, (fragment, target))
