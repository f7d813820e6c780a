"""LIKE: `%` is any run of characters, `_` is one; after the escape character each is itself. Case counts.

The parts before the first `%` and after the last are compared at their fixed positions. The pieces between are found one
after the other, each at its first position, because a later position leaves less room for the rest. So a value is read once,
with any pattern. A piece is found in one of these ways:

    only characters         by str.find
    only `_`                at once
    both, SHORT or less     by a regular expression without choices and repetitions, and so without backtracking
    both, and longer        bit i of a number means that the first i characters of the piece can end here; one step for
                            each character of the value moves them all

A pattern has a weight: the maximum number of steps (work.py) for each character of the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from busbar.rules.values import EvaluationError

MAX_PATTERN: Final = 1024
"""Maximum number of characters: that of an expression. It also holds for a pattern from a message."""
SHORT: Final = 32
LEAST_OF_EXPRESSION: Final = 4
BITWISE: Final = 64
READING: Final = 64
"""Steps for each character of a pattern that is parsed."""

Piece: TypeAlias = list[str | None]
"""The part between two `%`: characters, and None for `_`."""
Search: TypeAlias = Callable[[str, int, int], int]
"""Finds the first position of a piece in a value, between two positions; -1 if there is none."""


class Pattern(NamedTuple):
    matches: Callable[[str], bool]
    weight: int
    """Steps for each character of a value. 0: the pattern does not read all of them."""


def compile_pattern(pattern: str, escape: str | None = None, *, once: bool = False) -> Pattern:
    """Compile a pattern. If it is used `once`, nothing is prepared that takes longer than it saves. Raises EvaluationError
    for an invalid pattern."""
    if len(pattern) > MAX_PATTERN:
        raise EvaluationError(
            f"a pattern of LIKE has {len(pattern)} characters; at most {MAX_PATTERN} are allowed"
        )
    if escape is not None and len(escape) != 1:
        raise EvaluationError(f"ESCAPE takes one character, not '{escape[:40]}'")
    pieces = _pieces(pattern, escape)
    if any(None in piece for piece in pieces):
        return _with_any(pieces, once)
    return _of_characters(["".join(character or "" for character in piece) for piece in pieces])


def _pieces(pattern: str, escape: str | None) -> list[Piece]:
    pieces: list[Piece] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise EvaluationError("a pattern of LIKE ends with its escape character")
            pieces[-1].append(literal)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def _of_characters(pieces: list[str]) -> Pattern:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return Pattern(lambda value: value == first, 0)
    between = [piece for piece in pieces[1:-1] if piece]

    def matches(value: str) -> bool:
        position, stop = len(first), len(value) - len(last)
        if stop < position or not value.startswith(first) or not value.endswith(last):
            return False
        for piece in between:
            position = value.find(piece, position, stop)
            if position < 0:
                return False
            position += len(piece)
        return True

    return Pattern(matches, 1 if between else 0)


def _with_any(pieces: list[Piece], once: bool) -> Pattern:
    """A pattern with `_` in it."""
    first, last = pieces[0], pieces[-1]
    before, behind = _runs(first), _runs(last)
    if len(pieces) == 1:
        return Pattern(lambda value: len(value) == len(first) and _fits(before, value, 0), 0)
    searches = [(len(piece), *_search(piece, once)) for piece in pieces[1:-1] if piece]

    def matches(value: str) -> bool:
        position, stop = len(first), len(value) - len(last)
        if stop < position or not _fits(before, value, 0) or not _fits(behind, value, stop):
            return False
        for size, search, _ in searches:
            position = search(value, position, stop)
            if position < 0:
                return False
            position += size
        return True

    return Pattern(matches, max((weight for _, _, weight in searches), default=0))


def _runs(piece: Piece) -> list[tuple[int, str]]:
    """The runs of characters in a piece, and where they begin."""
    runs: list[tuple[int, str]] = []
    for place, character in enumerate(piece):
        if character is None:
            continue
        if runs and runs[-1][0] + len(runs[-1][1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + character)
        else:
            runs.append((place, character))
    return runs


def _fits(runs: list[tuple[int, str]], value: str, at: int) -> bool:
    return all(value.startswith(text, at + place) for place, text in runs)


def _search(piece: Piece, once: bool) -> tuple[Search, int]:
    """How to find a piece, and the weight of that."""
    size = len(piece)
    characters = "".join(character or "" for character in piece)
    if not characters:
        return lambda value, start, stop: start if stop - start >= size else -1, 0
    if len(characters) == size:
        return lambda value, start, stop: value.find(characters, start, stop), 1
    if once or size > SHORT:
        return _bitwise(piece), BITWISE
    return _by_expression(piece), max(LEAST_OF_EXPRESSION, size)


def _by_expression(piece: Piece) -> Search:
    expression = re.compile(
        "".join("." if character is None else re.escape(character) for character in piece), re.DOTALL
    )

    def search(value: str, start: int, stop: int) -> int:
        found = expression.search(value, start, stop)
        return -1 if found is None else found.start()

    return search


def _bitwise(piece: Piece) -> Search:
    any_character = 0  # where the piece takes whatever comes
    own: dict[str, int] = {}  # where it takes this one
    for place, character in enumerate(piece):
        if character is None:
            any_character |= 1 << place
        else:
            own[character] = own.get(character, 0) | 1 << place
    takes = {character: places | any_character for character, places in own.items()}
    size = len(piece)
    goal = 1 << size

    def search(value: str, start: int, stop: int) -> int:
        reached = 1
        for end, character in enumerate(value[start:stop], start + 1):
            reached = (reached & takes.get(character, any_character)) << 1 | 1
            if reached & goal:
                return end - size
        return -1

    return search
