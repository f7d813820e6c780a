"""What a store's file has of the journal in front of it: rows of its table `meta`.

    journal   the id of the journal. It is drawn when a journal is begun, and all segments of the journal have it.
    applied   the sequence of the last record whose changes are in this file
    closed    1: everything is in this file, and no journal belongs to it any more

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


def read(connection: sqlite3.Connection) -> JournalState:
    rows = connection.execute("SELECT key, value FROM meta WHERE key IN ('journal', 'applied', 'closed')")
    found = dict(rows.fetchall())
    return JournalState(bytes(found["journal"]), int(found["applied"]), bool(found["closed"]))


def begin(connection: sqlite3.Connection, journal: bytes) -> None:
    _set(connection, "journal", journal)
    _set(connection, "closed", 0)


def end(connection: sqlite3.Connection) -> None:
    _set(connection, "closed", 1)


def set_applied(connection: sqlite3.Connection, sequence: int) -> None:
    _set(connection, "applied", sequence)


def _set(connection: sqlite3.Connection, key: str, value: object) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
