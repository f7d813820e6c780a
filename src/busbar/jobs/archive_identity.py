"""What an archive is: its id, the stream that it holds, and its format.

A directory has them in `_archive.json`. An object store has no exclusive creation, so there they are written by each epoch
of the manifest (object_archive.py). A Delta table has its own id, and its name tells the stream.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from busbar.jobs import durable_files
from busbar.jobs.archive_files import ArchiveFiles, ObjectFiles, files_of
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.manifest import DIRECTORY, current

FILES = "_files"
STAGING = "_staging"
CHECKPOINTS = "_checkpoints"
IDENTITY = "_archive.json"
EPOCH_IDENTITY = "archive.json"
DELTA_LOG = "_delta_log"
KEPT_SUFFIX = ".pq"
SHOWN_SUFFIX = ".parquet"

MESSAGES = "messages"
EVENTS = "events"
TIME_COLUMN = {MESSAGES: "enqueued_time", EVENTS: "time"}
VERSION = 1
PARQUET = "parquet"
DELTA = "delta"
FORMATS = (PARQUET, DELTA)


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    """What an archive is."""

    id: str
    """The id of the directory: checkpoints and taps of an archive follow from it, also after it is moved."""
    stream: str

    @classmethod
    def new(cls, stream: str) -> ArchiveIdentity:
        return cls(uuid.uuid4().hex, stream)

    def encoded(self) -> bytes:
        return json.dumps({"busbar": VERSION, "id": self.id, "stream": self.stream}).encode()

    def check(self, stream: str, name: str) -> None:
        """Raise ArchiveError if the archive holds another stream."""
        if self.stream != stream:
            raise ArchiveError(
                f"{name} is an archive of {self.stream}; {stream} need a directory of their own."
            )


def format_of(location: ArchiveLocation) -> str | None:
    """The format of the archive at a location; None if there is no archive."""
    if not location.is_remote:
        if (location.path / IDENTITY).exists():
            return PARQUET
        return DELTA if (location.path / DELTA_LOG).is_dir() else None
    files = ObjectFiles(location)
    if current(files)[0] != DIRECTORY:
        return PARQUET
    return DELTA if files.names(DELTA_LOG) else None


def identity(archive: str | Path | ArchiveLocation) -> ArchiveIdentity:
    """The identity of an archive. Raises ArchiveError if there is none."""
    location = ArchiveLocation.parse(archive)
    files = files_of(location)
    if location.is_remote:
        directory = current(files)[0]
        if directory != DIRECTORY:
            return read_identity(files, f"{directory}/{EPOCH_IDENTITY}", location)
    elif (location.path / IDENTITY).exists():
        return read_identity(files, IDENTITY, location)
    if format_of(location) == DELTA:
        from busbar.jobs.delta_archive import delta_identity

        return delta_identity(location)
    raise ArchiveError(f"{location.name} is not an archive: it has no {_sign(location)}.")


def _sign(location: ArchiveLocation) -> str:
    return DIRECTORY if location.is_remote else IDENTITY


def read_identity(files: ArchiveFiles, name: str, location: ArchiveLocation) -> ArchiveIdentity:
    """Read the document of an identity. Raises ArchiveError if it is damaged or too new."""
    try:
        document = json.loads(files.read(name))
        found = ArchiveIdentity(str(document["id"]), str(document["stream"]))
        version = int(document["busbar"])
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(f"{files.place_of(name)} is damaged.") from None
    if version > VERSION:
        raise ArchiveError(
            f"{location.name} was written by a newer Busbar (version {version}; this one reads {VERSION})."
        )
    return found


def make(directory: Path, stream: str) -> ArchiveIdentity:
    """The archive of this directory; it is created if there is none."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        durable_files.create(directory / IDENTITY, ArchiveIdentity.new(stream).encoded())
    except FileExistsError:
        pass
    found = identity(directory)
    found.check(stream, str(directory))
    return found
