"""Keeps what Spark and its processes write to standard error in a file, away from the lines and tables of a job.

Java and the Python processes of Spark inherit the descriptor of standard error. While a SparkLog is open, that descriptor
is a file, and `sys.stderr` still leads to the terminal. The file is deleted at the end, unless the job failed. Spark
prints connection strings redacted; the file is readable for its user only.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final, TextIO

MOST_BYTES: Final = 8 * 1024 * 1024
"""A job may run for months, and warn all the time: beyond this size the file begins again."""
STANDARD_ERROR: Final = 2


class SparkLog:
    """The log of one job. Under spark-submit, Java is not a child of this process, so the file gets failures only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._path: Path | None = None
        self._terminal = STANDARD_ERROR
        self._before: TextIO | None = None

    @property
    def terminal(self) -> int:
        """The descriptor of what standard error was before."""
        return self._terminal

    def open(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f"busbar-{self._name}-", suffix=".log")
        os.close(descriptor)
        self._path = Path(name)
        # Every process writes at the end, also after the file was made empty.
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        sys.stderr.flush()
        self._terminal = os.dup(STANDARD_ERROR)
        os.dup2(descriptor, STANDARD_ERROR)
        os.close(descriptor)
        if _is_standard_error(sys.stderr):
            self._before = sys.stderr
            sys.stderr = os.fdopen(
                os.dup(self._terminal), "w", buffering=1, encoding="utf-8", errors="backslashreplace"
            )

    def trim(self) -> None:
        """Make the file empty if it is too large."""
        if self._path is not None and self._path.stat().st_size > MOST_BYTES:
            os.truncate(self._path, 0)

    def add(self, error: BaseException) -> None:
        """Add the trace of a failure."""
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.writelines(traceback.format_exception(error))

    def close(self, *, keep: bool = False) -> Path | None:
        """Put standard error back; returns the file if it is kept."""
        if self._path is None:
            return None
        if self._before is not None:
            sys.stderr.flush()
            sys.stderr, self._before = self._before, None
        os.dup2(self._terminal, STANDARD_ERROR)
        os.close(self._terminal)
        self._terminal = STANDARD_ERROR
        path, self._path = self._path, None
        if keep and path.stat().st_size:
            return path
        path.unlink(missing_ok=True)
        return None

    def discard(self) -> None:
        """Delete the file; the process is about to be ended by force."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _is_standard_error(file: TextIO) -> bool:
    try:
        return file.fileno() == STANDARD_ERROR
    except (OSError, ValueError):
        return False
