"""Numbers of messages as runs. Receivers complete messages mostly in order, so runs are long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def number_runs(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The runs of consecutive numbers, rising: the first and the last number of each."""
    ordered = sorted(numbers)
    if not ordered:
        return
    first = last = ordered[0]
    for n in ordered:
        if n > last + 1:
            yield first, last
            first = n
        last = n
    yield first, last
