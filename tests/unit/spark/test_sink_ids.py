"""Ids follow from values: their form is pinned, since a job must know its messages again after an upgrade."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.spark.sink_ids import LONGEST_ID, hashed_id, source_id

scalars = st.none() | st.booleans() | st.integers() | st.text() | st.binary()


def test_the_form_of_an_id_never_changes() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    values = (
        "order",
        17,
        None,
        True,
        1.5,
        b"\x00",
        noon,
        date(2026, 1, 31),
        Decimal("1.50"),
        [1, "a"],
        {"b": 2, "a": 1},
    )
    assert hashed_id(values) == "c99ccf2cbed6af1afad69cbf97cfb03c"
    assert hashed_id(()) == "cae66941d9efbd404e4d88758ea67670"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        ((1,), ("1",)),
        ((1,), (True,)),
        ((1,), (1.0,)),
        (("",), (None,)),
        (("a",), (b"a",)),
        (([1, 2],), (1, 2)),
        (([[1], [2]],), ([[1, 2]],)),
        ((datetime(2026, 1, 1),), (datetime(2026, 1, 1, tzinfo=UTC),)),
    ],
)
def test_values_that_differ_have_ids_that_differ(one: tuple[object, ...], other: tuple[object, ...]) -> None:
    assert hashed_id(one) != hashed_id(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (float("nan"), -float("nan")),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("-0.00"), Decimal("0")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_values_that_are_the_same_have_one_id(one: object, other: object) -> None:
    assert hashed_id((one,)) == hashed_id((other,))


@given(st.lists(scalars, max_size=4), st.lists(scalars, max_size=4))
def test_only_equal_rows_share_an_id(one: list[object], other: list[object]) -> None:
    same = [(type(value), value) for value in one] == [(type(value), value) for value in other]
    assert (hashed_id(one) == hashed_id(other)) == same


def test_a_source_is_readable_if_it_is_short() -> None:
    assert source_id("orders", (3 << 48) | 7) == "orders:844424930131975"
    long = source_id("a" * 200, 7)
    assert len(long) <= LONGEST_ID
    assert long != source_id("a" * 200, 8)


def test_what_has_no_canonical_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        hashed_id((object(),))
