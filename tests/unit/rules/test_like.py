"""LIKE, against a matcher that is plainly right, and against patterns that are meant to be slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.rules.like import MAX_PATTERN, compile_pattern
from busbar.rules.values import EvaluationError


def plain(pattern: str, value: str) -> bool:
    """By the definition, with `!` as the escape character; slow, and short."""
    if not pattern:
        return not value
    if pattern[0] == "%":
        return plain(pattern[1:], value) or (value != "" and plain(pattern, value[1:]))
    if not value:
        return False
    if pattern[0] == "!":
        return value[0] == pattern[1] and plain(pattern[2:], value[1:])
    return (pattern[0] == "_" or pattern[0] == value[0]) and plain(pattern[1:], value[1:])


@given(
    st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "!a"]), max_size=7).map("".join),
    st.text("ab%_!", max_size=8),
)
def test_like_is_what_it_is_defined_to_be(pattern: str, value: str) -> None:
    right = plain(pattern, value)
    assert compile_pattern(pattern, "!").matches(value) is right
    assert compile_pattern(pattern, "!", once=True).matches(value) is right


@pytest.mark.parametrize(
    ("pattern", "value", "answer"),
    [
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%%", "abc", True),
        ("a%a", "a", False),
        ("a%a", "aa", True),
        ("ab%bc", "abc", False),
        ("%a%b%", "xxaxxbxx", True),
        ("%a%b%", "xxbxxaxx", False),
        ("_", "ü", True),
        ("_", "", False),
        ("a_c%", "abc\nd", True),
        (".*", "xx", False),
        ("\\%", "\\x", True),  # without ESCAPE a backslash is a character
        ("x" * MAX_PATTERN, "x" * MAX_PATTERN, True),
    ],
)
def test_patterns(pattern: str, value: str, answer: bool) -> None:
    assert compile_pattern(pattern).matches(value) is answer


def test_a_wildcard_can_be_the_escape_character() -> None:
    matches = compile_pattern("100%%", "%").matches
    assert matches("100%") and not matches("1000")


@pytest.mark.parametrize(
    "pattern", ["%" * 1024, "%a" * 512, "_%" * 512, "%_a" * 341, "%" + "a_" * 500 + "b%", "%aab" * 256]
)
def test_no_pattern_is_slow(pattern: str) -> None:
    matches = compile_pattern(pattern).matches
    began = time.process_time()
    for value in ("a" * 65_536, "a" * 65_535 + "b", "ab" * 32_768):
        matches(value)
    assert time.process_time() - began < 20  # going back would take days


@given(
    st.text("ab", min_size=1, max_size=120),
    st.integers(0, 119),
    st.integers(1, 60),
    st.text("ab_", max_size=2),
)
def test_short_and_long_pieces_are_found_alike(value: str, at: int, size: int, end: str) -> None:
    """By a regular expression, by bits, and, which is plainly right, place by place."""
    piece = "".join("_" if place % 3 else one for place, one in enumerate(value[at : at + size])) + end
    right = any(
        all(wanted in ("_", value[start + place]) for place, wanted in enumerate(piece))
        for start in range(len(value) - len(piece) + 1)
    )
    for once in (False, True):
        assert compile_pattern(f"%{piece}%", once=once).matches(value) is right


def test_what_is_no_pattern() -> None:
    with pytest.raises(EvaluationError, match="1025 characters"):
        compile_pattern("%" * (MAX_PATTERN + 1))
    with pytest.raises(EvaluationError, match="one character"):
        compile_pattern("a", "")
    with pytest.raises(EvaluationError, match="ends with"):
        compile_pattern("a!", "!")
