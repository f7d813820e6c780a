"""Where tasks write the files of a batch, before a commit adds them to an archive.

In a directory, files are written below `_staging`, and the driver moves them to their names. In an object store nothing is
moved: a task writes an object under its final name, which no other task ever uses. An object that no commit names is
invisible, and is deleted later.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from busbar.jobs import durable_files
from busbar.jobs.archive_files import ObjectFiles
from busbar.jobs.archive_location import ArchiveLocation


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that was written and synced, and waits to be published."""

    path: str
    date: str
    hour: int
    rows: int
    bytes: int


def hour_path(entity: str, date: str, hour: int) -> str:
    """The directory of an hour."""
    return f"entity={quote(entity, safe='')}/date={date}/hour={hour:02d}"


class Staging(Protocol):
    """The place for the files of one batch. It is sent to the tasks."""

    def begin(self, date: str, hour: int) -> tuple[str, Any]:
        """A new file for rows of this hour: its path, and what a Parquet writer writes to."""

    def finish(self, path: str, sink: Any) -> int:
        """Make a written file durable; returns its size."""

    def discard(self, path: str, sink: Any) -> None:
        """Delete a file that is not needed."""

    def has_data(self) -> bool:
        """Whether a task has begun to write."""


@dataclass(frozen=True, slots=True)
class StagingDirectory:
    """A directory that the driver and all workers reach under the same path."""

    directory: str

    def begin(self, date: str, hour: int) -> tuple[str, Any]:
        Path(self.directory).mkdir(parents=True, exist_ok=True)
        path = f"{self.directory}/{uuid.uuid4().hex}.part"
        return path, path

    def finish(self, path: str, sink: Any) -> int:
        return durable_files.sync_file(Path(path))

    def discard(self, path: str, sink: Any) -> None:
        Path(path).unlink(missing_ok=True)

    def has_data(self) -> bool:
        return any(path.is_file() and path.stat().st_size for path in Path(self.directory).rglob("*"))


@dataclass(frozen=True, slots=True)
class StagedObjects:
    """Objects under their final names, in the directory of their hour."""

    archive: str
    entity: str
    stem: str
    """How the names of this batch begin. No other batch has it."""
    directory: str = ""
    suffix: str = ".parquet"

    def begin(self, date: str, hour: int) -> tuple[str, Any]:
        path = f"{hour_path(self.entity, date, hour)}/{self.stem}-{uuid.uuid4().hex[:12]}"
        return path, self._files().sink(self._name(path))

    def finish(self, path: str, sink: Any) -> int:
        size = int(sink.tell())
        sink.close()
        location = ArchiveLocation(self.archive)
        if not location.is_remote:
            file = location.path / self._name(path)
            durable_files.sync_file(file)
            durable_files.sync_directories({file.parent}, location.path)
        return size

    def discard(self, path: str, sink: Any) -> None:
        sink.close()
        self._files().delete(self._name(path))

    def has_data(self) -> bool:
        top = f"{self.directory}entity={quote(self.entity, safe='')}"
        found = self._files().names(top)
        return any(name.rpartition("/")[2].startswith(self.stem) for name in found)

    def _files(self) -> ObjectFiles:
        return ObjectFiles(ArchiveLocation(self.archive))

    def _name(self, path: str) -> str:
        return f"{self.directory}{path}{self.suffix}"
