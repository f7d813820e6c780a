"""Makes names of files and directories durable: they survive a power cut once a function here has returned."""

from __future__ import annotations

import os
from pathlib import Path

REPLACED = ".replaced-"
"""What the name of a file continues with that another one has replaced; a time follows."""


def move(fresh: Path, file: Path) -> None:
    """Give a file with synced content its name; an existing file of that name is replaced."""
    os.replace(fresh, file)
    sync_directory(file.parent)


def make_directory(directory: Path) -> None:
    """Create a directory for its owner only, with missing ones above it."""
    missing = [above for above in (directory, *directory.parents) if not above.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, created and removed ones."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
