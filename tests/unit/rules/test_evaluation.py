"""What expressions say of a message: every operator, every pair of kinds, three truths."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.model.entities import TypedText
from busbar.model.errors import ArgumentError
from busbar.rules.syntax import MAX_NESTING, check_filter
from busbar.rules.values import MAX_TEXT, EvaluationError, Instant, Opaque, Span, Value
from tests.unit.rules.sample import GUID, Sample, evaluate, matches, value

T, F, U = True, False, None
NEW_YEAR = Instant(1767225600000)
MOST = 2**63 - 1

KINDS: dict[str, Value] = {
    "boolean": True,
    "integer": 1,
    "double": 1.0,
    "text": "one",
    "time": NEW_YEAR,
    "duration": Span(60_000),
    "guid": GUID,
    "binary": b"one",
    "opaque": Opaque([1]),
}
EQUAL = {(kind, kind) for kind in KINDS if kind != "opaque"} | {("integer", "double"), ("double", "integer")}
ORDERED = {pair for pair in EQUAL if pair[0] not in ("boolean", "guid", "binary")}
READ = {"time": "2026-01-01T00:00:00Z", "duration": "PT1M", "guid": str(GUID)}


@pytest.mark.parametrize(("left", "right"), list(itertools.product(KINDS, KINDS)))
def test_which_kinds_compare(left: str, right: str) -> None:
    message = Sample({"a": KINDS[left], "b": KINDS[right]})
    for sign, truth in (("=", T), ("<>", F), ("!=", F), ("<", F), ("<=", T), (">", F), (">=", T)):
        allowed = EQUAL if sign in ("=", "<>", "!=") else ORDERED
        if (left, right) in allowed:
            assert evaluate(f"a {sign} b", message) is truth, sign
        else:
            with pytest.raises(EvaluationError):
                evaluate(f"a {sign} b", message)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_compares_with_all_kinds_and_stays_unknown(kind: str) -> None:
    message = Sample({"a": KINDS[kind], "nothing": None})
    for sign in ("=", "<>", "!=", "<", "<=", ">", ">="):
        for other in ("missing", "nothing", "NULL", "sys.Label"):
            assert evaluate(f"a {sign} {other}", message) is U
            assert evaluate(f"{other} {sign} a", message) is U


@pytest.mark.parametrize("kind", READ)
def test_a_text_that_is_written_like_a_kind_compares_with_it(kind: str) -> None:
    message = Sample({"a": KINDS[kind]})
    assert evaluate(f"a = '{READ[kind]}'", message) is T
    assert evaluate(f"'{READ[kind]}' <> a", message) is F
    with pytest.raises(EvaluationError, match="'soon' is not a"):
        evaluate("a = 'soon'", message)


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("a = 5", T),
        ("A = 5.0", T),
        ("user.a = 5", T),
        ("[a] >= 4 + 1", T),
        ("5 = a", T),
        ("a > 4.5", T),
        ("a < 5", F),
        ("color = 'red'", T),
        ("color = 'Red'", F),
        ("color < 'rose'", T),
        ("color IN ('blue', 'red')", T),
        ("color NOT IN ('blue', 'red')", F),
        ("a IN (1, 2.0, 5.0)", T),
        ("a IN (1, 2)", F),
        ("a IN (missing, 5)", T),
        ("a IN (missing, 6)", U),
        ("a NOT IN (missing, 6)", U),
        ("missing IN (1)", U),
        ("missing NOT IN ('a')", U),
        ("color LIKE 'r%'", T),
        ("color NOT LIKE 'r%'", F),
        ("color LIKE '%D'", F),
        ("color LIKE '_e_'", T),
        ("'50%' LIKE '50!%' ESCAPE '!'", T),
        ("'500' LIKE '50!%' ESCAPE '!'", F),
        ("color LIKE pattern", T),
        ("color LIKE missing", U),
        ("missing LIKE 'a'", U),
        ("missing NOT LIKE 'a'", U),
        ("color LIKE NULL", U),
        ("color LIKE 'r%' ESCAPE missing", U),
        ("missing IS NULL", T),
        ("nothing IS NULL", T),
        ("a IS NULL", F),
        ("nothing IS NOT NULL", F),
        ("a IS NOT NULL", T),
        ("sys.Label IS NULL", T),
        ("EXISTS(nothing)", T),
        ("EXISTS(missing)", F),
        ("EXISTS(A)", T),
        ("EXISTS(sys.To)", T),
        ("EXISTS(sys.Label)", F),
        ("sys.To = 'you' AND sys.tO = 'you'", T),
        ("flag", T),
        ("NOT flag", F),
        ("flag = TRUE", T),
        ("missing", U),
        ("NULL", U),
        ("TRUE", T),
        ("(a = 5) = TRUE", T),
        ("property('color') = 'red'", T),
        ("p('COL' + 'or') = 'red'", T),
        ("p('missing') IS NULL", T),
        ("p(missing) IS NULL", T),
        ("newid() = newid()", T),
        ("'it''s' = 'it' + '''' + 's'", T),
        ('"Größe" = [größe]', T),
        ("flag OR a / 0 = 1", T),
        ("NOT flag AND a / 0 = 1", F),
        ("color IN ('red', 5)", T),
        ("1 = 1 AND 2 = 2 AND missing = 1", U),
        ("1 = 2 OR 2 = 3 OR missing = 1", U),
        ("1 = 1 OR 2 = 3 AND 1 = 0", T),
        ("NOT 1 = 0 AND 1 = 1", T),
    ],
)
def test_predicates(expression: str, answer: bool | None) -> None:
    user: dict[str, Value] = {
        "a": 5,
        "color": "red",
        "pattern": "%d",
        "flag": True,
        "nothing": None,
        "Größe": 1,
    }
    message = Sample(user, {"to": "you"})
    assert evaluate(expression, message) is answer
    assert matches(expression, message) is (answer is True)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("7 / 2.0", 3.5),
        ("7.5 % 2", 1.5),
        ("-7.5 % 2", -1.5),
        ("2 * 1.5", 3.0),
        ("1e3 + .5", 1000.5),
        ("- - 5", 5),
        ("+5 - -5", 10),
        ("'a' + 'b' + 'c'", "abc"),
        ("9223372036854775806 + 1", MOST),
        ("-9223372036854775807 - 1", -MOST - 1),
        ("missing + 1", None),
        ("1 * missing", None),
        ("-missing", None),
        ("missing / 0", None),
        ("newid()", GUID),
    ],
)
def test_arithmetic(expression: str, result: Value) -> None:
    found = value(expression)
    assert found == result and type(found) is type(result)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("1.0 / 0", "division by zero"),
        ("1.5 % 0", "division by zero"),
        ("9223372036854775807 + 1", "64 bits"),
        ("-(-9223372036854775807 - 1)", "64 bits"),
        ("(-9223372036854775807 - 1) / -1", "64 bits"),
        ("9223372036854775807 * 2", "64 bits"),
        ("'a' - 'b'", "'-' is not for a text and a text"),
        ("'a' + 1", "not for a text and a number"),
        ("1 + TRUE", "not for a number and a boolean"),
        ("(1 = 1) + 2", "not for a boolean"),
        ("-'a'", "a text has no sign"),
        ("+TRUE", "a boolean has no sign"),
        ("p(1)", "a number stands where a text has to be"),
        ("long + long", "more than 65536 characters"),
    ],
)
def test_arithmetic_without_an_answer(expression: str, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        value(expression, Sample({"long": "x" * (MAX_TEXT // 2 + 1)}))


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("color", "a text is neither true nor false"),
        ("a AND TRUE", "a number is neither"),
        ("FALSE OR a", "a number is neither"),
        ("NOT color", "a text is neither"),
        ("color = 5", "a text cannot be compared with a number"),
        ("5 > color", "a number cannot be compared with a text"),
        ("a IN ('x', 'y')", "a number cannot be compared with a text"),
        ("a LIKE '5'", "a number stands where a text"),
        ("color LIKE 5", "a number stands where a text"),
        ("color LIKE 'r' ESCAPE 'ab'", "one character"),
        ("color LIKE 'r!' ESCAPE '!'", "ends with its escape"),
        ("color LIKE long", "1024"),
        ("TRUE > FALSE", "a boolean cannot be compared"),
        ("color = @unknown", "no parameter '@unknown'"),
    ],
)
def test_predicates_without_an_answer(expression: str, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        evaluate(expression, Sample({"a": 5, "color": "red", "long": "%" * 1025}))


def test_parameters() -> None:
    message = Sample({"a": 5, "at": NEW_YEAR, "id": GUID, "wait": Span(60_000)})
    assert evaluate("a = @Five AND a < @six", message, **{"@five": 5, "Six": 6.5}) is T
    assert evaluate("at = @t", message, t=TypedText("dateTime", "2026-01-01T01:00:00+01:00")) is T
    assert evaluate("id = @g", message, g=TypedText("guid", str(GUID))) is T
    assert evaluate("wait < @d", message, d=TypedText("duration", "PT2M")) is T
    assert evaluate("@yes", message, yes=True) is T
    assert evaluate("a < @large", message, large=2**63) is T  # no long: a double
    with pytest.raises(EvaluationError, match="64 bits"):
        evaluate("a < @large", message, large=10**400)
    with pytest.raises(EvaluationError, match="'soon' is not a time"):
        evaluate("at = @t", message, t=TypedText("dateTime", "soon"))


def test_newid_has_its_ids_from_outside() -> None:
    assert value("newid()") == GUID == UUID(str(GUID))


# ---- three truths, against their tables ----

_NAMES = {"t": T, "f": F, "u": U}
_trees = st.recursive(
    st.sampled_from(sorted(_NAMES)),
    lambda inner: st.one_of(
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.sampled_from(("AND", "OR")), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=20,
)


def _written(tree: object) -> str:
    if isinstance(tree, str):
        return tree
    assert isinstance(tree, tuple)
    if tree[0] == "NOT":
        return f"NOT ({_written(tree[1])})"
    return f" {tree[0]} ".join(f"({_written(part)})" for part in tree[1])


def _truth(tree: object) -> bool | None:
    """False is 0, unknown 1, true 2: AND is the least, OR the greatest, NOT what is left to 2."""
    return {0: F, 1: U, 2: T}[_rank(tree)]


def _rank(tree: object) -> int:
    if isinstance(tree, str):
        return {"f": 0, "u": 1, "t": 2}[tree]
    assert isinstance(tree, tuple)
    if tree[0] == "NOT":
        return 2 - _rank(tree[1])
    return (min if tree[0] == "AND" else max)(_rank(part) for part in tree[1])


@given(_trees)
def test_three_truths(tree: object) -> None:
    message = Sample({"t": True, "f": False, "u": None})
    assert evaluate(_written(tree), message) is _truth(tree)


# ---- what a hostile author can write ----


@pytest.mark.parametrize(
    "expression",
    [
        "NOT " * (MAX_NESTING + 1) + "a",
        "-" * (MAX_NESTING + 2) + "1 = 1",
        "p(" * (MAX_NESTING + 1) + "'a'" + ")" * (MAX_NESTING + 1),
        "1=(" * (MAX_NESTING + 1) + "1" + ")" * (MAX_NESTING + 1),
        "-" * 1000 + "1 = 1",
        "NOT " * 5000 + "a",
    ],
)
def test_too_deep_an_expression_is_refused_when_it_is_made(expression: str) -> None:
    with pytest.raises(ArgumentError, match="128 deep"):
        check_filter(expression)


def test_the_deepest_expressions_have_an_answer() -> None:
    assert evaluate("NOT " * (MAX_NESTING - 1) + "(a = 2)", Sample({"a": 1})) is T
    assert evaluate("(" * 500 + "a = 1" + ")" * 500, Sample({"a": 1})) is T
    assert evaluate("1=1" + " AND 1=1" * 120, Sample({})) is T
    assert value("1" + "+1" * 500) == 501
    assert evaluate("a=1 AND (" * 100 + "a=1" + ")" * 100, Sample({"a": 1})) is T
    depth = MAX_NESTING
    assert value("p(" * depth + "'a'" + ")" * depth, Sample({"a": "a"})) == "a"


def test_numbers_that_no_long_can_hold_are_refused_when_a_rule_is_made() -> None:
    check_filter("a = 9223372036854775807 AND a < 9223372036854775808.0")
    with pytest.raises(ArgumentError, match="larger than 9223372036854775807"):
        check_filter("a = 9223372036854775808")
    with pytest.raises(ArgumentError, match="larger than"):
        check_filter("a = " + "9" * 1000)


_pieces = st.sampled_from(
    [
        *"()+-*/%=<>,@[]ab12",
        "'x'",
        "sys.Label",
        "NULL",
        "AND",
        "OR",
        "NOT",
        "IN",
        "LIKE",
        "IS",
        "EXISTS",
        "p(",
    ]
)


@settings(max_examples=200)
@given(st.lists(_pieces, max_size=14))
def test_any_expression_has_an_answer_or_a_known_error(pieces: list[str]) -> None:
    try:
        answer = evaluate(" ".join(pieces), Sample({"a": 1, "b": "x"}))
    except (ArgumentError, EvaluationError):
        return
    assert answer in (True, False, None)
