"""An archive in a directory.

A file is written and synced in _staging, under a unique name. It is moved to _files under its own name, which follows from
the query and the batch, added by a commit to the manifest, and then linked into the tree. If a batch is repeated, it
replaces what a crash has left of it. A committed batch is not written again.

Opening the archive repairs what a crash has left: files that no commit names are deleted, and files that are missing in the
tree are linked there. A lock of the file system keeps other writers out until `close`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from busbar.jobs import durable_files
from busbar.jobs.archive_files import LocalFiles
from busbar.jobs.archive_identity import (
    CHECKPOINTS,
    FILES,
    KEPT_SUFFIX,
    SHOWN_SUFFIX,
    STAGING,
    ArchiveIdentity,
    make,
)
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.archive_writer import ManifestWriter
from busbar.jobs.manifest import ArchivedFile, Manifest
from busbar.jobs.staged_files import StagedFile, StagingDirectory, hour_path

LOCK = "_lock"

_OURS = re.compile(r"(?:[0-9a-f]{12}-\d{10}|compacted-\d{12})-\d{4}")


class DirectoryWriter(ManifestWriter):
    """The writer of a directory, which it locks for this process until `close`."""

    def __init__(self, location: ArchiveLocation, identity: ArchiveIdentity, lock: int, grace: float) -> None:
        super().__init__(location, identity, Manifest(LocalFiles(location.path)), grace)
        self.directory = location.path
        self._lock = lock

    @classmethod
    def opened(cls, location: ArchiveLocation, stream: str, grace: float) -> DirectoryWriter:
        location.path.mkdir(parents=True, exist_ok=True)
        lock = _locked(location.path)
        try:
            writer = cls(location, make(location.path, stream), lock, grace)
            writer._put_in_order()
        except BaseException:
            os.close(lock)
            raise
        return writer

    def close(self) -> None:
        os.ftruncate(self._lock, 0)
        os.close(self._lock)  # which releases it; the file stays, so that all lock the same one

    def checkpoint_of(self, tap: str) -> Path:
        """The checkpoint is part of the archive, and stays."""
        return self.directory / CHECKPOINTS / tap

    def kept_path(self, path: str) -> Path:
        return self.directory / FILES / (path + KEPT_SUFFIX)

    def shown_path(self, path: str) -> Path:
        return self.directory / (path + SHOWN_SUFFIX)

    def stage(self, entity: str, *, compacted: bool = False) -> StagingDirectory:
        path = self.directory / STAGING / uuid.uuid4().hex
        path.mkdir(parents=True)
        return StagingDirectory(str(path))

    def source(self, file: ArchivedFile) -> str:
        return str(self.kept_path(file.path))

    # ----------------------------------------------------------------------------------------------

    def _named(self, staged: Sequence[StagedFile], entity: str, name: str) -> tuple[ArchivedFile, ...]:
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

    def _delete(self, path: str) -> None:
        self.kept_path(path).unlink(missing_ok=True)

    def _hide(self, files: Sequence[ArchivedFile]) -> None:
        for file in files:
            self.shown_path(file.path).unlink(missing_ok=True)

    def _show(self, files: Sequence[ArchivedFile]) -> None:
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
