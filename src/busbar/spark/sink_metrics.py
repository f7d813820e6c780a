"""What a stream has written with each batch, and how programs read it beside a query's progress.

Spark gives a sink in Python no place in the progress of a query. So when a batch is committed, the sink writes its metrics
into a file on the driver's disk. There `sink_progress` finds them, by the query and batch of a progress:

    messages      that the broker has made durable, repetitions included
    bytes         of these messages, encoded
    refused       rows that could not be messages, or that the broker refused because of their content (option badRows)
    duplicates    messages that the broker dropped, because it had them: repetitions of a batch, and equal ids in it
    waitSeconds   how long tasks have waited for the broker, together

A file has the last KEPT batches of a query. Files that no query has used for a week are deleted. If a file cannot be
written, the batch is committed all the same.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from busbar.spark.connection import log

KEPT: Final = 100
"""As many as Spark keeps in `recentProgress`."""
UNUSED_SECONDS: Final = 7 * 24 * 3_600


@dataclass(frozen=True, slots=True)
class SinkMetrics:
    """The metrics of a task, or of a batch; see the head of this module. `duplicates` is None for a broker that does not
    report them."""

    messages: int = 0
    bytes: int = 0
    refused: int = 0
    duplicates: int | None = 0
    wait_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "refused": self.refused,
            "duplicates": self.duplicates,
            "waitSeconds": round(self.wait_seconds, 3),
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> SinkMetrics:
        """Parse metrics. Raises KeyError for another document."""
        return cls(
            document["messages"],
            document["bytes"],
            document["refused"],
            document["duplicates"],
            document["waitSeconds"],
        )


def total(metrics: Iterable[SinkMetrics]) -> SinkMetrics:
    """The metrics of all tasks of a batch."""
    found = list(metrics)
    counts = [each.duplicates for each in found]
    return SinkMetrics(
        sum(each.messages for each in found),
        sum(each.bytes for each in found),
        sum(each.refused for each in found),
        None if None in counts else sum(count for count in counts if count is not None),
        sum(each.wait_seconds for each in found),
    )


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """What a batch of a stream has written, and to which entity."""

    entity: str
    batch: int
    metrics: SinkMetrics


def sink_progress(progress: Any) -> SinkProgress | None:
    """What the sink of a query has written, for `query.lastProgress` or the progress of a listener. None if its sink has
    another format, the batch had no rows, or the driver is on another machine."""
    if progress is None:
        return None
    batch = int(progress.batchId)
    try:
        document = json.loads(_file(str(progress.id)).read_bytes())[str(batch)]
        return SinkProgress(str(document["entity"]), batch, SinkMetrics.parse(document))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_metrics(query: str, batch: int, entity: str, metrics: SinkMetrics) -> None:
    """Keep the metrics of a batch for sink_progress."""
    try:
        path = _file(query)
        _make_private(path.parent)
        try:
            batches: dict[str, Any] = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            _delete_unused(path.parent)
            batches = {}
        batches[str(batch)] = {"entity": entity, **metrics.to_json()}
        for old in sorted(batches, key=int)[:-KEPT]:
            del batches[old]
        written = path.with_suffix(".part")
        written.write_text(json.dumps(batches), encoding="utf-8")
        written.replace(path)
    except OSError as error:
        log.warning("The metrics of batch %d could not be kept: %s", batch, error)


def _file(query: str) -> Path:
    return Path(tempfile.gettempdir()) / f"busbar-sink-{os.getuid()}" / f"{query}.json"


def _make_private(directory: Path) -> None:
    """Create the directory; raise OSError if it belongs to another user."""
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.lstat().st_uid != os.getuid():
        raise OSError(f"{directory} belongs to another user")


def _delete_unused(directory: Path) -> None:
    before = time.time() - UNUSED_SECONDS
    for path in directory.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
