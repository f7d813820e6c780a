"""The manifest of an archive: which files belong to it, decided by one file that appears or does not.

`_manifest/<number>.json` are commits, numbered without gaps. A commit adds files, removes files, and names its batch and
query. The archive holds the sum of its commits. Now and then the sum is written as `_manifest/<number>.sum.json`, and
commits before the last but one of these are deleted. A reader that was about to read them begins again with the newer sum.

A commit appears as a whole or not at all, is never changed, and no number is used twice: two writers cannot both commit.

In an object store each writer has a directory of its own, `_manifest/<epoch>`, that begins with a sum (object_archive.py has
the rules). The archive holds what the directory of the highest epoch holds that has a sum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbar.jobs.archive_files import ArchiveFiles, files_of
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation

__all__ = ["ArchiveError", "ArchivedFile", "BatchMark", "Commit", "Contents", "Manifest", "load", "load_from"]

DIRECTORY = "_manifest"
VERSION = 1
SUM_EVERY = 64
ATTEMPTS = 20
SUM_SUFFIX = ".sum.json"

_NAME = re.compile(r"(\d{12})(\.sum)?\.json")


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of an archive."""

    path: str
    """entity=…/date=…/hour=…/name, without a suffix."""
    rows: int
    bytes: int

    @property
    def hour(self) -> str:
        """The directory: entity, date and hour."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class BatchMark:
    """A batch of a query, and its end: by fragment, the last position that the archive holds."""

    query: str
    batch: int
    entity: str
    incarnation: str
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of an archive; `time` is in ms."""

    time: int
    added: tuple[ArchivedFile, ...] = ()
    removed: tuple[str, ...] = ()
    mark: BatchMark | None = None


@dataclass(slots=True)
class Contents:
    """The sum of the commits up to `number`."""

    number: int = 0
    files: dict[str, ArchivedFile] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    """Replaced files, and when: readers may still use them."""
    batches: dict[str, int] = field(default_factory=dict)
    """By query, the last batch."""
    reached: dict[str, BatchMark] = field(default_factory=dict)
    """By entity, the last batch of any query."""

    def apply(self, commit: Commit) -> None:
        self.number += 1
        for path in commit.removed:
            del self.files[path]
            self.removed[path] = commit.time
        for file in commit.added:
            self.files[file.path] = file
        if commit.mark is not None:
            self.batches[commit.mark.query] = commit.mark.batch
            self.reached[commit.mark.entity] = commit.mark


class Manifest:
    """The commits of an archive, for its one writer."""

    def __init__(
        self, files: ArchiveFiles, directory: str = DIRECTORY, contents: Contents | None = None
    ) -> None:
        self._files = files
        self._directory = directory
        self.contents = load_from(files) if contents is None else contents

    def commit(self, commit: Commit) -> None:
        """Add a commit; when this returns, it is durable. Raises ArchiveError if another process has committed."""
        number = self.contents.number + 1
        try:
            self._files.create(self._path(number, False), _encoded(_of_commit(commit)))
        except FileExistsError:
            raise ArchiveError(
                f"Commit {number} of {self._files.place_of(self._directory)} is there already: "
                "another process writes to this archive."
            ) from None
        self.contents.apply(commit)
        if number % SUM_EVERY == 0:
            self.sum_up()
            self._delete_summed()

    def forget(self, paths: list[str]) -> None:
        """Forget removed files that have no readers any more; written with the next sum."""
        for path in paths:
            self.contents.removed.pop(path, None)

    def sum_up(self) -> None:
        """Write the sum of the commits so far."""
        path = self._path(self.contents.number, True)
        self._files.delete(path)  # left by a crash that came before its old commits were deleted
        self._files.create(path, _encoded(_of_contents(self.contents)))

    def _delete_summed(self) -> None:
        """Delete commits and sums before the last sum but one."""
        numbers = _numbers(self._files.names(self._directory))
        sums = sorted(each for each, is_sum in numbers if is_sum)
        for each, is_sum in numbers:
            if len(sums) > 1 and each <= sums[-2] and (each, is_sum) != (sums[-2], True):
                self._files.delete(self._path(each, is_sum))

    def _path(self, number: int, is_sum: bool) -> str:
        return f"{self._directory}/{_name(number, is_sum)}"


