"""The sources of insight: a tap of each entity, or captured archives.

If an entity has no tap named "insight", one is created. From then on it records events and keeps messages, within its
limits, for the next report. It is advanced only on request, so reports of the same span agree. What a truncated tap has lost
is part of the report's coverage; the tap is resumed, so that it records again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from busbar.client import AlreadyExists, FragmentTap, NotFound, TapView
from busbar.client.blocking import BlockingTaps
from busbar.jobs import archive
from busbar.jobs.insight_figures import Coverage, FragmentCoverage
from busbar.jobs.insight_measures import Subject, of_events, of_messages
from busbar.model.names import key_of, without_dead_letters
from busbar.spark.connection import client_of_process
from busbar.spark.errors import SourceError
from busbar.spark.secrets import Secret

TAP = "insight"
OWNER = "busbar-insight"
MAX_AGE_MS = 24 * 3_600_000
MAX_BYTES = 256 * 1024 * 1024
WAIT_SECONDS = 15.0
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class TapSpan:
    """An entity and the measured span of its tap."""

    entity: str
    path: str
    sub_queue: str
    view: TapView
    """The state when the span was chosen; of a truncated tap, after it was resumed."""
    losses: Mapping[int, tuple[int, int]]
    """By fragment, the position up to which messages and events were lost."""
    fresh: bool

    @property
    def subject(self) -> Subject:
        view = self.view
        remarks: tuple[str, ...] = ()
        if self.fresh:
            remarks = (f"The tap {view.name!r} was made just now: what happened before is not known.",)
        spans = tuple(self._span(each) for each in view.fragments)
        coverage = Coverage(f"tap {view.name!r}", view.created, 0, 0 if view.events else None, spans, remarks)
        return Subject(self.entity, coverage, len(view.fragments))

    def _span(self, at: FragmentTap) -> FragmentCoverage:
        lost, event_lost = self.losses.get(at.index, (0, 0))
        after = max(at.position, at.lost)
        if not self.view.events:
            return FragmentCoverage(at.index, after, at.end, lost)
        event_after = max(at.event_position, at.event_lost)
        return FragmentCoverage(at.index, after, at.end, lost, event_after, at.event_end, event_lost)

    def options(self, stream: str) -> dict[str, str]:
        """The options of a reader that stops at the end of the span: later messages belong to the next report."""
        ends = {
            str(each.index): (each.event_end if stream == "events" else each.end) + 1
            for each in self.view.fragments
        }
        options = {
            "entity": self.path,
            "tap": self.view.name,
            "stream": stream,
            "endingPosition": json.dumps(ends),
            "waitForBroker": f"{int(WAIT_SECONDS)}s",
        }
        if stream == "messages":
            options["includeBody"] = "false"
        return options | ({"subQueue": self.sub_queue} if self.sub_queue else {})


def taps_of(secret: Secret, entity: str) -> tuple[BlockingTaps, str, str]:
    """The taps of an entity, its path and sub-queue."""
    path, dead_letters = without_dead_letters(entity.strip("/"))
    sub_queue = "deadletter" if dead_letters else ""
    return client_of_process(secret, WAIT_SECONDS).taps(path, sub_queue=sub_queue), path, sub_queue


def look(secret: Secret, entity: str, name: str) -> TapSpan:
    """Choose the span: everything that the tap has recorded by now. Creates the tap if there is none."""
    taps, path, sub_queue = taps_of(secret, entity)
    view, fresh = _find_or_create(taps, name, from_earliest=True)
    until = time.monotonic() + WAIT_SECONDS
    while not all(each.available for each in view.fragments):
        if time.monotonic() > until:
            out = [each.index for each in view.fragments if not each.available]
            raise SourceError(
                "BUSBAR_UNAVAILABLE", f"The stores of fragments {out} of {entity!r} are unavailable."
            )
        time.sleep(POLL_SECONDS)
        view = taps.show(name)
    losses = {
        each.index: (
            each.lost if each.lost > each.position else 0,
            each.event_lost if each.event_lost > each.event_position else 0,
        )
        for each in view.fragments
    }
    if view.truncated:
        view = taps.resume(name, view.owner)
    return TapSpan(entity.strip("/"), path, sub_queue, view, losses, fresh)


def begin(secret: Secret, entity: str, name: str) -> None:
    """Create a tap that records from now on."""
    taps, _, _ = taps_of(secret, entity)
    _find_or_create(taps, name, from_earliest=False)


def end(secret: Secret, entity: str, name: str) -> None:
    """Delete such a tap, with everything that it kept."""
    taps, _, _ = taps_of(secret, entity)
    try:
        taps.delete(name)
    except NotFound:
        pass


def advance(secret: Secret, tapped: TapSpan) -> None:
    """Let the next report begin where this one ends."""
    taps, _, _ = taps_of(secret, tapped.entity)
    view = tapped.view
    taps.advance(view.name, view.owner, {each.index: each.end for each in view.fragments})
    if view.events:
        positions = {each.index: each.event_end for each in view.fragments}
        taps.advance(view.name, view.owner, positions, stream="events")


def _find_or_create(taps: BlockingTaps, name: str, *, from_earliest: bool) -> tuple[TapView, bool]:
    try:
        return taps.show(name), False
    except NotFound:
        taps.ends()  # raises NotFound if the entity itself is missing
    try:
        view = taps.create(
            name,
            events=True,
            from_earliest=from_earliest,
            owner=OWNER,
            max_age=MAX_AGE_MS,
            max_size=MAX_BYTES,
        )
    except AlreadyExists:  # by another process, just now
        return taps.show(name), False
    return view, True


# ---------------------------------------------------------------------------------------------------- frames


def tapped_history(spark: SparkSession, secret: Secret, tapped: Sequence[TapSpan]) -> DataFrame:
    """What the taps of these entities have recorded."""

    def read(each: TapSpan, stream: str) -> DataFrame:
        reader = spark.read.format("busbar").options(**secret.options(), **each.options(stream))
        # The source names the queue or subscription; here a dead-letter queue is an entity of its own.
        return reader.load().withColumn("entity", f.lit(each.entity))

    messages = [of_messages(read(each, "messages")) for each in tapped]
    events = [of_events(read(each, "events")) for each in tapped if each.view.events]
    return reduce(DataFrame.unionByName, [*messages, *events])


def archived_history(
    spark: SparkSession, directories: Sequence[Path], entities: Sequence[str]
) -> tuple[DataFrame, list[Subject]]:
    """The history in archives, of all entities that they have unless some are named."""
    histories: list[DataFrame] = []
    seen: dict[str, bool] = {}  # whether there are events of it
    for directory in directories:
        frame = archive.read(spark, directory)
        if entities:
            # Users write names in any case; the archive has them as the broker spells them.
            frame = frame.where(f.lower("entity").isin(*[key_of(entity) for entity in entities]))
        recorded = archive.identity(directory).stream == archive.EVENTS
        histories.append(of_events(frame) if recorded else of_messages(frame))
        for entity in _entities(frame):
            seen[entity] = seen.get(entity, False) or recorded
    where = f"archive {', '.join(str(directory) for directory in directories)}"
    subjects = [
        Subject(entity, Coverage(where, None, 0, 0 if seen[entity] else None), None)
        for entity in sorted(seen)
    ]
    return reduce(DataFrame.unionByName, histories), subjects


def _entities(frame: DataFrame) -> list[str]:
    return [row.entity for row in frame.select("entity").distinct().collect()]
