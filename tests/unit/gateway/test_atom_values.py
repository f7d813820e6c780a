from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.gateway.http.atom_values import NEVER, read_any, read_boolean, read_integer, write_any, write_time
from busbar.model.duration import UNLIMITED, read_duration, write_duration
from busbar.model.entities import PropertyValue, TypedText


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1M", 60_000),
        ("PT60S", 60_000),
        ("PT0.5S", 500),
        ("PT5.0000001S", 5_001),
        ("P14D", 14 * 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P2W", 14 * 86_400_000),
        ("P1Y", 365 * 86_400_000),
        ("P1M", 30 * 86_400_000),
        (UNLIMITED, 0),
        ("P10675199DT2H48M5.47758S", 0),  # Python's rounding
        ("P10675200D", 0),
        ("PT256204778H48M5S", 0),
    ],
)
def test_a_duration_is_read(text: str, milliseconds: int) -> None:
    assert read_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1M", "PT-1S", "-PT1S", "PT0S", "P0D", "00:01:00", "PT1M ", "PT1,5S"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must be"):
        read_duration(text)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, UNLIMITED),
        (1, "PT0.001S"),
        (30_000, "PT30S"),
        (60_000, "PT1M"),
        (600_000, "PT10M"),
        (86_400_000, "P1D"),
        (93_784_500, "P1DT2H3M4.5S"),
    ],
)
def test_a_duration_is_written_as_the_service_does(milliseconds: int, text: str) -> None:
    assert write_duration(milliseconds) == text


@given(st.integers(0, 10_675_198 * 86_400_000))
def test_a_duration_comes_back(milliseconds: int) -> None:
    assert read_duration(write_duration(milliseconds)) == milliseconds


def test_times_have_their_zone() -> None:
    assert write_time(0) == NEVER
    assert write_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"


def test_booleans_and_integers() -> None:
    assert [read_boolean(text) for text in ("true", "False", "1", "0")] == [True, False, True, False]
    assert [read_integer(text) for text in ("10", "-1", "+7")] == [10, -1, 7]
    for text in ("yes", ""):
        with pytest.raises(ValueError, match="true or false"):
            read_boolean(text)
    for text in ("1.0", "ten", "", "9" * 19, "9" * 100, "1_000", "١"):
        with pytest.raises(ValueError, match="whole number"):
            read_integer(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", " kept as it is ", " kept as it is "),
        ("int", "5", 5),
        ("long", "5000000000", 5_000_000_000),
        ("double", "5", 5.0),
        ("double", "-INF", -math.inf),
        ("boolean", "true", True),
        ("dateTime", "2020-01-01T00:00:00Z", TypedText("dateTime", "2020-01-01T00:00:00Z")),
        ("duration", "P1D", TypedText("duration", "P1D")),
    ],
)
def test_a_typed_value_is_read(kind: str, text: str, value: PropertyValue | TypedText) -> None:
    read = read_any(kind, text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int", "x"), ("double", "1_0"), ("double", "inf"), ("boolean", "no"), ("hexBinary", "00")],
)
def test_a_value_that_is_not_of_its_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_any(kind, text)


@given(
    st.one_of(
        st.text(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.booleans(),
        st.just(TypedText("dateTime", "2020-01-01T00:00:00Z")),
    )
)
def test_a_typed_value_comes_back(value: PropertyValue | TypedText) -> None:
    kind, text = write_any(value)
    assert read_any(kind, text) == value


def test_small_integers_are_int_which_is_all_that_javascript_knows() -> None:
    assert write_any(2**31 - 1)[0] == "int"
    assert write_any(-(2**31))[0] == "int"
    assert write_any(2**31)[0] == "long"
    assert write_any(True) == ("boolean", "true")
