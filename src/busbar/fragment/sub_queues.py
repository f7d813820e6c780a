"""The sub-queues of a fragment, as a table of lanes.

    sub-queue              available        deferred                  peek shows as well
    main                   ACTIVE           DEFERRED                  SCHEDULED
    dead-letter            DEAD             DEAD_DEFERRED
    transfer dead-letter   TRANSFER_DEAD    TRANSFER_DEAD_DEFERRED

A sub-queue is named by its available lane. Only available lanes have a window. A peek that names a lane of deferred or
scheduled messages shows that lane alone. The outbox is no sub-queue: a peek that names its lane shows it, and nothing else
reaches it. In both dead-letter queues nothing expires or is dead-lettered.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.model.message import (
    ACTIVE,
    DEAD,
    DEAD_DEFERRED,
    DEFERRED,
    OUTBOX,
    SCHEDULED,
    TRANSFER_DEAD,
    TRANSFER_DEAD_DEFERRED,
)

SUB_QUEUES: Final = (ACTIVE, DEAD, TRANSFER_DEAD)

_SUB_QUEUE: Final[dict[int, int]] = {
    DEAD: DEAD,
    DEAD_DEFERRED: DEAD,
    TRANSFER_DEAD: TRANSFER_DEAD,
    TRANSFER_DEAD_DEFERRED: TRANSFER_DEAD,
}
_DEFERRED: Final[dict[int, int]] = {
    ACTIVE: DEFERRED,
    DEAD: DEAD_DEFERRED,
    TRANSFER_DEAD: TRANSFER_DEAD_DEFERRED,
}
_PEEKED: Final[dict[int, list[int]]] = {
    ACTIVE: [ACTIVE, DEFERRED, SCHEDULED],
    DEAD: [DEAD, DEAD_DEFERRED],
    TRANSFER_DEAD: [TRANSFER_DEAD, TRANSFER_DEAD_DEFERRED],
    DEFERRED: [DEFERRED],
    SCHEDULED: [SCHEDULED],
    DEAD_DEFERRED: [DEAD_DEFERRED],
    TRANSFER_DEAD_DEFERRED: [TRANSFER_DEAD_DEFERRED],
    OUTBOX: [OUTBOX],
}


def sub_queue_of(lane: i64) -> i64:
    """The sub-queue of a lane. What a command names and is none stands for the main sub-queue."""
    if lane == ACTIVE:
        return ACTIVE
    found: i64 = _SUB_QUEUE.get(lane, ACTIVE)
    return found


def deferred_lane(lane: i64) -> i64:
    """The lane of the deferred messages of the sub-queue that has this lane."""
    found: i64 = _DEFERRED[sub_queue_of(lane)]
    return found


def in_dead_letter_queue(lane: i64) -> bool:
    """Whether the lane belongs to one of the two dead-letter queues."""
    return sub_queue_of(lane) != ACTIVE


def peeked_lanes(sub: i64) -> list[int]:
    """The lanes that a peek of a sub-queue, of one of its lanes, or of the outbox, shows."""
    return _PEEKED.get(sub, _PEEKED[ACTIVE])
