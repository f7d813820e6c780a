"""The embedded store: one SQLite file for all fragments of a store, one connection, one thread.

What happens to the file, also when something fails, is in sqlite_file.py; its tables are in sqlite_schema.py, the
statements for messages in sqlite_rows.py, for ids in sqlite_ids.py, for sessions in sqlite_sessions.py. Another process
cannot claim a file that is in use, so an owner is never fenced here: it holds the file until it releases it or dies.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from json import dumps
from pathlib import Path

from busbar.fragment.changes import Changes, Head, Lock
from busbar.fragment.reads import (
    Read,
    ReadDue,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadLine,
    ReadMany,
    ReadPage,
    ReadSession,
    ReadSessionIds,
)
from busbar.model.message import LANES
from busbar.store import sqlite_ids as ids
from busbar.store import sqlite_rows as rows
from busbar.store import sqlite_sessions as sessions
from busbar.store.contract import StoreError
from busbar.store.sqlite_file import StoreFile


class SqliteStore:
    """A store in the file `path`; its directory must be there. Nothing is opened before `claim`."""

    def __init__(self, path: Path) -> None:
        self._file = StoreFile(path)

    # Ownership

    def claim(self) -> int:
        raised = "UPDATE meta SET value = value + 1 WHERE key = 'epoch'"
        self._file.open()
        self._file.transact(lambda connection: _run(connection, raised), adds=False)
        return int(self._file.select("SELECT value FROM meta WHERE key = 'epoch'")[0][0])

    def release(self) -> None:
        self._file.release()

    def close(self) -> None:
        self._file.close()

    # Messages

    def commit(self, batches: Sequence[Changes]) -> None:
        adds = any(records for changes in batches for records in changes.puts.values()) or any(
            state is not None for changes in batches for _, state in changes.states.values()
        )
        with_sessions = [changes for changes in batches if changes.sessions or changes.states]

        def work(connection: sqlite3.Connection) -> None:
            rows.write(connection, batches)
            ids.write(connection, batches)
            if with_sessions:
                sessions.write(connection, with_sessions)

        self._file.transact(work, adds)

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        if only is None:
            found = self._file.select("SELECT * FROM fragment ORDER BY id")
        else:
            these = "SELECT * FROM fragment WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
            found = self._file.select(these, (dumps(list(only)),))
        return [
            Head(key, last, counts, size, remembered, dropped, turn)
            for key, last, *counts, size, remembered, dropped, turn in found
        ]

    def create(self, fragment: int) -> None:
        blank = "INSERT INTO fragment VALUES (?, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING"
        self._file.transact(lambda connection: _run(connection, blank, fragment))

    def drop(self, fragment: int, limit: int) -> bool:
        gone = False

        def work(connection: sqlite3.Connection) -> None:
            nonlocal gone
            gone = _drop_slice(connection, fragment, limit)

        self._file.transact(work, adds=False)
        return gone

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for read in reads:
                if isinstance(read, ReadPage):
                    rows.read_page(connection, fragment, read)
                elif isinstance(read, ReadMany):
                    rows.read_many(connection, fragment, read)
                elif isinstance(read, ReadDue):
                    rows.read_due(connection, fragment, read)
                elif isinstance(read, ReadIds):
                    ids.read_ids(connection, fragment, read)
                elif isinstance(read, ReadIdPage):
                    ids.read_id_page(connection, fragment, read)
                elif isinstance(read, ReadLine):
                    sessions.read_line(connection, fragment, read)
                elif isinstance(read, ReadExpiry):
                    sessions.read_expiry(connection, fragment, read)
                elif isinstance(read, ReadSession):
                    sessions.read_session(connection, fragment, read)
                elif isinstance(read, ReadSessionIds):
                    sessions.read_ids(connection, fragment, read)
                else:
                    raise StoreError(f"no store knows the read {type(read).__name__}")

        self._file.reading(work)

    def next_due(self, fragment: int) -> int:
        return self._file.reading(lambda connection: rows.next_due(connection, fragment))

    def shelves(self, fragment: int) -> list[int]:
        return self._file.reading(lambda connection: ids.shelves(connection, fragment))

    # Locks over a clean shutdown

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        kept = [(fragment, lock.lane, lock.record.n, lock.nonce, lock.until) for lock in locks]

        def work(connection: sqlite3.Connection) -> None:
            _run(connection, "DELETE FROM kept_lock WHERE fragment = ?", fragment)
            connection.executemany("INSERT INTO kept_lock VALUES (?, ?, ?, ?, ?)", kept)

        self._file.transact(work)

    def take_locks(self, fragment: int) -> list[Lock]:
        if not self._file.select("SELECT 1 FROM kept_lock WHERE fragment = ? LIMIT 1", (fragment,)):
            return []
        columns = rows.COLUMNS.replace("content", "NULL")
        found = self._file.select(
            f"SELECT lane, nonce, until, {columns} FROM kept_lock JOIN msg USING (fragment, lane, n)"
            " WHERE fragment = ? ORDER BY lane, n",
            (fragment,),
        )
        forget = "DELETE FROM kept_lock WHERE fragment = ?"
        self._file.transact(lambda connection: _run(connection, forget, fragment), adds=False)
        return [Lock(rows.record_of(row), lane, nonce, until) for lane, nonce, until, *row in found]

    # Catalogue

    def catalogue(self) -> dict[str, bytes]:
        return dict(self._file.select("SELECT name, definition FROM catalogue"))

    def write_catalogue(self, entries: dict[str, bytes | None]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for name, definition in entries.items():
                if definition is None:
                    _run(connection, "DELETE FROM catalogue WHERE name = ?", name)
                else:
                    _run(connection, "INSERT OR REPLACE INTO catalogue VALUES (?, ?)", name, definition)

        self._file.transact(work, adds=any(definition is not None for definition in entries.values()))


def _run(connection: sqlite3.Connection, statement: str, *values: object) -> None:
    connection.execute(statement, values)


def _drop_slice(connection: sqlite3.Connection, fragment: int, limit: int) -> bool:
    """Delete a slice and take it off the counters, so that they stay true between slices and over a crash."""
    some = "FROM msg INDEXED BY msg_place WHERE fragment = ? ORDER BY lane, n LIMIT ?"
    counts, size = [0] * LANES, 0
    totals = f"SELECT lane, count(*), sum(size) FROM (SELECT lane, size {some}) GROUP BY lane"
    for lane, count, total in connection.execute(totals, (fragment, limit)):
        counts[lane] = count
        size += total
    _run(connection, f"DELETE FROM msg WHERE id IN (SELECT id {some})", fragment, limit)
    forgotten = 0
    gone = connection.execute("SELECT 1 FROM msg WHERE fragment = ? LIMIT 1", (fragment,)).fetchone() is None
    if gone:
        forgotten = ids.drop(connection, fragment, max(0, limit - sum(counts)))
        gone = not ids.shelves(connection, fragment)
    if gone:
        gone, states = sessions.drop(connection, fragment, max(0, limit - sum(counts) - forgotten))
        size += states
    if gone:
        _run(connection, "DELETE FROM kept_lock WHERE fragment = ?", fragment)
        _run(connection, "DELETE FROM fragment WHERE id = ?", fragment)
        return True
    taken = (
        "UPDATE fragment SET active = active - ?, dead = dead - ?, deferred = deferred - ?, scheduled = scheduled - ?,"
        " dead_deferred = dead_deferred - ?, size = size - ?, ids = max(0, ids - ?) WHERE id = ?"
    )
    _run(connection, taken, *counts, size, forgotten, fragment)
    return False
