"""When a connection is closed because it is not used or not authenticated: every state, before and after its deadlines."""

from __future__ import annotations

import pytest

from busbar.gateway.amqp.connection_deadlines import (
    LINKLESS_TIMEOUT,
    NO_LINK,
    NO_TOKEN,
    ConnectionDeadlines,
)
from busbar.model.limits import Limits

LIMITS = Limits(token_timeout=20_000, first_link_timeout=60_000)
START = 1_000_000


@pytest.mark.parametrize(
    ("has_token", "has_link", "deadlines", "reason"),
    [
        (True, True, [], None),
        (True, False, [60_000], NO_LINK),
        (False, True, [20_000], NO_TOKEN),
        (False, False, [20_000, 60_000], NO_TOKEN),
    ],
)
def test_a_new_connection(has_token: bool, has_link: bool, deadlines: list[int], reason: str | None) -> None:
    of_new = ConnectionDeadlines(LIMITS, START)
    assert of_new.pending(has_token, has_link) == [START + wait for wait in deadlines]
    if deadlines:
        first = START + deadlines[0]
        assert of_new.reason_to_close(has_token, has_link, first - 1) is None
        assert of_new.reason_to_close(has_token, has_link, first) == reason
    else:
        assert of_new.reason_to_close(has_token, has_link, START + 10 * LINKLESS_TIMEOUT) is None


def test_after_its_last_link_a_connection_stays_longer_than_before_its_first() -> None:
    deadlines = ConnectionDeadlines(LIMITS, START)
    assert not deadlines.has_changed
    deadlines.last_link_ended(START + 5)
    assert deadlines.has_changed
    assert deadlines.pending(True, False) == [START + 5 + LINKLESS_TIMEOUT]
    assert deadlines.reason_to_close(True, False, START + 4 + LINKLESS_TIMEOUT) is None
    assert deadlines.reason_to_close(True, False, START + 5 + LINKLESS_TIMEOUT) == NO_LINK


def test_after_its_last_token_a_client_has_the_time_of_a_new_one() -> None:
    deadlines = ConnectionDeadlines(LIMITS, START)
    deadlines.token_ended(START + 100_000)
    assert deadlines.has_changed
    assert deadlines.pending(False, True) == [START + 120_000]
    assert deadlines.reason_to_close(False, True, START + 119_999) is None
    assert deadlines.reason_to_close(False, True, START + 120_000) == NO_TOKEN
