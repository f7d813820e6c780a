"""Positions of taps, and events for them, in SQL. fragment/changes.py and model/effects.py describe the rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from busbar.fragment.changes import Changes, TapRow
from busbar.fragment.reads import ReadEvents
from busbar.model.effects import MessageEvent
from busbar.store.sqlite.rows import Value, in_chunks

_SET = "INSERT OR REPLACE INTO tap VALUES (?, ?, ?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM tap WHERE fragment = ? AND id = ?"
_ALL = (
    "SELECT id, position, lost, event_position, event_lost, truncated FROM tap WHERE fragment = ? ORDER BY id"
)

_RECORD = "INSERT INTO event VALUES {rows}"
_RECORD_WIDTH = 8
_FORGET = "DELETE FROM event WHERE fragment = ? AND at <= ?"
_EVENTS = (
    "SELECT at, n, outcome, time, enqueued, deliveries, reason FROM event"
    " WHERE fragment = ? AND at > ? AND at <= ? ORDER BY at LIMIT ?"
)
_DROP_EVENTS = (
    "DELETE FROM event WHERE fragment = ?1 AND at IN"
    " (SELECT at FROM event WHERE fragment = ?1 ORDER BY at LIMIT ?2)"
)


def write(connection: sqlite3.Connection, batches: Sequence[Changes]) -> None:
    """Write the taps and events of the changes, inside the caller's transaction."""
    events: list[Value] = []
    for changes in batches:
        fragment = changes.fragment
        for id, row in changes.taps.items():
            if row is None:
                connection.execute(_REMOVE, (fragment, id))
            else:
                connection.execute(
                    _SET,
                    (
                        fragment,
                        id,
                        row.position,
                        row.lost,
                        row.event_position,
                        row.event_lost,
                        row.truncated,
                    ),
                )
        for e in changes.events:
            events += (fragment, e.at, e.n, e.outcome, e.time, e.enqueued, e.deliveries, e.reason)
    in_chunks(connection, _RECORD, _RECORD_WIDTH, events)
    for changes in batches:
        if changes.events_upto > 0:
            connection.execute(_FORGET, (changes.fragment, changes.events_upto))


def taps(connection: sqlite3.Connection, fragment: int) -> list[TapRow]:
    return [
        TapRow(id, position, lost, event_position, event_lost, bool(truncated))
        for id, position, lost, event_position, event_lost, truncated in connection.execute(_ALL, (fragment,))
    ]


def read_events(connection: sqlite3.Connection, fragment: int, read: ReadEvents) -> None:
    rows = connection.execute(_EVENTS, (fragment, read.after, read.upto, read.limit))
    read.events = [MessageEvent(*row) for row in rows]


def drop(connection: sqlite3.Connection, fragment: int, limit: int) -> tuple[bool, int]:
    """Delete up to `limit` events of a fragment, and with the last one its taps; returns whether all is gone, and the number
    of events."""
    forgotten = connection.execute(_DROP_EVENTS, (fragment, limit)).rowcount
    if connection.execute("SELECT 1 FROM event WHERE fragment = ? LIMIT 1", (fragment,)).fetchone():
        return False, forgotten
    connection.execute("DELETE FROM tap WHERE fragment = ?", (fragment,))
    return True, forgotten
