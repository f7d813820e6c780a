"""The times of the last commits, as operators see them."""

from __future__ import annotations

from busbar.broker.commit_times import KEPT, CommitTimes


def test_without_commits_there_are_no_times() -> None:
    times = CommitTimes()
    assert (times.quantile(0.5), times.quantile(0.99), times.group, times.count) == (0, 0, 0, 0)


def test_quantiles_and_the_mean_are_of_the_last_commits() -> None:
    times = CommitTimes()
    for _ in range(1_000):
        times.add(9.0, 1_000)  # all of these are forgotten
    for number in range(1, KEPT + 1):
        times.add(number / 1000, 10 + number % 2)
    assert times.count == 1_000 + KEPT
    assert times.quantile(0.5) == (KEPT // 2 + 1) * 1000
    assert times.quantile(0.99) == 254_000
    assert times.quantile(1.0) == KEPT * 1000
    assert times.group == 10
