from __future__ import annotations

import pytest

from busbar.cli import values
from busbar.model.duration import UNLIMITED


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("30s", "PT30S"),
        ("5m", "PT5M"),
        ("1h", "PT1H"),
        ("1h30m", "PT1H30M"),
        ("14d", "P14D"),
        ("1d12h", "P1DT12H"),
        ("1.5s", "PT1.5S"),
        ("PT1M", "PT1M"),
        ("pt1m", "PT1M"),
        ("P14D", "P14D"),
        ("unlimited", UNLIMITED),
        ("P10675199DT2H48M5.4775807S", UNLIMITED),
    ],
)
def test_durations(text: str, iso: str) -> None:
    assert values.duration(text) == iso


@pytest.mark.parametrize("text", ["", "5", "5x", "m5", "PT", "0s", "-5s", "5 m", "1h1d", "٣s"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration like 30s"):
        values.duration(text)


def test_unlimited_is_recognised_as_clients_write_it() -> None:
    assert values.is_unlimited(UNLIMITED)
    assert values.is_unlimited("P10675199DT2H48M5.47758S")
    assert not values.is_unlimited("P14D")
    assert not values.is_unlimited("PT1M")


def test_seconds() -> None:
    assert values.seconds("90") == 90
    assert values.seconds("20m") == 1200
    assert values.seconds("PT1H") == 3600
    assert values.seconds("0.2s") == 1
    for wrong in ("unlimited", "0", "soon"):
        with pytest.raises(ValueError):
            values.seconds(wrong)


@pytest.mark.parametrize(
    ("text", "wire"), [("true", "true"), ("True", "true"), ("1", "true"), ("no", "false"), ("F", "false")]
)
def test_booleans(text: str, wire: str) -> None:
    assert values.boolean(text) == wire


def test_other_values() -> None:
    with pytest.raises(ValueError, match="'maybe' is neither true nor false"):
        values.boolean("maybe")
    assert values.integer("01024") == "1024"
    for wrong in ("1.5", "-1", "", "1e3", "٣", "1" * 19):
        with pytest.raises(ValueError, match="is not a whole number"):
            values.integer(wrong)
    assert values.status("senddisabled") == "SendDisabled"
    with pytest.raises(ValueError, match="is not one of Active, Disabled"):
        values.status("Deleting")
    assert values.plain("a <b> & \n ü") == "a <b> & \n ü"
    for wrong in ("\x1b[31m", "\0", "\ud800"):
        with pytest.raises(ValueError, match="is not allowed"):
            values.plain(wrong)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1500", 1500),
        ("512KiB", 512 << 10),
        ("100 mib", 100 << 20),
        ("2GiB", 2 << 30),
        ("unlimited", 0),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert values.size(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "1.5GiB", "-1", "10MB", "٣KiB"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size like 512KiB"):
        values.size(text)


@pytest.mark.parametrize("text", ["30s", "1m", "1h30m", "14d", "1d2h3m4.5s", "unlimited"])
def test_a_duration_is_shown_as_it_is_typed(text: str) -> None:
    assert values.short_duration(values.duration(text)) == text
