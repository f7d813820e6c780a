"""The commands in the documents are commands of `busbar`, with options that they have.

Pages whose blocks are run show more than this (tests/interop/test_how_tos.py, tests/spark/test_pages.py). Most commands for
operators need several machines, or end a process, and are checked here alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from busbar.cli.completion import command_words
from busbar.cli.groups import in_full

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "samples" / "README.md"]
LINE = re.compile(r"^(?:    |\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(busbar\s[^`]+)$")
SPAN = re.compile(r"`(busbar\s[a-z-][^`]*)`")
END = re.compile(r"\s{2,}|\s*(?:&&|[|&;>#]|<<)(?:\s|$)|\\$|: ")
"""What ends a command: an explanation beside it, the next command, a redirection, the next line."""
WORDS = command_words()


def documented(text: str) -> Iterator[str]:
    for line in text.splitlines():
        matched = LINE.match(line)
        if matched:
            yield END.split(matched[1])[0]
        yield from (END.split(span)[0] for span in SPAN.findall(line))


def fault_of(command: str) -> str | None:
    """What is wrong with a command; None if it is known, and so are its options."""
    words = [word.strip("[]") for word in in_full(command.split()[1:])]
    path = ""
    while words and words[0] in WORDS[path] and not words[0].startswith("-"):
        path = f"{path} {words.pop(0)}".strip()
    if words and "|" in words[0] and not path.startswith("completion"):  # several commands at once
        faults = (fault_of(f"busbar {path} {one}") for one in words[0].split("|"))
        return next((fault for fault in faults if fault), None)
    if not path and words and not words[0].startswith("-"):
        return f"there is no command '{words[0]}'"
    has_commands = any(f"{path} {word}".strip() in WORDS for word in WORDS[path])
    if has_commands and path and words and not words[0].startswith("-"):
        return f"'{path}' has no command '{words[0]}'"
    for word in words:
        option = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*", option) and option not in WORDS[path]:
            return f"'{path}' has no {option}"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_exist(document: Path) -> None:
    faults = {command: fault_of(command) for command in documented(document.read_text())}
    assert {command: fault for command, fault in faults.items() if fault} == {}


def test_commands_are_found() -> None:
    found = [command for document in DOCUMENTS for command in documented(document.read_text())]
    assert len(found) > 300
    assert {"busbar serve --dev", "busbar stores offline|online|reset NAME"} <= set(found)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("busbar sevre", "there is no command 'sevre'"),
        ("busbar queue make orders", "'queue' has no command 'make'"),
        ("busbar queue create orders --partitioned", "'queue create' has no --partitioned"),
        ("busbar stores offline|away NAME", "'stores' has no command 'away'"),
        ("busbar dead-letters orders", None),
    ],
)
def test_a_wrong_command_would_be_found(command: str, fault: str | None) -> None:
    assert fault_of(command) == fault
