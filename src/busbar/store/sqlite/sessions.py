"""Message sessions in SQL. fragment/changes.py describes the rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from busbar.fragment.changes import Changes, SessionHold, state_size
from busbar.fragment.reads import ReadExpiry, ReadSession, ReadSessionIds, ReadWaitingSessions
from busbar.store.sqlite.rows import LARGEST_CHUNK, Value, in_chunks, statement

# An existing row keeps its turn.
_ADD = (
    "INSERT INTO session(fragment, id, turn, active) VALUES {rows}"
    " ON CONFLICT(fragment, id) DO UPDATE SET active = active + excluded.active"
)
_ADD_WIDTH = 4

_MOVE = (
    "WITH move(fragment, id, turn) AS (VALUES {rows})"
    " UPDATE session SET turn = move.turn FROM move WHERE session.fragment = move.fragment AND session.id = move.id"
)
_MOVE_WIDTH = 3

# Of one fragment: for pairs of fragment and id SQLite would scan every session.
_EMPTY = "DELETE FROM session WHERE active <= 0 AND id IN (VALUES {rows}) AND fragment = ?"

_SET_STATE = "INSERT OR REPLACE INTO session_state(fragment, id, at, size, state) VALUES {rows}"
_SET_STATE_WIDTH = 5

_CLEAR_STATE = "DELETE FROM session_state WHERE fragment = ? AND id = ?"

_LINE = (
    "SELECT id, turn, ifnull((SELECT enqueued + ttl FROM msg INDEXED BY msg_expiry"
    " WHERE msg.fragment = session.fragment AND msg.session = session.id AND lane = 0 AND ttl > 0"
    " ORDER BY enqueued + ttl LIMIT 1), 0)"
    " FROM session INDEXED BY session_line WHERE fragment = ? AND turn > ? ORDER BY turn LIMIT ?"
)

_EXPIRY = (
    "SELECT enqueued + ttl, n FROM msg INDEXED BY msg_expiry WHERE fragment = ? AND session = ? AND lane = 0 AND ttl > 0"
    " ORDER BY enqueued + ttl, n LIMIT ?"
)

_STATE = "SELECT size, CASE WHEN ? THEN state END FROM session_state WHERE fragment = ? AND id = ?"

# No id is NULL, and '' is the first one: `>=` is for a list from its beginning.
_IDS = (
    "SELECT id FROM session WHERE fragment = ?1 AND id {behind} ?2"
    " UNION SELECT id FROM session_state WHERE fragment = ?1 AND id {behind} ?2 ORDER BY id LIMIT ?3"
)
_UPDATED_IDS = (
    "SELECT id FROM session_state WHERE fragment = ?1 AND id {behind} ?2 AND at > ?4 ORDER BY id LIMIT ?3"
)

_HOLD = "INSERT OR REPLACE INTO session_hold VALUES (?, ?, ?, ?)"
_END_HOLD = "DELETE FROM session_hold WHERE fragment = ? AND id = ?"
_HOLDS = "SELECT id, holder, until FROM session_hold WHERE fragment = ? ORDER BY id"

_DROP_STATES = (
    "DELETE FROM session_state WHERE fragment = ?1 AND id IN"
    " (SELECT id FROM session_state WHERE fragment = ?1 ORDER BY id LIMIT ?2) RETURNING size"
)
_DROP = (
    "DELETE FROM session WHERE fragment = ?1 AND id IN"
    " (SELECT id FROM session WHERE fragment = ?1 ORDER BY id LIMIT ?2)"
)


def write(connection: sqlite3.Connection, batches: Sequence[Changes]) -> None:
    """Write the sessions of the changes, and their locks, inside the caller's transaction."""
    added: list[Value] = []
    moved: list[Value] = []
    taken: dict[int, list[str]] = {}
    states: list[Value] = []
    for changes in batches:
        fragment = changes.fragment
        for id, change in sorted(changes.sessions.items()):  # in the order of the key, which is faster
            if change.active:
                added += (fragment, id, change.turn, change.active)
                if change.active < 0:
                    taken.setdefault(fragment, []).append(id)
            if change.moved:
                moved += (fragment, id, change.turn)
        for id, (at, state) in changes.states.items():
            if state is None:
                connection.execute(_CLEAR_STATE, (fragment, id))
            else:
                states += (fragment, id, at, state_size(id, state), state)
        for id, hold in changes.holds.items():
            if hold is None:
                connection.execute(_END_HOLD, (fragment, id))
            else:
                connection.execute(_HOLD, (fragment, id, hold.holder, hold.until))
    in_chunks(connection, _ADD, _ADD_WIDTH, added)
    for fragment, emptied in taken.items():
        at, left = 0, len(emptied)
        while left:
            count = min(1 << (left.bit_length() - 1), LARGEST_CHUNK)
            connection.execute(statement(_EMPTY, 1, count), (*emptied[at : at + count], fragment))
            at += count
            left -= count
    in_chunks(connection, _MOVE, _MOVE_WIDTH, moved)
    in_chunks(connection, _SET_STATE, _SET_STATE_WIDTH, states)


def read_line(connection: sqlite3.Connection, fragment: int, read: ReadWaitingSessions) -> None:
    read.rows = connection.execute(_LINE, (fragment, read.after, read.limit)).fetchall()


def read_expiry(connection: sqlite3.Connection, fragment: int, read: ReadExpiry) -> None:
    read.rows = connection.execute(_EXPIRY, (fragment, read.session, read.limit)).fetchall()


def read_session(connection: sqlite3.Connection, fragment: int, read: ReadSession) -> None:
    found = connection.execute(_STATE, (read.with_state, fragment, read.session)).fetchone()
    read.size, read.state = (-1, None) if found is None else found


def read_ids(connection: sqlite3.Connection, fragment: int, read: ReadSessionIds) -> None:
    behind, values = ">=" if read.after is None else ">", [fragment, read.after or "", read.top]
    if read.updated_after:
        rows = connection.execute(_UPDATED_IDS.format(behind=behind), [*values, read.updated_after])
    else:
        rows = connection.execute(_IDS.format(behind=behind), values)
    read.ids = [id for (id,) in rows]


def holds(connection: sqlite3.Connection, fragment: int) -> list[SessionHold]:
    return [SessionHold(*row) for row in connection.execute(_HOLDS, (fragment,))]


def drop(connection: sqlite3.Connection, fragment: int, limit: int) -> tuple[bool, int]:
    """Delete up to `limit` sessions and as many states of a fragment; returns whether all are gone, and the bytes of the
    states."""
    size = sum(each for (each,) in connection.execute(_DROP_STATES, (fragment, limit)).fetchall())
    connection.execute(_DROP, (fragment, limit))
    return not connection.execute(_IDS.format(behind=">="), (fragment, "", 1)).fetchall(), size
