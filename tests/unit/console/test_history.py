"""What the console keeps of the last hour: bounded, with rates that a restart of the broker does not falsify."""

from __future__ import annotations

from busbar.console.history import (
    HOUR_SECONDS,
    MAX_ENTITIES,
    SAMPLES,
    WHOLE,
    CountHistory,
    TimedValue,
    thinned,
)
from busbar.console.namespace import HeldCounts


def test_samples_are_those_of_an_hour() -> None:
    history = CountHistory()
    for number in range(2 * SAMPLES):
        history.add(number * 10.0, {"orders": HeldCounts(number, 1)})
    now = (2 * SAMPLES - 1) * 10.0
    found = history.messages("orders", now)
    assert found[-1] == TimedValue(0.0, 2 * SAMPLES - 1)
    assert found[0].age <= HOUR_SECONDS and len(found) == HOUR_SECONDS / 10 + 1
    assert [each.value for each in history.dead_letters(WHOLE, now)] == [1] * len(found)


def test_the_whole_is_the_sum() -> None:
    history = CountHistory()
    history.add(0.0, {"a": HeldCounts(2, 1), "b": HeldCounts(3, 0)})
    assert [each.value for each in history.messages(WHOLE, 1.0)] == [5]
    assert [each.value for each in history.dead_letters(WHOLE, 1.0)] == [1]


def test_a_rate_is_the_difference_of_two_samples() -> None:
    history = CountHistory()
    history.add(0.0, {"a": HeldCounts(0, 0, 100, 40)})
    assert history.rates("a", 0.0).incoming is None
    history.add(5.0, {"a": HeldCounts(0, 0, 150, 50)})
    rates = history.rates("a", 5.0)
    assert (rates.incoming, rates.outgoing) == (10.0, 2.0)
    history.add(10.0, {"a": HeldCounts(0, 0, 3, 60)})  # the broker was started again
    rates = history.rates("a", 10.0)
    assert (rates.incoming, rates.outgoing) == (None, 2.0)


def test_counters_that_are_not_reported_have_no_rate() -> None:
    history = CountHistory()
    for second in (0.0, 5.0):
        history.add(second, {"a": HeldCounts(1, 0)})
    assert history.rates("a", 5.0).incoming is None and history.incoming(WHOLE, 5.0) == []


def test_entities_without_messages_and_too_many_have_no_series() -> None:
    history = CountHistory()
    counts = {f"q{number}": HeldCounts(1, 0) for number in range(MAX_ENTITIES + 100)}
    history.add(0.0, {"empty": HeldCounts(0, 0), **counts})
    assert history.messages("empty", 0.0) == []
    kept = [path for path in counts if history.messages(path, 0.0)]
    assert len(kept) == MAX_ENTITIES
    assert history.messages(WHOLE, 0.0)[0].value == len(counts)


def test_an_entity_that_is_gone_makes_room() -> None:
    history = CountHistory()
    history.add(0.0, {f"old{number}": HeldCounts(1, 0) for number in range(MAX_ENTITIES)})
    for number in range(1, 2 * SAMPLES + 1):
        history.add(number * 5.0, {"new": HeldCounts(1, 0)})
    now = 2 * SAMPLES * 5.0
    assert history.messages("old0", now) == []
    assert history.messages("new", now)[-1].value == 1


def test_thinning_keeps_peaks_and_the_end() -> None:
    values = [TimedValue(100.0 - number, 9 if number == 37 else number % 3) for number in range(100)]
    found = thinned(values, 10)
    assert len(found) <= 10 and max(each.value for each in found) == 9
    assert found[-1] == values[-1]
    assert thinned(values[:5], 10) == values[:5]
