"""The file of an embedded store, or of the catalogue, in use: its lock, its transactions, its log, its failures.

- **One holder.** A lock file beside the database is held from open to close; a second process gets StoreInUse.
- **Durable.** When `transact` returns, the transaction is synced, as a whole or not at all. Before it returns, the paths
  must still name the files that were written. Otherwise the next start would open other files: OutcomeUnknown.
- **No space**, and so certainly not committed: rolled back, StoreFull, and the file is as before. A transaction that settles
  is then tried again with the space of the first reserve, one that frees also with that of the last one. So a full disk can
  be drained, and a tap that keeps messages can be deleted when nothing else is possible.
- **Reserves.** While a reserve is used, a transaction that may not use it has only the free pages within the file.
- **Any other failure** is OutcomeUnknown. The handle is broken from then on, and its files are never written or synced
  again, because a second sync may succeed falsely. Close it and open another.
- **Checkpoints** run here, before a transaction that finds the log long; one in the background lets it grow. The log is then
  written again from its start. It keeps its space, and overwriting is cheaper than growing.
- **Ends.** `release` leaves a file without a log. `close` writes nothing: the next open recovers the log.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from busbar.store.contract import OutcomeUnknown, StoreError, StoreFull, StoreInUse
from busbar.store.sqlite.close import Identity, close_without_writing, identity_of
from busbar.store.sqlite.database import DatabaseSchema, log_reaches, open_database, wal_of
from busbar.store.sqlite.reserve import Reserve
from busbar.store.sqlite.schema import STORE_SCHEMA

LOG_LIMIT = 1024  # pages: 8 MiB. A longer log is no faster, and its checkpoint stops the store for longer.
RESERVE_SIZE = 16 * 1024 * 1024  # bytes: holds what the checkpoint of a full log may add to the database
LAST_RESERVE_SIZE = 12 * 1024 * 1024
_REFILL_EVERY = 64  # transactions between two attempts to set the reserves aside again
_NO_BOUND = 4_294_967_294  # pages: SQLite's own limit

T = TypeVar("T")


class Need(IntEnum):
    """What a transaction needs of space: the number of reserves it may not use."""

    FREES = 0  # makes room, or must be done before room can be made
    SETTLES = 1  # may add a little (an event, a property), and ends in making room
    ADDS = 2


class StoreFile:
    def __init__(
        self,
        path: Path,
        schema: DatabaseSchema = STORE_SCHEMA,
        log_limit: int | None = None,
        reserve_sizes: tuple[int, int] = (LAST_RESERVE_SIZE, RESERVE_SIZE),
    ) -> None:
        self.path = path
        self._schema = schema
        self._log = wal_of(path)
        self._log_limit = log_limit
        last_size, size = reserve_sizes
        # The last one is filled first and used last.
        self._reserves = (
            Reserve(path.with_name(path.name + ".last.reserve"), last_size),
            Reserve(path.with_name(path.name + ".reserve"), size),
        )
        self._connection: sqlite3.Connection | None = None
        self._lock = -1
        self._broken = ""
        self._identities: set[Identity] = set()
        self._log_file = -1
        self._since_refill = 0
        self.checkpoints = 0
        self._is_copied = False  # the log, since the last transaction
        self._is_frozen = False

    # Opening and closing

    def open(self) -> None:
        """Lock and open the file; it is created if there is none. Raises StoreInUse, or StoreError for a file of another
        program."""
        if self._broken:
            raise OutcomeUnknown(self._broken)
        if self._connection is not None:
            return
        self._hold()
        try:
            self._connection = open_database(self.path, self._schema)
        except BaseException:
            self._let_go()
            raise
        try:
            # Opening has read, and reading has made a log.
            self._log_file = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
            self._identities = {identity_of(os.stat(self.path)), identity_of(os.fstat(self._log_file))}
        except OSError as problem:
            raise self._break("opened", problem) from problem
        for reserve in self._reserves:
            reserve.look()
            reserve.fill()

    def release(self) -> None:
        """Close cleanly: everything in one file, which may be opened again."""
        if self._connection is not None and not self._broken:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as problem:
                # Nothing is lost: the log has it, and the next open reads it.
                self._break("checkpointed", problem)
            else:
                self._connection.close()
                self._connection = None
                self._let_go()
        if self._connection is not None:
            self.close()

    def close(self) -> None:
        """Close without writing a byte. The handle cannot be used again."""
        self._broken = self._broken or f"{self.path} is closed: open it again"
        connection, self._connection = self._connection, None
        if connection is not None:
            close_without_writing(connection, self._identities)
        self._let_go()

    def _hold(self) -> None:
        lock = self.path.with_name(self.path.name + ".lock")
        try:
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise StoreError(f"{self.path} cannot be opened: {problem}") from problem
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            self._let_go()
            by = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreInUse(f"{self.path} is in use by {by}") from None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # on a full disk: the lock is valid all the same, only the text of a refusal lacks the holder

    def _let_go(self) -> None:
        for file in (self._log_file, self._lock):
            if file >= 0:
                os.close(file)
        self._log_file = self._lock = -1

    @property
    def is_short_of_space(self) -> bool:
        """Whether a reserve is used."""
        return any(reserve.is_spent for reserve in self._reserves)

    # Reading

    def connection(self) -> sqlite3.Connection:
        if self._broken:
            raise OutcomeUnknown(self._broken)
        if self._connection is None:
            raise StoreError(f"{self.path} is not claimed")
        return self._connection

    def select(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        return self.reading(lambda connection: connection.execute(statement, values).fetchall())

    def reading(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function that only reads. If the file cannot be read, the handle is broken."""
        connection = self.connection()
        try:
            return work(connection)
        except (sqlite3.Error, ValueError) as problem:
            raise self._break("read", problem) from problem

    # Writing

    def transact(
        self, work: Callable[[sqlite3.Connection], None], need: Need = Need.ADDS, *, synced: bool = True
    ) -> None:
        """Run a function in one transaction and return when it is durable. If it need not be `synced`, a power cut may undo
        it, and all that follow it without a sync."""
        if synced:
            self._transact(work, need)
            return
        self.connection().execute("PRAGMA synchronous = NORMAL")
        try:
            self._transact(work, need)
        finally:
            if self._connection is not None:
                self._connection.execute("PRAGMA synchronous = FULL")

    def _transact(self, work: Callable[[sqlite3.Connection], None], need: Need) -> None:
        connection = self.connection()
        try:
            if log_reaches(self._log_file, self._log_limit or LOG_LIMIT):
                self._checkpoint(connection)
            self._within_bounds(connection, work, need)
        except StoreFull as refusal:
            self._with_reserves(connection, work, need, refusal)
        self._since_refill += 1
        if self._since_refill >= _REFILL_EVERY:
            self._since_refill = 0
            for reserve in self._reserves:
                reserve.fill()

    def _with_reserves(
        self,
        connection: sqlite3.Connection,
        work: Callable[[sqlite3.Connection], None],
        need: Need,
        refusal: StoreFull,
    ) -> None:
        for reserve in reversed(self._reserves[need:]):
            if not reserve.give_up():
                continue
            try:
                self._checkpoint(connection)
                self._within_bounds(connection, work, need)
                return
            except StoreFull as again:
                refusal = again
        raise refusal

    def _within_bounds(
        self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], None], need: Need
    ) -> None:
        if not any(reserve.is_spent for reserve in self._reserves[:need]):
            self._attempt(connection, work)
            return
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        try:
            self._attempt(connection, work)
        finally:
            connection.execute(f"PRAGMA max_page_count = {_NO_BOUND}")

    def _attempt(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], None]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            work(connection)
            connection.execute("COMMIT")
            self._is_copied = False
        except BaseException as problem:
            if not _is_full(problem):
                raise self._break("written", problem) from problem
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except sqlite3.Error as worse:
                raise self._break("rolled back", worse) from worse
            raise StoreFull(f"no space is left for {self.path}") from problem
        self.verify()

    def verify(self) -> None:
        """Check that the paths still name the files that were synced."""
        try:
            named = {identity_of(os.stat(self.path)), identity_of(os.stat(self._log))}
        except OSError as problem:
            raise self._break("trusted any more", problem) from problem
        if named != self._identities:
            raise self._break("trusted any more", "the file or its log was replaced while in use")

    def checkpoint(self) -> None:
        """Copy the log into the database, synced. Raises StoreFull, OutcomeUnknown."""
        self._checkpoint(self.connection())

    def freeze(self) -> None:
        """Have everything in the database file, synced, and leave the file as it is until `thaw`. Transactions go to the
        log meanwhile. Raises StoreFull, OutcomeUnknown."""
        self._is_frozen = False
        self.checkpoint()
        self._is_frozen = True

    def thaw(self) -> bool:
        """Let checkpoints change the file again; whether it was frozen since `freeze`."""
        was_frozen, self._is_frozen = self._is_frozen, False
        return was_frozen and self._connection is not None and not self._broken

    def log_reaches(self, pages: int) -> bool:
        """Whether the log has as many pages that no checkpoint has copied."""
        return not self._is_copied and log_reaches(self._log_file, pages)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Copy the log into the database; the next transaction writes the log from its start. Not while it is frozen."""
        if self._is_frozen:
            return
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self.checkpoints += 1
            self._is_copied = True
        except sqlite3.Error as problem:
            if not _is_full(problem):
                raise self._break("checkpointed", problem) from problem
            raise StoreFull(f"no space is left for {self.path}") from problem

    def _break(self, could_not_be: str, problem: BaseException | str) -> OutcomeUnknown:
        name = getattr(problem, "sqlite_errorname", "")
        self._broken = f"{self.path} cannot be {could_not_be}: {problem}" + (f" ({name})" if name else "")
        return OutcomeUnknown(self._broken)


def _is_full(problem: BaseException) -> bool:
    return getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
