"""What a SQL filter and a SQL action may say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.model.errors import ArgumentError
from busbar.rules.syntax import MAX_ACTIONS, check_action, check_filter


@pytest.mark.parametrize(
    "expression",
    [
        "1=1",
        "1 = 0",
        "TRUE",
        "color",
        "color = 'blue' AND quantity > 10",
        "sys.Label LIKE 'order%' or user.[my name] is not null",
        "NOT (a = 1 OR b <> 2) AND c != -3.5e2",
        "sys.MessageId IN ('a', 'b''c', @p)",
        "a NOT IN (1, 2) and b not like 'x\\_%' escape '\\'",
        'EXISTS("quoted ""name""") AND property(\'a\') = p(\'b\')',
        "(a + b) * 2 % 3 >= c / 4 - 1",
        "größe = 'L'",
        "x = newid()",
        "a is NULL",
        "\n a\t=\r\n1 ",
        "((((((a = 1))))))",
    ],
)
def test_filters(expression: str) -> None:
    check_filter(expression)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "too early"),
        ("amount >", "too early"),
        ("amount > > 1", "at '>' \\(character 10\\)"),
        ("a = 1 b = 2", "at 'b'"),
        ("(a = 1", "too early"),
        ("a = 'open", "character"),
        ("a & b", "character 3"),
        ("sys.Nonsense = 1", "not a system property"),
        ("their.Name = 1", "not a scope"),
        ("drop(1) = 1", "not a function"),
        ("newid(1) = 1", "not a function"),
        ("SET a = 1", "makes no sense|too early"),
        ("a IN ()", "at '\\)'"),
        ("AND", "at 'AND'"),
        ("(" * 1000, "too early"),
    ],
)
def test_what_is_no_filter(expression: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        check_filter(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "SET a = 1",
        "set sys.Label = 'x'; remove b;",
        "SET a = a + 1 SET [b c] = newid() REMOVE d",
        "REMOVE user.x",
    ],
)
def test_actions(expression: str) -> None:
    check_action(expression)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "too early"),
        ("a = 1", "at 'a'"),
        ("SET a", "too early"),
        ("SET 1 = a", "at '1'"),
        ("REMOVE", "too early"),
        ("SET sys.Nonsense = 1", "not a system property"),
        ("SET a = 1;" * (MAX_ACTIONS + 1), "33 statements"),
    ],
)
def test_what_is_no_action(expression: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        check_action(expression)


@given(st.one_of(st.text(max_size=80), st.text("()='<>,;.@[]\"-+ 1aANDORNOTSETsys", max_size=80)))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    for check in (check_filter, check_action):
        try:
            check(text)
        except ArgumentError:
            pass
