"""The directory in which an instance keeps its stores and its key. It belongs to one process at a time.

The claim is a lock of the kernel on DIR/busbar.lock, which ends with the process however it ends. The file names the holder:
its process, and an instance id that is drawn at each claim. The text is valid only while the lock is held, so that of a
copied directory names no process. Broker processes hold the lock too. If the controller was killed, its brokers end, and the
next controller waits for that.
"""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
import socket
import time
from pathlib import Path

from busbar.app.private_files import STORES_FILE, UnsafeFiles, check_private, write_file
from busbar.store.durable_names import make_directory
from busbar.store.journal.directory import stores_in
from busbar.store.sqlite.catalogue import catalogue_in

LEFT_BEHIND_SECONDS = 5.0
LOOK_SECONDS = 0.25
"""A claim is retried for so long in any case: a command that checks which process serves the directory locks it for a
moment."""
LOCK_NAME = "busbar.lock"
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class DataDirectoryError(Exception):
    """The directory cannot be used; the text is for the operator."""


class DataDirectory:
    """A claimed data directory."""

    def __init__(self, path: Path) -> None:
        """Create the directory if needed and claim it. Raises DataDirectoryError."""
        self.path = path.absolute()
        try:
            make_directory(self.path)
            self.warnings = check_private(self.path, os.geteuid())
            self._lock = os.open(self.path / LOCK_NAME, LOCK_FLAGS, 0o600)
        except UnsafeFiles as error:
            raise DataDirectoryError(str(error)) from None
        except OSError as error:
            raise DataDirectoryError(f"The data directory {self.path} cannot be used: {error}") from None
        owner = self._claim()
        if owner:
            os.close(self._lock)
            raise DataDirectoryError(
                f"Another Busbar (process {owner}) is serving the data directory {self.path}. "
                "Stop it first, or choose another directory with --data."
            ) from None
        self.instance = secrets.token_hex(16)
        """If a file of this directory has this id, the holder of the lock wrote it."""
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n{self.instance}\n".encode(), 0)

    def _claim(self) -> str:
        """Lock the directory; returns '' or a description of its holder."""
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return ""
            except OSError:
                owner = _holder(self._lock)[0]
                patience = LEFT_BEHIND_SECONDS if _is_gone(owner) else LOOK_SECONDS
                if time.monotonic() > began + patience:
                    return owner or "unknown"
            time.sleep(0.02)

    @property
    def lock(self) -> int:
        """The descriptor of the lock, for processes that are part of this one."""
        return self._lock

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the directory, which no copy of it has."""
        found = self.path.stat()
        return found.st_dev, found.st_ino

    @property
    def place(self) -> str:
        """The machine and the directory. Of two processes with the same place, the first has ended: both need the lock."""
        machine = Path("/etc/machine-id")
        known = machine.read_text("ascii").strip() if machine.exists() else socket.gethostname()
        return ":".join(map(str, (known, socket.gethostname(), *self.identity)))

    @property
    def is_new(self) -> bool:
        """Whether no catalogue and no store has been created here yet."""
        known = (catalogue_in(self.path), self.path / STORES_FILE)
        return not stores_in(self.path) and not any(file.exists() for file in known)

    def key(self) -> str:
        """The namespace's own key: created on the first start, readable by its owner only."""
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
        try:
            write_file(file, key.encode("ascii") + b"\n")
        except OSError as error:
            raise DataDirectoryError(f"The key file {file} cannot be written: {error}") from None
        return key

    def release(self) -> None:
        """Release the directory for another process (idempotent)."""
        if self._lock >= 0:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1


def instance_serving(path: Path) -> str | None:
    """The instance id of the process that holds the lock of this directory; '' if it has just started, None if there is
    none. Raises OSError if that cannot be determined."""
    try:
        lock = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _holder(lock)[1]
    finally:
        os.close(lock)


def _holder(lock: int) -> tuple[str, str]:
    """Process and instance id as the lock file names them."""
    process, _, instance = os.pread(lock, 128, 0).decode("ascii", "replace").partition("\n")
    return process.strip(), instance.strip()


def _is_gone(owner: str) -> bool:
    """Whether the process with this number has ended: then its broker processes still hold the lock."""
    if not owner.isdigit():
        return False
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is another user's
    return False
