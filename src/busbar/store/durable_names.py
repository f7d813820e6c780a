"""Names of files and directories that are there after a power cut once a function here has returned."""

from __future__ import annotations

import os
from pathlib import Path


def move(fresh: Path, file: Path) -> None:
    """Give a file, whose content is synced, its name; what had the name is replaced."""
    os.replace(fresh, file)
    sync_directory(file.parent)


def make_directory(directory: Path) -> None:
    """A directory for its owner alone, with those above it that are missing."""
    missing = [above for above in (directory, *directory.parents) if not above.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)


def sync_directory(directory: Path) -> None:
    """Names that were made or removed in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
