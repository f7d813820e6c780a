"""What the records of an entity allow to conclude: since when outcomes are known, what became of messages, the backlog.

1. A message that came while outcomes were recorded, and whose end is not recorded, is waiting.
2. A message that came at another time, and whose end is not recorded, is unknown. It counts as neither.
3. Outcomes are known since the tap was made. If events of a fragment were lost, they are known since the first event that
   fragment has kept. The records of an archive are known from its first event to its last.
4. A count of the entity, or the state that a tap shows, is an observation. It takes precedence over a conclusion.
5. If the count is lower than what the tap shows in the queue, or the backlog falls below zero, something is not in the
   records. Then nothing is concluded about the backlog.

Nothing here uses Spark: insight_measures.py passes the sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from busbar.jobs.insight_figures import Backlog, Coverage, EntityCounts, Fates, TimeBucket

FOREVER = 1 << 62
HELD_STATES = ("active", "deferred")
DEAD_STATES = ("dead-lettered", "dead-lettered-deferred")
TOLERANCE = 0.02
TOLERATED = 100
"""By how much records and counts may differ, as a part of the messages and at least: counts are taken a moment later."""


@dataclass(frozen=True, slots=True)
class KnownSpan:
    """The time in which outcomes were recorded without a gap, in ms since 1970; empty if they were not."""

    since: int = FOREVER
    until: int = FOREVER

    @property
    def since_time(self) -> int | None:
        return None if self.since == FOREVER else self.since


def known_span(
    coverage: Coverage, first_events: Mapping[int, int], last_event: int | None, is_live: bool
) -> KnownSpan:
    """When outcomes were recorded. `first_events` has the time of the first recorded event of each fragment.

    `is_live`: a tap recorded up to the end of the span. Of an archive, the last event is the end of what is known.
    """
    if coverage.events is None:
        return KnownSpan()
    lossy = [each.index for each in coverage.fragments if each.event_lost]
    if is_live:
        resumed = [first_events.get(index, FOREVER) for index in lossy]
        return KnownSpan(max([coverage.began_time or 0, *resumed]))
    if not first_events or last_event is None:
        return KnownSpan()
    began = coverage.began_time
    return KnownSpan(min(first_events.values()) if began is None else began, last_event)


def fates_of(
    sent: int,
    sent_known: int,
    ended: int,
    ended_known: int,
    states: Mapping[str, int] | None,
    is_dead_letters: bool,
) -> Fates:
    """What became of messages. `_known` counts messages that came within the known span."""
    waiting = max(0, sent_known - ended_known)
    unknown = max(0, (sent - sent_known) - (ended - ended_known))
    held = None
    if states is not None:
        held = sum(states.get(name, 0) for name in (DEAD_STATES if is_dead_letters else HELD_STATES))
    return Fates(sent - waiting - unknown, waiting, unknown, states, held)


def with_backlog(
    slots: Sequence[TimeBucket],
    ended: Mapping[int, int],
    known: KnownSpan,
    counts: EntityCounts | None,
) -> tuple[tuple[TimeBucket, ...], Backlog]:
    """The slots with the backlog at the end of each, and what it is. `ended` has the ends by the time of their slot.

    The last backlog is the count. The others follow from it backwards, by what came and what ended after them. Without a
    count the backlog is relative to the lowest one.
    """
    inside = [slot for slot in slots if slot.time >= known.since and slot.time <= known.until]
    if not inside or any(slot.sent is None for slot in inside):
        return tuple(slots), Backlog.UNKNOWN
    levels: dict[int, int] = {}
    level = came = 0
    for slot in inside:
        came += slot.sent or 0
        level += (slot.sent or 0) - ended.get(slot.time, 0)
        levels[slot.time] = level
    kind = Backlog.RELATIVE
    base = -min(0, *levels.values())
    if counts is not None:
        kind = Backlog.COUNTED
        if counts.waiting - level - base < -max(TOLERATED, came * TOLERANCE):
            return tuple(slots), Backlog.CONTRADICTED
        base = counts.waiting - level
    levels = {time: max(0, base + value) for time, value in levels.items()}
    return tuple(replace(slot, backlog=levels.get(slot.time)) for slot in slots), kind


def contradicts(fates: Fates, counts: EntityCounts | None, coverage: Coverage) -> bool:
    """Whether the entity has fewer messages than the tap, or the records, have in it.

    The count was taken when the span was chosen, and the tap was read later: messages of the span can only have left since.
    """
    if counts is None or coverage.unavailable:
        return False
    if fates.held is not None and fates.held > counts.waiting:
        return True
    slack = max(TOLERATED, (fates.waiting + fates.ended) * TOLERANCE)
    return fates.waiting > counts.waiting + slack
