"""Archives for tests, without Spark: rows as a task has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from busbar.jobs.archive import MESSAGES, arrow_schema
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.manifest import BatchMark
from busbar.jobs.parquet_files import write_task
from busbar.jobs.staged_files import StagedFile

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
QUERY = "0123456789abcdef0123456789abcdef"


def rows(
    first: int, count: int, *, begins: datetime = NOON, step: timedelta = timedelta(0)
) -> pa.RecordBatch:
    """Messages whose numbers begin with `first`."""
    schema = arrow_schema(MESSAGES)
    known = [
        {
            "entity": "orders",
            "fragment": 0,
            "sequence_number": number,
            "enqueued_time": begins + step * (number - first),
            "delivery_count": 0,
            "state": "active",
            "properties": [],
            "annotations": [],
            "body": f"body {number}".encode(),
        }
        for number in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(known, schema=schema)


def staged(writer: ArchiveWriter, *batches: pa.RecordBatch, entity: str = "orders") -> list[StagedFile]:
    results = write_task(iter(batches), writer.stage(entity), MESSAGES)
    return [StagedFile(**row) for result in results for row in result.to_pylist()]


def mark(batch: int, entity: str = "orders") -> BatchMark:
    return BatchMark(QUERY, batch, entity, "1", {0: batch})


def shown(directory: Path) -> list[Path]:
    """What a glob finds that looks for Parquet files."""
    return sorted(directory.glob("**/*.parquet"))
