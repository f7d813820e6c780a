"""The sources of insight: a tap of each entity. insight_archives.py has the other source, captured archives.

If an entity has no tap named "insight", one is created. From then on it records events and keeps messages, within its
limits, for the next report. It is advanced only on request, so reports of the same span agree. What a truncated tap has lost
is part of the report's coverage; the tap is resumed, so that it records again. Fragments whose stores stay unavailable are
part of it too: the report is made from the others.

Only the measured columns are read, and those of a condition.

The counts of an entity are read right after the span was chosen. Messages of the span can only have left since.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from busbar.client import AlreadyExists, BusbarClientError, FragmentTap, NotFound, TapView
from busbar.client.administration_properties import QueueRuntimeProperties, SubscriptionRuntimeProperties
from busbar.client.blocking import BlockingTaps
from busbar.client.blocking_administration import BlockingAdministrationClient
from busbar.jobs.insight_figures import Coverage, EntityCounts, FragmentCoverage
from busbar.jobs.insight_measures import Subject
from busbar.jobs.message_selection import MessageSelection
from busbar.model.names import parent_and_name
from busbar.spark.connection import client_of_process
from busbar.spark.decode import EVENT_SCHEMA, MESSAGE_SCHEMA, event_batch, message_batch
from busbar.spark.entity_names import entity_of
from busbar.spark.errors import SourceError
from busbar.spark.schema import schema_of
from busbar.spark.secrets import Secret

TAP = "insight"
OWNER = "busbar-insight"
MAX_AGE_MS = 24 * 3_600_000
MAX_BYTES = 256 * 1024 * 1024
WAIT_SECONDS = 15.0
POLL_SECONDS = 0.2
COUNT_SECONDS = 10.0
MESSAGE_COLUMNS = [
    "entity", "fragment", "sequence_number", "enqueued_time", "session_id", "partition_key", "state", "dead_letter_reason",
]  # fmt: skip
EVENT_COLUMNS = [
    "entity", "fragment", "position", "sequence_number", "outcome", "time", "enqueued_time", "delivery_count", "reason",
]  # fmt: skip
"""The columns that are measured."""


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
    counts: EntityCounts | None = None
    remarks: tuple[str, ...] = ()

    @property
    def reached(self) -> tuple[FragmentTap, ...]:
        """The fragments whose store is available."""
        return tuple(each for each in self.view.fragments if each.available)

    @property
    def subject(self) -> Subject:
        view = self.view
        remarks = self.remarks
        if self.fresh:
            remarks = (
                f"The tap {view.name!r} was made just now: what happened before is not known.",
                *remarks,
            )
        reached = self.reached
        coverage = Coverage(
            f"tap {view.name!r}",
            view.created,
            0,
            0 if view.events else None,
            tuple(self._span(each) for each in reached),
            remarks,
            tuple(each.index for each in view.fragments if not each.available),
        )
        return Subject(self.entity, coverage, tuple(each.index for each in reached), counts=self.counts)

    def _span(self, at: FragmentTap) -> FragmentCoverage:
        lost, event_lost = self.losses.get(at.index, (0, 0))
        after = max(at.position, at.lost)
        if not self.view.events:
            return FragmentCoverage(at.index, after, at.end, lost)
        event_after = max(at.event_position, at.event_lost)
        return FragmentCoverage(at.index, after, at.end, lost, event_after, at.event_end, event_lost)

    def options(self, stream: str, columns: Sequence[str]) -> dict[str, str]:
        """The options of a reader that stops at the end of the span: later messages belong to the next report."""
        ends = {
            str(each.index): (each.event_end if stream == "events" else each.end) + 1 for each in self.reached
        }
        options = {
            "entity": self.path,
            "tap": self.view.name,
            "stream": stream,
            "endingPosition": json.dumps(ends),
            "waitForBroker": f"{int(WAIT_SECONDS)}s",
            "columns": ",".join(columns),
        }
        return options | ({"subQueue": self.sub_queue} if self.sub_queue else {})


def taps_of(secret: Secret, entity: str) -> tuple[BlockingTaps, str, str]:
    """The taps of an entity, its path and sub-queue."""
    path, sub_queue = entity_of(entity.strip("/"))
    return client_of_process(secret, WAIT_SECONDS).taps(path, sub_queue=sub_queue), path, sub_queue


def look(secret: Secret, entity: str, name: str, *, counted: bool = True) -> TapSpan:
    """Choose the span: everything that the tap has recorded by now. Creates the tap if there is none. Reads the counts of
    the entity if they are `counted`.

    If stores are unavailable, it waits for them. Those that stay unavailable are left out, unless none is left.
    """
    taps, path, sub_queue = taps_of(secret, entity)
    view, fresh = _find_or_create(taps, name, from_earliest=True)
    until = time.monotonic() + WAIT_SECONDS
    while not all(each.available for each in view.fragments) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        view = taps.show(name)
    if not any(each.available for each in view.fragments):
        raise SourceError("BUSBAR_UNAVAILABLE", f"All stores of {entity!r} are unavailable.")
    losses = {
        each.index: (
            each.lost if each.lost > each.position else 0,
            each.event_lost if each.event_lost > each.event_position else 0,
        )
        for each in view.fragments
        if each.available
    }
    if view.truncated:
        view = taps.resume(name, view.owner)
    counts: EntityCounts | None = None
    remarks: tuple[str, ...] = ()
    try:
        counts = counts_of(secret, path, bool(sub_queue)) if counted else None
    except BusbarClientError as error:
        remarks = (f"The counts of the entity could not be read: {error.text}",)
    return TapSpan(entity.strip("/"), path, sub_queue, view, losses, fresh, counts, remarks)


def counts_of(secret: Secret, path: str, is_dead_letters: bool) -> EntityCounts:
    """What a queue or a subscription has now, by the management API. Raises BusbarClientError."""
    topic, name = parent_and_name(path)
    found: QueueRuntimeProperties | SubscriptionRuntimeProperties
    with BlockingAdministrationClient.from_connection_string(
        secret.reveal(), operation_timeout=COUNT_SECONDS, trust=secret.authorities()
    ) as client:
        if topic:
            found, scheduled = client.get_subscription_runtime_properties(topic, name), 0
        else:
            found = client.get_queue_runtime_properties(name)
            scheduled = found.scheduled_message_count
    now = int(time.time() * 1000)
    dead = found.dead_letter_message_count
    if is_dead_letters:
        return EntityCounts(now, dead, 0, 0)
    moving = found.transfer_message_count + found.transfer_dead_letter_message_count
    return EntityCounts(now, found.total_message_count - dead - scheduled - moving, dead, scheduled)


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
    taps.advance(view.name, view.owner, {each.index: each.end for each in tapped.reached})
    if view.events:
        positions = {each.index: each.event_end for each in tapped.reached}
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


def tapped_history(
    spark: SparkSession, secret: Secret, tapped: Sequence[TapSpan], selection: MessageSelection
) -> DataFrame:
    """What the taps of these entities have recorded of the selected messages."""
    columns = selection.columns(MESSAGE_COLUMNS, schema_of("messages").fieldNames())

    def read(each: TapSpan, stream: str, columns: Sequence[str]) -> DataFrame:
        if len(each.reached) < len(each.view.fragments):
            frame = _reached_frame(spark, secret, each, stream, columns)
        else:
            options = each.options(stream, columns)
            frame = spark.read.format("busbar").options(**secret.options(), **options).load()
        # The source names the queue or subscription; here a dead-letter queue is an entity of its own.
        return frame.withColumn("entity", f.lit(each.entity))

    return selection.history(
        [read(each, "messages", columns) for each in tapped],
        [read(each, "events", EVENT_COLUMNS) for each in tapped if each.view.events],
    )


def _reached_frame(
    spark: SparkSession, secret: Secret, tapped: TapSpan, stream: str, columns: Sequence[str]
) -> DataFrame:
    """The span of the reached fragments, read in this process: a read by Spark waits until every store is available."""
    taps, _, _ = taps_of(secret, tapped.entity)
    is_events = stream == "events"
    schema = EVENT_SCHEMA if is_events else MESSAGE_SCHEMA
    has_bodies = bool({"body", "raw"} & {*columns})
    spans = []
    for each in tapped.subject.coverage.fragments:
        after, upto = (each.event_after or 0, each.event_upto or 0) if is_events else (each.after, each.upto)
        if upto > after:
            spans.append((each.index, after, upto))
    batches = [
        (
            event_batch(tapped.path, index, page.rows)
            if is_events
            else message_batch(tapped.path, index, page.rows, has_bodies)
        ).select([*columns])
        for index, page in taps.pages_of(tapped.view.name, spans, stream=stream)
        if page.count
    ]
    chosen = pa.schema([schema.field(name) for name in columns])
    return spark.createDataFrame(pa.Table.from_batches(batches, chosen))


def limited(subject: Subject, selection: MessageSelection) -> Subject:
    """The subject of a report on a selection: its coverage has the limits, and the counts of the entity do not apply."""
    if not selection.is_limited:
        return subject
    since, until = (
        None if time is None else int(time.timestamp() * 1000)
        for time in (selection.span.since, selection.span.until)
    )
    coverage = replace(subject.coverage, since_time=since, until_time=until, condition=selection.where)
    return replace(subject, coverage=coverage, counts=None)
