"""Reads an archive into Spark with pyarrow: only the files, row groups and columns that are needed.

    archive_frame(spark, "archive/", columns=["entity", "body"], since=noon)

1. The files of an archive are in directories by entity and hour. Files of other entities and hours are not opened.
2. Of each other file the footer is read, which has the smallest and largest values of each row group. Row groups that
   cannot have a selected row are left out.
3. Of the rest the named columns are read, and other rows are left out before Spark gets them.

Conditions come from the parameters, and in sessions that push filters also from Spark (archive_filters.py). The reading
works on a pyarrow dataset with any file system. ScanFigures has what a read takes: `figures` names a file on the driver's
disk into which the plan of a read writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from busbar.jobs import archive
from busbar.jobs.archive_filters import ArchiveFilter, microseconds, push_archive_filters
from busbar.jobs.archive_identity import TIME_COLUMN
from busbar.jobs.archive_location import ArchiveLocation
from busbar.model.names import key_of
from busbar.spark.connection import log
from busbar.spark.errors import errors_in_short
from busbar.spark.pushdown import spark_pushes_filters
from busbar.spark.schema import schema_of, with_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "busbar-archive"
TASK_BYTES: Final = 32 * 1024 * 1024
"""What a task reads, as it is in the files."""
BATCH_ROWS: Final = 8_192
FOOTERS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class ScanFigures:
    """What a read takes of an archive. Bytes are those of the files, compressed."""

    files: int = 0
    files_there: int = 0
    bytes: int = 0
    bytes_there: int = 0

    def __str__(self) -> str:
        return (
            f"reads {self.files:,} of {self.files_there:,} files, "
            f"{self.bytes / 1e6:,.1f} of {self.bytes_there / 1e6:,.1f} MB"
        )

    @classmethod
    def load(cls, path: Path) -> ScanFigures | None:
        """The figures of the last plan; None if there was none."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def archive_frame(
    spark: SparkSession,
    directory: str | Path,
    *,
    columns: Sequence[str] = (),
    entities: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    figures: Path | None = None,
    counted: Sequence[str] = (),
) -> DataFrame:
    """A frame with columns of an archive (all of them, then `date` and `hour`, unless some are named).

    `entities` are in upper or lower case. `since` and `until` limit the enqueued time (of events: their time), up to but
    without the end. `figures` is a file for ScanFigures: of the read columns, or of the `counted` ones, if a later read of
    the same rows has others. Raises ArchiveError.
    """
    archive.identity(directory)
    spark.dataSource.register(ArchiveSource)
    options = {"path": ArchiveLocation.parse(directory).for_workers}
    if columns:
        options["columns"] = ",".join(columns)
    if entities:
        options["entities"] = json.dumps(list(entities))
    if since is not None:
        options["since"] = since.isoformat()
    if until is not None:
        options["until"] = until.isoformat()
    if figures is not None:
        options["figures"] = str(figures)
    if counted:
        options["counted"] = ",".join(counted)
    return spark.read.format(FORMAT).options(**options).load()


def entities_there(directory: str | Path, entities: Sequence[str] = ()) -> list[str]:
    """The entities of which an archive has messages or events; only the named ones, if some are."""
    keys = {key_of(entity) for entity in entities}
    found = {archive.entity_of(file) for file in archive.archived(directory)}
    return sorted(entity for entity in found if not keys or key_of(entity) in keys)


