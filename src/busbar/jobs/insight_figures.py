"""The results of insight as values: measured figures, their coverage, and conclusions.

Times are ms since 1970, latencies ms, rates messages per second. A figure that was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from busbar.client.advice import Setting


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages that passed one point: enqueued, or finished."""

    count: int = 0
    first_time: int | None = None
    last_time: int | None = None
    mean_rate: float | None = None
    """Over the whole span, a second at least."""
    busy_rate: float | None = None
    """In the busiest minute, or over the span if it is shorter."""
    peak_rate: float | None = None
    """In the busiest second."""


@dataclass(frozen=True, slots=True)
class TimeBucket:
    """A slice of time."""

    time: int
    sent: int | None
    """None: other messages may have come, of which there is no record."""
    done: int | None
    """None: what became of messages was not recorded then."""
    p50: float | None
    p95: float | None
    backlog: int | None = None
    """Messages in the entity at the end of the slice, if that is known (Backlog)."""


SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
BOUNDS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(SECOND * each for each in (1, 2, 5, 10, 30)),
    *(MINUTE * each for each in (1, 2, 5, 10, 30)),
    *(HOUR * each for each in (1, 3, 12)),
    *(DAY * each for each in (1, 7)),
)
"""The bounds between the bins of the histogram, in ms. Each is a round number of its unit."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Completions that took less than `below` ms, and not less than the bin before."""

    below: int | None
    """None: the last bin, which has no bound."""
    count: int


def histogram_of(counts: Mapping[int, int]) -> tuple[Bin, ...]:
    """The bins from the first to the last that has completions, with the empty ones between them."""
    bounds = (*BOUNDS, None)
    if not counts:
        return ()
    return tuple(Bin(bounds[at], counts.get(at, 0)) for at in range(min(counts), max(counts) + 1))


@dataclass(frozen=True, slots=True)
class Latency:
    """The time from enqueue to completion."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    most: float
    histogram: tuple[Bin, ...] = ()


@dataclass(frozen=True, slots=True)
class FragmentFigures:
    index: int
    sent: int
    share: float
    """Of the entity's messages, 0 to 1."""
    done: int
    p95: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """A key, a session, a reason … and its share of the whole."""

    name: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The most frequent values of their kind."""

    count: int = 0
    """The number of messages that have a value."""
    distinct: int = 0
    top: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class FragmentCoverage:
    """The positions that were read: behind `after`, up to `upto`. Something up to `lost` was not read (0: nothing)."""

    index: int
    after: int
    upto: int
    lost: int = 0
    event_after: int | None = None
    event_upto: int | None = None
    event_lost: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """The basis of the figures of an entity."""

    source: str
    began_time: int | None
    """When recording began, if that is known."""
    messages: int
    events: int | None
    """None: events were not recorded."""
    fragments: tuple[FragmentCoverage, ...] = ()
    remarks: tuple[str, ...] = ()
    unavailable: tuple[int, ...] = ()
    """The fragments that could not be reached: nothing about them is in the figures."""
    known_time: int | None = None
    """Since when outcomes were recorded without a gap. None: they were not."""
    missing: int = 0
    """Numbers without a message among those from before recording began: finished messages that nothing kept, or gaps."""
    since_time: int | None = None
    """The limits of a selection: the figures are of messages that were enqueued then or later,"""
    until_time: int | None = None
    """before that time,"""
    condition: str = ""
    """and that meet this condition. Empty: all of them."""

    @property
    def complete(self) -> bool:
        """Whether nothing was lost within the span, and every fragment was reached."""
        return not self.unavailable and not any(each.lost or each.event_lost for each in self.fragments)

    @property
    def is_whole(self) -> bool:
        """Whether the span has every message that came in it, so that shares of it have a meaning."""
        return not self.unavailable and not self.missing and not self.condition


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """The messages that an entity had when the span was chosen, by the management API."""

    time: int
    waiting: int
    """Active, locked or deferred; of a dead-letter queue, its dead letters."""
    dead_letters: int
    scheduled: int


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of the messages of the span; the three numbers make up all of them.

    Only the first two are conclusions. A message of which nothing is known neither ended nor waits.
    """

    ended: int = 0
    """Their end is recorded."""
    waiting: int = 0
    """They came while outcomes were recorded, and no end is."""
    unknown: int = 0
    """They came when outcomes were not recorded, and no end is."""
    states: Mapping[str, int] | None = None
    """The states that the tap showed when it was read. None for archives, which have the states of the capture."""
    held: int | None = None
    """The messages of the span that were in the queue when the tap was read. None for archives."""


class Backlog(StrEnum):
    """What the backlog of time buckets is."""

    UNKNOWN = "unknown"
    COUNTED = "counted"
    """The number of messages in the entity; the last one is its count."""
    RELATIVE = "relative"
    """How many more than at the lowest point of the span: the number at that time is not known."""
    CONTRADICTED = "contradicted"
    """The records and the count cannot both be right."""


@dataclass(frozen=True, slots=True)
class EntityFigures:
    entity: str
    coverage: Coverage
    sent: Flow
    done: Flow
    """Completed, or received and deleted."""
    latency: Latency | None
    slot_seconds: int
    slots: tuple[TimeBucket, ...]
    fragments: tuple[FragmentFigures, ...]
    keys: Ranking
    sessions: Ranking
    dead_letters: Ranking
    """By reason."""
    duplicates: Ranking
    """Dropped duplicates, by message id."""
    outcomes: Mapping[str, int]
    redelivered: int | None
    """Completions of messages with an earlier failed delivery."""
    fates: Fates = Fates()
    counts: EntityCounts | None = None
    """None: not read, as of an archive."""
    backlog: Backlog = Backlog.UNKNOWN

    @property
    def partitioned(self) -> bool:
        return len(self.fragments) + len(self.coverage.unavailable) > 1

    @property
    def finished(self) -> int | None:
        """The messages that were done with: if the records lack ends, those that the tap showed as done. None: not known."""
        if self.coverage.events is None or self.fates.unknown:
            states = self.fates.states
            return None if states is None else max(self.done.count, states.get("done", 0))
        return self.done.count

    @property
    def waiting(self) -> int | None:
        """The messages that were not done with, by the best source there is: the count, the tap, the records.

        None: it is not known, or the sources contradict each other.
        """
        if self.backlog is Backlog.CONTRADICTED or self.coverage.unavailable:
            return None
        if self.counts is not None:
            return self.counts.waiting
        if self.fates.held is not None:
            return self.fates.held
        return None if self.fates.unknown or self.coverage.events is None else self.fates.waiting


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding; `grave` if something should be done."""

    text: str
    grave: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    scenario: str
    because: str
    prefetch: int | None
    """None: nothing was received, so there is no advice."""
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class EntityReport:
    figures: EntityFigures
    advice: Advice


@dataclass(frozen=True, slots=True)
class Report:
    made_time: int
    entities: tuple[EntityReport, ...]

    def to_json(self) -> dict[str, Any]:
        """The report for json.dumps: names in camel case, times in ISO 8601."""
        document: dict[str, Any] = _plain(self)
        return document


def iso(time: int) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
        plain = {_camel(name): _moment(item) if _is_time(name) else _plain(item) for name, item in pairs}
        if isinstance(value, Coverage):
            plain["complete"] = value.complete
        return plain
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, StrEnum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else value


def _is_time(name: str) -> bool:
    return name == "time" or name.endswith("_time")


def _moment(time: int | None) -> str | None:
    return None if time is None else iso(time)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
