"""What may be concluded from records: since when outcomes are known, what became of messages, and the backlog."""

from __future__ import annotations

from busbar.jobs.insight_figures import (
    BOUNDS,
    Backlog,
    Bin,
    Coverage,
    EntityCounts,
    Fates,
    FragmentCoverage,
    TimeBucket,
    histogram_of,
)
from busbar.jobs.insight_knowledge import FOREVER, KnownSpan, contradicts, fates_of, known_span, with_backlog

BEGAN = 10_000
ALWAYS = KnownSpan(0)


def coverage(events: int | None = 5, began: int | None = BEGAN, lost: tuple[int, ...] = (0, 0)) -> Coverage:
    spans = tuple(
        FragmentCoverage(index, 0, 9, event_after=position, event_upto=9, event_lost=position)
        for index, position in enumerate(lost)
    )
    return Coverage("somewhere", began, 9, events, spans)


def test_outcomes_are_known_since_the_tap_was_made() -> None:
    assert known_span(coverage(), {0: 12_000}, 15_000, True) == KnownSpan(BEGAN)
    assert known_span(coverage(), {}, None, True) == KnownSpan(BEGAN), "nothing happened, and that is known"
    assert known_span(coverage(events=None), {0: 12_000}, 15_000, True).since_time is None


def test_after_a_loss_they_are_known_since_the_first_event_that_was_kept() -> None:
    assert known_span(coverage(lost=(4, 0)), {0: 13_000, 1: 11_000}, 15_000, True) == KnownSpan(13_000)
    assert known_span(coverage(lost=(4, 2)), {0: 13_000}, 15_000, True).since_time is None


def test_an_archive_is_known_from_its_first_event_to_its_last() -> None:
    archive = coverage(began=None)
    assert known_span(archive, {0: 13_000, 1: 11_000}, 15_000, False) == KnownSpan(11_000, 15_000)
    assert known_span(archive, {}, None, False) == KnownSpan(FOREVER, FOREVER)


def test_a_message_without_a_recorded_end_waits_only_if_its_end_would_be_recorded() -> None:
    assert fates_of(1000, 1000, 300, 300, None, False) == Fates(300, 700, 0)
    assert fates_of(1000, 0, 0, 0, None, False) == Fates(0, 0, 1000)
    # 400 came before, of which 100 ended later; 600 came since, of which 450 ended
    assert fates_of(1000, 600, 550, 450, None, False) == Fates(550, 150, 300)
    assert fates_of(10, 10, 12, 12, None, False) == Fates(10, 0, 0), "ends of other messages are no debt"


def test_what_a_tap_shows_in_the_queue() -> None:
    states = {"active": 5, "deferred": 2, "dead-lettered": 30, "done": 63}
    assert fates_of(100, 100, 93, 93, states, False).held == 7
    assert fates_of(100, 100, 93, 93, states, True).held == 30


def slots(*sent: int | None) -> list[TimeBucket]:
    return [TimeBucket(1000 * at, count, 0, None, None) for at, count in enumerate(sent)]


def levels(found: tuple[TimeBucket, ...]) -> list[int | None]:
    return [slot.backlog for slot in found]


def test_the_backlog_ends_at_the_count_and_follows_backwards() -> None:
    found, kind = with_backlog(slots(10, 20, 0), {1000: 5, 2000: 15}, ALWAYS, EntityCounts(0, 110, 0, 0))
    assert kind is Backlog.COUNTED
    assert levels(found) == [110, 125, 110], "100 were there before"


def test_without_a_count_the_backlog_is_relative_to_its_lowest() -> None:
    found, kind = with_backlog(slots(10, 0, 30), {1000: 25}, ALWAYS, None)
    assert (kind, levels(found)) == (Backlog.RELATIVE, [25, 0, 30])


def test_there_is_no_backlog_for_a_time_that_is_not_known() -> None:
    counts = EntityCounts(0, 30, 0, 0)
    found, kind = with_backlog(slots(10, 20, 30), {}, KnownSpan(2000), counts)
    assert (kind, levels(found)) == (Backlog.COUNTED, [None, None, 30])
    found, kind = with_backlog(slots(10, 20, 30), {}, KnownSpan(0, 1500), None)
    assert (kind, levels(found)) == (Backlog.RELATIVE, [10, 30, None])
    for sent, known in ((slots(10, 20), KnownSpan()), (slots(None, 20), ALWAYS), ([], ALWAYS)):
        found, kind = with_backlog(sent, {}, known, counts)
        assert kind is Backlog.UNKNOWN and set(levels(found)) <= {None}


def test_a_backlog_below_zero_contradicts_the_count() -> None:
    found, kind = with_backlog(slots(5000, 0), {}, ALWAYS, EntityCounts(0, 10, 0, 0))
    assert kind is Backlog.CONTRADICTED and levels(found) == [None, None]
    # some messages ended between the records and the count
    found, kind = with_backlog(slots(5000, 0), {1000: 4950}, ALWAYS, EntityCounts(0, 0, 0, 0))
    assert kind is Backlog.COUNTED and levels(found) == [4950, 0]


def test_a_queue_with_fewer_messages_than_its_records_have_contradicts_them() -> None:
    span = coverage()
    count = EntityCounts(0, 100, 0, 0)
    assert contradicts(Fates(0, 0, 500, {"active": 101}, 101), count, span), (
        "the tap was read after the count"
    )
    assert not contradicts(Fates(0, 0, 500, {"active": 100}, 100), count, span)
    assert contradicts(Fates(1000, 900), count, span)
    assert not contradicts(Fates(1000, 200), count, span), "within what may end in a moment"
    assert not contradicts(Fates(1000, 900), None, span)
    partial = Coverage("tap", BEGAN, 9, 9, unavailable=(1,))
    assert not contradicts(Fates(1000, 900), count, partial), "the count may be of other fragments"


def test_a_histogram_has_its_empty_bins() -> None:
    assert histogram_of({}) == ()
    assert histogram_of({0: 3, 2: 5}) == (Bin(1, 3), Bin(2, 0), Bin(5, 5))
    assert histogram_of({len(BOUNDS): 2}) == (Bin(None, 2),)
