"""The file of an embedded store: its tables, how it is opened, and when it is refused.

Tables
    msg         every message. `id` is only where the bytes lie: new ones go to the end of the file's tree, whatever
                their fragment. The index `msg_place` (fragment, lane, n) makes each lane a contiguous, ordered range; a move
                between lanes changes the index and leaves the bytes where they are (docs/adr/0003-lanes-in-the-key.md).
                Messages of sessions are also in `msg_session` (fragment, session, lane, n), the order of each session.
                Those of them that are active and can expire are in `msg_expiry`. Dead-lettered messages are also in
                `msg_dead`, in the order in which that happened. Those of the outbox are in `msg_out`, by target.
    session     the sessions that have active messages; `session_line` is the order in which they are accepted.
    session_state  by itself, since it may be large, and there without messages.
    session_hold   locks of sessions whose holders can outlive the process that has the store.
    fragment    the counters of each fragment, written with every commit of it.
    dup         ids of duplicate detection (fragment/changes.py). The segment (column `shelf`) comes before the id in the
                key. So a commit touches a few neighbouring pages although ids are random
                (docs/adr/0005-ids-on-shelves.md).
    outbox      the targets for which the outbox has messages.
    tap, event  where taps stand in a fragment, and what happened to messages, until every tap has passed it.
    writer, written  what repeating writers have committed, and the ids of what they wrote since (writers.py).
    kept_lock   message locks that a clean shutdown left for the next start.
    catalogue   a copy of the namespace's catalogue.
    meta        the version of this schema, and the epoch that each claim raises.

Rules
    * A file that is not a Busbar store, or of a newer schema, is refused and left as it is.
    * A file of an older schema is brought up to date when it is opened, all at once.
    * A store is made under another name and renamed when it is whole and synced: there is never half a store.
    * Opening is cheap: nothing is scanned or counted.
    * When a store is opened, the content of its write-ahead log may be only in the page cache. After a failed sync the
      kernel marks pages as written that never were. So the log is written again and synced before anything is built on
      it.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from busbar.store.contract import StoreError, StoreInUse
from busbar.store.sqlite.close import close_without_writing, identities_at

SCHEMA_VERSION = 6
APPLICATION_ID = 0x42757362  # "Busb"
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

# What each version added to the one before it. A file is made as version 1 and brought up to date like any other.
_ADDED: dict[int, tuple[str, ...]] = {
    2: (
        """CREATE TABLE dup(
            fragment INTEGER NOT NULL,
            shelf INTEGER NOT NULL,
            id BLOB NOT NULL,
            at INTEGER NOT NULL,
            n INTEGER NOT NULL,
            PRIMARY KEY (fragment, shelf, id)) WITHOUT ROWID""",
        "ALTER TABLE fragment ADD COLUMN ids INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE fragment ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0",
    ),
    3: (
        # A NULL is in the header of a record, so reading it does not access what lies behind the content.
        "ALTER TABLE msg ADD COLUMN session TEXT",
        "CREATE INDEX msg_session ON msg(fragment, session, lane, n) WHERE session IS NOT NULL",
        """CREATE INDEX msg_expiry ON msg(fragment, session, enqueued + ttl, n)
            WHERE session IS NOT NULL AND lane = 0 AND ttl > 0""",
        """CREATE TABLE session(
            fragment INTEGER NOT NULL,
            id TEXT NOT NULL,
            turn INTEGER NOT NULL,
            active INTEGER NOT NULL,
            PRIMARY KEY (fragment, id)) WITHOUT ROWID""",
        "CREATE INDEX session_line ON session(fragment, turn)",
        """CREATE TABLE session_state(
            fragment INTEGER NOT NULL,
            id TEXT NOT NULL,
            at INTEGER NOT NULL,
            size INTEGER NOT NULL,
            state BLOB NOT NULL,
            PRIMARY KEY (fragment, id))""",
        "ALTER TABLE fragment ADD COLUMN turn INTEGER NOT NULL DEFAULT 0",
    ),
    4: (
        "ALTER TABLE msg ADD COLUMN dead INTEGER NOT NULL DEFAULT 0",
        *(
            f"ALTER TABLE fragment ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
            for name in (
                "kept",
                "kept_dead",
                "last_dead",
                "last_event",
                "events",
                "kept_size",
                "kept_dead_size",
            )
        ),
        # The order in which existing dead letters came is not stored. Their numbers give the order instead.
        """UPDATE msg SET dead = numbered.dead FROM (
            SELECT msg.id, row_number() OVER (PARTITION BY msg.fragment ORDER BY msg.n) AS dead
            FROM fragment CROSS JOIN msg INDEXED BY msg_place
            WHERE msg.fragment = fragment.id AND msg.lane IN (1, 4)) AS numbered
            WHERE msg.id = numbered.id""",
        "UPDATE fragment SET last_dead = dead + dead_deferred",
        "CREATE INDEX msg_dead ON msg(fragment, lane, dead, enqueued) WHERE dead > 0",
        """CREATE TABLE tap(
            fragment INTEGER NOT NULL,
            id INTEGER NOT NULL,
            position INTEGER NOT NULL,
            lost INTEGER NOT NULL,
            event_position INTEGER NOT NULL,
            event_lost INTEGER NOT NULL,
            truncated INTEGER NOT NULL,
            PRIMARY KEY (fragment, id)) WITHOUT ROWID""",
        """CREATE TABLE event(
            fragment INTEGER NOT NULL,
            at INTEGER NOT NULL,
            n INTEGER NOT NULL,
            outcome INTEGER NOT NULL,
            time INTEGER NOT NULL,
            enqueued INTEGER NOT NULL,
            deliveries INTEGER NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (fragment, at)) WITHOUT ROWID""",
        """CREATE TABLE writer(
            fragment INTEGER NOT NULL,
            name TEXT NOT NULL,
            batch INTEGER NOT NULL,
            at INTEGER NOT NULL,
            PRIMARY KEY (fragment, name)) WITHOUT ROWID""",
        """CREATE TABLE written(
            fragment INTEGER NOT NULL,
            writer INTEGER NOT NULL,
            batch INTEGER NOT NULL,
            id BLOB NOT NULL,
            PRIMARY KEY (fragment, writer, batch, id)) WITHOUT ROWID""",
    ),
    5: (
        *(
            f"ALTER TABLE msg ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
            for name in ("hops", "target", "kind")
        ),
        *(
            f"ALTER TABLE fragment ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
            for name in ("outbox", "transfer_dead", "transfer_dead_deferred")
        ),
        "CREATE INDEX msg_out ON msg(fragment, target, n) WHERE lane = 7",
        """CREATE TABLE outbox(
            fragment INTEGER NOT NULL,
            target INTEGER NOT NULL,
            path TEXT NOT NULL,
            count INTEGER NOT NULL,
            PRIMARY KEY (fragment, target)) WITHOUT ROWID""",
    ),
    6: (
        """CREATE TABLE session_hold(
            fragment INTEGER NOT NULL,
            id TEXT NOT NULL,
            holder TEXT NOT NULL,
            until INTEGER NOT NULL,
            PRIMARY KEY (fragment, id)) WITHOUT ROWID""",
    ),
}

_SCHEMA = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    """CREATE TABLE msg(
        id INTEGER PRIMARY KEY,
        fragment INTEGER NOT NULL,
        lane INTEGER NOT NULL,
        n INTEGER NOT NULL,
        enqueued INTEGER NOT NULL,
        ttl INTEGER NOT NULL,
        due INTEGER NOT NULL,
        deliveries INTEGER NOT NULL,
        size INTEGER NOT NULL,
        overlay BLOB,
        content BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX msg_place ON msg(fragment, lane, n)",
    "CREATE INDEX msg_due ON msg(fragment, due, n) WHERE lane = 3",
    """CREATE TABLE fragment(
        id INTEGER PRIMARY KEY,
        last INTEGER NOT NULL,
        active INTEGER NOT NULL,
        dead INTEGER NOT NULL,
        deferred INTEGER NOT NULL,
        scheduled INTEGER NOT NULL,
        dead_deferred INTEGER NOT NULL,
        size INTEGER NOT NULL)""",
    """CREATE TABLE kept_lock(
        fragment INTEGER NOT NULL,
        lane INTEGER NOT NULL,
        n INTEGER NOT NULL,
        nonce INTEGER NOT NULL,
        until INTEGER NOT NULL,
        PRIMARY KEY (fragment, lane, n)) WITHOUT ROWID""",
    "CREATE TABLE catalogue(name TEXT PRIMARY KEY, definition BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES ('schema', 1), ('epoch', 0)",
)


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


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the store in `path`, made when there is none. The caller holds the store's lock."""
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
            _make(path)
        _rewrite_log(log)
        connection = _connect(path)
    except (OSError, sqlite3.Error) as problem:
        raise _refusal(path, problem) from problem
    try:
        _prepare(connection, path)
    except (StoreError, sqlite3.Error) as problem:
        close_without_writing(connection, identities_at((path, log)))
        raise (problem if isinstance(problem, StoreError) else _refusal(path, problem)) from problem
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


