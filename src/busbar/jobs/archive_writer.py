"""The one writer of an archive (archive.py). A published batch is in the archive for good, as a whole or not at all.

There are three kinds of archives, with one interface:

    directory_archive.py    a directory, with renames, hard links and syncs
    object_archive.py       an object store, which has none of these
    delta_archive.py        a Delta table, in a directory or an object store

The first two have a manifest (manifest.py), which decides what belongs to the archive.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from busbar.jobs.archive_identity import DELTA, PARQUET, ArchiveIdentity, format_of
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.fault_points import reached
from busbar.jobs.manifest import ArchivedFile, BatchMark, Commit, Contents, Manifest
from busbar.jobs.staged_files import StagedFile, Staging
from busbar.jobs.temporary_checkpoints import TemporaryCheckpoints

GRACE_SECONDS = 3600.0


class ArchiveWriter(ABC):
    """The writer, created by `open`. It may be used from several threads."""

    def __init__(self, location: ArchiveLocation, identity: ArchiveIdentity) -> None:
        self.location = location
        self.identity = identity
        self._turn = threading.RLock()
        self._checkpoints: TemporaryCheckpoints | None = None

    @classmethod
    def open(
        cls,
        archive: str | Path,
        stream: str,
        *,
        grace: float = GRACE_SECONDS,
        table_format: str | None = None,
    ) -> ArchiveWriter:
        """Open an archive, or create it. Without a format, it has that of the archive, and a new one is of Parquet files.
        Raises ArchiveError if it has another format or stream, or if another process has its directory open."""
        location = ArchiveLocation.parse(archive)
        if not location.is_remote:
            location = ArchiveLocation(str(location.path.absolute()))
        found = format_of(location)
        if found is not None and table_format not in (None, found):
            raise ArchiveError(f"{location.name} is an archive of the format {found}, not {table_format}.")
        if (found or table_format or PARQUET) == DELTA:
            from busbar.jobs.delta_archive import DeltaWriter

            return DeltaWriter.opened(location, stream)
        if location.is_remote:
            from busbar.jobs.object_archive import ObjectWriter

            return ObjectWriter.opened(location, stream, grace)
        from busbar.jobs.directory_archive import DirectoryWriter

        return DirectoryWriter.opened(location, stream, grace)

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.remove()

    def checkpoint_of(self, tap: str) -> Path:
        """The place of the checkpoint of a query. It lives as long as this writer, because the archive has its progress."""
        if self._checkpoints is None:
            self._checkpoints = TemporaryCheckpoints()
        return self._checkpoints.path / tap

    @abstractmethod
    def progress(self, entity: str, incarnation: str, fragments: int) -> Mapping[int, int] | None:
        """By fragment, the last position that the archive holds of an entity; None if it holds nothing of it."""

    @abstractmethod
    def has(self, mark: BatchMark) -> bool:
        """Whether a batch was committed. Raises ArchiveError if the checkpoint of its query is older than the archive."""

    @abstractmethod
    def stage(self, entity: str, *, compacted: bool = False) -> Staging:
        """A new place for the files of a batch, or for those that replace others."""

    @abstractmethod
    def publish(self, staged: Sequence[StagedFile], mark: BatchMark) -> None:
        """Add a batch to the archive. Nothing happens if the archive has it."""

    @abstractmethod
    def files(self) -> list[ArchivedFile]:
        """The files of the archive now."""

    @abstractmethod
    def source(self, file: ArchivedFile) -> Any:
        """A file of the archive, for a Parquet reader."""

    @abstractmethod
    def replace(self, old: Sequence[ArchivedFile], staged: Sequence[StagedFile], entity: str) -> None:
        """Replace files by others that have the same rows."""

    @abstractmethod
    def drop_replaced(self) -> None:
        """Delete files that were replaced longer ago than the grace period."""


class ManifestWriter(ArchiveWriter):
    """A writer whose archive has a manifest."""

    def __init__(
        self, location: ArchiveLocation, identity: ArchiveIdentity, manifest: Manifest, grace: float
    ) -> None:
        super().__init__(location, identity)
        self._manifest = manifest
        self._grace = grace

    @property
    def contents(self) -> Contents:
        """The contents, not to be changed. They change with every commit."""
        return self._manifest.contents

    def files(self) -> list[ArchivedFile]:
        with self._turn:
            return list(self.contents.files.values())

    def progress(self, entity: str, incarnation: str, fragments: int) -> Mapping[int, int] | None:
        with self._turn:
            mark = self.contents.reached.get(entity)
            return None if mark is None or mark.incarnation != incarnation else mark.positions

    def has(self, mark: BatchMark) -> bool:
        """Whether a batch was committed. Raises ArchiveError if the archive has another batch of that number, which happens
        after a checkpoint was restored to an earlier state."""
        with self._turn:
            if mark.batch > self.contents.batches.get(mark.query, -1):
                return False
            if self.contents.reached.get(mark.entity) != mark:
                raise ArchiveError(
                    f"The checkpoint of {mark.entity!r} is older than the archive: its batch {mark.batch} is not "
                    f"that of {self.location.name}. Delete the checkpoint; the archive knows how far it has come."
                )
            return True

    def publish(self, staged: Sequence[StagedFile], mark: BatchMark) -> None:
        with self._turn:
            if self.has(mark):
                return
            name = f"{mark.query[:12]}-{mark.batch:010d}"
            added = self._named(staged, mark.entity, name)
            reached("before-commit")
            self._commit(Commit(now_ms(), added, (), mark))
            reached("before-place")
            self._show(added)

    def replace(self, old: Sequence[ArchivedFile], staged: Sequence[StagedFile], entity: str) -> None:
        check_rows(old, staged, entity)
        with self._turn:
            name = f"compacted-{self.contents.number + 1:012d}"
            added = self._named(staged, entity, name)
            reached("inside-compaction")
            self._commit(Commit(now_ms(), added, tuple(file.path for file in old)))
            reached("before-replace")
            # For a moment plain readers may miss them, but never see them twice.
            self._hide(old)
            self._show(added)

    def drop_replaced(self) -> None:
        with self._turn:
            over = now_ms() - int(self._grace * 1000)
            gone = [path for path, when in self.contents.removed.items() if when <= over]
            for path in gone:
                self._delete(path)
            self._manifest.forget(gone)

    def _commit(self, commit: Commit) -> None:
        self._manifest.commit(commit)

    @abstractmethod
    def _named(self, staged: Sequence[StagedFile], entity: str, name: str) -> tuple[ArchivedFile, ...]:
        """The staged files under their final names, which may begin with `name`."""

    @abstractmethod
    def _delete(self, path: str) -> None:
        """Delete the data of a file that is no longer part of the archive."""

    def _show(self, files: Sequence[ArchivedFile]) -> None:
        """Give files their names for readers that list files."""

    def _hide(self, files: Sequence[ArchivedFile]) -> None:
        """Remove files for readers that list files."""


def check_rows(old: Sequence[ArchivedFile], staged: Sequence[StagedFile], entity: str) -> None:
    if sum(file.rows for file in old) != sum(file.rows for file in staged):
        raise ArchiveError(f"The files that replace {len(old)} files of {entity!r} have not as many rows.")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
