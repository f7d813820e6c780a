"""The one writer of an archive (archive.py). A published batch is in the archive for good, as a whole or not at all.

A file is written and synced in _staging, under a unique name. It is moved to _files under its own name, which follows from
the query and the batch, added by a commit to the manifest, and then linked into the tree. If a batch is repeated, it
replaces what a crash has left of it. A committed batch is not written again.

Opening the archive repairs what a crash has left: files that no commit names are deleted, and files that are missing in the
tree are linked there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from busbar.jobs import durable_files
from busbar.jobs.archive import FILES, KEPT_SUFFIX, SHOWN_SUFFIX, STAGING, ArchiveIdentity, hour_path, make
from busbar.jobs.fault_points import reached
from busbar.jobs.manifest import ArchivedFile, ArchiveError, BatchMark, Commit, Contents, Manifest

LOCK = "_lock"
GRACE_SECONDS = 3600.0

_OURS = re.compile(r"(?:[0-9a-f]{12}-\d{10}|compacted-\d{12})-\d{4}")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that was written and synced, and waits to be published."""

    path: str
    date: str
    hour: int
    rows: int
    bytes: int


class ArchiveWriter:
    """The writer, created by `open`, which locks the archive for this process until `close`. May be used from several
    threads."""

    def __init__(self, directory: Path, identity: ArchiveIdentity, lock: int, grace: float) -> None:
        self.directory = directory
        self.identity = identity
        self._lock = lock
        self._grace = grace
        self._turn = threading.RLock()
        self._manifest = Manifest(directory)

    @classmethod
    def open(cls, directory: str | Path, stream: str, *, grace: float = GRACE_SECONDS) -> ArchiveWriter:
        """Open an archive. Raises ArchiveError if another process has it open."""
        path = Path(directory).absolute()
        path.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
        try:
            writer = cls(path, make(path, stream), lock, grace)
            writer._put_in_order()
        except BaseException:
            os.close(lock)
            raise
        return writer

    def close(self) -> None:
        os.ftruncate(self._lock, 0)
        os.close(self._lock)  # which releases it; the file stays, so that all lock the same one

    @property
    def contents(self) -> Contents:
        """The contents, not to be changed. They change with every commit."""
        return self._manifest.contents

    def files(self) -> list[ArchivedFile]:
        with self._turn:
            return list(self.contents.files.values())

    def has(self, mark: BatchMark) -> bool:
        """Whether a batch was committed. Raises ArchiveError if the archive has another batch of that number, which happens
        after a checkpoint was restored to an earlier state."""
        with self._turn:
            if mark.batch > self.contents.batches.get(mark.query, -1):
                return False
            if self.contents.reached.get(mark.entity) != mark:
                raise ArchiveError(
                    f"The checkpoint of {mark.entity!r} is older than the archive: its batch {mark.batch} is not "
                    f"that of {self.directory}. Delete the checkpoint; the archive knows how far it has come."
                )
            return True

    def kept_path(self, path: str) -> Path:
        return self.directory / FILES / (path + KEPT_SUFFIX)

    def shown_path(self, path: str) -> Path:
        return self.directory / (path + SHOWN_SUFFIX)

    def stage(self) -> Path:
        """A new directory for the files of a batch."""
        path = self.directory / STAGING / uuid.uuid4().hex
        path.mkdir(parents=True)
        return path

    def publish(self, staged: Sequence[StagedFile], mark: BatchMark) -> None:
        """Add a batch to the archive."""
        with self._turn:
            if self.has(mark):
                return
            name = f"{mark.query[:12]}-{mark.batch:010d}"
            added = self._moved(staged, mark.entity, name)
            reached("before-commit")
            self._manifest.commit(Commit(_now(), added, (), mark))
            reached("before-place")
            self._show(added)

    def replace(self, old: Sequence[ArchivedFile], staged: Sequence[StagedFile], entity: str) -> None:
        """Replace files by others that have the same rows."""
        if sum(file.rows for file in old) != sum(file.rows for file in staged):
            raise ArchiveError(
                f"The files that replace {len(old)} files of {entity!r} have not as many rows."
            )
        with self._turn:
            name = f"compacted-{self.contents.number + 1:012d}"
            added = self._moved(staged, entity, name)
            reached("inside-compaction")
            self._manifest.commit(Commit(_now(), added, tuple(file.path for file in old)))
            reached("before-replace")
            # For a moment plain readers may miss them, but never see them twice.
            for file in old:
                self.shown_path(file.path).unlink(missing_ok=True)
            self._show(added)

    def drop_replaced(self) -> None:
        """Delete files that were replaced longer ago than the grace period."""
        with self._turn:
            over = _now() - int(self._grace * 1000)
            gone = [path for path, when in self.contents.removed.items() if when <= over]
            for path in gone:
                self.kept_path(path).unlink(missing_ok=True)
            self._manifest.forget(gone)

    # ----------------------------------------------------------------------------------------------

    def _moved(self, staged: Sequence[StagedFile], entity: str, name: str) -> tuple[ArchivedFile, ...]:
        """Move staged files to their final names."""
        added: list[ArchivedFile] = []
        for number, file in enumerate(sorted(staged, key=lambda file: (file.date, file.hour, file.path))):
            path = f"{hour_path(entity, file.date, file.hour)}/{name}-{number:04d}"
            target = self.kept_path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file.path, target)
            added.append(ArchivedFile(path, file.rows, file.bytes))
        durable_files.sync_directories({self.kept_path(file.path).parent for file in added}, self.directory)
        for directory in {Path(file.path).parent for file in staged}:
            shutil.rmtree(directory, ignore_errors=True)
        return tuple(added)

    def _show(self, files: Iterable[ArchivedFile]) -> None:
        directories: set[Path] = set()
        for file in files:
            shown = self.shown_path(file.path)
            durable_files.place(self.kept_path(file.path), shown)
            directories.add(shown.parent)
        durable_files.sync_directories(directories, self.directory)

    def _put_in_order(self) -> None:
        """Delete what a crash has left, and finish what it interrupted."""
        shutil.rmtree(self.directory / STAGING, ignore_errors=True)
        self.drop_replaced()
        live = self.contents.files
        for path in _files_below(self.directory / FILES, self.directory / FILES, KEPT_SUFFIX):
            if path not in live and path not in self.contents.removed:
                self.kept_path(path).unlink()
        for top in self.directory.glob("entity=*"):
            for path in _files_below(top, self.directory, SHOWN_SUFFIX):
                if path not in live and _OURS.fullmatch(path.rpartition("/")[2]):
                    self.shown_path(path).unlink()
        missing: list[ArchivedFile] = []
        for file in live.values():
            kept, shown = self.kept_path(file.path).exists(), self.shown_path(file.path).exists()
            if not kept and not shown:
                raise ArchiveError(
                    f"{self.kept_path(file.path)} is part of the archive and is missing: restore it."
                )
            if not kept:
                durable_files.place(self.shown_path(file.path), self.kept_path(file.path))
            elif not shown:
                missing.append(file)
        self._show(missing)


def _locked(directory: Path) -> int:
    """The archive's lock. The kernel releases it when the process ends, however it ends."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        said = os.read(descriptor, 1000)
        os.close(descriptor)
        raise ArchiveError(f"{directory} is being written by {_owner(said)}: one at a time.") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": os.uname().nodename}).encode(), 0)
    return descriptor


def _owner(said: bytes) -> str:
    try:
        document = json.loads(said)
        return f"process {int(document['pid'])} on {document['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _files_below(top: Path, base: Path, suffix: str) -> Iterator[str]:
    """Paths relative to `base`, without the suffix."""
    for directory, _, names in os.walk(top):
        for name in names:
            if name.endswith(suffix):
                yield str((Path(directory) / name).relative_to(base)).removesuffix(suffix)


def _now() -> int:
    return time.time_ns() // 1_000_000
