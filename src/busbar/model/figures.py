"""What a process of the namespace has done since it began, for operators. Counters begin at 0 with the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from busbar.model.histogram import Histogram

OTHER: Final = "other"
DEAD_LETTER_REASONS: Final = (
    "TTLExpiredException",
    "MaxDeliveryCountExceeded",
    "MaxTransferHopCountExceeded",
    "HeaderSizeExceeded",
    "FilterException",
    "Session ID is null",
    "MessagingEntityNotFoundException",
    "MessagingEntityDisabledException",
    "QuotaExceededException",
    "MessageSizeExceededException",
    "NoMatchingSubscriptionException",
    "InvalidOperationException",
    OTHER,
)
"""The reasons that the broker gives. Those of applications are counted as the last one."""
COMMIT_BOUNDS: Final = (
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
)  # fmt: skip
"""Of the times of commits, in microseconds."""
DELIVERY_BOUNDS: Final = (
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000,
)  # fmt: skip
"""Of the times from enqueuing to delivery, in milliseconds."""


class FragmentCounters(NamedTuple):
    """What a fragment has done."""

    messages_in: int = 0
    """Messages that were taken: from clients, by forwarding, or as copies of a topic."""
    bytes_in: int = 0
    messages_out: int = 0
    """Messages that consumers got; one that is delivered again counts again."""
    bytes_out: int = 0
    completed: int = 0
    abandoned: int = 0
    deferred: int = 0
    dead_lettered: int = 0
    """By receivers."""
    released: int = 0
    locks_lost: int = 0
    """Locks that ended before their message was settled."""
    duplicates: int = 0
    """Messages that were dropped, since their ids were known."""
    dead_letters: int = 0
    """For any reason."""


@dataclass(frozen=True, slots=True)
class HistogramView:
    counts: Sequence[int] = ()
    """By bucket. The last one has what is above all bounds."""
    total: int = 0
    """The sum of all values."""


@dataclass(frozen=True, slots=True)
class GatewayFigures:
    links: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    """By condition."""
    deliveries: HistogramView = field(default_factory=HistogramView)
    """Times from enqueuing to delivery (DELIVERY_BOUNDS)."""


def view_of(histogram: Histogram) -> HistogramView:
    return HistogramView(list(histogram.counts), histogram.total)


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    name: str
    cpu_us: int
    """CPU time of all its threads, in microseconds."""
    gateway: GatewayFigures
    commits: Mapping[str, HistogramView] = field(default_factory=dict)
    """By store, the times of its commits (COMMIT_BOUNDS)."""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    fragments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """FragmentCounters of each fragment that has done anything here."""