def load(archive: str | Path | ArchiveLocation) -> Contents:
    """Read what an archive holds now. Raises ArchiveError."""
    return load_from(files_of(ArchiveLocation.parse(archive)))


def load_from(files: ArchiveFiles) -> Contents:
    for _ in range(ATTEMPTS):
        try:
            return _loaded(files)
        except FileNotFoundError:
            continue  # a newer sum has replaced it meanwhile
    raise ArchiveError(
        f"The commits in {files.place_of(DIRECTORY)} have gaps: files of the manifest were deleted."
    )


def _loaded(files: ArchiveFiles) -> Contents:
    directory, names = current(files)
    numbers = _numbers(names)
    sums = [number for number, is_sum in numbers if is_sum]
    contents = Contents()
    if sums:
        contents = _to_contents(_decoded(files, f"{directory}/{_name(max(sums), True)}"))
    last = max((number for number, _ in numbers), default=0)
    while contents.number < last:
        path = f"{directory}/{_name(contents.number + 1, False)}"
        contents.apply(_to_commit(_decoded(files, path)))
    return contents


def current(files: ArchiveFiles) -> tuple[str, list[str]]:
    """The directory of the commits that count, and the names of its files."""
    names = files.names(DIRECTORY)
    epochs = {name.rpartition("/")[0] for name in names if name.endswith(SUM_SUFFIX)}
    epoch = max(epochs, default="")
    mine = [name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == epoch]
    return f"{DIRECTORY}/{epoch}".rstrip("/"), mine


def _numbers(names: list[str]) -> list[tuple[int, bool]]:
    found = (_NAME.fullmatch(name) for name in names)
    return [(int(name.group(1)), name.group(2) is not None) for name in found if name is not None]


def _name(number: int, is_sum: bool) -> str:
    return f"{number:012d}{SUM_SUFFIX if is_sum else '.json'}"


# ---- as JSON -------------------------------------------------------------------------------------

Json = dict[str, Any]


def _encoded(document: Json) -> bytes:
    return json.dumps({"busbar": VERSION} | document, separators=(",", ":")).encode()


def _decoded(files: ArchiveFiles, name: str) -> Json:
    path = files.place_of(name)
    try:
        document = json.loads(files.read(name))
        version = document["busbar"]
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(f"{path} is damaged: it is not a commit of an archive.") from None
    if version > VERSION:
        raise ArchiveError(
            f"{path} was written by a newer Busbar (version {version}; this one reads {VERSION})."
        )
    return dict(document)


def _of_commit(commit: Commit) -> Json:
    document: Json = {"time": commit.time, "add": [_of_file(file) for file in commit.added]}
    if commit.removed:
        document["remove"] = list(commit.removed)
    if commit.mark is not None:
        document["mark"] = _of_mark(commit.mark)
    return document


def _to_commit(document: Json) -> Commit:
    mark = document.get("mark")
    return Commit(
        document["time"],
        tuple(ArchivedFile(*file) for file in document["add"]),
        tuple(document.get("remove", ())),
        None if mark is None else _to_mark(mark),
    )


def _of_contents(contents: Contents) -> Json:
    return {
        "number": contents.number,
        "files": [_of_file(file) for file in contents.files.values()],
        "removed": contents.removed,
        "batches": contents.batches,
        "reached": [_of_mark(mark) for mark in contents.reached.values()],
    }


def _to_contents(document: Json) -> Contents:
    files = (ArchivedFile(*file) for file in document["files"])
    marks = (_to_mark(mark) for mark in document["reached"])
    return Contents(
        document["number"],
        {file.path: file for file in files},
        document["removed"],
        document["batches"],
        {mark.entity: mark for mark in marks},
    )


def _of_file(file: ArchivedFile) -> list[object]:
    return [file.path, file.rows, file.bytes]


def _of_mark(mark: BatchMark) -> Json:
    return {
        "query": mark.query,
        "batch": mark.batch,
        "entity": mark.entity,
        "incarnation": mark.incarnation,
        "positions": {str(index): position for index, position in mark.positions.items()},
    }


def _to_mark(document: Json) -> BatchMark:
    positions = {int(index): position for index, position in document["positions"].items()}
    return BatchMark(
        document["query"], document["batch"], document["entity"], document["incarnation"], positions
    )