def _make(path: Path) -> None:
    fresh = path.with_name(path.name + ".new")
    for left in (fresh, fresh.with_name(fresh.name + "-journal"), wal_of(fresh)):
        left.unlink(missing_ok=True)
    # Messages and keys are its owner's alone; SQLite gives the log the mode of the database.
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = _connect(fresh)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        _bring_up_to_date(connection, 1)
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


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    # Read before anything is set: a foreign file must not change.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path} is not a Busbar store: it is an SQLite database of another application")
    version = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if version is None or version[0] > SCHEMA_VERSION:
        found = "no version" if version is None else f"version {version[0]}"
        raise StoreError(
            f"{path} has {found} of the schema: this Busbar knows up to version {SCHEMA_VERSION}"
        )
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        raise StoreError(f"{path} cannot have a write-ahead log on this file system")
    if version[0] < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        _bring_up_to_date(connection, version[0])
        connection.execute("COMMIT")


def _bring_up_to_date(connection: sqlite3.Connection, version: int) -> None:
    """Apply the steps from an older schema to this one, inside the caller's transaction."""
    for added in range(version + 1, SCHEMA_VERSION + 1):
        for statement in _ADDED[added]:
            connection.execute(statement)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA_VERSION,))


def _refusal(path: Path, problem: OSError | sqlite3.Error) -> StoreError:
    name = getattr(problem, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreInUse(f"{path} is in use: another program has the database open")
    if name == "SQLITE_NOTADB":
        return StoreError(
            f"{path} is not a Busbar store: it is not an SQLite database, or its header is damaged"
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
