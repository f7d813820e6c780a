"""Handles rows that cannot be messages.

By default the first one fails the write, and the error shows it. With `badRows=drop` they are counted in the log. With a
directory they are written there as JSON lines, {"reason": ..., "row": {...}}, binary values in base64. The directory may be
on any file system of pyarrow: a path that all nodes share, s3://..., hdfs://...

The published files are as exact as the messages. Each task writes a file of its own into `_staging`. When the batch is
committed, the files of the committed tasks are renamed to names that follow from writer and batch. They replace those of an
earlier attempt. Leftovers in `_staging` are from failed attempts.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from busbar.spark.errors import SinkError
from busbar.spark.sink_options import DROP, FAIL

STAGING: Final = "_staging"
SHOWN: Final = 80
"""Maximum number of characters of a value in an error."""


class BadRows:
    """The bad rows of one task."""

    def __init__(self, where: str, entity: str) -> None:
        self._where = where
        self._entity = entity
        self._file: pa.NativeFile | None = None
        self.count = 0
        self.staged = ""

    def add(self, batch: pa.RecordBatch, rows: Iterable[tuple[int, str]]) -> None:
        """Add bad rows. Raises SinkError if they fail the write."""
        for index, reason in rows:
            row = batch.slice(index, 1).to_pylist()[0]
            if self._where == FAIL:
                raise SinkError(
                    "BUSBAR_SINK_BAD_ROW",
                    f"A row cannot be a message of {self._entity!r}: {_format(row, reason)}",
                )
            self.count += 1
            if self._where != DROP:
                self._write(json.dumps({"reason": reason, "row": row}, default=_json, ensure_ascii=False))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, line: str) -> None:
        if self._file is None:
            system, root = _open(self._where)
            self.staged = f"{uuid.uuid4().hex}.jsonl"
            system.create_dir(f"{root}/{STAGING}")
            self._file = system.open_output_stream(f"{root}/{STAGING}/{self.staged}")
        self._file.write(line.encode("utf-8") + b"\n")


def publish(where: str, writer: str, batch: int, staged: Iterable[str]) -> None:
    """Rename the files of a committed batch to their final names."""
    if where in (FAIL, DROP):
        return
    system, root = _open(where)
    prefix = f"{root}/{quote(writer, safe='')}-{batch}-"
    there = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    for info in there:
        if info.path.startswith(prefix):
            system.delete_file(info.path)
    for number, name in enumerate(sorted(staged)):
        system.move(f"{root}/{STAGING}/{name}", f"{prefix}{number}.jsonl")


def _open(where: str) -> tuple[fs.FileSystem, str]:
    system, root = fs.FileSystem.from_uri(where)
    return system, root.rstrip("/")


def _format(row: dict[str, object], reason: str) -> str:
    values = ", ".join(f"{name}={_short(value)}" for name, value in row.items() if value is not None)
    return f"{reason}. The row: {values}"


def _short(value: object) -> str:
    text = repr(value[:SHOWN] if isinstance(value, (bytes, str)) else value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _json(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    return str(value)
