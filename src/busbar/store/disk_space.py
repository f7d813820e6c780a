"""The free space of a disk."""

from __future__ import annotations

import os
from pathlib import Path


def free_bytes(directory: Path) -> int:
    """What this user may still write to the disk of a directory. Raises OSError."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize
