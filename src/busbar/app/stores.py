"""The embedded messaging stores of a data directory: DIR/store-0.db, DIR/store-1.db and so on.

A store that is there is opened, never made: what is missing is missing. A new one is made only where a namespace gets one
more store, or an operator wants a lost one replaced; then whatever lies in its place is set aside, not deleted.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from busbar.broker.place import Place, StoreMissing
from busbar.store.contract import Store
from busbar.store.sqlite import SqliteStore

DEFAULT_STORES = 4
_NAME = re.compile(r"store-(\d+)\.db")


def store_names(count: int) -> list[str]:
    return [f"store-{number}" for number in range(count)]


def stores_in(directory: Path) -> list[str]:
    """Those that have a file, or at least a log of one, in the order of their numbers."""
    numbers = set()
    for file in directory.iterdir():
        found = _NAME.fullmatch(file.name.removesuffix("-wal"))
        if found is not None and found[1] == str(int(found[1])):
            numbers.add(int(found[1]))
    return [f"store-{number}" for number in sorted(numbers)]


class StoreFilePlace:
    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.db"
        self._log = directory / f"{name}.db-wal"

    @property
    def place(self) -> Place:
        return Place(self._file.as_uri(), self.make, self.size, self.mark)

    def open(self) -> Store:
        if _size(self._file) == 0:
            raise StoreMissing(f"{self._file} is missing")
        return SqliteStore(self._file)

    def make(self) -> Store:
        for file in (self._file, self._log):
            if file.exists():
                file.rename(file.with_name(f"{file.name}.aside-{time.time_ns() // 1_000_000}"))
        return SqliteStore(self._file)

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
