"""Parses JSON with // and /* */ comments and trailing commas, as people write it in configuration files.

Removed parts are replaced by spaces, so that the line and column of a syntax error are those of the file.
"""

from __future__ import annotations

import json
import re

# A string is matched first, so that nothing inside it counts as a comment or a comma before a bracket.
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<open>/\*)""", re.DOTALL
)
_TRAILING_COMMA = re.compile(r"""("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])""", re.DOTALL)


class JsonError(ValueError):
    """The text is not JSON; the message names the place."""


def parse(text: str) -> object:
    """The value of the text. Raises JsonError."""
    if text.startswith("\ufeff"):
        text = text[1:]
    plain = _TRAILING_COMMA.sub(lambda match: match[1] or " ", _TOKEN.sub(_without_comment, text))
    try:
        value: object = json.loads(plain)
    except json.JSONDecodeError as error:
        raise JsonError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise JsonError("the values are nested too deeply") from None
    return value


def _without_comment(match: re.Match[str]) -> str:
    if match["string"] is not None:
        return match["string"]
    if match["open"] is not None:
        line = match.string.count("\n", 0, match.start()) + 1
        raise JsonError(f"line {line}: the comment that starts here has no end")
    return re.sub(r"[^\n]", " ", match["comment"])
