"""Conditions of a read: from options, from filters that Spark pushes, and what they leave to be read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from busbar.client import TapSelection
from busbar.spark.errors import OptionError
from busbar.spark.options import SourceOptions
from busbar.spark.pushdown import MAX_VALUES, push_filters, spark_pushes_filters
from busbar.spark.read_filter import MAX_NUMBER, ReadFilter

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def parsed(**more: str) -> SourceOptions:
    given = {"connectionStringEnv": "PLACE", **more}
    if not {"entities", "entityPattern"} & set(more):
        given["entity"] = "orders"
    return SourceOptions.parse(given, streaming=False)


def test_options() -> None:
    options = parsed(
        fragments="0, 3",
        states="active,done",
        sessions='["a,b", "c"]',
        subjects="x, y",
        properties='{"region": ["eu", null], "urgent": true, "level": 3}',
    )
    assert options.filter == ReadFilter(
        fragments=(0, 3),
        states=("active", "done"),
        sessions=("a,b", "c"),
        subjects=("x", "y"),
        properties=(("level", (3,)), ("region", ("eu", None)), ("urgent", (True,))),
    )
    assert parsed().filter == ReadFilter()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fragments": "a"}, "'fragments' is 'a'"),
        ({"states": "gone"}, "'states' has 'gone'"),
        ({"sessions": "["}, "'sessions' is '['"),
        ({"sessions": "[1]"}, "'sessions' is '[1]'"),
        ({"subjects": " "}, "'subjects' is ' '"),
        ({"properties": "region=eu"}, "'properties' is 'region=eu'"),
        ({"properties": "{}"}, "'properties' is '{}'"),
        ({"properties": '{"a": {}}'}, "'properties' is"),
        ({"sessions": "a", "stream": "events"}, "'sessions' is for messages"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(**wrong)
    assert said in str(caught.value)


def test_what_is_consumed_cannot_be_filtered() -> None:
    given = {"connectionStringEnv": "PLACE", "entity": "orders", "mode": "consume", "subjects": "x"}
    with pytest.raises(OptionError, match="would delete the messages that it leaves out"):
        SourceOptions.parse(given, streaming=True)


def pushed(*filters: Filter, **options: str) -> ReadFilter:
    """The conditions, if the source meets all filters."""
    found, left = push_filters(filters, parsed(**options))
    assert left == []
    return found


NUMBER, TIME = ("sequence_number",), ("enqueued_time",)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([EqualTo(NUMBER, 5)], ReadFilter(first_number=5, last_number=5)),
        ([GreaterThan(NUMBER, 5), LessThan(NUMBER, 9)], ReadFilter(first_number=6, last_number=8)),
        (
            [GreaterThanOrEqual(NUMBER, 5), LessThanOrEqual(NUMBER, 9)],
            ReadFilter(first_number=5, last_number=9),
        ),
        ([GreaterThan(TIME, NOON)], ReadFilter(since=NOON_MS + 1)),
        ([GreaterThanOrEqual(TIME, NOON)], ReadFilter(since=NOON_MS)),
        ([LessThan(TIME, NOON)], ReadFilter(until=NOON_MS - 1)),
        ([GreaterThan(TIME, NOON.replace(microsecond=1))], ReadFilter(since=NOON_MS + 1)),
        ([LessThan(TIME, NOON.replace(microsecond=1))], ReadFilter(until=NOON_MS)),
        ([EqualTo(TIME, NOON.replace(microsecond=1))], ReadFilter(since=NOON_MS + 1, until=NOON_MS)),
        ([In(("fragment",), (1, 2))], ReadFilter(fragments=(1, 2))),
        ([EqualTo(("state",), "active")], ReadFilter(states=("active",))),
        ([IsNotNull(("session_id",)), In(("session_id",), ("a", "b"))], ReadFilter(sessions=("a", "b"))),
        ([EqualNullSafe(("subject",), "x")], ReadFilter(subjects=("x",))),
        ([EqualTo(("entity",), "orders")], ReadFilter(entities=("orders",))),
        ([EqualTo(("dead_letter_reason",), "why")], ReadFilter(properties=(("DeadLetterReason", ("why",)),))),
    ],
)
def test_filters_that_the_source_meets(filters: list[Filter], found: ReadFilter) -> None:
    assert pushed(*filters) == found


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(("state",), "active")),
        StringContains(("subject",), "x"),
        IsNotNull(("session_id",)),
        EqualNullSafe(("subject",), None),
        EqualTo(("properties", "a"), 1),
        EqualTo(("message_id",), "x"),
        In(NUMBER, (1, 2)),
        GreaterThan(TIME, NOON.replace(tzinfo=None)),
        In(("session_id",), tuple(str(number) for number in range(MAX_VALUES + 1))),
        EqualTo(("dead_letter_reason",), ""),
    ],
)
def test_filters_that_stay_with_spark(each: Filter) -> None:
    assert push_filters([each], parsed()) == (ReadFilter(), [each])


def test_positions_of_dead_letters_are_no_sequence_numbers() -> None:
    number, state = GreaterThan(NUMBER, 5), EqualTo(("state",), "active")
    dead = parsed(subQueue="deadletter")
    assert push_filters([number, state], dead) == (ReadFilter(states=("active",)), [number])
    assert push_filters([number], parsed(entities="a,b/$DeadLetterQueue"))[1] == [number]
    assert push_filters([number], parsed(entityPattern="*"))[1] == []
    events = parsed(stream="events")
    assert push_filters([number, state], events) == (ReadFilter(), [number, state])


def test_numbers_in_a_fragment() -> None:
    span = ReadFilter(first_number=1 << 48 | 5, last_number=2 << 48 | 7)
    assert span.numbers_in(0) == (MAX_NUMBER, MAX_NUMBER)
    assert span.numbers_in(1) == (4, MAX_NUMBER)
    assert span.numbers_in(2) == (0, 7)
    assert span.numbers_in(3) == (0, 0)
    assert ReadFilter(fragments=(1,)).numbers_in(0) == (0, 0)
    assert ReadFilter(fragments=(1,)).numbers_in(1) == (0, MAX_NUMBER)


def test_conditions_of_both() -> None:
    both = ReadFilter(states=("active", "done"), since=5, until=9, properties=(("a", (1, 2)),)).and_(
        ReadFilter(states=("done",), since=7, sessions=("s",), properties=(("a", (2, 3)), ("b", ("x",))))
    )
    assert both == ReadFilter(
        states=("done",), since=7, until=9, sessions=("s",), properties=(("a", (2,)), ("b", ("x",)))
    )
    assert not both.is_nothing
    assert both.and_(ReadFilter(sessions=("t",))).is_nothing
    assert both.and_(ReadFilter(since=10)).is_nothing
    assert both.and_(ReadFilter(properties=(("a", (3,)),))).is_nothing


def test_what_the_broker_is_asked_for() -> None:
    assert (
        ReadFilter(fragments=(1,), first_number=3).selection(bodies=True, application_properties=True) is None
    )
    found = ReadFilter(sessions=("s",), since=3).selection(bodies=False, application_properties=True)
    assert found == TapSelection(bodies=False, sessions=("s",), since=3)
    assert found.to_body() == {"bodies": False, "sessions": ["s"], "since": 3}


def test_a_process_of_a_user_pushes_nothing() -> None:
    assert not spark_pushes_filters()
