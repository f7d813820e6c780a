"""An SQLite database of Busbar: how it is made, opened and brought up to date, and when it is refused.

Rules
    * A file that is not what it should be, or of a newer schema, is refused and left as it is.
    * A file of an older schema is brought up to date when it is opened, all at once.
    * A file is made under another name and renamed when it is whole and synced: there is never half a file.
    * Opening is cheap: nothing is scanned or counted.
    * When a file is opened, the content of its write-ahead log may be only in the page cache. After a failed sync the
      kernel marks pages as written that never were. So the log is written again and synced before anything is built on
      it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from busbar.store.contract import NewerSchema, StoreError, StoreInUse
from busbar.store.sqlite.close import close_without_writing, identities_at

OLDEST_SQLITE = (3, 35, 0)  # RETURNING
PAGE_SIZE = 8192
_LOG_HEADER = 32
_LOG_PAGE_HEADER = 24

_PRAGMAS = (
    "locking_mode = EXCLUSIVE",  # no other process reads or writes, and the log's index is ordinary memory
    "journal_mode = WAL",
    "synchronous = FULL",  # every commit is synced before it returns
    "wal_autocheckpoint = 0",  # the store checkpoints by itself: it must see the errors
    "journal_size_limit = 33554432",  # what one huge commit left of a log is given back
    "cache_size = -8192",  # KiB
    "temp_store = MEMORY",
    "secure_delete = OFF",  # some systems turn it on: it writes zeros over every deleted message
)


@dataclass(frozen=True, slots=True)
class DatabaseSchema:
    """The tables of a kind of file. A table `meta` has the version of the schema, and the epoch that each claim raises."""

    name: str
    """The kind of file, for people."""
    application_id: int
    version: int
    tables: tuple[str, ...]
    """The statements that make version 1."""
    added: Mapping[int, tuple[str, ...]]
    """What each version added to the one before it. A file is made as version 1 and brought up to date like any other."""


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def log_reaches(log: int, pages: int) -> bool:
    """Whether the log, open as `log`, has that many pages since it was last re-created.

    The size of the log does not show that: after a checkpoint it is overwritten from the start. But each page carries the
    salt of the header under which it was written (https://www.sqlite.org/fileformat2.html#walformat).
    """
    salt = os.pread(log, 8, 16)
    at = _LOG_HEADER + (pages - 1) * (_LOG_PAGE_HEADER + PAGE_SIZE)
    return len(salt) == 8 and os.pread(log, 8, at + 8) == salt


def open_database(path: Path, schema: DatabaseSchema) -> sqlite3.Connection:
    """A connection to the database in `path`, made when there is none. The caller holds the lock of the file."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        need = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old for {path}: {need} or newer is needed")
    log = wal_of(path)
    try:
        if _length(path) == 0:
            if _length(log):
                raise StoreError(
                    f"{path} is missing, but its log {log.name} is there: put it back, or remove the log"
                )
            make_database(path, schema)
        _rewrite_log(log)
        connection = _connect(path)
    except (OSError, sqlite3.Error) as problem:
        raise _refusal(path, schema, problem) from problem
    try:
        _prepare(connection, path, schema)
    except (StoreError, sqlite3.Error) as problem:
        close_without_writing(connection, identities_at((path, log)))
        raise (problem if isinstance(problem, StoreError) else _refusal(path, schema, problem)) from problem
    return connection


# The sqlite3 module looks for an adapter of every value but numbers and texts, in three places. The last look fails with an
# exception. An adapter in the first place, which returns the value itself, makes the row of a message much cheaper.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), {None: None}.get)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=0.5, isolation_level=None, check_same_thread=False, cached_statements=256
    )


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def make_database(
    path: Path, schema: DatabaseSchema, fill: Callable[[sqlite3.Connection], None] = lambda connection: None
) -> None:
    """Make a database with what `fill` writes into it. It gets its name when it is whole and synced."""
    fresh = path.with_name(path.name + ".new")
    for left in (fresh, fresh.with_name(fresh.name + "-journal"), wal_of(fresh)):
        left.unlink(missing_ok=True)
    # Messages and keys are its owner's alone; SQLite gives the log the mode of the database.
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = _connect(fresh)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
        for statement in schema.tables:
            connection.execute(statement)
        _bring_up_to_date(connection, schema, 1)
        fill(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error:
        close_without_writing(connection, identities_at((fresh, wal_of(fresh))))
        raise
    connection.close()
    _sync(fresh)
    fresh.rename(path)
    try:
        _sync(path.parent)
    except OSError:
        path.unlink()
        raise


def _prepare(connection: sqlite3.Connection, path: Path, schema: DatabaseSchema) -> None:
    # Read before anything is set: a foreign file must not change.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if connection.execute("PRAGMA application_id").fetchone()[0] != schema.application_id:
        raise StoreError(f"{path} is not a {schema.name}: it is an SQLite database of another application")
    version = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if version is None or version[0] > schema.version:
        found = "no version" if version is None else f"version {version[0]}"
        raise NewerSchema(
            f"{path} has {found} of the schema: this Busbar knows up to version {schema.version}"
        )
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        raise StoreError(f"{path} cannot have a write-ahead log on this file system")
    if version[0] < schema.version:
        connection.execute("BEGIN IMMEDIATE")
        _bring_up_to_date(connection, schema, version[0])
        connection.execute("COMMIT")


def _bring_up_to_date(connection: sqlite3.Connection, schema: DatabaseSchema, version: int) -> None:
    """Apply the steps from an older schema to this one, inside the caller's transaction."""
    for added in range(version + 1, schema.version + 1):
        for statement in schema.added[added]:
            connection.execute(statement)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema.version,))


def _refusal(path: Path, schema: DatabaseSchema, problem: OSError | sqlite3.Error) -> StoreError:
    name = getattr(problem, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreInUse(f"{path} is in use: another program has the database open")
    if name == "SQLITE_NOTADB":
        return StoreError(
            f"{path} is not a {schema.name}: it is not an SQLite database, or its header is damaged"
        )
    if name.startswith("SQLITE_CORRUPT"):
        return StoreError(f"{path} is damaged: {problem}")
    return StoreError(f"{path} cannot be opened: {problem}" + (f" ({name})" if name else ""))


def _rewrite_log(log: Path) -> None:
    """Write the log's bytes over themselves and sync, so that they are on the disk and not only in the cache."""
    try:
        file = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        at = 0
        while chunk := os.pread(file, 1 << 20, at):
            at += os.pwrite(file, chunk, at)
        if at:
            os.fsync(file)
    finally:
        os.close(file)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
