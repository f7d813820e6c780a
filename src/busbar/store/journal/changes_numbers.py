"""The numbers of the messages that a commit puts: a store looks at all of them before each commit."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment.changes import Changes

ABOVE_ALL: Final = (1 << 63) - 1


def put_numbers(changes: Changes) -> tuple[int, int]:
    """The lowest and the highest number of the messages that are put; ABOVE_ALL and 0 if there are none."""
    lowest: i64 = ABOVE_ALL
    highest: i64 = 0
    for records in changes.puts.values():
        for record in records:
            n = record.n
            if n < lowest:
                lowest = n
            if n > highest:
                highest = n
    return int(lowest), int(highest)
