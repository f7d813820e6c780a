"""The directory in which an instance keeps its stores and its key. It belongs to one process at a time.

The claim is a lock of the kernel on DIR/busbar.lock, which ends with the process however it ends; the file's text (who has
it) serves only to say so to the next one. Broker processes hold it too: when the one that started them was killed they end,
and the next one waits for that.
"""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
import time
from pathlib import Path

from busbar.app.durable_names import make_directory, move
from busbar.app.stores import stores_in

LEFT_BEHIND_SECONDS = 5.0


class DataDirectoryError(Exception):
    """The directory cannot be used; the text is for the operator."""


class DataDirectory:
    """A claimed data directory."""

    def __init__(self, path: Path) -> None:
        """Create the directory if needed and claim it. Raises DataDirectoryError."""
        self.path = path.absolute()
        try:
            make_directory(self.path)
            self._lock = os.open(self.path / "busbar.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirectoryError(f"The data directory {self.path} cannot be used: {error}") from None
        owner = self._claim()
        if owner:
            os.close(self._lock)
            raise DataDirectoryError(
                f"Another Busbar (process {owner}) is serving the data directory {self.path}. "
                "Stop it first, or choose another directory with --data."
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _claim(self) -> str:
        """Empty, or whose it is."""
        deadline = time.monotonic() + LEFT_BEHIND_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return ""
            except OSError:
                owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
                if not _is_gone(owner) or time.monotonic() > deadline:
                    return owner or "unknown"
            time.sleep(0.02)

    @property
    def lock(self) -> int:
        """The descriptor that holds it, for processes that are part of this one."""
        return self._lock

    @property
    def is_new(self) -> bool:
        """No store has been made here yet."""
        return not stores_in(self.path)

    def key(self) -> str:
        """The namespace's own key: made on the first start, readable by its owner alone."""
        file = self.path / "sas.key"
        try:
            key = file.read_text("ascii").strip()
            if key:
                return key
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise DataDirectoryError(f"The key file {file} cannot be read: {error}") from None
        key = base64.b64encode(secrets.token_bytes(32)).decode("ascii")
        # Written beside and renamed: a crash leaves a whole key or none, and the one that is returned is kept.
        fresh = file.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, key.encode("ascii") + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        move(fresh, file)
        return key

    def release(self) -> None:
        """Let another process have it (idempotent)."""
        if self._lock >= 0:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1


def _is_gone(owner: str) -> bool:
    """Whether the process of this number has ended: then what holds the lock is what is left of it."""
    if not owner.isdigit():
        return False
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is another user's
    return False
