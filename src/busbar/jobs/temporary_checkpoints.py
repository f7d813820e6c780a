"""A directory for checkpoints that nothing needs after the end of its process.

The directory is in that for temporary files. Its process has a lock on a file in it. The system releases the lock when the
process ends, also if it is killed. So each new directory first removes those of processes that have ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "busbar-capture-"
LOCK: Final = "_lock"


class TemporaryCheckpoints:
    """The directory, from its creation to `remove`."""

    def __init__(self) -> None:
        remove_abandoned()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            lock = _locked(self.path, os.O_RDWR | os.O_CREAT)
            if lock is not None:
                self._lock = lock
                return

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Remove the directories whose processes have ended. Directories of other users stay."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _locked(path, os.O_RDWR)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(directory: Path, flags: int) -> int | None:
    """A descriptor with the lock of a directory. None if another process has the lock, or if there is none to have."""
    try:
        descriptor = os.open(directory / LOCK, flags | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(directory / LOCK)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
