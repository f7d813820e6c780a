"""Writes Parquet: zstd, timestamps in microseconds, a file for each hour of the rows of a task.

It runs in the workers. The files are durable before they are reported to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from busbar.jobs.archive import arrow_schema
from busbar.jobs.archive_identity import TIME_COLUMN
from busbar.jobs.staged_files import StagedFile, Staging
from busbar.spark.plain_arrays import integer_array, text_array

RESULT: Final = pa.schema(
    [
        ("path", pa.string()),
        ("date", pa.string()),
        ("hour", pa.int32()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
RESULT_COLUMNS: Final = "path string, date string, hour int, rows long, bytes long"

GROUP_BYTES: Final = 32 * 1024 * 1024
BUFFER_BYTES: Final = 128 * 1024 * 1024
HOUR_MICROSECONDS: Final = 3_600_000_000

# A dictionary for values that differ in every row costs time and space, and statistics of bodies have no use.
PLAIN: Final = frozenset(
    ("body", "raw", "message_id", "sequence_number", "position", "enqueued_time", "time")
)
UNRANKED: Final = frozenset(("body", "raw"))


def write_task(batches: Iterator[Any], staging: Staging, stream: str) -> Iterator[Any]:
    """Write the rows of a task (for DataFrame.mapInArrow); its result has a row for each file."""
    files = HourlyFiles(staging, stream)
    try:
        for batch in batches:
            files.add(batch)
        written = files.finish()
    except BaseException:
        files.discard()
        raise
    if written:
        columns = [
            text_array([file.path for file in written]),
            text_array([file.date for file in written]),
            integer_array([file.hour for file in written], pa.int32()),
            integer_array([file.rows for file in written], pa.int64()),
            integer_array([file.bytes for file in written], pa.int64()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=RESULT)


class HourlyFiles:
    """The files of one writer, by the hour of their rows. Memory is bounded by BUFFER_BYTES and the rows of one batch."""

    def __init__(self, staging: Staging, stream: str) -> None:
        self._staging = staging
        self._time = TIME_COLUMN[stream]
        source = arrow_schema(stream)
        self._source = source
        self._schema = source.remove(source.get_field_index("entity"))
        self._files: dict[int, _HourFile] = {}

    def add(self, batch: Any) -> None:
        """Add rows with the columns of the stream; those of an archive lack the entity, which is in the path."""
        if "entity" in batch.schema.names:
            batch = batch.drop_columns(["entity"])
        if batch.schema != self._schema:
            # Other sessions have other time zones and wider strings.
            batch = pa.Table.from_batches([batch]).cast(self._schema).combine_chunks().to_batches()
            for part in batch:
                self._add(part)
        else:
            self._add(batch)

    def finish(self) -> list[StagedFile]:
        """Write everything that is left, and make it durable."""
        return [file.finish() for _, file in sorted(self._files.items())]

    def discard(self) -> None:
        for file in self._files.values():
            file.discard()

    def _add(self, batch: Any) -> None:
        if batch.num_rows == 0:
            return
        hours = pc.divide(batch.column(self._time).cast(pa.int64()), HOUR_MICROSECONDS)
        first, last = pc.min_max(hours).as_py().values()
        if first == last:
            self._file(first).add(batch)
        else:
            for hour in sorted(pc.unique(hours).to_pylist()):
                self._file(hour).add(batch.filter(pc.equal(hours, hour)))
        if sum(file.waiting for file in self._files.values()) > BUFFER_BYTES:
            for file in self._files.values():
                file.write()

    def _file(self, hour: int) -> _HourFile:
        file = self._files.get(hour)
        if file is None:
            file = _HourFile(self._staging, hour, self._schema)
            self._files[hour] = file
        return file


class _HourFile:
    def __init__(self, staging: Staging, hour: int, schema: Any) -> None:
        begins = datetime.fromtimestamp(hour * 3600, UTC)
        self.waiting = 0
        self._staging = staging
        self._date, self._hour = begins.strftime("%Y-%m-%d"), begins.hour
        self._path, self._sink = staging.begin(self._date, self._hour)
        self._schema = schema
        self._rows = 0
        self._batches: list[Any] = []
        leaves = _leaves(schema)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            version="2.6",
            use_dictionary=[leaf for leaf in leaves if leaf.split(".")[0] not in PLAIN],
            write_statistics=[leaf for leaf in leaves if leaf.split(".")[0] not in UNRANKED],
        )

    def add(self, batch: Any) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self.waiting += batch.nbytes
        if self.waiting > GROUP_BYTES:
            self.write()

    def write(self) -> None:
        """Write the waiting rows as a row group."""
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._batches, self.waiting = [], 0

    def finish(self) -> StagedFile:
        self.write()
        self._writer.close()
        size = self._staging.finish(self._path, self._sink)
        return StagedFile(self._path, self._date, self._hour, self._rows, size)

    def discard(self) -> None:
        self._writer.close()
        self._staging.discard(self._path, self._sink)


def _leaves(schema: Any) -> list[str]:
    """The columns as in Parquet: those of a map are its keys and the fields of its values."""
    names: list[str] = []
    for field in schema:
        if pa.types.is_map(field.type):
            names.append(f"{field.name}.key_value.key")
            names += [f"{field.name}.key_value.value.{part.name}" for part in field.type.item_type]
        else:
            names.append(field.name)
    return names
