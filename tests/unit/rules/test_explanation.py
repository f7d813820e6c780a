"""Why a filter matches a message or does not: which clause decided, with which values, in three truths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.model.entities import CorrelationFilter, FalseFilter, RuleFilter, SqlFilter, TrueFilter
from busbar.model.errors import ArgumentError
from busbar.rules.explanation import Explanation, Verdict, explain_filter, shown_value
from busbar.rules.filters import compile_filter
from busbar.rules.values import UNLIMITED, EvaluationError, Instant, Opaque, Span, Value
from busbar.rules.work import RULE_STEPS
from tests.unit.rules.sample import GUID, Sample

MESSAGE = Sample(
    {"amount": 50, "color": "blue", "nothing": None, "flag": True, "Region": "eu"},
    {"label": "order", "messageid": "m1"},
)


def explain(rule_filter: RuleFilter | str, message: Sample = MESSAGE) -> Explanation:
    chosen = SqlFilter(rule_filter) if isinstance(rule_filter, str) else rule_filter
    return explain_filter(chosen, message, lambda: GUID)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("amount > 100", "`amount > 100` is false, where property 'amount' is 50"),
        ("color = 'red' AND amount > 100", "`color = 'red'` is false, where property 'color' is 'blue'"),
        (
            "color = 'red' OR amount > 100",
            "`color = 'red'` is false, where property 'color' is 'blue'; "
            "`amount > 100` is false, where property 'amount' is 50",
        ),
        ("sys.Label LIKE 'x%'", "`sys.Label LIKE 'x%'` is false, where sys.Label is 'order'"),
        ("EXISTS(size)", "`EXISTS(size)` is false, where property 'size' is missing"),
        ("amount IS NULL", "`amount IS NULL` is false, where property 'amount' is 50"),
        ("amount IN (1, 2)", "`amount IN (1, 2)` is false, where property 'amount' is 50"),
        (
            "amount * 2 > amount + 100",
            "`amount * 2 > amount + 100` is false, where property 'amount' is 50, `amount * 2` is 100 and "
            "`amount + 100` is 150",
        ),
        (
            "NOT (flag)",
            "`NOT (flag)` is false because `flag` is true, where property 'flag' is TRUE",
        ),
        ("p('col' + 'or') = 'red'", "`p('col' + 'or') = 'red'` is false, where property 'color' is 'blue'"),
    ],
)
def test_a_clause_that_is_false(expression: str, sentence: str) -> None:
    found = explain(expression)
    assert (found.verdict, found.sentence) == (Verdict.FALSE, sentence)
    assert not found.matches


@pytest.mark.parametrize(
    ("expression", "because"),
    [
        ("size > 5", "property 'size' is missing"),
        ("nothing > 5", "property 'nothing' is null"),
        ("sys.To = 'you'", "sys.To is not set"),
        ("amount > 5 AND size > 5", "property 'size' is missing"),
        ("amount > 500 OR size > 5", "property 'size' is missing"),
        ("NOT size > 5", "property 'size' is missing"),
        ("amount + size > 5", "property 'size' is missing"),
        ("amount IN (1, size)", "property 'size' is missing"),
        ("size = weight", "property 'size' is missing and property 'weight' is missing"),
        ("p('size') = 1", "property 'size' is missing"),
        ("p(size) = 1", "property 'size' is missing"),
        ("size", "property 'size' is missing"),
        ("NULL", "NULL is unknown"),
        ("amount = NULL", "NULL is unknown"),
        ("(size IS NULL) = weight", "property 'weight' is missing"),
        ("(flag AND weight) = TRUE", "property 'weight' is missing"),
        ("size * (1 / 0) = 1", "property 'size' is missing"),
    ],
)
def test_a_clause_that_is_unknown_says_what_is_missing(expression: str, because: str) -> None:
    found = explain(expression)
    assert found.verdict is Verdict.UNKNOWN
    assert found.sentence.endswith(f" is UNKNOWN because {because}")


def test_unknown_does_not_hide_the_clause_that_decides() -> None:
    found = explain("size > 5 AND color = 'red'")
    assert found.verdict is Verdict.FALSE
    assert found.sentence == "`color = 'red'` is false, where property 'color' is 'blue'"
    found = explain("size > 5 OR color = 'blue'")
    assert found.matches
    assert found.sentence == "`color = 'blue'` is true, where property 'color' is 'blue'"


def test_a_clause_without_a_result() -> None:
    found = explain("amount > 'ten'")
    assert found.verdict is Verdict.FAILED
    assert found.sentence == (
        "`amount > 'ten'` has no result: a number cannot be compared with a text, where property 'amount' is 50"
    )
    assert explain("flag OR amount / 0 = 1").matches
    assert explain("NOT flag AND amount / 0 = 1").verdict is Verdict.FALSE
    assert explain("color LIKE 'x!' ESCAPE '!' AND FALSE").verdict is Verdict.FAILED
    assert "no parameter '@limit'" in explain("amount < @limit").sentence
    assert "ends too early" in explain("amount <").sentence


def test_parameters_are_shown() -> None:
    found = explain(SqlFilter("amount >= @limit", (("@Limit", 70),)))
    assert found.sentence == (
        "`amount >= @limit` is false, where property 'amount' is 50 and parameter '@limit' is 70"
    )


def test_many_clauses_are_counted() -> None:
    found = explain(" OR ".join(f"amount = {number}" for number in range(9)))
    assert found.sentence.count("is false") == 4
    assert found.sentence.endswith("; and 5 more like these")


def test_filters_that_are_the_same_for_every_message() -> None:
    assert explain(TrueFilter()).matches and explain("1 = 1").matches
    assert explain(FalseFilter()).sentence == "the filter is false for every message"


@pytest.mark.parametrize(
    ("rule_filter", "sentence"),
    [
        (CorrelationFilter(label="invoice"), "sys.Label is 'order', not 'invoice'"),
        (CorrelationFilter(label="Order"), "sys.Label is 'order', not 'Order' (upper and lower case count)"),
        (CorrelationFilter(reply_to="me"), "sys.ReplyTo is not set, not 'me'"),
        (CorrelationFilter(properties=(("size", 1),)), "property 'size' is missing"),
        (
            CorrelationFilter(properties=(("region", "eu"),)),
            "property 'region' is missing (the message has 'Region'; names in a correlation filter count with their case)",
        ),
        (
            CorrelationFilter(properties=(("amount", "50"),)),
            "property 'amount' is 50, not '50' (a number is never equal to a text here)",
        ),
        (CorrelationFilter(properties=(("nothing", 1),)), "property 'nothing' is null, not 1"),
        (
            CorrelationFilter(label="order", message_id="m2", properties=(("amount", 51),)),
            "sys.MessageId is 'm1', not 'm2'; property 'amount' is 50, not 51",
        ),
    ],
)
def test_correlation(rule_filter: CorrelationFilter, sentence: str) -> None:
    found = explain(rule_filter)
    assert (found.verdict, found.sentence) == (Verdict.FALSE, sentence)


def test_correlation_that_matches() -> None:
    found = explain(CorrelationFilter(label="order", properties=(("amount", 50.0),)))
    assert (found.verdict, found.sentence) == (
        Verdict.TRUE,
        "sys.Label is 'order'; property 'amount' is 50",
    )
    assert explain(CorrelationFilter()).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("it's", "'it''s'"),
        ("x" * 200, f"'{'x' * 80}…'"),
        (True, "TRUE"),
        (1.5, "1.5"),
        (None, "null"),
        (b"abc", "a binary of 3 bytes"),
        (Instant(0), "'1970-01-01T00:00:00.000Z'"),
        (Instant(2**62), str(2**62)),
        (Span(60_000), "'PT1M'"),
        (UNLIMITED, "for ever"),
        (GUID, str(GUID)),
        (Opaque([1]), "a list, a map or a value of another kind"),
    ],
)
def test_values_are_shown_as_rules_write_them(value: Value, shown: str) -> None:
    assert shown_value(value) == shown


# ---- the verdict is the evaluator's, for any expression and message ----

_values = st.sampled_from(
    ["a", "b", "c", "[d]", "sys.Label", "sys.To", "1", "2.5", "'x'", "TRUE", "NULL", "p('a')", "@p"]
)
_numbers = st.recursive(
    _values,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(("+", "-", "*", "/", "%")), inner),
        st.builds("-{}".format, inner),
    ),
    max_leaves=3,
)
_clauses = st.one_of(
    st.builds("{} {} {}".format, _numbers, st.sampled_from(("=", "<>", "<", ">=")), _numbers),
    st.builds("{} {} ({}, {})".format, _values, st.sampled_from(("IN", "NOT IN")), _values, _numbers),
    st.builds(
        "{} {} {}".format,
        _values,
        st.sampled_from(("LIKE", "NOT LIKE")),
        st.sampled_from(("'%x'", "'_'", "c")),
    ),
    st.builds("{} IS {}".format, _numbers, st.sampled_from(("NULL", "NOT NULL"))),
    st.builds("EXISTS({})".format, st.sampled_from(("a", "b", "sys.Label"))),
    _values,
)
_filters = st.recursive(
    _clauses,
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds(
            lambda sign, parts: f" {sign} ".join(f"({part})" for part in parts),
            st.sampled_from(("AND", "OR")),
            st.lists(inner, min_size=2, max_size=4),
        ),
        st.builds("({}) = {}".format, inner, st.sampled_from(("TRUE", "b"))),
    ),
    max_leaves=8,
)
_properties = st.sampled_from([1, 2, 2.5, "x", "yx", True, False, None, Instant(0), b"x", Opaque([])])
_messages = st.builds(
    Sample,
    st.dictionaries(st.sampled_from(("a", "B", "c", "d")), _properties),
    st.dictionaries(st.sampled_from(("label", "to")), st.sampled_from(("x", "y"))),
)
_parameters = st.sampled_from(((), (("@p", 1),), (("p", "x"),)))


@settings(max_examples=400)
@given(_filters, _messages, _parameters)
def test_the_verdict_is_that_of_the_evaluator(
    expression: str, message: Sample, parameters: tuple[tuple[str, int | str], ...]
) -> None:
    rule_filter = SqlFilter(expression, parameters)
    found = explain(rule_filter, message)
    try:
        truth = compile_filter(rule_filter, lambda: GUID)(message)
        expected = {True: Verdict.TRUE, False: Verdict.FALSE, None: Verdict.UNKNOWN}[truth]
    except (ArgumentError, EvaluationError):
        expected = Verdict.FAILED
    assert found.verdict is expected
    assert found.reasons and all(found.reasons)


@given(
    st.builds(
        CorrelationFilter,
        label=st.sampled_from((None, "x", "y")),
        to=st.sampled_from((None, "x")),
        properties=st.lists(
            st.tuples(st.sampled_from(("a", "b", "B")), st.sampled_from((1, 2.5, "x", True))),
            unique_by=lambda p: p[0],
        ).map(tuple),
    ),
    _messages,
)
def test_the_verdict_of_a_correlation_filter_is_that_of_the_evaluator(
    rule_filter: CorrelationFilter, message: Sample
) -> None:
    found = explain(rule_filter, message)
    try:
        expected = Verdict.TRUE if compile_filter(rule_filter, lambda: GUID)(message) else Verdict.FALSE
    except EvaluationError:
        expected = Verdict.FAILED
    assert found.verdict is expected
    assert found.reasons


def test_the_limit_of_steps_holds_as_for_the_evaluator() -> None:
    """Each clause alone has enough steps; all of them together do not."""
    text = "x" * 60_000
    clauses = RULE_STEPS // len(text) + 1
    expression = " OR ".join(["a LIKE '%y%'"] * clauses)
    with pytest.raises(EvaluationError, match="steps"):
        compile_filter(SqlFilter(expression), lambda: GUID)(Sample({"a": text}))
    assert explain(expression, Sample({"a": text})).verdict is Verdict.FAILED
