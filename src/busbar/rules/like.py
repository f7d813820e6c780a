"""LIKE: `%` is any run of characters, `_` is one; behind the escape character each is itself. Case counts.

No pattern is slow. Without `_` the pieces between the `%` are found one behind the other, by the search of the language.
With it, all ways to match are followed at once: bit i of a number says that the first i characters of the pattern can end
here, and one step for each character of the value moves them all. A regular expression, or a matcher that goes back, can
be made to try every way in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from busbar.rules.values import EvaluationError

MAX_PATTERN: Final = 1024
"""Characters: as many as an expression has. A pattern that comes from a message has no more than that either."""

Matcher = Callable[[str], bool]


def matcher(pattern: str, escape: str | None = None) -> Matcher:
    """Raises EvaluationError for a pattern that is none."""
    if len(pattern) > MAX_PATTERN:
        raise EvaluationError(
            f"a pattern of LIKE has {len(pattern)} characters; at most {MAX_PATTERN} are allowed"
        )
    if escape is not None and len(escape) != 1:
        raise EvaluationError(f"ESCAPE takes one character, not '{escape[:40]}'")
    pieces = _pieces(pattern, escape)
    if any(None in piece for piece in pieces):
        return _bitwise(pieces)
    return _by_search(["".join(character or "" for character in piece) for piece in pieces])


def _pieces(pattern: str, escape: str | None) -> list[list[str | None]]:
    """What stands between the `%`: characters, and None for `_`."""
    pieces: list[list[str | None]] = [[]]
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


def _by_search(pieces: list[str]) -> Matcher:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return lambda value: value == first
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

    return matches


def _bitwise(pieces: list[list[str | None]]) -> Matcher:
    any_character = 0  # where the pattern takes whatever comes
    own: dict[str, int] = {}  # where it takes this one
    stays = 0  # where it may wait
    size = 0
    for number, piece in enumerate(pieces):
        if number > 0:
            stays |= 1 << size
        for character in piece:
            if character is None:
                any_character |= 1 << size
            else:
                own[character] = own.get(character, 0) | 1 << size
            size += 1
    takes = {character: places | any_character for character, places in own.items()}
    goal = 1 << size

    def matches(value: str) -> bool:
        reached = 1
        for character in value:
            reached = (reached & takes.get(character, any_character)) << 1 | reached & stays
            if not reached:
                return False
        return reached & goal != 0

    return matches
