"""The counts of the last hour, of the whole namespace and of its entities: what the plots show.

1. A sample is the counts of one moment. Samples come every few seconds; the oldest are overwritten after an hour.
2. An entity gets a series when it holds messages or has passed some. It loses the series when an hour has passed without.
3. At most MAX_ENTITIES have a series. Others are part of the whole only.
4. Counters that the broker does not report are UNKNOWN. A counter that falls has begun again: it gives no rate.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from busbar.console.namespace import HeldCounts

HOUR_SECONDS = 3600.0
SAMPLES = 720
MAX_ENTITIES = 500
UNKNOWN = -1
WHOLE = ""
"""The name of the whole namespace among those of entities."""

FIELDS = 4
"""Of each sample: messages, dead letters, and the counters of messages in and out."""


@dataclass(frozen=True, slots=True)
class TimedValue:
    """A value of a plot."""

    age: float
    """In seconds."""
    value: float


@dataclass(frozen=True, slots=True)
class MessageRates:
    """Messages in a second, by the last two samples. None: not reported."""

    incoming: float | None = None
    outgoing: float | None = None


class CountHistory:
    def __init__(self) -> None:
        self._times = array("d", [0.0]) * SAMPLES
        self._taken = 0
        self._series: dict[str, array[int]] = {}

    def add(self, now: float, entities: Mapping[str, HeldCounts]) -> None:
        """Add the counts of all entities at a time, in seconds of a clock that never goes back."""
        place = self._taken % SAMPLES
        self._times[place] = now
        self._taken += 1
        self._write(WHOLE, place, _total(entities.values()))
        if place == 0:
            self._forget_quiet()
        for path, counts in entities.items():
            if path in self._series or (_is_used(counts) and len(self._series) <= MAX_ENTITIES):
                self._write(path, place, counts)
        for path in self._series.keys() - entities.keys() - {WHOLE}:
            self._write(path, place, HeldCounts(UNKNOWN, UNKNOWN))

    def messages(self, path: str, now: float) -> list[TimedValue]:
        return self._values(path, 0, now)

    def dead_letters(self, path: str, now: float) -> list[TimedValue]:
        return self._values(path, 1, now)

    def incoming(self, path: str, now: float) -> list[TimedValue]:
        return self._rates(path, 2, now)

    def outgoing(self, path: str, now: float) -> list[TimedValue]:
        return self._rates(path, 3, now)

    def rates(self, path: str, now: float) -> MessageRates:
        found = [self._rates(path, field, now, 2) for field in (2, 3)]
        return MessageRates(*(values[-1].value if values else None for values in found))

    def _write(self, path: str, place: int, counts: HeldCounts) -> None:
        series = self._series.get(path)
        if series is None:
            series = self._series[path] = array("q", [UNKNOWN]) * (SAMPLES * FIELDS)
        values = (counts.messages, counts.dead_letters, counts.incoming, counts.outgoing)
        series[place * FIELDS : (place + 1) * FIELDS] = array("q", values)

    def _forget_quiet(self) -> None:
        """Drop the series in which nothing but zeros are left."""
        for path in [path for path in self._series if path != WHOLE]:
            series = self._series[path]
            held = max(max(series[0::FIELDS]), max(series[1::FIELDS]))
            if held <= 0 and all(_spread(series[field::FIELDS]) == 0 for field in (2, 3)):
                del self._series[path]

    def _places(self, most: int) -> Iterator[int]:
        first = max(0, self._taken - min(most, SAMPLES))
        return (number % SAMPLES for number in range(first, self._taken))

    def _values(self, path: str, field: int, now: float, most: int = SAMPLES) -> list[TimedValue]:
        series = self._series.get(path)
        if series is None:
            return []
        return [
            TimedValue(age, series[place * FIELDS + field])
            for place in self._places(most)
            if (age := now - self._times[place]) <= HOUR_SECONDS and series[place * FIELDS + field] >= 0
        ]

    def _rates(self, path: str, field: int, now: float, most: int = SAMPLES) -> list[TimedValue]:
        values = self._values(path, field, now, most)
        return [
            TimedValue(after.age, (after.value - before.value) / (before.age - after.age))
            for before, after in pairwise(values)
            if after.value >= before.value and before.age > after.age
        ]


def thinned(values: Sequence[TimedValue], most: int) -> list[TimedValue]:
    """At most so many values: of neighbours, the largest. The last one always stays."""
    if len(values) <= most:
        return [*values]
    step = -(-len(values) // most)
    groups = [values[at : at + step] for at in range(0, len(values), step)]
    found = [max(group, key=lambda each: each.value) for group in groups]
    found[-1] = values[-1]
    return found


def _total(found: Collection[HeldCounts]) -> HeldCounts:
    known = [each for each in found if each.incoming >= 0]
    return HeldCounts(
        sum(each.messages for each in found),
        sum(each.dead_letters for each in found),
        sum(each.incoming for each in known) if known else UNKNOWN,
        sum(each.outgoing for each in known) if known else UNKNOWN,
    )


def _is_used(counts: HeldCounts) -> bool:
    return counts.messages > 0 or counts.dead_letters > 0 or counts.incoming > 0 or counts.outgoing > 0


def _spread(values: array[int]) -> int:
    known = [value for value in values if value >= 0]
    return max(known) - min(known) if known else 0
