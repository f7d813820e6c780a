"""Closes a database without writing a byte.

SQLite checkpoints, syncs and truncates when a connection is closed, and Python 3.11 cannot switch that off. After a failed
sync that must not happen: a second sync may succeed although the data was lost. So the descriptors of the database and of
its log are replaced by ones that can neither be written nor synced, and then the connection is closed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

Identity = tuple[int, int]


def identity_of(found: os.stat_result) -> Identity:
    """A value that stays the same when a file is renamed, and differs when another file has its name."""
    return found.st_dev, found.st_ino


def identities_at(paths: Iterable[Path]) -> set[Identity]:
    return {identity_of(path.stat()) for path in paths if path.exists()}


def close_without_writing(connection: sqlite3.Connection, files: set[Identity]) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
            descriptor = int(name)
            try:
                found = os.fstat(descriptor)
            except OSError:
                continue  # the listing's own descriptor
            if identity_of(found) in files:
                os.dup2(nowhere, descriptor, inheritable=False)
    finally:
        os.close(nowhere)
    connection.close()
