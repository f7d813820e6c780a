"""Space reserved on the disk, so that a full store can still be drained.

Completing a message writes before it frees. If a transaction that may use a reserve finds no space, the reserve is released
and the transaction tried again. A reserve must hold what a checkpoint of a full log may add to the database file.

A released reserve is an empty file until there is room for it again, also over a restart. Until then, transactions that may
not use it must not take its space.
"""

from __future__ import annotations

import os
from pathlib import Path

from busbar.store.disk_space import free_bytes


class Reserve:
    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self.is_spent = False

    def look(self) -> None:
        """Check whether it was released before."""
        try:
            self.is_spent = self._path.stat().st_size == 0
        except OSError:
            self.is_spent = False

    def fill(self) -> bool:
        """Reserve the space unless it already is; only if at least as much again stays free. True if it is reserved."""
        made = not self._path.exists()
        try:
            if not made and self._path.stat().st_size == self._size:
                self.is_spent = False
                return True
            if free_bytes(self._path.parent) < 2 * self._size:
                return False
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size)
            finally:
                os.close(file)
        except OSError:
            if made:  # it never existed, so no transaction was refused in its favour
                self._path.unlink(missing_ok=True)
            else:
                self._empty()
            return False
        self.is_spent = False
        return True

    def give_up(self) -> bool:
        """Return the space to the disk. False if there was none."""
        try:
            there = self._path.stat().st_size > 0
        except OSError:
            return False
        return there and self._empty()

    def _empty(self) -> bool:
        try:
            os.truncate(self._path, 0)
        except OSError:
            return False
        self.is_spent = True
        return True
