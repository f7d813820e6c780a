"""Plans a batch: how much of each fragment it reads, and which task reads which range.

A task costs about as much as reading some thousand messages. So fragments are packed into few partitions, up to the given
maximum, each with ranges of one or more fragments, in order. Positions may have gaps, so the counts here are upper bounds.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark.sql.datasource import InputPartition

LEAST_PER_TASK = 5_000

Range = tuple[int, int, int]
"""A fragment, the position after which reading begins, and the last position."""

K = TypeVar("K", bound=Hashable)
"""A fragment: its index, or its entity and its index."""


@dataclass(frozen=True, slots=True)
class EntityRanges:
    """Ranges of one entity; without a tap, of what the entity holds for receivers."""

    entity: str
    """As the broker spells it."""
    sub_queue: str
    tap: str | None
    owner: str
    ranges: tuple[Range, ...] = ()


class Ranges(InputPartition):
    """The ranges that one task reads, entity by entity."""

    def __init__(self, parts: Sequence[EntityRanges]) -> None:
        super().__init__(None)
        self.parts = tuple(parts)

    def __repr__(self) -> str:
        return f"Ranges({', '.join(f'{part.entity}: {list(part.ranges)}' for part in self.parts)})"


Bounds = tuple[EntityRanges, Mapping[int, int], Mapping[int, int]]
"""An entity without ranges, and by fragment the positions after which reading begins, and the last positions."""


def plan_tasks(entities: Sequence[Bounds], most: int) -> list[Ranges]:
    """The partitions of a batch: at most so many tasks for all entities together."""
    begins: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], int] = {}
    for number, (_, after, upto) in enumerate(entities):
        begins |= {(number, index): position for index, position in after.items()}
        ends |= {(number, index): position for index, position in sorted(upto.items())}
    tasks: list[Ranges] = []
    for packed in pack_tasks(begins, ends, most):
        by_entity: dict[int, list[Range]] = {}
        for (number, index), begin, end in packed:
            by_entity.setdefault(number, []).append((index, begin, end))
        tasks.append(
            Ranges([replace(entities[number][0], ranges=tuple(found)) for number, found in by_entity.items()])
        )
    return tasks


def limit_batch(begins: Mapping[K, int], ends: Mapping[K, int], limit: int | None) -> dict[K, int]:
    """The ends of a batch of at most `limit` positions. Fragments advance in proportion to what they have, so that they
    stay close in time."""
    waiting = {index: max(0, ends[index] - begins.get(index, 0)) for index in ends}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return {index: begins.get(index, 0) + count for index, count in waiting.items()}
    shares = {index: count * limit // total for index, count in waiting.items()}
    left = limit - sum(shares.values())
    # The rest of rounding goes to the fragments that got the smallest part of what they have.
    order = {index: number for number, index in enumerate(waiting)}
    for index in sorted(waiting, key=lambda index: (shares[index] - waiting[index], order[index])):
        if left == 0:
            break
        if shares[index] < waiting[index]:
            shares[index] += 1
            left -= 1
    return {index: begins.get(index, 0) + share for index, share in shares.items()}


def pack_tasks(begins: Mapping[K, int], ends: Mapping[K, int], most: int) -> list[list[tuple[K, int, int]]]:
    """Ranges for at most `most` tasks, each with about the same number of positions, in the order of `ends`. A deep fragment
    is divided, so that all tasks read it."""
    todo = [
        (index, begins.get(index, 0), upto) for index, upto in ends.items() if upto > begins.get(index, 0)
    ]
    total = sum(upto - after for _index, after, upto in todo)
    if total == 0:
        return []
    tasks = max(1, min(most, -(-total // LEAST_PER_TASK)))
    size = -(-total // tasks)
    plan: list[list[tuple[K, int, int]]] = []
    current: list[tuple[K, int, int]] = []
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
