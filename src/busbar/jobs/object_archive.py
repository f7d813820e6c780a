"""An archive in an object store: no renames, no hard links, no locks, and no conditional writes.

What the store must have: an object appears as a whole when its write is answered, and a list that begins after that contains
it. Amazon S3, Google Cloud Storage, Azure and HDFS have this.

    _files/entity=…/date=…/hour=…/*.pq    the data, written by tasks under names that are never used twice
    _manifest/<epoch>/<number>.json       commits, as in a directory (manifest.py), and sums of them
    _manifest/<epoch>/archive.json        the archive's id, and the stream it holds
    _writers/<epoch>.json                 who has begun which epoch

The rules of writers:

1. A writer chooses an epoch above all that it finds, and writes it to `_writers`. The name of an epoch is a number and a
   random token, so that no two writers have the same one. Epochs are ordered by both.
2. Only then it reads the manifest. It writes the sum of what it found as the first object of its own directory.
3. After every write to the manifest, it lists `_writers`. If there is a higher epoch, the writer has been taken over: the
   write does not count for it, and it never writes again. Otherwise the write is confirmed.
4. Only after a confirmed sum it deletes objects of lower epochs: data that no commit names, old manifests, old entries.

Readers take the directory of the highest epoch that has a sum. So one object decides about everything before it.

Why no confirmed commit is lost: its writer found no higher epoch after the commit was written. So a later writer registered
after that, and read the manifest after the commit. Why nothing is doubled: a commit that a later writer has not found is in
a directory that no reader takes. Its writer has not confirmed it, and has not advanced the tap.

If the answer to a write is lost, the write may happen later. The writer begins a new epoch before it commits again.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from typing import Any

from busbar.jobs.archive_files import ObjectFiles
from busbar.jobs.archive_identity import EPOCH_IDENTITY, FILES, KEPT_SUFFIX, ArchiveIdentity, read_identity
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.archive_writer import ManifestWriter
from busbar.jobs.manifest import (
    ATTEMPTS,
    DIRECTORY,
    ArchivedFile,
    Commit,
    Contents,
    Manifest,
    current,
    load_from,
)
from busbar.jobs.staged_files import StagedFile, StagedObjects

WRITERS = "_writers"

_EPOCH = re.compile(r"(\d{12}-[0-9a-f]{8})(?:\.json)?")
_OURS = re.compile(r"(?:compacted-)?(\d{12}-[0-9a-f]{8})-\d{8}-[0-9a-f]{12}")


class ArchiveTakenOver(ArchiveError):
    """A later writer has opened the archive. This one must not write any more."""


class ObjectWriter(ManifestWriter):
    """The writer of an archive in an object store. The latest one that was opened is the one that writes."""

    def __init__(self, location: ArchiveLocation, files: ObjectFiles, stream: str, grace: float) -> None:
        self._objects = files
        self._stages = 0
        self._in_doubt = False
        self._taken_over: ArchiveTakenOver | None = None
        self.epoch = ""
        found = _found_identity(files, location)
        if found is not None:
            found.check(stream, location.name)  # before another writer is disturbed
        identity, manifest = self._begin(location, stream)
        super().__init__(location, identity, manifest, grace)

    @classmethod
    def opened(cls, location: ArchiveLocation, stream: str, grace: float) -> ObjectWriter:
        writer = cls(location, ObjectFiles(location), stream, grace)
        writer._put_in_order()
        return writer

    def stage(self, entity: str, *, compacted: bool = False) -> StagedObjects:
        with self._turn:
            self._stages += 1
            stem = f"{'compacted-' if compacted else ''}{self.epoch}-{self._stages:08d}"
        return StagedObjects(self.location.text, entity, stem, f"{FILES}/", KEPT_SUFFIX)

    def source(self, file: ArchivedFile) -> Any:
        return self._objects.source(_data(file.path))

    # ---- epochs ----------------------------------------------------------------------------------

    def _begin(self, location: ArchiveLocation, stream: str) -> tuple[ArchiveIdentity, Manifest]:
        """Begin a new epoch: register, read what counts, and write the sum of it."""
        highest = max([*self._registered(), *self._begun()], default="0")
        self.epoch = f"{int(highest.partition('-')[0]) + 1:012d}-{uuid.uuid4().hex[:8]}"
        owner = {"pid": os.getpid(), "host": os.uname().nodename}
        self._objects.create(f"{WRITERS}/{self.epoch}.json", json.dumps(owner).encode())
        identity = _found_identity(self._objects, location) or ArchiveIdentity.new(stream)
        identity.check(stream, location.name)
        contents = _pruned(load_from(self._objects))
        directory = f"{DIRECTORY}/{self.epoch}"
        self._objects.create(f"{directory}/{EPOCH_IDENTITY}", identity.encoded())
        manifest = Manifest(self._objects, directory, contents)
        manifest.sum_up()
        self._confirm(location)
        return identity, manifest

    def _commit(self, commit: Commit) -> None:
        if self._taken_over is not None:
            raise self._taken_over
        if self._in_doubt:
            # Files that wait for this commit have names of the epoch before. They stay: only later writers delete them.
            _, self._manifest = self._begin(self.location, self.identity.stream)
            self._in_doubt = False
            if commit.mark is not None and self.has(commit.mark):
                return
            missing = [path for path in commit.removed if path not in self.contents.files]
            if missing:
                raise ArchiveError(f"{missing[0]} was replaced already.")
        self._in_doubt = True
        self._manifest.commit(commit)
        self._confirm(self.location)
        self._in_doubt = False

    def _confirm(self, location: ArchiveLocation) -> None:
        """Raise ArchiveTakenOver if there is a later writer: then what was written may not count."""
        later = [epoch for epoch in self._registered() if epoch > self.epoch]
        if later:
            self._taken_over = ArchiveTakenOver(
                f"{location.name} is written by {self._owner(max(later))}, which was started later; "
                "this capture ends, and nothing is lost."
            )
            raise self._taken_over

    def _registered(self) -> list[str]:
        return _epochs(self._objects.names(WRITERS))

    def _begun(self) -> list[str]:
        return _epochs([name.partition("/")[0] for name in self._objects.names(DIRECTORY)])

    def _owner(self, epoch: str) -> str:
        try:
            document = json.loads(self._objects.read(f"{WRITERS}/{epoch}.json"))
            return f"process {int(document['pid'])} on {document['host']}"
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return "another process"

    # ---- data ------------------------------------------------------------------------------------

    def _named(self, staged: Sequence[StagedFile], entity: str, name: str) -> tuple[ArchivedFile, ...]:
        """The files have their final names already."""
        ordered = sorted(staged, key=lambda file: file.path)
        return tuple(ArchivedFile(file.path, file.rows, file.bytes) for file in ordered)

    def _delete(self, path: str) -> None:
        self._objects.delete(_data(path))

    def _put_in_order(self) -> None:
        """Delete what earlier writers have left. Objects of this epoch and of later ones stay."""
        self.drop_replaced()
        there = set()
        for name in self._objects.names(FILES):
            path = name.removesuffix(KEPT_SUFFIX)
            there.add(path)
            ours = _OURS.fullmatch(path.rpartition("/")[2])
            if ours is None or ours[1] >= self.epoch:
                continue
            if path not in self.contents.files and path not in self.contents.removed:
                self._delete(path)
        for path in self.contents.files:
            if path not in there:
                place = self._objects.place_of(_data(path))
                raise ArchiveError(f"{place} is part of the archive and is missing: restore it.")
        # Sums first, then commits from the lowest on: a reader that lists meanwhile finds a gap, and lists again.
        names = self._objects.names(DIRECTORY)
        for name in sorted(names, key=lambda name: (not name.endswith(".sum.json"), name)):
            if _epochs([name.partition("/")[0]]) and name.partition("/")[0] < self.epoch:
                self._objects.delete(f"{DIRECTORY}/{name}")
        for epoch in self._registered():
            if epoch < self.epoch:
                self._objects.delete(f"{WRITERS}/{epoch}.json")


def _found_identity(files: ObjectFiles, location: ArchiveLocation) -> ArchiveIdentity | None:
    for _ in range(ATTEMPTS):
        directory = current(files)[0]
        if directory == DIRECTORY:
            return None
        try:
            return read_identity(files, f"{directory}/{EPOCH_IDENTITY}", location)
        except FileNotFoundError:
            continue  # a later writer has deleted it
    raise ArchiveError(f"{location.name} is damaged: the identity of the archive is missing.")


def _pruned(contents: Contents) -> Contents:
    """Forget queries whose checkpoints are gone: only the last one of an entity can repeat a batch."""
    last = {mark.query for mark in contents.reached.values()}
    contents.batches = {query: batch for query, batch in contents.batches.items() if query in last}
    return contents


def _epochs(names: list[str]) -> list[str]:
    return [found[1] for found in map(_EPOCH.fullmatch, names) if found is not None]


def _data(path: str) -> str:
    return f"{FILES}/{path}{KEPT_SUFFIX}"
