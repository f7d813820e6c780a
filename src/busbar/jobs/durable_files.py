"""Makes files durable: they survive a power cut once a function here has returned."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS))


def create(path: Path, content: bytes) -> None:
    """Create a file with this content, as a whole or not at all. Raises FileExistsError."""
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(fresh, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)  # unlike a rename it does not replace a file of another process
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from None
            os.rename(fresh, path)
        sync_directory(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def place(source: Path, path: Path) -> None:
    """Create a second name for a file, or a copy if the file system has no hard links. An existing file stays. The caller
    syncs the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        shutil.copyfile(source, fresh)
        with open(fresh, "rb") as file:
            os.fsync(file.fileno())
        os.rename(fresh, path)


def sync_file(path: Path) -> int:
    """Make the content of a file durable; returns its size."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, created and removed ones."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directories(paths: Iterable[Path], root: Path) -> None:
    """Sync directories, and those between them and `root`, which may be new as well."""
    seen: set[Path] = set()
    for path in paths:
        while path not in seen and path != root.parent:
            seen.add(path)
            path = path.parent
    for path in sorted(seen, reverse=True):
        sync_directory(path)
