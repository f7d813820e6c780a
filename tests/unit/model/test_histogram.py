"""Counts of values by size."""

from __future__ import annotations

from busbar.model.histogram import Histogram


def counted(*runs: tuple[int, int, int]) -> tuple[list[int], int]:
    histogram = Histogram((10, 100))
    for first, last, count in runs:
        histogram.add_run(first, last, count)
    return histogram.counts, histogram.total


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((10, 100))
    for value in (0, 10, 11, 100, 101, 5_000):
        histogram.add(value)
    assert histogram.counts == [2, 2, 2]
    assert histogram.total == 5_222


def test_what_seems_to_come_before_it_was_sent_took_no_time() -> None:
    histogram = Histogram((10, 100))
    histogram.add(-5, 3)
    assert (histogram.counts, histogram.total) == ([3, 0, 0], 0)


def test_a_run_counts_all_its_values() -> None:
    assert counted((5, 5, 1)) == ([1, 0, 0], 5)
    assert counted((20, 5, 3)) == ([1, 2, 0], 37)
    assert counted((30, 20, 4)) == ([0, 4, 0], 100)
    assert counted((-3, -1, 2)) == ([2, 0, 0], 0), "the clock was set back"
    assert counted((5, 7, 2)) == ([2, 0, 0], 14)
    assert counted((200, 0, 101)) == ([6, 45, 50], 10_100)
