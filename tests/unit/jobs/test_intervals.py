"""Durations and times as users write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from busbar.jobs.intervals import ValueRefused, interval_ms, moment


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("5s", 5_000),
        ("200ms", 200),
        ("1m", 60_000),
        ("1h30m", 5_400_000),
        ("0.5s", 500),
        ("10 seconds", 10_000),
        ("200 milliseconds", 200),
        (" 1 Minute ", 60_000),
        ("0s", 0),
        ("2d", 172_800_000),
        ("5", 5_000),
        ("PT1M30S", 90_000),
        ("pt0.5s", 500),
    ],
)
def test_a_duration(text: str, milliseconds: int) -> None:
    assert interval_ms("interval", text) == milliseconds


@pytest.mark.parametrize("text", ["", "s", "PT", "P99999999D", "5 bananas", "-1s", "5s and", "٥s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueRefused, match="it is a duration like 200ms, 10s, 1m or 1h"):
        interval_ms("interval", text)


def test_a_time_is_in_utc() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31T12:00", "2026-01-31T13:00+01:00", " 2026-01-31 12:00 "):
        assert moment("--from", text) == noon
    assert moment("--from", "2026-01-31").isoformat() == "2026-01-31T00:00:00+00:00"
    with pytest.raises(ValueRefused, match="--from is 'noon'"):
        moment("--from", "noon")