class ArchiveSource(DataSource):
    """The format of archives. archive_frame registers it and has its options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @errors_in_short()
    def schema(self) -> StructType:
        columns = self.options.get("columns")
        full = _full_schema(self.options["path"])
        return full if columns is None else with_columns(full, columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        kind = FilteringArchiveReader if spark_pushes_filters() else ArchiveReader
        return kind(dict(self.options), schema.fieldNames())


def _full_schema(directory: str) -> StructType:
    stream = schema_of(archive.identity(directory).stream)
    partitions = [StructField("date", DateType()), StructField("hour", IntegerType())]
    return StructType([*stream.fields, *partitions])


class ArchivePart(InputPartition):
    """Row groups that one task reads."""

    def __init__(self, fragments: Sequence[Any]) -> None:
        super().__init__(None)
        self.fragments = tuple(fragments)


class ArchiveReader(DataSourceReader):
    """The reader of a batch."""

    def __init__(self, options: dict[str, str], names: Sequence[str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._directory = given["path"]
        self._figures = given.get("figures")
        self._names = list(names)
        self._counted = set(given["counted"].split(",") if "counted" in given else names)
        self._time = TIME_COLUMN[archive.identity(self._directory).stream]
        self._keys = {key_of(entity) for entity in json.loads(given.get("entities", "[]"))}
        self._schema: pa.Schema = archive.dataset(self._directory).schema
        self._filter = self._span(given.get("since"), given.get("until"))

    def _span(self, since: str | None, until: str | None) -> ArchiveFilter:
        import pyarrow.compute as pc

        found = ArchiveFilter()
        kind = self._schema.field(self._time).type
        if since is not None:
            begin = datetime.fromisoformat(since)
            found = ArchiveFilter(pc.field(self._time) >= pa.scalar(begin, kind), microseconds(begin))
        if until is not None:
            end = datetime.fromisoformat(until)
            limit = ArchiveFilter(pc.field(self._time) < pa.scalar(end, kind), last=microseconds(end) - 1)
            found = found.and_(limit)
        return found

    def partitions(self) -> Sequence[InputPartition]:
        rows = self._filter.rows
        dataset = archive.dataset(self._directory)
        fragments = dataset.get_fragments() if rows is None else dataset.get_fragments(filter=rows)
        chosen = [fragment for fragment in fragments if self._is_selected(fragment.path)]
        with ThreadPoolExecutor(FOOTERS_AT_ONCE, "busbar-footers") as pool:
            pruned = [fragment for fragment in pool.map(self._pruned, chosen) if fragment is not None]
        self._count(len(pruned), sum(sum(_sizes(fragment, self._counted)) for fragment in pruned))
        return _parts(pruned, [_sizes(fragment, set(self._names)) for fragment in pruned])

    def _is_selected(self, path: str) -> bool:
        """Whether a file is of a selected entity, and of an hour within the limits."""
        entity, day, hour = (part.partition("=")[2] for part in path.split("/")[-4:-1])
        if self._keys and key_of(unquote(entity)) not in self._keys:
            return False
        begins = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC) + timedelta(
            hours=int(hour)
        )
        return self._filter.has_hour(microseconds(begins))

    def _pruned(self, fragment: Any) -> Any:
        """The row groups of a file that can have selected rows; None if there are none."""
        found = fragment
        if self._filter.rows is not None:
            found = fragment.subset(filter=self._filter.rows, schema=self._schema)
        groups = [group.id for group in found.row_groups if self._filter.has_group(group.statistics or {})]
        return found.subset(row_group_ids=groups) if groups else None

    def _count(self, files: int, size: int) -> None:
        there = archive.archived(self._directory)
        figures = ScanFigures(files, len(there), size, sum(file.bytes for file in there))
        log.info("%s: %s.", ArchiveLocation(self._directory).name, figures)
        if self._figures is not None:
            Path(self._figures).write_text(json.dumps(asdict(figures)), encoding="utf-8")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ArchivePart):
            return  # Spark's own for "nothing to read"
        schema = pa.schema([self._schema.field(name) for name in self._names])
        for fragment in partition.fragments:
            batches = fragment.to_batches(
                schema=self._schema,
                columns=self._names,
                filter=self._filter.rows,
                batch_size=BATCH_ROWS,
                use_threads=False,
            )
            for batch in batches:
                if batch.num_rows:
                    yield batch if batch.schema == schema else batch.cast(schema)


class FilteringArchiveReader(ArchiveReader):
    """The reader in a session that pushes filters."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        found, left = push_archive_filters(filters, self._schema, self._time)
        self._filter = self._filter.and_(found)
        return left


def _sizes(fragment: Any, names: set[str]) -> list[int]:
    """The bytes of the columns in each of the row groups."""
    metadata = fragment.metadata
    found: list[int] = []
    for group in fragment.row_groups:
        columns = metadata.row_group(group.id)
        parts = (columns.column(index) for index in range(columns.num_columns))
        found.append(
            sum(part.total_compressed_size for part in parts if part.path_in_schema.split(".")[0] in names)
        )
    return found


def _parts(fragments: Sequence[Any], sizes: Sequence[Sequence[int]]) -> list[ArchivePart]:
    """Row groups for each task, in order, of about TASK_BYTES."""
    parts: list[ArchivePart] = []
    current: list[Any] = []
    size = 0
    for fragment, groups in zip(fragments, sizes, strict=True):
        ids: list[int] = []
        for group, count in zip(fragment.row_groups, groups, strict=True):
            ids.append(group.id)
            size += count
            if size >= TASK_BYTES:
                parts.append(ArchivePart([*current, fragment.subset(row_group_ids=ids)]))
                current, ids, size = [], [], 0
        if ids:
            current.append(fragment.subset(row_group_ids=ids))
    if current:
        parts.append(ArchivePart(current))
    return parts
