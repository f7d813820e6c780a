"""Measures messages and events with Spark. Only aggregates leave the cluster.

Everything is in one frame, the history of any number of entities: a row for each enqueued message, and for each event. It is
read several times, and kept (on disk, if memory is short) for the time of a measurement:

    entity, fragment, position, outcome, ms, latency, failed, session_id, partition_key, reason

`outcome` of a message is "sent"; that of an event is its own. `failed`: an earlier delivery had failed. `reason` is that of
dead-lettering, and the message id of a duplicate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from busbar.jobs.insight_figures import (
    Bin,
    Coverage,
    EntityFigures,
    Flow,
    FragmentCoverage,
    FragmentFigures,
    Latency,
    Ranking,
    Share,
    TimeBucket,
)
from busbar.spark.options import NUMBER_MASK

SENT: Final = "sent"
DONE: Final = ("completed", "received-and-deleted")
TOP: Final = 10
MOST_SLOTS: Final = 96
WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
ACCURACY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Subject:
    """An entity to measure, with what is known before; counts are filled in, and spans if there are none."""

    entity: str
    coverage: Coverage
    fragments: int | None
    """None: the number that is found."""


def of_messages(frame: DataFrame) -> DataFrame:
    """The history of messages, from the columns of the source's schema."""
    dead = f.col("state").startswith("dead-lettered")
    return frame.select(
        "entity",
        "fragment",
        f.col("sequence_number").bitwiseAND(NUMBER_MASK).alias("position"),
        f.lit(SENT).alias("outcome"),
        f.unix_millis("enqueued_time").alias("ms"),
        f.lit(None).cast("long").alias("latency"),
        f.lit(False).alias("failed"),
        "session_id",
        "partition_key",
        f.when(dead, f.coalesce("dead_letter_reason", f.lit(""))).alias("reason"),
    )


def of_events(frame: DataFrame) -> DataFrame:
    """The history of events, from the columns of the source's schema."""
    ms = f.unix_millis("time")
    nothing = f.lit(None).cast("string")
    return frame.select(
        "entity",
        "fragment",
        "position",
        "outcome",
        ms.alias("ms"),
        f.greatest(ms - f.unix_millis("enqueued_time"), f.lit(0)).alias("latency"),
        (f.col("delivery_count") > 0).alias("failed"),
        nothing.alias("session_id"),
        nothing.alias("partition_key"),
        f.coalesce("reason", f.lit("")).alias("reason"),
    )


def measure(subjects: Sequence[Subject], history: DataFrame) -> list[EntityFigures]:
    """The figures of each subject."""
    history = history.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return _Measurement(history).figures(subjects)
    finally:
        history.unpersist()


