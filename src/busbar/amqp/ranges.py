"""Finds ranges of delivery-ids at a cost of what is found.

A disposition may name 2^31 ids in twenty bytes. A session has its deliveries in a table, by id. Ranges need an order beside
it: the assigned ids, oldest first, that no range has covered yet.

1. `take` returns the ids of a range and removes them from the order, so that no id is passed twice.
2. An id that is settled by itself stays in the order until a range covers it, or until `compacted` finds that most are so.

Ids are serial numbers of 32 bits. They are compared by their distance from the oldest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from busbar.amqp.credit import MASK, serial_distance
from busbar.amqp.deliveries import SentDelivery

LEAST_ORDER: Final = 1_024  # an order shorter than this is not worth a compaction


def take(order: list[int], first: i64, last: i64) -> list[int]:
    """Remove and return the ids from `first` to `last`; none if `last` is behind `first`."""
    length = serial_distance(first, last)
    if length < 0 or not order:
        return []
    begin = (first - order[0]) & MASK
    stop = begin + length
    taken = _cut(order, begin, stop if stop < MASK else MASK)
    if stop > MASK:  # it begins before the oldest one
        found = _cut(order, 0, stop - MASK - 1)
        taken = taken + found if taken else found
    return taken


def _cut(order: list[int], begin: i64, stop: i64) -> list[int]:
    """Remove and return the ids with a distance of `begin` to `stop` from the oldest one."""
    if not order:
        return []
    low = _index(order, begin)
    high = _index(order, stop + 1)
    taken = order[low:high]
    if taken:
        del order[low:high]
    return taken


def _index(order: list[int], distance: i64) -> i64:
    """The index of the first one with at least this distance from the oldest one."""
    oldest: i64 = order[0]
    low: i64 = 0
    high: i64 = len(order)
    while low < high:
        middle = (low + high) >> 1
        id: i64 = order[middle]
        if ((id - oldest) & MASK) < distance:
            low = middle + 1
        else:
            high = middle
    return low


def compacted(order: list[int], table: dict[int, SentDelivery]) -> list[int]:
    """The order, without the ids that were settled by themselves if they are the majority."""
    if len(order) <= 2 * len(table) + LEAST_ORDER:
        return order
    kept: list[int] = []
    for id in order:
        sent = table.get(id)
        if sent is not None and not sent.disposed:
            kept.append(id)
    return kept


def known_ids(first: i64, last: i64, table: Mapping[int, object]) -> list[int]:
    """The ids from `first` to `last` that are worth looking up in `table`.

    A range may span 2^31 ids: it is walked only when it is not longer than the table, else the table is.
    """
    length = serial_distance(first, last)
    if length == 0:
        return [first]
    if length < 0:
        return []
    if length < len(table):
        ids: list[int] = []
        id = first
        while length >= 0:
            ids.append(id)
            id = (id + 1) & MASK
            length -= 1
        return ids
    reach = length
    return [id for id in table if 0 <= serial_distance(first, id) <= reach]
