"""Measures messages and events with Spark. Only aggregates leave the cluster.

The history (insight_frames.py) is read several times, and kept (on disk, if memory is short) for the time of a measurement.
A first pass counts by fragment and outcome. What is known follows from it (insight_knowledge.py), and decides what the other
passes count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from busbar.jobs.insight_figures import (
    Backlog,
    Coverage,
    EntityCounts,
    EntityFigures,
    Fates,
    Flow,
    FragmentCoverage,
    FragmentFigures,
    Latency,
    Ranking,
    Share,
    TimeBucket,
    histogram_of,
)
from busbar.jobs.insight_frames import (
    ACCURACY,
    DONE,
    SENT,
    bin_of,
    ends_by_slot,
    has_shared_events,
    latencies,
    own_events,
    ranked,
    rates,
)
from busbar.jobs.insight_knowledge import FOREVER, KnownSpan, contradicts, fates_of, known_span, with_backlog
from busbar.model.names import without_dead_letters

MOST_SLOTS: Final = 96
WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)


BEGAN: Final = pa.schema([("entity", pa.string()), ("began", pa.int64())])
SPANS: Final = pa.schema(
    [
        ("entity", pa.string()),
        ("fragment", pa.int32()),
        *((name, pa.int64()) for name in ("after", "since", "until", "flow_since")),
    ]
)


@dataclass(frozen=True, slots=True)
class MeasuredSpan:
    """The coverage of an entity, and the time in which its outcomes are known. `flow_since`: before it, there may have been
    other messages than those in the records (0: there were none)."""

    coverage: Coverage
    known: KnownSpan
    flow_since: int


@dataclass(frozen=True, slots=True)
class Subject:
    """An entity to measure, with what is known before; counts are filled in, and spans if there are none."""

    entity: str
    coverage: Coverage
    fragments: tuple[int, ...]
    """The indexes of fragments that are in the figures also if they have no messages."""
    is_live: bool = True
    """A tap was read, which shows states as they are, and recorded up to the end. False: an archive."""
    counts: EntityCounts | None = None
    recorded: tuple[int, int] | None = None
    """Of an archive, the times of the first and the last event, if the history is a selection."""

    @property
    def is_dead_letters(self) -> bool:
        return without_dead_letters(self.entity)[1]


def measure(subjects: Sequence[Subject], history: DataFrame) -> list[EntityFigures]:
    """The figures of each subject."""
    dead_letter_queues = [each.entity for each in subjects if each.is_dead_letters]
    kept = [history.persist(StorageLevel.MEMORY_AND_DISK)]
    try:
        if has_shared_events(kept[0], dead_letter_queues):
            own = own_events(kept[0], dead_letter_queues)
            kept.append(own.persist(StorageLevel.MEMORY_AND_DISK))
        return _Measurement(kept[-1], subjects).figures(subjects)
    finally:
        for each in kept:
            each.unpersist()


class _Measurement:
    """Collects every aggregate by entity first, then combines those of an entity."""

    def __init__(self, history: DataFrame, subjects: Sequence[Subject]) -> None:
        spark = history.sparkSession
        began = _local_frame(spark, BEGAN, [(each.entity, each.coverage.began_time) for each in subjects])
        is_early = f.coalesce((f.col("outcome") == SENT) & (f.col("ms") < f.col("began")), f.lit(False))
        self._groups = _by_entity(
            history.join(f.broadcast(began), "entity", "left")
            .groupBy("entity", "fragment", "outcome", "state", is_early.alias("early"))
            .agg(
                f.count("*").alias("count"),
                f.sum(f.col("failed").cast("long")).alias("failed"),
                f.min("ms").alias("first_ms"),
                f.max("ms").alias("last_ms"),
                f.min("position").alias("first"),
                f.max("position").alias("last"),
            )
        )
        self._spans = {each.entity: self._span_of(each) for each in subjects}
        self._width = _width(self._groups)
        spans = f.broadcast(_local_frame(spark, SPANS, [*self._rows_of_spans()]))
        done = history.where(f.col("outcome").isin(*DONE))
        flows = (
            history.where(f.col("outcome").isin(SENT, *DONE))
            .withColumn("sent", f.col("outcome") == SENT)
            .join(spans, ["entity", "fragment"])
        )
        in_flow = f.col("ms") >= f.col("flow_since")
        self._rates = _by_entity(rates(flows.where(~f.col("sent") | in_flow)))
        self._latencies = _by_entity(latencies(done))
        self._bins = _by_entity(
            done.groupBy("entity", bin_of(f.col("latency")).alias("bin")).agg(f.count("*").alias("count"))
        )
        self._ranked = _by_entity(ranked(history))
        slot = (f.floor(f.col("ms") / (self._width * 1000)) * (self._width * 1000)).alias("slot")
        is_known = f.col("sent") & f.col("ms").between(f.col("since"), f.col("until"))
        self._slots = _by_entity(
            flows.groupBy("entity", "sent", is_known.alias("known"), slot).agg(
                f.count("*").alias("count"),
                f.percentile_approx("latency", [0.5, 0.95], ACCURACY).alias("percentiles"),
            )
        )
        self._ends = _by_entity(ends_by_slot(history, spans, slot))

    def figures(self, subjects: Sequence[Subject]) -> list[EntityFigures]:
        return [self._figures(subject) for subject in subjects]

    # ---- what is known ---------------------------------------------------------------------------

    def _span_of(self, subject: Subject) -> MeasuredSpan:
        """What follows from the first pass: the coverage, and the time in which outcomes are known."""
        coverage = self._coverage(subject)
        rows = self._groups[subject.entity]
        events = [row for row in rows if row.outcome != SENT]
        first_events: dict[int, int] = {}
        for row in events:
            first_events[row.fragment] = min(row.first_ms, first_events.get(row.fragment, FOREVER))
        last = max((row.last_ms for row in events), default=None)
        if subject.recorded is not None:
            first_events, last = {0: subject.recorded[0]}, subject.recorded[1]
        known = known_span(coverage, first_events, last, subject.is_live)
        # With a condition, numbers have gaps anyhow: messages from before the recording may be missing.
        is_partial = coverage.missing or (coverage.condition and any(row.early for row in rows))
        flow_since = (coverage.began_time or 0) if is_partial else 0
        return MeasuredSpan(replace(coverage, known_time=known.since_time), known, flow_since)

    def _rows_of_spans(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        for entity, span in self._spans.items():
            dead_letters = without_dead_letters(entity)[1]
            for each in span.coverage.fragments:
                # Dead letters have positions of their own, with which their numbers cannot be compared.
                after = -1 if dead_letters else each.after
                yield entity, each.index, after, span.known.since, span.known.until, span.flow_since

    def _coverage(self, subject: Subject) -> Coverage:
        coverage = subject.coverage
        recorded = coverage.events is not None
        rows = self._groups[subject.entity]
        sent = [row for row in rows if row.outcome == SENT]
        events = [row for row in rows if row.outcome != SENT]
        fragments = coverage.fragments or tuple(
            _span(
                index,
                [row for row in sent if row.fragment == index],
                [row for row in events if row.fragment == index] if recorded else None,
            )
            for index in sorted({row.fragment for row in rows})
        )
        return replace(
            coverage,
            messages=sum(row["count"] for row in sent),
            events=sum(row["count"] for row in events) if recorded else None,
            fragments=fragments,
            missing=0 if coverage.condition else _missing([row for row in sent if row.early]),
        )

    def _fates(self, subject: Subject, sent: int) -> Fates:
        ends = [row for row in self._ends[subject.entity] if row.in_span]
        states: Counter[str] = Counter()
        for row in self._groups[subject.entity]:
            if row.outcome == SENT:
                states[row.state] += row["count"]
        return fates_of(
            sent,
            sum(row["count"] for row in self._slots[subject.entity] if row.known),
            sum(row["count"] for row in ends),
            sum(row["count"] for row in ends if row.known),
            dict(sorted(states.items())) if subject.is_live else None,
            subject.is_dead_letters,
        )

    # ---- figures ---------------------------------------------------------------------------------

    def _figures(self, subject: Subject) -> EntityFigures:
        entity = subject.entity
        coverage = self._spans[entity].coverage
        recorded = coverage.events is not None
        events = [row for row in self._groups[entity] if row.outcome != SENT]
        outcomes: Counter[str] = Counter()
        for row in events:
            outcomes[row.outcome] += row["count"]
        ranked = self._rankings(entity)
        sent = self._flow(entity, (SENT,))
        fates = self._fates(subject, sent.count)
        slots, backlog = self._slots_of(subject, sent)
        if contradicts(fates, subject.counts, coverage):
            slots = tuple(replace(slot, backlog=None) for slot in slots)
            backlog = Backlog.CONTRADICTED
        return EntityFigures(
            entity=entity,
            coverage=coverage,
            sent=sent,
            done=self._flow(entity, DONE),
            latency=self._latency(entity),
            slot_seconds=self._width,
            slots=slots,
            fragments=self._fragment_figures(subject),
            keys=ranked["key"],
            sessions=ranked["session"],
            # A dead letter that the tap shows may be older than the recording of its event.
            dead_letters=max(ranked["reason"], ranked["held reason"], key=lambda each: each.count),
            duplicates=ranked["duplicate"],
            outcomes=dict(sorted(outcomes.items())),
            redelivered=sum(row.failed for row in events if row.outcome in DONE) if recorded else None,
            fates=fates,
            counts=subject.counts,
            backlog=backlog,
        )

    def _flow(self, entity: str, outcomes: Sequence[str]) -> Flow:
        """Counts are of all messages. Rates are of the time in which every message is in the records."""
        rows = [row for row in self._groups[entity] if row.outcome in outcomes]
        if not rows:
            return Flow()
        count = sum(row["count"] for row in rows)
        first, last = min(row.first_ms for row in rows), max(row.last_ms for row in rows)
        is_sent = outcomes == (SENT,)
        rates = [row for row in self._rates[entity] if row.sent == is_sent]
        if not rates:
            return Flow(count, first, last)
        whole = [row for row in rows if not (is_sent and row.early and self._spans[entity].flow_since)]
        seconds = max(1.0, (last - min(row.first_ms for row in whole)) / 1000)
        mean = sum(row["count"] for row in whole) / seconds
        (rate,) = rates
        busy = rate.minute / 60 if seconds >= 60 else mean
        return Flow(count, first, last, mean, max(mean, busy), float(rate.second))

    def _latency(self, entity: str) -> Latency | None:
        for row in self._latencies[entity]:
            if row.fragment is None:
                p50, p90, p95, p99, p999 = map(float, row.percentiles)
                histogram = histogram_of({each.bin: each["count"] for each in self._bins[entity]})
                return Latency(
                    row["count"], float(row.mean), p50, p90, p95, p99, p999, float(row.most), histogram
                )
        return None

    def _slots_of(self, subject: Subject, flow: Flow) -> tuple[tuple[TimeBucket, ...], Backlog]:
        entity = subject.entity
        sent: Counter[int] = Counter()
        for row in self._slots[entity]:
            if row.sent:
                sent[row.slot] += row["count"]
        done = {row.slot: row for row in self._slots[entity] if not row.sent}
        ended: Counter[int] = Counter()
        for row in self._ends[entity]:
            ended[row.slot] += row["count"]
        if not sent and not done:
            return (), Backlog.UNKNOWN
        span = self._spans[entity]
        known = span.known
        if flow.first_time is not None and flow.first_time >= known.since:
            known = replace(known, since=0)  # nothing came before, so the first slot is known as a whole
        times = sent.keys() | done.keys() | ended.keys()
        made = []
        for time in range(min(times), max(times) + 1, self._width * 1000):
            row = done.get(time)
            p50, p95 = map(float, row.percentiles) if row is not None else (None, None)
            came = sent[time] if time >= span.flow_since else None
            is_known = row is not None or known.since <= time <= known.until
            made.append(
                TimeBucket(time, came, (0 if row is None else row["count"]) if is_known else None, p50, p95)
            )
        if subject.is_dead_letters or span.coverage.unavailable or span.flow_since > known.since:
            return tuple(made), Backlog.UNKNOWN
        return with_backlog(made, ended, known, subject.counts)

    def _fragment_figures(self, subject: Subject) -> tuple[FragmentFigures, ...]:
        sent: Counter[int] = Counter()
        done: Counter[int] = Counter()
        for row in self._groups[subject.entity]:
            if row.outcome == SENT:
                sent[row.fragment] += row["count"]
            elif row.outcome in DONE:
                done[row.fragment] += row["count"]
        p95 = {row.fragment: float(row.percentiles[2]) for row in self._latencies[subject.entity]}
        total = max(1, sent.total())
        return tuple(
            FragmentFigures(index, sent[index], sent[index] / total, done[index], p95.get(index))
            for index in sorted({*sent, *done, *subject.fragments})
        )

    def _rankings(self, entity: str) -> dict[str, Ranking]:
        rows: dict[str, list[Row]] = defaultdict(list)
        for row in self._ranked[entity]:
            rows[row.kind].append(row)
        total = max(1, sum(row["count"] for row in self._groups[entity] if row.outcome == SENT))
        found: dict[str, Ranking] = defaultdict(Ranking)
        for kind, of_kind in rows.items():
            of_kind.sort(key=lambda row: row.place)
            # Keys and sessions as a share of all messages, reasons as a share of their own kind.
            whole = total if kind in ("key", "session") else of_kind[0].whole
            top = tuple(Share(row.name, row["count"], row["count"] / whole) for row in of_kind)
            found[kind] = Ranking(of_kind[0].whole, of_kind[0].distinct, top)
        return found


def _span(index: int, sent: Sequence[Row], events: Sequence[Row] | None) -> FragmentCoverage:
    """The span from the first to the last position that was found; events are None if there are none."""

    def ends(rows: Sequence[Row]) -> tuple[int, int]:
        return min((row.first for row in rows), default=1) - 1, max((row.last for row in rows), default=0)

    if events is None:
        return FragmentCoverage(index, *ends(sent))
    return FragmentCoverage(index, *ends(sent), 0, *ends(events))


def _local_frame(spark: SparkSession, schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """A small frame that is part of the plan: reading it takes no task."""
    columns = [*zip(*rows, strict=True)] or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))


def _by_entity(frame: DataFrame) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = defaultdict(list)
    for row in frame.collect():
        rows[row.entity].append(row)
    return rows


def _width(groups: dict[str, list[Any]]) -> int:
    """The bucket in seconds that divides the longest span into a readable number of buckets."""
    spans = [
        (max(row.last_ms for row in rows) - min(row.first_ms for row in rows)) / 1000
        for rows in groups.values()
        if rows
    ]
    longest = max(spans, default=0.0)
    return next((width for width in WIDTHS if longest / width < MOST_SLOTS), WIDTHS[-1])


def _missing(early: Sequence[Row]) -> int:
    """The numbers without a message among those of messages that came before recording began."""
    ends: dict[int, tuple[int, int, int]] = {}
    for row in early:
        first, last, count = ends.get(row.fragment, (row.first, row.last, 0))
        ends[row.fragment] = (min(first, row.first), max(last, row.last), count + row["count"])
    return sum(last - first + 1 - count for first, last, count in ends.values())
