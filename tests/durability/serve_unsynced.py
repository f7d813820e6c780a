"""`busbar` with a store that never syncs: what the test of the tests must catch."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from busbar.cli.main import main
from busbar.store.sqlite import database, file
from busbar.store.sqlite.database import DatabaseSchema


def never_sync() -> None:
    opened = database.open_database

    def unsynced(path: Path, schema: DatabaseSchema) -> sqlite3.Connection:
        connection = opened(path, schema)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    setattr(file, "open_database", unsynced)  # noqa: B010
    os.fdatasync = lambda fd: None  # of the journal


if __name__ == "__main__":
    never_sync()
    main()
