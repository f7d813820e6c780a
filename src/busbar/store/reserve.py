"""Space kept back on the disk, so that a store that is full can still be drained.

Completing a message writes before it frees. When a commit that adds no message finds no space, the store gives the
reserve up and tries again. The reserve must hold what a checkpoint of a full log may add to the database file.
"""

from __future__ import annotations

import os
from pathlib import Path


class Reserve:
    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def fill(self) -> bool:
        """Set the space aside unless it already is; only when at least as much again stays free. True when it is there."""
        try:
            if self._path.exists() and self._path.stat().st_size == self._size:
                return True
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize < 2 * self._size:
                return False
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size)
            finally:
                os.close(file)
        except OSError:
            self.give_up()
            return False
        return True

    def give_up(self) -> bool:
        """Return the space to the disk. False when there was none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
