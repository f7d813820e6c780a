"""The embedded store: one SQLite file for all fragments of a store, one connection, one thread.

What happens to the file, also when something fails, is in file.py; its tables are in schema.py. Statements for messages are
in rows.py, and those for messages as taps read them in tap_reads.py. Other statements are in duplicate_ids.py, sessions.py,
outbox.py, taps.py (taps and events) and writers.py. Another process cannot claim a file that is in use. So an owner is never
fenced here: it holds the file until it releases it or dies.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from json import dumps
from pathlib import Path

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow
from busbar.fragment.reads import (
    Read,
    ReadByNumber,
    ReadDue,
    ReadEvents,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadKept,
    ReadOutbox,
    ReadPage,
    ReadSession,
    ReadSessionIds,
    ReadSpan,
    ReadTapPage,
    ReadTime,
    ReadWaitingSessions,
    ReadWritten,
)
from busbar.model.message import KEPT, KEPT_DEAD
from busbar.store.contract import StoreError
from busbar.store.sqlite import duplicate_ids as ids
from busbar.store.sqlite import journal_state
from busbar.store.sqlite import outbox as outbox
from busbar.store.sqlite import rows as rows
from busbar.store.sqlite import sessions as sessions
from busbar.store.sqlite import tap_reads as spans
from busbar.store.sqlite import taps as taps
from busbar.store.sqlite import writers as writers
from busbar.store.sqlite.file import Need, StoreFile
from busbar.store.sqlite.journal_state import JournalState


class SqliteStore:
    """A store in the file `path`; its directory must be there. Nothing is opened before `claim`."""

    def __init__(self, path: Path) -> None:
        self._file = StoreFile(path)

    # Ownership

    def claim(self) -> int:
        raised = "UPDATE meta SET value = value + 1 WHERE key = 'epoch'"
        self._file.open()
        self._file.transact(lambda connection: _run(connection, raised), Need.FREES)
        return int(self._file.select("SELECT value FROM meta WHERE key = 'epoch'")[0][0])

    def release(self) -> None:
        self._file.release()

    def close(self) -> None:
        self._file.close()

    # Messages

    def commit(self, batches: Sequence[Changes]) -> None:
        self._file.transact(lambda connection: _perform(connection, batches), need_of(batches))

    def commits_at_once(self, batches: Sequence[Changes]) -> bool:
        return False

    def maintain(self) -> bool:
        return False

    # For a journal in front of this store

    def journal_state(self) -> JournalState:
        return self._file.reading(journal_state.read)

    def begin_journal(self, journal: bytes) -> None:
        """From now on the file is complete only with the journal of this id."""
        self._file.transact(lambda connection: journal_state.begin(connection, journal))

    def end_journal(self) -> None:
        """The file is complete without a journal. All that was applied is durable."""
        self._file.transact(journal_state.end, Need.FREES)

    def apply(self, groups: Sequence[Sequence[Changes]], applied: int, need: Need = Need.FREES) -> None:
        """Perform group commits that the journal has up to a sequence, in one transaction. It is not synced: the journal
        is."""

        def work(connection: sqlite3.Connection) -> None:
            for batches in groups:
                _perform(connection, batches)
            journal_state.end_move(connection, applied)

        self._file.transact(work, need, synced=False)

    def apply_slice(self, batches: Sequence[Changes], need: Need) -> None:
        """Perform a part of what a later `apply` completes. It is not synced."""

        def work(connection: sqlite3.Connection) -> None:
            journal_state.begin_move(connection)
            _perform(connection, batches)

        self._file.transact(work, need, synced=False)

    def undo_slices(self) -> None:
        """Delete the messages of slices that no `apply` has completed."""
        self._file.transact(journal_state.undo_move, Need.FREES, synced=False)

    @property
    def is_short_of_space(self) -> bool:
        """Whether a reserve was used and is not filled again."""
        return self._file.is_short_of_space

    def check_in_place(self) -> None:
        """Raise OutcomeUnknown if the paths name other files than those in use."""
        self._file.verify()

    def contains(self, fragment: int, lane: int, n: int) -> bool:
        """Whether a message is in a lane."""
        found = "SELECT 1 FROM msg WHERE fragment = ? AND lane = ? AND n = ?"
        return bool(self._file.select(found, (fragment, rows.LANE_KEYS[lane], n)))

    def checkpoint(self) -> None:
        """Have everything in the file, synced."""
        self._file.checkpoint()

    def freeze(self) -> None:
        """Have everything in the file, which then stays as it is until `thaw`."""
        self._file.freeze()

    def thaw(self) -> bool:
        return self._file.thaw()

    def log_reaches(self, pages: int) -> bool:
        """Whether the log has as many pages that no checkpoint has copied."""
        return self._file.log_reaches(pages)

    @property
    def checkpoints(self) -> int:
        """How many there were."""
        return self._file.checkpoints

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        all_of_them = f"SELECT {rows.HEAD_COLUMNS} FROM fragment"
        if only is None:
            found = self._file.select(f"{all_of_them} ORDER BY id")
        else:
            these = f"{all_of_them} WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
            found = self._file.select(these, (dumps(list(only)),))
        return [rows.head_of(row) for row in found]

    def create(self, fragment: int) -> None:
        self._file.transact(lambda connection: rows.create(connection, fragment))

    def drop(self, fragment: int, limit: int) -> bool:
        gone = False

        def work(connection: sqlite3.Connection) -> None:
            nonlocal gone
            gone = _drop_slice(connection, fragment, limit)

        self._file.transact(work, Need.FREES)
        return gone

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for read in reads:
                if isinstance(read, ReadPage):
                    rows.read_page(connection, fragment, read)
                elif isinstance(read, ReadByNumber):
                    rows.read_many(connection, fragment, read)
                elif isinstance(read, ReadDue):
                    rows.read_due(connection, fragment, read)
                elif isinstance(read, ReadIds):
                    ids.read_ids(connection, fragment, read)
                elif isinstance(read, ReadIdPage):
                    ids.read_id_page(connection, fragment, read)
                elif isinstance(read, ReadWaitingSessions):
                    sessions.read_line(connection, fragment, read)
                elif isinstance(read, ReadExpiry):
                    sessions.read_expiry(connection, fragment, read)
                elif isinstance(read, ReadSession):
                    sessions.read_session(connection, fragment, read)
                elif isinstance(read, ReadSessionIds):
                    sessions.read_ids(connection, fragment, read)
                elif isinstance(read, ReadOutbox):
                    outbox.read_outbox(connection, fragment, read)
                elif isinstance(read, ReadSpan):
                    spans.read_span(connection, fragment, read)
                elif isinstance(read, ReadTapPage):
                    spans.read_packed(connection, fragment, read)
                elif isinstance(read, ReadKept):
                    spans.read_kept(connection, fragment, read)
                elif isinstance(read, ReadEvents):
                    taps.read_events(connection, fragment, read)
                elif isinstance(read, ReadTime):
                    spans.read_time(connection, fragment, read)
                elif isinstance(read, ReadWritten):
                    writers.read_written(connection, fragment, read)
                else:
                    raise StoreError(f"no store knows the read {type(read).__name__}")

        self._file.reading(work)

    def read_all(self, jobs: Sequence[tuple[int, Sequence[Read]]]) -> None:
        for fragment, reads in jobs:
            self.read(fragment, reads)

    def next_due(self, fragment: int) -> int:
        return self._file.reading(lambda connection: rows.next_due(connection, fragment))

    def id_segments(self, fragment: int) -> list[int]:
        return self._file.reading(lambda connection: ids.id_segments(connection, fragment))

    def taps(self, fragment: int) -> list[TapRow]:
        return self._file.reading(lambda connection: taps.taps(connection, fragment))

    def writers(self, fragment: int) -> dict[str, tuple[int, int]]:
        return self._file.reading(lambda connection: writers.writers(connection, fragment))

    def outbox(self, fragment: int) -> dict[int, OutboxRow]:
        return self._file.reading(lambda connection: outbox.outbox(connection, fragment))

    def holds(self, fragment: int) -> list[SessionHold]:
        return self._file.reading(lambda connection: sessions.holds(connection, fragment))

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
        self._file.transact(lambda connection: _run(connection, forget, fragment), Need.FREES)
        return [Lock(rows.record_of(row), lane, nonce, until) for lane, nonce, until, *row in found]

    # Definitions

    def definitions(self) -> dict[str, bytes]:
        return dict(self._file.select("SELECT name, value FROM definition"))

    def write_definitions(self, rows: dict[str, bytes | None]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for name, value in rows.items():
                if value is None:
                    _run(connection, "DELETE FROM definition WHERE name = ?", name)
                else:
                    _run(connection, "INSERT OR REPLACE INTO definition VALUES (?, ?)", name, value)

        # To delete an entity or a tap, the store writes its row again. That must find space on a full disk.
        names = "SELECT name FROM definition WHERE name IN (SELECT value FROM json_each(?))"
        known = {name for (name,) in self._file.select(names, (dumps(list(rows)),))}
        adds = any(name not in known and value is not None for name, value in rows.items())
        self._file.transact(work, Need.ADDS if adds else Need.FREES)


def _run(connection: sqlite3.Connection, statement: str, *values: object) -> None:
    connection.execute(statement, values)


def _perform(connection: sqlite3.Connection, batches: Sequence[Changes]) -> None:
    """Perform a group commit, inside the caller's transaction."""
    rows.write(connection, batches)
    ids.write(connection, batches)
    with_sessions = [changes for changes in batches if changes.sessions or changes.states or changes.holds]
    if with_sessions:
        sessions.write(connection, with_sessions)
    with_outbox = [changes for changes in batches if changes.outbox]
    if with_outbox:
        outbox.write(connection, with_outbox)
    with_taps = [changes for changes in batches if changes.taps or changes.events or changes.events_upto > 0]
    if with_taps:
        taps.write(connection, with_taps)
    with_writers = [changes for changes in batches if changes.written or changes.writers]
    if with_writers:
        writers.write(connection, with_writers)


