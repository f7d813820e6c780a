"""Plans a batch: how much of each fragment it reads, and which task reads which range.

A task costs about as much as reading some thousand messages. So fragments are packed into few partitions, up to the given
maximum, each with ranges of one or more fragments, in order. Positions may have gaps, so the counts here are upper bounds.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import InputPartition

LEAST_PER_TASK = 5_000

Range = tuple[int, int, int]
"""A fragment, the position after which reading begins, and the last position."""


class Ranges(InputPartition):
    """The ranges that one task reads of an entity; without a tap, of what the entity holds for receivers."""

    def __init__(self, entity: str, tap: str | None, owner: str, ranges: list[Range]) -> None:
        super().__init__(None)
        self.entity = entity
        self.tap = tap
        self.owner = owner
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"Ranges({self.tap!r}, {self.ranges!r})"


def limit_batch(begins: Mapping[int, int], ends: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """The ends of a batch of at most `limit` positions. Fragments advance in proportion to what they have, so that they
    stay close in time."""
    waiting = {index: max(0, ends[index] - begins.get(index, 0)) for index in ends}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return {index: begins.get(index, 0) + count for index, count in waiting.items()}
    shares = {index: count * limit // total for index, count in waiting.items()}
    left = limit - sum(shares.values())
    # The rest of rounding goes to the fragments that got the smallest part of what they have.
    for index in sorted(waiting, key=lambda index: (shares[index] - waiting[index], index)):
        if left == 0:
            break
        if shares[index] < waiting[index]:
            shares[index] += 1
            left -= 1
    return {index: begins.get(index, 0) + share for index, share in shares.items()}


def pack_tasks(begins: Mapping[int, int], ends: Mapping[int, int], most: int) -> list[list[Range]]:
    """Ranges for at most `most` tasks, each with about the same number of positions."""
    todo = [
        (index, begins.get(index, 0), ends[index])
        for index in sorted(ends)
        if ends[index] > begins.get(index, 0)
    ]
    total = sum(upto - after for _index, after, upto in todo)
    if total == 0:
        return []
    tasks = max(1, min(most, -(-total // LEAST_PER_TASK)))
    size = -(-total // tasks)
    plan: list[list[Range]] = []
    current: list[Range] = []
    room = size
    for index, after, upto in todo:
        while after < upto:
            stop = min(upto, after + room)
            current.append((index, after, stop))
            room -= stop - after
            after = stop
            if room == 0:
                plan.append(current)
                current, room = [], size
    if current:
        plan.append(current)
    return plan
