"""The small files of an archive: one interface, for a directory and for an object store.

A file is written as a whole or not at all, and a list contains every file that was written before. A directory has syncs,
exclusive creation and renames. An object store needs none of these: an object appears as a whole when its write is answered.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from busbar.jobs import durable_files
from busbar.jobs.archive_location import RENAMING, ArchiveError, ArchiveLocation


class ArchiveFiles(Protocol):
    """The files of one archive by their names, which are paths relative to it."""

    def create(self, name: str, content: bytes) -> None:
        """Write a new file; when this returns, it is durable. Raises FileExistsError if the file system prevents a second
        file of that name."""

    def read(self, name: str) -> bytes:
        """Raise FileNotFoundError if there is none."""

    def names(self, directory: str) -> list[str]:
        """The files below a directory, relative to it, at any depth; none if it does not exist."""

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""

    def place_of(self, name: str) -> str:
        """The file as people find it."""


class LocalFiles:
    """The files of an archive in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, name: str, content: bytes) -> None:
        path = self.root / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            durable_files.sync_directory(path.parent.parent)
        durable_files.create(path, content)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def names(self, directory: str) -> list[str]:
        top = self.root / directory
        return [str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()]

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def place_of(self, name: str) -> str:
        return str(self.root / name)


class ObjectFiles:
    """The objects of an archive in a store that pyarrow reaches. Raises ArchiveError if the store does not answer."""

    def __init__(self, location: ArchiveLocation) -> None:
        self._location = location
        self._store, self._root = location.filesystem()

    def create(self, name: str, content: bytes) -> None:
        """Write an object. A second write of a name replaces the first, so callers use names that are theirs alone."""
        path = self.path_of(name)
        renames = self._store.type_name in RENAMING
        with self._reached():
            fresh = path
            if renames:
                directory, _, base = path.rpartition("/")
                self._store.create_dir(directory, recursive=True)
                fresh = f"{directory}/.{base}.{uuid.uuid4().hex}"
            with self._store.open_output_stream(fresh, compression=None) as stream:
                stream.write(content)
            if renames:
                self._store.move(fresh, path)

    def read(self, name: str) -> bytes:
        with self._reached(), self._store.open_input_stream(self.path_of(name), compression=None) as stream:
            return bytes(stream.read())

    def names(self, directory: str) -> list[str]:
        return [name for name, _size in self.sizes(directory)]

    def sizes(self, directory: str) -> list[tuple[str, int]]:
        """The files below a directory with their sizes. Files that are being written have names that begin with a dot."""
        from pyarrow import fs

        top = self.path_of(directory)
        selector = fs.FileSelector(top, recursive=True, allow_not_found=True)
        with self._reached():
            found = self._store.get_file_info(selector)
        return [
            (each.path[len(top) + 1 :], int(each.size))
            for each in found
            if each.type == fs.FileType.File and not each.base_name.startswith(".")
        ]

    def delete(self, name: str) -> None:
        with self._reached():
            try:
                self._store.delete_file(self.path_of(name))
            except FileNotFoundError:
                pass

    def place_of(self, name: str) -> str:
        return self._location.url_of(name)

    def path_of(self, name: str) -> str:
        """The path of a file in the file system of the store."""
        return f"{self._root}/{name}"

    def sink(self, name: str) -> Any:
        """A stream for a file whose content comes in parts. The file appears when the stream is closed."""
        path = self.path_of(name)
        with self._reached():
            if self._store.type_name in RENAMING:
                self._store.create_dir(path.rpartition("/")[0], recursive=True)
            return self._store.open_output_stream(path, compression=None)

    def source(self, name: str) -> Any:
        """A file to read at any place."""
        with self._reached():
            return self._store.open_input_file(self.path_of(name))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            first = str(error).strip().split("\n", 1)[0]
            raise ArchiveError(f"{self._location.name} cannot be reached: {first}") from error


def files_of(location: ArchiveLocation) -> ArchiveFiles:
    return ObjectFiles(location) if location.is_remote else LocalFiles(location.path)