class _Measurement:
    """Collects every aggregate by entity first, then combines those of an entity."""

    def __init__(self, history: DataFrame) -> None:
        done = history.where(f.col("outcome").isin(*DONE))
        flows = history.where(f.col("outcome").isin(SENT, *DONE)).withColumn("sent", f.col("outcome") == SENT)
        self._groups = _by_entity(
            history.groupBy("entity", "fragment", "outcome").agg(
                f.count("*").alias("count"),
                f.sum(f.col("failed").cast("long")).alias("failed"),
                f.min("ms").alias("first_ms"),
                f.max("ms").alias("last_ms"),
                f.min("position").alias("first"),
                f.max("position").alias("last"),
            )
        )
        self._rates = _by_entity(_rates(flows))
        self._latencies = _by_entity(_latencies(done))
        self._bins = _by_entity(
            done.groupBy("entity", f.bin(f.col("latency")).alias("bits")).agg(f.count("*").alias("count"))
        )
        self._ranked = _by_entity(_ranked(history))
        self._width = _width(self._groups)
        slot = (f.floor(f.col("ms") / (self._width * 1000)) * (self._width * 1000)).alias("slot")
        self._slots = _by_entity(
            flows.groupBy("entity", "sent", slot).agg(
                f.count("*").alias("count"),
                f.percentile_approx("latency", [0.5, 0.95], ACCURACY).alias("percentiles"),
            )
        )

    def figures(self, subjects: Sequence[Subject]) -> list[EntityFigures]:
        return [self._figures(subject) for subject in subjects]

    def _figures(self, subject: Subject) -> EntityFigures:
        entity = subject.entity
        recorded = subject.coverage.events is not None
        events = [row for row in self._groups[entity] if row.outcome != SENT]
        outcomes: Counter[str] = Counter()
        for row in events:
            outcomes[row.outcome] += row["count"]
        ranked = self._rankings(entity)
        return EntityFigures(
            entity=entity,
            coverage=self._coverage(subject),
            sent=self._flow(entity, (SENT,)),
            done=self._flow(entity, DONE),
            latency=self._latency(entity),
            slot_seconds=self._width,
            slots=self._slots_of(entity),
            fragments=self._fragment_figures(entity, subject.fragments),
            keys=ranked["key"],
            sessions=ranked["session"],
            # Without events, existing dead letters are used instead.
            dead_letters=ranked["reason" if recorded else "held reason"],
            duplicates=ranked["duplicate"],
            outcomes=dict(sorted(outcomes.items())),
            redelivered=sum(row.failed for row in events if row.outcome in DONE) if recorded else None,
        )

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
        )

    def _flow(self, entity: str, outcomes: Sequence[str]) -> Flow:
        rows = [row for row in self._groups[entity] if row.outcome in outcomes]
        if not rows:
            return Flow()
        count = sum(row["count"] for row in rows)
        first, last = min(row.first_ms for row in rows), max(row.last_ms for row in rows)
        seconds = max(1.0, (last - first) / 1000)
        mean = count / seconds
        (rate,) = (row for row in self._rates[entity] if row.sent == (outcomes == (SENT,)))
        busy = rate.minute / 60 if seconds >= 60 else mean
        return Flow(count, first, last, mean, max(mean, busy), float(rate.second))

    def _latency(self, entity: str) -> Latency | None:
        for row in self._latencies[entity]:
            if row.fragment is None:
                bins = sorted((_below(each.bits), each["count"]) for each in self._bins[entity])
                p50, p90, p95, p99, p999 = map(float, row.percentiles)
                histogram = tuple(Bin(below, count) for below, count in bins)
                return Latency(
                    row["count"], float(row.mean), p50, p90, p95, p99, p999, float(row.most), histogram
                )
        return None

    def _slots_of(self, entity: str) -> tuple[TimeBucket, ...]:
        sent = {row.slot: row["count"] for row in self._slots[entity] if row.sent}
        done = {row.slot: row for row in self._slots[entity] if not row.sent}
        if not sent and not done:
            return ()
        times = sent.keys() | done.keys()
        made = []
        for time in range(min(times), max(times) + 1, self._width * 1000):
            row = done.get(time)
            p50, p95 = map(float, row.percentiles) if row is not None else (None, None)
            made.append(TimeBucket(time, sent.get(time, 0), 0 if row is None else row["count"], p50, p95))
        return tuple(made)

    def _fragment_figures(self, entity: str, fragments: int | None) -> tuple[FragmentFigures, ...]:
        sent: Counter[int] = Counter()
        done: Counter[int] = Counter()
        for row in self._groups[entity]:
            if row.outcome == SENT:
                sent[row.fragment] += row["count"]
            elif row.outcome in DONE:
                done[row.fragment] += row["count"]
        p95 = {row.fragment: float(row.percentiles[2]) for row in self._latencies[entity]}
        total = max(1, sent.total())
        return tuple(
            FragmentFigures(index, sent[index], sent[index] / total, done[index], p95.get(index))
            for index in sorted({*sent, *done, *range(fragments or 0)})
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


def _rates(flows: DataFrame) -> DataFrame:
    """The maximum number of messages in a second, and in a minute."""
    second, minute = f.floor(f.col("ms") / 1000), f.floor(f.col("at") / 60)
    seconds = flows.groupBy("entity", "sent", second.alias("at")).agg(f.count("*").alias("count"))
    minutes = seconds.groupBy("entity", "sent", minute.alias("at")).agg(
        f.sum("count").alias("minute"), f.max("count").alias("second")
    )
    return minutes.groupBy("entity", "sent").agg(
        f.max("minute").alias("minute"), f.max("second").alias("second")
    )


def _latencies(done: DataFrame) -> DataFrame:
    """The latencies by fragment, and of all (fragment is null)."""
    measured = (
        f.count("*").alias("count"),
        f.mean("latency").alias("mean"),
        f.max("latency").alias("most"),
        f.percentile_approx("latency", list(PERCENTILES), ACCURACY).alias("percentiles"),
    )
    return done.rollup("entity", "fragment").agg(*measured).where(f.col("entity").isNotNull())


def _ranked(history: DataFrame) -> DataFrame:
    """The most frequent keys, sessions, reasons, duplicates, with the number of messages and of names of each kind."""

    def named(kind: str, outcome: str, column: str) -> Column:
        name = f.when(f.col("outcome") == outcome, f.col(column))
        return f.struct(f.lit(kind).alias("kind"), name.alias("name"))

    kinds = f.array(
        named("key", SENT, "partition_key"),
        named("session", SENT, "session_id"),
        named("held reason", SENT, "reason"),
        named("reason", "dead-lettered", "reason"),
        named("duplicate", "duplicate-dropped", "reason"),
    )
    names = (
        history.select("entity", f.explode(kinds).alias("each"))
        .select("entity", "each.kind", "each.name")
        .where(f.col("name").isNotNull())
    )
    counted = names.groupBy("entity", "kind", "name").agg(f.count("*").alias("count"))
    of_kind = Window.partitionBy("entity", "kind")
    return (
        counted.withColumn("place", f.row_number().over(of_kind.orderBy(f.desc("count"), "name")))
        .withColumn("whole", f.sum("count").over(of_kind))
        .withColumn("distinct", f.count("*").over(of_kind))
        .where(f.col("place") <= TOP)
    )


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
    ]
    longest = max(spans, default=0.0)
    return next((width for width in WIDTHS if longest / width < MOST_SLOTS), WIDTHS[-1])


def _below(bits: str) -> int:
    """The power of two above a number of so many bits; 0 counts as one."""
    return 1 << len(bits.lstrip("0")) if bits.strip("0") else 1
