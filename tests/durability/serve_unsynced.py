"""`busbar` with a store that never syncs: what the test of the tests must catch."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from busbar.cli.main import main
from busbar.store.sqlite import file, schema


def never_sync() -> None:
    opened = schema.open_database

    def unsynced(path: Path) -> sqlite3.Connection:
        connection = opened(path)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    setattr(file, "open_database", unsynced)  # noqa: B010


if __name__ == "__main__":
    never_sync()
    main()