def need_of(batches: Sequence[Changes]) -> Need:
    return max((_need(changes) for changes in batches), default=Need.FREES)


def _need(changes: Changes) -> Need:
    if any(changes.puts.values()) or any(state is not None for _, state in changes.states.values()):
        return Need.ADDS
    return Need.SETTLES if changes.events or changes.edits or changes.keeps or changes.holds else Need.FREES


def _drop_slice(connection: sqlite3.Connection, fragment: int, limit: int) -> bool:
    """Delete a slice and subtract it from the counters, so that they stay true between slices and after a crash."""
    outbox.drop(connection, fragment, limit)
    counts, sizes = rows.drop(connection, fragment, limit)
    limit = max(0, limit - sum(counts))
    forgotten = states = events = 0
    gone = connection.execute("SELECT 1 FROM msg WHERE fragment = ? LIMIT 1", (fragment,)).fetchone() is None
    if gone:
        forgotten = ids.drop(connection, fragment, limit)
        limit = max(0, limit - forgotten)
        gone = not ids.id_segments(connection, fragment)
    if gone:
        gone, states = sessions.drop(connection, fragment, limit)
    if gone:
        gone, events = taps.drop(connection, fragment, limit)
    if gone:
        gone = writers.drop(connection, fragment, limit)
    if gone:
        _run(connection, "DELETE FROM kept_lock WHERE fragment = ?", fragment)
        _run(connection, "DELETE FROM session_hold WHERE fragment = ?", fragment)
        _run(connection, "DELETE FROM fragment WHERE id = ?", fragment)
        return True
    taken = (
        "UPDATE fragment SET active = active - ?, dead = dead - ?, deferred = deferred - ?, scheduled = scheduled - ?,"
        " dead_deferred = dead_deferred - ?, kept = kept - ?, kept_dead = kept_dead - ?, outbox = outbox - ?,"
        " transfer_dead = transfer_dead - ?, transfer_dead_deferred = transfer_dead_deferred - ?, size = size - ?,"
        " kept_size = kept_size - ?, kept_dead_size = kept_dead_size - ?, ids = max(0, ids - ?),"
        " events = max(0, events - ?) WHERE id = ?"
    )
    kept = sizes[KEPT] + sizes[KEPT_DEAD]
    size = sum(sizes) - kept + states
    _run(connection, taken, *counts, size, kept, sizes[KEPT_DEAD], forgotten, events, fragment)
    return False
