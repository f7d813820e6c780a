"""Which messages a filter matches: correlation filters above all."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.model.entities import (
    CorrelationFilter,
    FalseFilter,
    RuleFilter,
    SqlFilter,
    TrueFilter,
    TypedText,
)
from busbar.rules.filters import FIELDS, always, compile_filter, never
from busbar.rules.values import EvaluationError, Instant, Value
from tests.unit.rules.sample import GUID, Sample

SYSTEM: dict[str, Value] = {name: f"the {name}" for name in FIELDS.values()}
MESSAGE = Sample(
    {"color": "red", "size": 7, "share": 0.5, "flag": True, "at": Instant(0), "id": GUID, "nothing": None},
    SYSTEM,
)


def matches(rule_filter: RuleFilter, message: Sample = MESSAGE) -> bool:
    return compile_filter(rule_filter, lambda: GUID)(message) is True


def of(field: str, text: str) -> CorrelationFilter:
    given: dict[str, Any] = {field: text}
    return CorrelationFilter(**given)


def test_filters_that_need_no_message_are_known_as_such() -> None:
    assert compile_filter(TrueFilter(), lambda: GUID) is always and matches(TrueFilter())
    assert compile_filter(FalseFilter(), lambda: GUID) is never and not matches(FalseFilter())


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_compared_exactly(field: str) -> None:
    right = str(SYSTEM[FIELDS[field]])
    assert matches(of(field, right))
    assert not matches(of(field, right.upper()))
    assert not matches(of(field, right), Sample({}))


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("color", "red", True),
        ("color", "Red", False),
        ("Color", "red", False),  # names as they are stored
        ("size", 7, True),
        ("size", 7.0, True),
        ("size", "7", False),
        ("share", 0.5, True),
        ("share", 1, False),
        ("flag", True, True),
        ("flag", 1, False),
        ("size", True, False),
        ("at", TypedText("dateTime", "1970-01-01T00:00:00Z"), True),
        ("at", 0, False),
        ("id", TypedText("guid", str(GUID)), True),
        ("nothing", "", False),
        ("missing", "x", False),
    ],
)
def test_properties_have_to_be_of_a_kind(name: str, given: str | float | TypedText, answer: bool) -> None:
    assert matches(CorrelationFilter(properties=((name, given),))) is answer


def test_all_conditions_have_to_hold() -> None:
    label = str(SYSTEM["label"])
    assert matches(CorrelationFilter(label=label, properties=(("color", "red"), ("size", 7))))
    assert not matches(CorrelationFilter(label=label, properties=(("color", "red"), ("size", 8))))


def test_a_filter_that_can_have_no_answer_says_so_when_it_is_compiled() -> None:
    with pytest.raises(EvaluationError, match="no condition"):
        matches(CorrelationFilter())
    with pytest.raises(EvaluationError, match="not a time"):
        matches(CorrelationFilter(properties=(("at", TypedText("dateTime", "soon")),)))


def test_unknown_does_not_match_and_is_no_error() -> None:
    assert not matches(SqlFilter("missing > 5"))
    assert not matches(SqlFilter("NOT (missing > 5)"))
