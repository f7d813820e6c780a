"""What a store's file has of the journal in front of it: rows of its table `meta`.

    journal   the id of the journal. It is drawn when a journal is begun, and all segments of the journal have it.
    applied   the sequence of the last record whose changes are in this file
    closed    1: everything is in this file, and no journal belongs to it any more
    moving    -1, or the last row of `msg` before a move that is not finished. New rows get higher ids, so what such a move
              has put can be found and deleted.

A file that is not closed cannot be used without the segments of its journal.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JournalState:
    journal: bytes
    applied: int
    is_closed: bool
    is_moving: bool = False


def read(connection: sqlite3.Connection) -> JournalState:
    rows = connection.execute(
        "SELECT key, value FROM meta WHERE key IN ('journal', 'applied', 'closed', 'moving')"
    )
    found = dict(rows.fetchall())
    return JournalState(
        bytes(found["journal"]), int(found["applied"]), bool(found["closed"]), found["moving"] >= 0
    )


def begin(connection: sqlite3.Connection, journal: bytes) -> None:
    _set(connection, "journal", journal)
    _set(connection, "closed", 0)


def end(connection: sqlite3.Connection) -> None:
    _set(connection, "closed", 1)


def begin_move(connection: sqlite3.Connection) -> None:
    """Note where the rows begin that a move puts. This may be called again for the same move."""
    highest = "(SELECT ifnull(max(id), 0) FROM msg)"
    connection.execute(f"UPDATE meta SET value = {highest} WHERE key = 'moving' AND value < 0")


def end_move(connection: sqlite3.Connection, sequence: int) -> None:
    _set(connection, "applied", sequence)
    _set(connection, "moving", -1)


def undo_move(connection: sqlite3.Connection) -> None:
    """Delete what an unfinished move has put."""
    put = "DELETE FROM msg WHERE id > (SELECT value FROM meta WHERE key = 'moving' AND value >= 0)"
    connection.execute(put)
    _set(connection, "moving", -1)


def _set(connection: sqlite3.Connection, key: str, value: object) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
