"""The catalogue of an embedded namespace: DIR/catalogue.db, one SQLite file with one writer.

Tables
    entry       every entry: its name, the number of the change that wrote it, its value.
    change      the last changes, a row for each entry of each; a NULL is a deletion.
    meta        the version of this schema, the epoch that each claim raises, the number of the last change.
    namespace   one row: the id of the namespace.

What happens to the file, also when something fails, is in file.py. Its reserves are small: a deletion must find space on a
full disk, and writes little.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from busbar.store.catalogue_contract import (
    KEPT_CHANGES,
    CatalogueContent,
    CatalogueLocation,
    Changes,
    VersionedEntry,
)
from busbar.store.contract import Fenced, StoreError
from busbar.store.durable_names import REPLACED, move
from busbar.store.location import StoreMissing
from busbar.store.sqlite.database import DatabaseSchema, make_database, wal_of
from busbar.store.sqlite.file import Need, StoreFile

FILE = "catalogue.db"
LOG_LIMIT = 128  # pages: 1 MiB
RESERVE_SIZES = (2 * 1024 * 1024, 2 * 1024 * 1024)

CATALOGUE_SCHEMA = DatabaseSchema(
    "Busbar catalogue",
    0x42757363,  # "Busc"
    1,
    (
        "CREATE TABLE entry(name TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL) WITHOUT ROWID",
        """CREATE TABLE change(version INTEGER NOT NULL, name TEXT NOT NULL, value BLOB, PRIMARY KEY (version, name))
            WITHOUT ROWID""",
        "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE namespace(id TEXT NOT NULL)",
        "INSERT INTO meta VALUES ('schema', 1), ('epoch', 0), ('version', 0)",
    ),
    {},
)


def catalogue_in(directory: Path) -> CatalogueLocation:
    """The catalogue of a data directory."""
    path = directory / FILE

    def exists() -> bool:
        return any(file.exists() and file.stat().st_size > 0 for file in (path, wal_of(path)))

    def open_it() -> SqliteCatalogue:
        if not exists():
            raise StoreMissing(f"{path} is missing")
        return SqliteCatalogue(path)

    def set_aside() -> str:
        aside = f"{FILE}{REPLACED}{time.time_ns() // 1_000_000}"
        # The log first: without it the file would look whole.
        for file, name in ((wal_of(path), f"{aside}-wal"), (path, aside)):
            if file.exists():
                move(file, path.with_name(name))
        return aside

    return CatalogueLocation(
        str(path), exists, open_it, lambda content: make_catalogue(path, content), set_aside
    )


def make_catalogue(path: Path, content: CatalogueContent) -> None:
    """Make the file of a catalogue with this content. Raises StoreError if it cannot be written."""

    def fill(connection: sqlite3.Connection) -> None:
        rows = [(name, entry.version, entry.value) for name, entry in content.entries.items()]
        connection.executemany("INSERT INTO entry VALUES (?, ?, ?)", rows)
        connection.execute("INSERT INTO namespace VALUES (?)", (content.namespace,))
        connection.execute("UPDATE meta SET value = ? WHERE key = 'version'", (content.version,))

    try:
        make_database(path, CATALOGUE_SCHEMA, fill)
    except (OSError, sqlite3.Error) as problem:
        raise StoreError(f"{path} cannot be written: {problem}") from problem


class SqliteCatalogue:
    """The catalogue in the file `path`. Nothing is opened before `claim`."""

    def __init__(self, path: Path) -> None:
        self._file = StoreFile(path, CATALOGUE_SCHEMA, LOG_LIMIT, RESERVE_SIZES)
        self._epoch = 0

    def claim(self) -> int:
        self._file.open()
        raised = "UPDATE meta SET value = value + 1 WHERE key = 'epoch'"
        self._file.transact(lambda connection: _run(connection, raised), Need.FREES)
        self._epoch = self._number("epoch")
        return self._epoch

    def freeze(self) -> None:
        """Have everything in the file, which then stays as it is until `thaw`."""
        self._file.freeze()

    def thaw(self) -> bool:
        return self._file.thaw()

    def read_all(self) -> CatalogueContent:
        found = self._file.select("SELECT name, version, value FROM entry")
        ((namespace,),) = self._file.select("SELECT id FROM namespace")
        entries = {name: VersionedEntry(version, value) for name, version, value in found}
        return CatalogueContent(namespace, self._number("version"), entries)

    def write(self, version: int, changes: Changes) -> None:
        if self._number("epoch") != self._epoch:
            raise Fenced(f"{self._file.path} has another owner")

        def work(connection: sqlite3.Connection) -> None:
            next_one = "UPDATE meta SET value = ? WHERE key = 'version' AND value = ?"
            if connection.execute(next_one, (version, version - 1)).rowcount != 1:
                raise ValueError(f"{version} is not the number of the next change")
            for name, value in changes.items():
                _run(connection, "INSERT INTO change VALUES (?, ?, ?)", version, name, value)
                if value is None:
                    _run(connection, "DELETE FROM entry WHERE name = ?", name)
                else:
                    _run(connection, "INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", name, version, value)
            _run(connection, "DELETE FROM change WHERE version <= ?", version - KEPT_CHANGES)

        self._file.transact(work, self._need(changes))

    def _need(self, changes: Changes) -> Need:
        """What a change needs of space. A deletion, and what only replaces entries, may use the reserves."""
        if None in changes.values():
            return Need.FREES
        known = "SELECT 1 FROM entry WHERE name = ?"
        is_known = all(self._file.select(known, (name,)) for name in changes)
        return Need.FREES if is_known else Need.ADDS

    def changes_since(self, version: int) -> dict[int, dict[str, bytes | None]] | None:
        found: dict[int, dict[str, bytes | None]] = {}
        for number, name, value in self._file.select(
            "SELECT version, name, value FROM change WHERE version > ? ORDER BY version", (version,)
        ):
            found.setdefault(number, {})[name] = value
        return found if len(found) == max(0, self._number("version") - version) else None

    def beat(self) -> None:
        """Return at once: the lock of the file shows that the owner lives."""

    def release(self) -> None:
        self._file.release()

    def close(self) -> None:
        self._file.close()

    def _number(self, key: str) -> int:
        ((value,),) = self._file.select("SELECT value FROM meta WHERE key = ?", (key,))
        return int(value)


def _run(connection: sqlite3.Connection, statement: str, *values: object) -> None:
    connection.execute(statement, values)
