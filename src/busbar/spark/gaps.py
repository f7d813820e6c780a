"""Skips numbers that no message has, before a batch is divided into tasks or limited.

An old queue may begin with millions of unused numbers. Tasks are planned by numbers, so without this some tasks would find
nothing, and a limit would count numbers instead of messages. What is skipped is empty for every later read as well: nothing
below a durable end appears later.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from busbar.spark.connection import client_errors, taps_of
from busbar.spark.entity_names import label_of
from busbar.spark.errors import SourceError
from busbar.spark.options import EVENTS, SourceOptions
from busbar.spark.planning import LEAST_PER_TASK, Bounds


def skip_gaps(options: SourceOptions, entities: Sequence[Bounds]) -> list[Bounds]:
    """Move the begins of entities to their first messages, if there is enough for several tasks."""
    total = sum(
        max(0, end - begins.get(index, 0)) for _, begins, ends in entities for index, end in ends.items()
    )
    if total <= LEAST_PER_TASK or options.max_partitions == 1:
        return list(entities)
    return [
        (
            part,
            first_positions(_options_for(options, part.entity, part.sub_queue), part.tap, begins, ends),
            ends,
        )
        for part, begins, ends in entities
    ]


def _options_for(options: SourceOptions, entity: str, sub_queue: str) -> SourceOptions:
    return options.of(label_of(entity, sub_queue)) if options.several else options


def first_positions(
    options: SourceOptions, tap: str | None, begins: Mapping[int, int], ends: Mapping[int, int]
) -> dict[int, int]:
    """The positions of one entity, by fragment, moved up to just before the first existing message."""
    taps = taps_of(options)
    by_dead_letter = bool(options.sub_queue) and options.stream != EVENTS
    moved: dict[int, int] = {}
    for index, end in ends.items():
        position = begins.get(index, 0)
        moved[index] = position
        if end <= position:
            continue
        try:
            with client_errors(options):
                page = taps.read(tap, index, position, end, stream=options.stream, count=1)
        except SourceError as error:
            if options.fail_on_loss or error.condition != "BUSBAR_DATA_LOSS":
                raise
            continue  # the task that reads it continues behind the loss
        if page.count == 0:
            moved[index] = max(position, min(page.upto, end))
            continue
        number, dead = struct.unpack_from(">qq", page.rows, 4)
        moved[index] = max(position, (dead if by_dead_letter else number) - 1)
    return moved
