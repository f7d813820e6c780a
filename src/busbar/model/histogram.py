"""Counts of measured values by size. One addition serves a whole batch."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class Histogram:
    def __init__(self, bounds: tuple[int, ...]) -> None:
        """`bounds` are the largest value of each bucket, ascending. One more bucket has what is larger."""
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: i64 = 0
        """Of all values."""
        self._bounds: list[int] = list(bounds)

    def add(self, value: i64, count: i64 = 1) -> None:
        """Count a value so many times. A negative one is 0: clocks of two machines differ."""
        if value < 0:
            value = 0
        self.total += value * count
        self.counts[self._bucket(value)] += count

    def add_run(self, first: i64, last: i64, count: i64) -> None:
        """Count so many values that fall from the first to the last. Those between are taken to be spread evenly."""
        if last < 0:
            last = 0
        if first < last:
            first = last
        at = self._bucket(first)
        if first == last or at == self._bucket(last):
            self.counts[at] += count
            self.total += (first + last) * count // 2
            return
        for i in range(count):
            self.add(first + (last - first) * i // (count - 1))

    def _bucket(self, value: i64) -> i64:
        at: i64 = 0
        for bound in self._bounds:
            if value <= bound:
                break
            at += 1
        return at
