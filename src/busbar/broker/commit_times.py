"""How long the last commits of a store took, and how many messages each changed. One commit is under way at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from busbar.model.figures import COMMIT_BOUNDS
from busbar.model.histogram import Histogram
from busbar.model.node_views import StoreFigures
from busbar.store.location import StoreCounters, StoreLocation

KEPT = 256


class CommitTimes:
    def __init__(self) -> None:
        self.count = 0
        self.fenced = 0
        """How often another owner had claimed the store."""
        self.histogram = Histogram(COMMIT_BOUNDS)
        """Of all commits, in microseconds."""
        self._last: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self._begun: tuple[float, int] | None = None

    def begin(self, messages: int) -> None:
        """Note that a commit begins, which changes so many messages."""
        self._begun = (perf_counter(), messages)

    def end(self, is_made: bool) -> None:
        """Note the end of the commit under way, if there is one."""
        begun, self._begun = self._begun, None
        if is_made and begun is not None:
            self.add(perf_counter() - begun[0], begun[1])

    def add(self, seconds: float, messages: int) -> None:
        self.count += 1
        self.histogram.add(int(1e6 * seconds))
        self._last.append((seconds, messages))

    def quantile(self, part: float) -> int:
        """The time in microseconds that this part of the commits did not exceed; 0 without commits."""
        times = sorted(seconds for seconds, _ in self._last)
        return round(1e6 * times[min(len(times) - 1, int(part * len(times)))]) if times else 0

    @property
    def group(self) -> int:
        """The messages of a commit, on average."""
        return round(sum(messages for _, messages in self._last) / len(self._last)) if self._last else 0

    def figures(self, store: str, epoch: int, place: StoreLocation | None) -> StoreFigures:
        """How the store works, for operators."""
        counters = place.counters() if place is not None else StoreCounters()
        return StoreFigures(
            store,
            epoch,
            self.count,
            self.quantile(0.5),
            self.quantile(0.99),
            self.group,
            fenced=self.fenced,
            reclaims=counters.reclaims,
            made=counters.made,
            repeated=counters.repeated,
            lost=counters.lost,
        )


def seconds_of(work: Callable[[], None]) -> float:
    """Do a piece of work; returns how long it took."""
    began = perf_counter()
    work()
    return perf_counter() - began
