"""Merges many small files into few large ones, for hours that are over.

An hour is over when it ended some time ago. Later rows for it are in another file, and as soon as there are two, the hour is
compacted again. The rows do not change, and keep the order of the batches. Readers are not disturbed: the commit that adds
the new files removes the old ones, and those remain readable for a while (archive.py).

    python -m busbar.jobs.compaction ARCHIVE [--closed-before 2026-01-31T12:00]

compacts an archive while no capture writes to it. A capture compacts its own archive.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq

from busbar.jobs.archive import ArchiveError, entity_of, identity
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.manifest import ArchivedFile
from busbar.jobs.parquet_files import HourlyFiles
from busbar.jobs.staged_files import StagedFile

CLOSED_AFTER = timedelta(minutes=15)
LARGE = 256 * 1024 * 1024
"""A file of this size is not merged, and none grows much beyond it."""
ROWS_AT_ONCE = 10_000


def compact(
    writer: ArchiveWriter, closed_before: datetime, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Compact the hours that ended at `closed_before` or earlier; returns the number of replaced files. If `stopping`
    returns True, it ends early, between two files or inside one."""
    writer.drop_replaced()
    replaced = 0
    for group in _groups(writer.files(), closed_before):
        if stopping():
            break
        replaced += _merge(writer, group, stopping)
    return replaced


def closed_before(now: datetime) -> datetime:
    return now - CLOSED_AFTER


def _groups(files: list[ArchivedFile], before: datetime) -> list[list[ArchivedFile]]:
    """Groups of files that are merged to one."""
    hours: dict[str, list[ArchivedFile]] = defaultdict(list)
    for file in files:
        if file.bytes < LARGE and _end_of(file) <= before:
            hours[file.hour].append(file)
    groups: list[list[ArchivedFile]] = []
    for _, small in sorted(hours.items()):
        group: list[ArchivedFile] = []
        for file in sorted(small, key=_batch_order):
            if group and sum(each.bytes for each in group) + file.bytes > LARGE:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def _batch_order(file: ArchivedFile) -> tuple[bool, str]:
    """The order of a file: compacted files are older than later ones."""
    name = file.path.rpartition("/")[2]
    return (not name.startswith("compacted-"), name)


def _end_of(file: ArchivedFile) -> datetime:
    date, hour = file.hour.split("/")[1:]
    begins = datetime.strptime(f"{date}/{hour}", "date=%Y-%m-%d/hour=%H").replace(tzinfo=UTC)
    return begins + timedelta(hours=1)


def _merge(writer: ArchiveWriter, old: list[ArchivedFile], stopping: Callable[[], bool]) -> int:
    staged = _written(writer, old, stopping)
    if staged is None:
        return 0
    writer.replace(old, staged, entity_of(old[0]))
    return len(old)


def _written(
    writer: ArchiveWriter, old: list[ArchivedFile], stopping: Callable[[], bool]
) -> list[StagedFile] | None:
    merged = HourlyFiles(writer.stage(entity_of(old[0]), compacted=True), writer.identity.stream)
    try:
        for file in old:
            with pq.ParquetFile(writer.source(file)) as source:
                for batch in source.iter_batches(ROWS_AT_ONCE):
                    if stopping():
                        merged.discard()
                        return None
                    merged.add(batch)
        return merged.finish()
    except BaseException:
        merged.discard()
        raise


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m busbar.jobs.compaction", description="Compact the closed hours of an archive."
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="a directory or a URL")
    parser.add_argument(
        "--closed-before",
        type=datetime.fromisoformat,
        metavar="TIME",
        help="hours that ended by then (UTC); a quarter of an hour ago without it",
    )
    given = parser.parse_args(arguments)
    before: datetime = given.closed_before or closed_before(datetime.now(UTC))
    try:
        writer = ArchiveWriter.open(given.archive, identity(given.archive).stream)
    except ArchiveError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    try:
        count = compact(writer, before if before.tzinfo else before.replace(tzinfo=UTC))
    finally:
        writer.close()
    print(f"replaced {count} files")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
