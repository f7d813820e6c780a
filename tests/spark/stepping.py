"""The calls that Spark makes to the reader of a stream, in its order, with a log of offsets like that of a checkpoint.

It is fast, and can fail between any two steps; that Spark does make these calls is what the other tests show.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from busbar.spark.options import SourceOptions
from busbar.spark.source import StreamReader


class Checkpoint:
    """What Spark keeps on disk: the end of each batch, and how many batches are committed."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.committed = 0


class Stepper:
    """One run of a query."""

    def __init__(self, options: dict[str, str], checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.reader = StreamReader(SourceOptions.parse(options, streaming=True))

    def run_now(self) -> list[dict[str, Any]]:
        """An AvailableNow run: the rows of all its batches."""
        checkpoint = self.checkpoint
        rows: list[dict[str, Any]] = []
        if checkpoint.committed < len(checkpoint.offsets):
            rows += self.finish()
        self.reader.prepareForTriggerAvailableNow()
        while self.plan(self.reader.getDefaultReadLimit()):
            rows += self.finish()
        return rows

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write down the end of the next batch; whether there is one."""
        start = self._before(len(self.checkpoint.offsets))
        end = json.dumps(self.reader.latestOffset(start, limit or ReadAllAvailable()))
        if self.checkpoint.offsets and end == self.checkpoint.offsets[-1]:
            return False
        self.checkpoint.offsets.append(end)
        return True

    def read(self) -> list[dict[str, Any]]:
        """The rows of the batch that is under way."""
        batch = self.checkpoint.committed
        if batch > 0:
            self.reader.commit(json.loads(self.checkpoint.offsets[batch - 1]))
        start, end = self._before(batch), json.loads(self.checkpoint.offsets[batch])
        partitions = self.reader.partitions(start, end)
        batches = [frame for partition in partitions for frame in self.reader.read(partition)]
        return [row for frame in batches for row in frame.to_pylist()]

    def finish(self) -> list[dict[str, Any]]:
        rows = self.read()
        self.checkpoint.committed += 1
        return rows

    def _before(self, batch: int) -> dict[str, Any]:
        if batch == 0:
            return self.reader.initialOffset()
        document = json.loads(self.checkpoint.offsets[batch - 1])
        assert isinstance(document, dict)
        return document
