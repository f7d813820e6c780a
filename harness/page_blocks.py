"""The blocks of code of a page, which tests run as they stand, and what the page shows as their output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)(?: ([\w.]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = "text"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page that is not indented."""

    language: str
    name: str
    """Of the file as which it is saved, or empty."""
    text: str
    line: int
    printed: str | None = None
    """What the page shows as its output: the block of text behind it."""


def blocks_of(page: Path, languages: tuple[str, ...]) -> Iterator[Block]:
    """The blocks of a page in order. One of another language fails, because no test would run it."""
    text = page.read_text()
    found = [*_BLOCK.finditer(text)]
    for number, match in enumerate(found):
        language, name, code = match.groups(default="")
        if language == OUTPUT:
            assert number and found[number - 1][1] != OUTPUT, f"{page.name} has output of no program"
            continue
        assert language in languages, f"{page.name} has a block of {language}, which is not run"
        behind = found[number + 1] if number + 1 < len(found) else None
        printed = behind[3] if behind is not None and behind[1] == OUTPUT else None
        yield Block(language, name, code, text.count("\n", 0, match.start()) + 1, printed)
