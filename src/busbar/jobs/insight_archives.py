"""The history in archives of `busbar capture`, for insight.

Only the measured columns are read, and those of a condition; only the files of the named entities, and of the hours that a
selection can have.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from busbar.jobs import archive
from busbar.jobs.archive_location import ArchiveLocation
from busbar.jobs.archive_scan import archive_frame, entities_there
from busbar.jobs.insight_figures import Coverage
from busbar.jobs.insight_measures import Subject
from busbar.jobs.insight_sources import EVENT_COLUMNS, MESSAGE_COLUMNS
from busbar.jobs.intervals import ValueRefused
from busbar.jobs.message_selection import MessageSelection
from busbar.spark.schema import schema_of


def archived_history(
    spark: SparkSession, directories: Sequence[str], entities: Sequence[str], selection: MessageSelection
) -> tuple[DataFrame, list[Subject]]:
    """The history in archives, of all entities that they have unless some are named. Raises ArchiveError, ValueRefused."""
    with_events = [each for each in directories if archive.identity(each).stream == archive.EVENTS]
    with_messages = [each for each in directories if each not in with_events]
    if selection.where and not with_messages:
        raise ValueRefused("a condition (--where) is on messages, and no archive of messages is named")
    names = [*schema_of("messages").fieldNames(), "date", "hour"]
    columns, span = selection.columns(MESSAGE_COLUMNS, names), selection.span
    messages = [
        archive_frame(
            spark, directory, columns=columns, entities=entities, since=span.since, until=span.until
        )
        for directory in with_messages
    ]
    events = [
        archive_frame(
            spark, directory, columns=EVENT_COLUMNS, entities=entities, since=selection.events_since
        )
        for directory in with_events
    ]
    recorded = _recorded(spark, with_events, entities) if selection.is_limited else {}
    where = f"archive {', '.join(ArchiveLocation.parse(each).name for each in directories)}"
    known = {entity for directory in with_events for entity in entities_there(directory, entities)}
    seen = known.union(*(entities_there(directory, entities) for directory in with_messages))
    subjects = [
        Subject(
            entity,
            Coverage(where, None, 0, 0 if entity in known else None),
            (),
            is_live=False,
            recorded=recorded.get(entity),
        )
        for entity in sorted(seen)
    ]
    return selection.history(messages, events), subjects


def _recorded(
    spark: SparkSession, directories: Sequence[str], entities: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """By entity, the times of the first and the last event, also of messages that are not selected."""
    found: dict[str, tuple[int, int]] = {}
    ms = f.unix_millis("time")
    for directory in directories:
        frame = archive_frame(spark, directory, columns=["entity", "time"], entities=entities)
        for row in frame.groupBy("entity").agg(f.min(ms).alias("first"), f.max(ms).alias("last")).collect():
            first, last = found.get(row.entity, (row["first"], row["last"]))
            found[row.entity] = min(first, row["first"]), max(last, row["last"])
    return found
