"""Archives: what `busbar capture` writes, and how it is read.

    read(spark, directory)     a DataFrame
    dataset(directory)         a pyarrow dataset, without a Spark session
    files(directory)           the paths, for everything else that reads Parquet

These use the manifest (manifest.py) and return every message once at every moment, also while a capture writes or compacts.
The listed files stay readable for the grace period of compaction (an hour).

An archive is a directory:

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
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from busbar.jobs import durable_files
from busbar.jobs.manifest import ArchivedFile, ArchiveError, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "_files"
STAGING = "_staging"
CHECKPOINTS = "_checkpoints"
IDENTITY = "_archive.json"
KEPT_SUFFIX = ".pq"
SHOWN_SUFFIX = ".parquet"

MESSAGES = "messages"
EVENTS = "events"
TIME_COLUMN = {MESSAGES: "enqueued_time", EVENTS: "time"}
VERSION = 1

__all__ = ["EVENTS", "MESSAGES", "ArchiveError", "ArchiveIdentity", "dataset", "files", "identity", "read"]


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    """What an archive is."""

    id: str
    """The id of the directory: checkpoints and taps of an archive follow from it, also after it is moved."""
    stream: str


def identity(directory: str | Path) -> ArchiveIdentity:
    """The identity of an archive. Raises ArchiveError if there is none."""
    path = Path(directory) / IDENTITY
    try:
        document = json.loads(path.read_bytes())
        found = ArchiveIdentity(str(document["id"]), str(document["stream"]))
        version = int(document["busbar"])
    except FileNotFoundError:
        raise ArchiveError(f"{directory} is not an archive: it has no {IDENTITY}.") from None
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(f"{path} is damaged.") from None
    if version > VERSION:
        raise ArchiveError(
            f"{directory} was written by a newer Busbar (version {version}; this one reads {VERSION})."
        )
    return found


def make(directory: Path, stream: str) -> ArchiveIdentity:
    """The archive of this directory; it is created if there is none."""
    directory.mkdir(parents=True, exist_ok=True)
    document = {"busbar": VERSION, "id": uuid.uuid4().hex, "stream": stream}
    try:
        durable_files.create(directory / IDENTITY, json.dumps(document).encode())
    except FileExistsError:
        pass
    found = identity(directory)
    if found.stream != stream:
        raise ArchiveError(
            f"{directory} is an archive of {found.stream}; {stream} need a directory of their own."
        )
    return found


def files(directory: str | Path) -> list[str]:
    """The files of an archive now, in order of entity, hour and name."""
    base = base_of(directory)
    suffix = KEPT_SUFFIX if base.name == FILES else SHOWN_SUFFIX
    return [str(base / (path + suffix)) for path in sorted(load(Path(directory)).files)]


def base_of(directory: str | Path) -> Path:
    """The directory below which paths are entity=…/date=…/hour=…/file. A copy of an archive may lack the names for the
    manifest."""
    identity(directory)
    kept = Path(directory) / FILES
    return kept if kept.is_dir() else Path(directory)


def read(spark: SparkSession, directory: str | Path) -> DataFrame:
    """A DataFrame with the columns of the stream (busbar.spark.schema), then `date` and `hour`."""
    from pyspark.sql.types import DateType, IntegerType, StructField, StructType

    from busbar.spark.schema import schema_of

    stream = schema_of(identity(directory).stream)
    partitions = [StructField("date", DateType()), StructField("hour", IntegerType())]
    schema = StructType([*stream.fields, *partitions])
    paths = files(directory)
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(base_of(directory)))
    return reader.parquet(*paths).select(*schema.fieldNames())


def dataset(directory: str | Path) -> Any:
    """A pyarrow.dataset.Dataset with the same columns."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    partitions = pa.schema([("entity", pa.string()), ("date", pa.date32()), ("hour", pa.int32())])
    stream = arrow_schema(identity(directory).stream)
    schema = pa.schema([*stream, partitions.field("date"), partitions.field("hour")])
    return ds.dataset(
        files(directory),
        schema=schema,
        format="parquet",
        partitioning=ds.partitioning(partitions, flavor="hive"),
        partition_base_dir=str(base_of(directory)),
    )


def arrow_schema(stream: str) -> Any:
    from busbar.spark.decode import EVENT_SCHEMA, MESSAGE_SCHEMA

    return EVENT_SCHEMA if stream == EVENTS else MESSAGE_SCHEMA


def hour_path(entity: str, date: str, hour: int) -> str:
    """The directory of an hour."""
    return f"entity={quote(entity, safe='')}/date={date}/hour={hour:02d}"


def entity_of(file: ArchivedFile) -> str:
    return unquote(file.path.split("/", 1)[0].removeprefix("entity="))
