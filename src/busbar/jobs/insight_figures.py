"""The results of insight as values: measured figures, their coverage, and conclusions.

Times are ms since 1970, latencies ms, rates messages per second. A figure that was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

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
    sent: int
    done: int
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Bin:
    """Completions that took less than `below` ms, and not less than the bin before."""

    below: int
    count: int


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

    @property
    def complete(self) -> bool:
        """Whether nothing was lost within the span."""
        return not any(each.lost or each.event_lost for each in self.fragments)


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

    @property
    def partitioned(self) -> bool:
        return len(self.fragments) > 1


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
    return dict(value) if isinstance(value, Mapping) else value


def _is_time(name: str) -> bool:
    return name == "time" or name.endswith("_time")


def _moment(time: int | None) -> str | None:
    return None if time is None else iso(time)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
