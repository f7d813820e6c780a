"""What rules may spend on one message: rules that are meant to be slow fail, and those that people write do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.rules.like import BITWISE, MAX_PATTERN, compile_pattern
from busbar.rules.values import EvaluationError, Value
from busbar.rules.work import AT_ONCE, FOLDED, MESSAGE_STEPS, RULE_STEPS, UNCOUNTED, Work
from tests.unit.rules.sample import Sample, act, evaluate, matches

LONG = "a" * 60_000
HALF = "a" * 30_000
OF_A_RULE = f"more than {RULE_STEPS} steps .* the limit of a rule"


def repeated(part: str, between: str = " OR ") -> str:
    """As often as an expression has room for it."""
    return between.join([part] * ((1024 + len(between)) // (len(part) + len(between))))


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        (repeated("a LIKE '%a_b%'"), {"a": LONG}),
        (repeated("a NOT LIKE '%a_b%'", " AND "), {"a": LONG}),
        (repeated("a LIKE '%" + "a_" * 200 + "b%'"), {"a": LONG}),
        (repeated("a LIKE b"), {"a": "a" * 50_000, "b": "%" + "a_" * 500 + "b"}),
        (repeated("'a' LIKE b"), {"b": "%" + "a_" * 500 + "b"}),
        (repeated("p(a) = 1"), {"a": "ä" * 30_000}),
    ],
)
def test_a_rule_that_is_meant_to_be_slow_fails(expression: str, properties: dict[str, Value]) -> None:
    message = Sample(properties)
    with pytest.raises(EvaluationError, match=OF_A_RULE):
        matches(expression, message)
    assert 0 < message.work.spent <= RULE_STEPS


@pytest.mark.parametrize(
    ("expression", "properties", "answer"),
    [
        (repeated("a LIKE '%ab%'"), {"a": LONG}, False),
        (repeated("a LIKE 'a_%_b'"), {"a": LONG}, False),
        ("a LIKE '%" + "a_" * 400 + "b%'", {"a": LONG}, False),
        (repeated("a LIKE '%x_y%'", " AND "), {"a": "ax-y" * 16}, True),
        (repeated("a <> b"), {"a": HALF, "b": "a" * 29_999 + "b"}, True),
        (repeated("a > b"), {"a": HALF, "b": "a" * 29_999 + "\u0100"}, False),
        (repeated("a + 'x' = ''"), {"a": LONG}, False),
    ],
)
def test_what_is_quick_with_long_values_has_an_answer(
    expression: str, properties: dict[str, Value], answer: bool
) -> None:
    assert matches(expression, Sample(properties)) is answer


def test_an_answer_that_is_certain_is_not_refused_for_what_stands_behind_it() -> None:
    expression = "color = 'red' OR " + " OR ".join(["a LIKE '%a_b%'"] * 55)
    assert evaluate(expression, Sample({"color": "red", "a": LONG})) is True


@pytest.mark.parametrize(
    ("expression", "steps"),
    [
        ("a LIKE '%x%'", 60_000),
        ("a LIKE '%x_y%'", 4 * 60_000),
        ("a LIKE 'x%' OR a LIKE '%x' OR a LIKE '___%'", 0),
        ("a = 'x' OR a IN ('x', 'y')", 0),
        ("a = a", 60_000 // AT_ONCE),
        ("a + 'x' = ''", 60_001 // AT_ONCE),
        ("p(a) = 1", FOLDED * 60_000),
        ("short LIKE '%a_b%' OR short = short OR p(short) = 1", 0),
    ],
)
def test_what_is_counted(expression: str, steps: int) -> None:
    message = Sample({"a": LONG, "short": "a" * UNCOUNTED})
    evaluate(expression, message)
    assert message.work.spent == steps


def test_an_action_cannot_grow_without_bound() -> None:
    doubled = "SET c = 'x'; " + "; ".join(["SET c = c + c"] * 31)
    with pytest.raises(EvaluationError, match="65536 characters"):
        act(doubled, Sample({}))
    message = Sample({"a": LONG})
    act("; ".join(["SET c = a"] * 32), message)
    assert message.work.spent == 32 * len(LONG)
    with pytest.raises(EvaluationError, match=OF_A_RULE):
        act("; ".join(["SET c = a LIKE '%a_b%'"] * 32), message)


def test_every_filter_and_every_action_has_its_own_steps() -> None:
    work = Work()
    for part in range(MESSAGE_STEPS // RULE_STEPS - 1):
        work.spend(part, RULE_STEPS - 1)
        with pytest.raises(EvaluationError, match=OF_A_RULE):
            work.spend(part, 2)


def test_all_rules_together_have_a_limit() -> None:
    work = Work()
    for part in range(MESSAGE_STEPS // RULE_STEPS):
        work.spend(part, RULE_STEPS)
    with pytest.raises(EvaluationError, match=f"the rules of the topic need more than {MESSAGE_STEPS} steps"):
        work.spend("one more", 1)
    assert work.spent == MESSAGE_STEPS


_CHARACTERS = st.sampled_from(["a", "b", "%", "_"])


@given(
    st.lists(st.lists(_CHARACTERS, min_size=1, max_size=40).map("".join), min_size=1, max_size=8),
    st.integers(0, 3).flatmap(lambda kind: st.just(("a", "ab", "aab", "b")[kind])),
    st.integers(1, 65_536),
)
def test_no_rule_spends_more_than_its_limit_and_each_like_at_most_its_weight(
    patterns: list[str], unit: str, length: int
) -> None:
    value = (unit * length)[:length]
    message = Sample({"a": value})
    weights = [compile_pattern(pattern).weight for pattern in patterns]
    assert max(weights) <= BITWISE
    try:
        evaluate(" OR ".join(f"a LIKE '{pattern}'" for pattern in patterns), message)
    except EvaluationError:
        assert length * sum(weights) > RULE_STEPS
    assert message.work.spent <= min(length * sum(weights), RULE_STEPS)


def test_a_pattern_is_within_what_a_rule_may_spend() -> None:
    """The costliest one, with the longest value: a rule of one LIKE always has an answer."""
    weight = compile_pattern("%" + "a_" * (MAX_PATTERN // 2 - 1) + "b").weight
    assert weight * 65_536 <= RULE_STEPS
