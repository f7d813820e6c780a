"""The embedded messaging stores of a data directory: DIR/store-0.db, DIR/store-1.db and so on.

An existing store is opened, and a missing one is not created. A new store is created only when a namespace gets one more
store, or an operator replaces a lost one. In the second case an existing file is renamed, not deleted: to
DIR/store-0.db.replaced-TIME. Its log is renamed too, to a name with which it can be opened there (store_restore.py).
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from busbar.store.contract import Store
from busbar.store.durable_names import move
from busbar.store.location import StoreLocation, StoreMissing
from busbar.store.sqlite.store import SqliteStore

DEFAULT_STORES = 4
REPLACED = ".replaced-"
_NAME = re.compile(r"store-(\d+)\.db")


def store_names(count: int) -> list[str]:
    return [f"store-{number}" for number in range(count)]


def stores_in(directory: Path) -> list[str]:
    """The stores that have a file, or at least a log of one, in the order of their numbers."""
    numbers = set()
    for file in directory.iterdir():
        found = _NAME.fullmatch(file.name.removesuffix("-wal"))
        if found is not None and found[1] == str(int(found[1])):
            numbers.add(int(found[1]))
    return [f"store-{number}" for number in sorted(numbers)]


class SqliteLocation:
    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.db"
        self._log = directory / f"{name}.db-wal"

    @property
    def place(self) -> StoreLocation:
        return StoreLocation(self._file.as_uri(), self.make, self.size, self.mark)

    def open(self) -> Store:
        if _size(self._file) == 0:
            raise StoreMissing(f"{self._file} is missing")
        return SqliteStore(self._file)

    def make(self) -> Store:
        self.rename_current()
        return SqliteStore(self._file)

    def rename_current(self) -> Path:
        """Rename the current file; returns its new path."""
        aside = self._file.with_name(f"{self._file.name}{REPLACED}{time.time_ns() // 1_000_000}")
        # The log first: without it the file would look whole.
        for file, name in ((self._log, f"{aside.name}-wal"), (self._file, aside.name)):
            if file.exists():
                move(file, file.with_name(name))
        return aside

    def put_back(self, aside: Path) -> None:
        """Rename a replaced file back. There must be no current file."""
        for file, target in ((aside.with_name(f"{aside.name}-wal"), self._log), (aside, self._file)):
            if file.exists():
                move(file, target)

    def replaced_files(self) -> list[Path]:
        """The replaced files of this store, the oldest first."""
        found = self._file.parent.glob(f"{self._file.name}{REPLACED}*")
        return sorted(file for file in found if file.name.rpartition("-")[2].isdigit())

    def mark(self) -> object:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def size(self) -> int:
        return _size(self._file) + _size(self._log)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
