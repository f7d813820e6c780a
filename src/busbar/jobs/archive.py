"""Archives: what `busbar capture` writes, and how it is read.

    read(spark, archive)     a DataFrame
    dataset(archive)         a pyarrow dataset, without a Spark session
    files(archive)           the paths or URLs, for everything else that reads Parquet

These use the manifest (manifest.py), or the log of a Delta table. They return every message once at every moment, also
while a capture writes or compacts. The listed files stay readable for the grace period of compaction (an hour).

An archive is a directory, or a URL of an object store (archive_location.py; object_archive.py has its layout):

    entity=…/date=…/hour=…/*.parquet    for readers that list files
    _files/entity=…/date=…/hour=…/*.pq  the same files under names that readers by the manifest use
    _manifest                           what belongs to the archive
    _checkpoints                        of Spark, one for each entity
    _staging                            files that are being written
    _archive.json                       the archive's id, and the stream it holds
    _lock                               the lock of its writer

Hours are UTC, those of the enqueued time (of events: of their time).

`_files` is the archive. The tree beside it is a view of it, made of second names (hard links) of the same files. So a file
gets its name in the view after the commit that adds it, and loses it before its data is deleted. The view never shows a
message twice. After a crash it may lack the last batch, or an hour that was being compacted, until the next capture starts.

An object store has no second names, so it has no such view. Copies would double the archive. One name for both would show
messages twice, after a crash and after a compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from busbar.jobs.archive_identity import (
    DELTA,
    EVENTS,
    FILES,
    KEPT_SUFFIX,
    MESSAGES,
    SHOWN_SUFFIX,
    ArchiveIdentity,
    format_of,
    identity,
)
from busbar.jobs.archive_location import ArchiveError, ArchiveLocation
from busbar.jobs.manifest import ArchivedFile, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "EVENTS", "MESSAGES", "ArchiveError", "ArchiveIdentity", "archived", "dataset", "entity_of", "files", "identity",
    "is_archive", "read",
]  # fmt: skip


def is_archive(text: str) -> bool:
    """Whether an archive is there. Raises ArchiveError if its store cannot be reached."""
    try:
        location = ArchiveLocation.parse(text)
    except ArchiveError:
        return False
    return format_of(location) is not None


def archived(archive: str | Path) -> list[ArchivedFile]:
    """The files of an archive now, with their rows, in order of entity, hour and name."""
    location = ArchiveLocation.parse(archive)
    identity(location)
    if format_of(location) == DELTA:
        from busbar.jobs.delta_archive import archived_files, delta_table

        found = archived_files(delta_table(location))
    else:
        found = list(load(location).files.values())
    return sorted(found, key=lambda file: file.path)


def files(archive: str | Path) -> list[str]:
    """The files of an archive now, in order of entity, hour and name."""
    location = ArchiveLocation.parse(archive)
    base, suffix = _layout(location)
    return [location.url_of(base + file.path + suffix) for file in archived(archive)]


def _layout(location: ArchiveLocation) -> tuple[str, str]:
    """The directory of the archive below which paths are entity=…/date=…/hour=…/file, and the suffix of its files. A copy
    of an archive may lack the names for the manifest."""
    if format_of(location) == DELTA or not (location.is_remote or (location.path / FILES).is_dir()):
        return "", SHOWN_SUFFIX
    return f"{FILES}/", KEPT_SUFFIX


def read(spark: SparkSession, archive: str | Path, columns: Sequence[str] = ()) -> DataFrame:
    """A DataFrame with the columns of the stream (busbar.spark.schema), then `date` and `hour`; or with the named ones.

    Spark needs no library for the store of the archive: the tasks read it by pyarrow. Then Spark does not report which
    columns a query uses, so all that are not left out here are fetched. Raises ArchiveError, and OptionError for a column
    that archives lack."""
    from pyspark.sql.types import DateType, IntegerType, StructField, StructType

    from busbar.spark.schema import schema_of, with_columns

    location = ArchiveLocation.parse(archive)
    partitions = [StructField("date", DateType()), StructField("hour", IntegerType())]
    schema = StructType([*schema_of(identity(location).stream).fields, *partitions])
    chosen = with_columns(schema, ",".join(columns)) if columns else schema
    if location.is_remote:
        from busbar.jobs.archive_scan import archive_frame

        return archive_frame(spark, location.text, columns=columns)
    base, suffix = _layout(location)
    names = [base + file.path + suffix for file in archived(archive)]
    if not names:
        return spark.createDataFrame([], chosen)
    reader = spark.read.schema(schema).option("basePath", location.url_of(base))
    return reader.parquet(*[location.url_of(name) for name in names]).select(*chosen.fieldNames())


def dataset(archive: str | Path) -> Any:
    """A pyarrow.dataset.Dataset with the same columns."""
    location = ArchiveLocation.parse(archive)
    base, suffix = _layout(location)
    names = [base + file.path + suffix for file in archived(archive)]
    return _dataset(location, identity(location).stream, base, names)


def _dataset(location: ArchiveLocation, stream: str, base: str, names: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds

    partitions = pa.schema([("entity", pa.string()), ("date", pa.date32()), ("hour", pa.int32())])
    schema = pa.schema([*arrow_schema(stream), partitions.field("date"), partitions.field("hour")])
    store, root = location.filesystem()
    return ds.dataset(
        [f"{root}/{name}" for name in names],
        schema=schema,
        filesystem=store,
        format="parquet",
        partitioning=ds.partitioning(partitions, flavor="hive"),
        partition_base_dir=f"{root}/{base}",
    )


def arrow_schema(stream: str) -> Any:
    from busbar.spark.decode import EVENT_SCHEMA, MESSAGE_SCHEMA

    return EVENT_SCHEMA if stream == EVENTS else MESSAGE_SCHEMA


def entity_of(file: ArchivedFile) -> str:
    return unquote(file.path.split("/", 1)[0].removeprefix("entity="))
