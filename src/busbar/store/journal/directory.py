"""The embedded messaging stores of a data directory: DIR/store-0.db, DIR/store-1.db and so on.

An existing store is opened, and a missing one is not created. A new store is created only when a namespace gets one more
store, or an operator replaces a lost one. In the second case an existing file is renamed, not deleted: to
DIR/store-0.db.replaced-TIME. Its log and the segments of its journal are renamed too, to names with which they can be opened
there (store_restore.py).
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from busbar.store.contract import Store
from busbar.store.disk_space import free_bytes
from busbar.store.durable_names import REPLACED, move
from busbar.store.journal.segment_names import segments_of
from busbar.store.journal.store import JournalStore
from busbar.store.location import StoreLocation, StoreMissing
from busbar.store.sqlite.database import wal_of

DEFAULT_STORES = 4
_NAME = re.compile(r"store-(\d+)\.db(?:-wal|\.\d{8,}\.segment)?")


def store_names(count: int) -> list[str]:
    return [f"store-{number}" for number in range(count)]


def stores_in(directory: Path) -> list[str]:
    """The stores that have a file, or at least a log or a journal of one, in the order of their numbers."""
    numbers = set()
    for file in directory.iterdir():
        found = _NAME.fullmatch(file.name)
        if found is not None and found[1] == str(int(found[1])):
            numbers.add(int(found[1]))
    return [f"store-{number}" for number in sorted(numbers)]


class EmbeddedLocation:
    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.db"

    @property
    def place(self) -> StoreLocation:
        return StoreLocation(self._file.as_uri(), self.make, self.size, self.mark, free=self.free)

    def open(self) -> Store:
        if _size(self._file) == 0:
            raise StoreMissing(f"{self._file} is missing")
        return JournalStore(self._file)

    def make(self) -> Store:
        self.rename_current()
        return JournalStore(self._file)

    def rename_current(self) -> Path:
        """Rename the current file; returns its new path."""
        aside = self._file.with_name(f"{self._file.name}{REPLACED}{time.time_ns() // 1_000_000}")
        _rename(self._file, aside)
        return aside

    def put_back(self, aside: Path) -> None:
        """Rename a replaced file back. There must be no current file."""
        _rename(aside, self._file)

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
        return sum(_size(file) for file in (*_beside(self._file), self._file))

    def free(self) -> int:
        try:
            return free_bytes(self._file.parent)
        except OSError:
            return -1


def _beside(file: Path) -> list[Path]:
    """The files without which a store's file is not complete."""
    return [*segments_of(file), wal_of(file)]


def _rename(file: Path, to: Path) -> None:
    # What is beside it first: without that the file would look whole.
    for each in (*_beside(file), file):
        if each.exists():
            move(each, each.with_name(to.name + each.name.removeprefix(file.name)))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
