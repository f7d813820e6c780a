"""When an unavailable store is tried again, and when an empty one takes its place (the rules of reopening.py)."""

from __future__ import annotations

import pytest

from busbar.broker.reopening import MAX_BACKOFF, MIN_BACKOFF, MISSING_FILE_GRACE, ReopenSchedule


def pauses(schedule: ReopenSchedule, count: int) -> list[int]:
    """Between attempts that all fail."""
    now, found = 1_000, []
    for _ in range(count):
        assert not schedule.recreates(now)
        schedule.failed(now, missing=False)
        found.append(schedule.next_attempt - now)
        assert not schedule.is_due(schedule.next_attempt - 1)
        assert schedule.is_due(schedule.next_attempt)
        now = schedule.next_attempt
    return found


def test_pauses_double_up_to_the_longest() -> None:
    schedule = ReopenSchedule()
    schedule.begin(replaces=False)
    assert pauses(schedule, 8) == [100, 200, 400, 800, 1_600, 3_200, MAX_BACKOFF, MAX_BACKOFF]
    schedule.begin(replaces=False)
    assert pauses(schedule, 1) == [MIN_BACKOFF], "another outage begins with the shortest pause"


def test_what_is_said_during_an_attempt_that_fails_is_followed_by_another_at_once() -> None:
    schedule = ReopenSchedule()
    schedule.begin(replaces=False)
    assert not schedule.recreates(50)
    schedule.hurry()
    schedule.failed(60, missing=False)
    assert schedule.is_due(60)
    assert not schedule.recreates(60)
    schedule.failed(70, missing=False)
    assert not schedule.is_due(70), "once"


def test_a_store_that_is_offline_is_not_tried() -> None:
    schedule = ReopenSchedule()
    schedule.begin(replaces=True)
    schedule.take_offline()
    schedule.failed(10, missing=True)
    assert schedule.next_attempt == 0
    assert not schedule.recreates(10 + MISSING_FILE_GRACE), "its file may be somewhere else on purpose"
    schedule.bring_online()
    assert not schedule.offline


@pytest.mark.parametrize("replaces", [True, False])
def test_only_what_was_served_is_replaced_when_it_is_missing(replaces: bool) -> None:
    schedule = ReopenSchedule()
    schedule.begin(replaces=replaces)
    schedule.failed(1_000, missing=True)
    assert not schedule.recreates(999 + MISSING_FILE_GRACE)
    schedule.failed(999 + MISSING_FILE_GRACE, missing=True)
    assert schedule.recreates(1_000 + MISSING_FILE_GRACE) is replaces


def test_a_store_that_fails_for_another_reason_is_there_again() -> None:
    schedule = ReopenSchedule()
    schedule.begin(replaces=True)
    schedule.failed(1_000, missing=True)
    schedule.failed(2_000, missing=False)
    schedule.failed(3_000, missing=True)
    assert not schedule.recreates(2_999 + MISSING_FILE_GRACE)
    assert schedule.recreates(3_000 + MISSING_FILE_GRACE)


def test_a_reset_opens_what_can_be_opened() -> None:
    schedule = ReopenSchedule()
    schedule.begin(replaces=True)
    schedule.reset()
    assert not schedule.recreates(10), "it may be whole again"
    schedule.succeeded()
    schedule.begin(replaces=True)
    assert not schedule.recreates(20), "the reset is over"
    assert not schedule.falls_back()


def test_a_reset_re_creates_what_cannot_be_opened() -> None:
    schedule = ReopenSchedule()
    schedule.begin(replaces=True)
    schedule.reset()
    assert not schedule.recreates(10)
    assert schedule.falls_back()
    assert not schedule.falls_back(), "once"


def test_a_store_that_was_taken_offline_is_re_created_without_a_look() -> None:
    """The operator was asked, and confirmed."""
    schedule = ReopenSchedule()
    schedule.begin(replaces=True)
    schedule.take_offline()
    schedule.reset()
    assert schedule.recreates(10)
