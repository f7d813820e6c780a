"""Checks the words of sources and documents: a class name once, plain sentences, and none of the retired words."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.unit.prose import comments, docstring_blocks, docstrings, document_blocks, nodes, sentences

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "busbar").rglob("*.py"))
WRITTEN = [
    *SOURCES,
    *sorted(path for place in ("harness", "tools", "bench") for path in (ROOT / place).rglob("*.py")),
]
"""The files whose docstrings and comments are checked."""
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"),
]
"""Without CHANGELOG.md and docs/adr, which are history."""

MIRRORED = {ROOT / "src" / "busbar" / "client" / "errors.py"}
"""What programs import: its errors have the names of model/errors.py, which they stand for."""

RETIRED = (
    "porch", "lobby", "hatch", "newcomer", "hoarders", "shelf", "shelves", "comeback", "begin_anew", "take_census",
    "wake_ups", "serving process", "unproven", "far_store", "begun anew", "made anew",
)  # fmt: skip
"""Words of our own for what other brokers have a word for (docs/glossary.md). In SQL a column is still called `shelf`."""

VAGUE = re.compile(
    r"\b(anew|whoever|whomever|somebody|nobody|anybody|hears?|heard|hearing|speaks?|spoke|spoken|speaking|knows|knew|wants|"
    r"wanted|minds|believes|tells?|told|says?|said)\b",
    re.IGNORECASE,
)
"""Words that hide the actor, or by which software speaks, hears or wants. Code in backquotes may have them."""

POINTER = re.compile(r"(Rules? \d|(It|They|Those|These|This|That|Its|The same|As above|Raises)\b)")
"""Beginnings by which a docstring points elsewhere, instead of stating what the thing is or does."""

LONGEST_IN_DOCUMENTS = 28
LONGEST_IN_DOCSTRINGS = 30
"""Words of a sentence. The aim is 25; lists of names, which are clear in spite of their length, need a few more."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """The place and docstring of each module, class and function but `__init__`, which describes its parameters."""
    for path in paths:
        for node in nodes(path):
            if not isinstance(node, Documented) or getattr(node, "name", "") == "__init__":
                continue
            if (text := ast.get_docstring(node)) is not None:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def document_sentences() -> Iterator[tuple[str, str]]:
    """The place and text of each sentence."""
    for path in DOCUMENTS:
        for block in document_blocks(path.read_text()):
            for sentence in sentences(block):
                yield str(path.relative_to(ROOT)), sentence


def docstring_sentences() -> Iterator[tuple[str, str]]:
    for path in WRITTEN:
        for line, text in docstrings(path):
            for block in docstring_blocks(inspect.cleandoc(text)):
                for sentence in sentences(block):
                    yield f"{path.relative_to(ROOT)}:{line}", sentence


def comment_sentences() -> Iterator[tuple[str, str]]:
    for path in WRITTEN:
        for line, text in comments(path):
            for sentence in sentences(text):
                yield f"{path.relative_to(ROOT)}:{line}", sentence


def test_a_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and path not in MIRRORED:
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_docstring_has_a_sentence() -> None:
    """It states its rule. A number leads the reader away, and is wrong as soon as a rule is put in front of it."""
    empty = [where for where, text in documented(SOURCES) if not re.search(r"[A-Za-z]{2}", text)]
    numbers = [where for where, text in documented(SOURCES) if re.match(r"Rules? \d", text)]
    assert empty + numbers == []


def test_a_docstring_begins_with_what_the_thing_is_or_does() -> None:
    pointing = [f"{where}: {text[:60]}" for where, text in documented(WRITTEN) if POINTER.match(text)]
    fragments = [
        f"{where}: {text[:60]}"
        for where, text in documented(WRITTEN)
        if not re.match(r"[A-Z0-9`'\"/$]", text) or not re.search(r"[.:?]\)?$", text.split("\n\n")[0])
    ]
    assert pointing + fragments == []


def test_retired_words_do_not_come_back() -> None:
    pattern = re.compile(rf"(?<![A-Za-z-])({'|'.join(map(re.escape, RETIRED))})(?![A-Za-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in [*SOURCES, *DOCUMENTS]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := pattern.search(line)) and not _is_sql(path)
    ]
    assert found == []


def _is_sql(path: Path) -> bool:
    return path.parent.name == "sqlite" and path.name in {"duplicate_ids.py", "schema.py"}


def test_the_actor_has_a_name() -> None:
    found = [
        f"{where}: {match[0]}: {sentence[:80]}"
        for source in (document_sentences(), docstring_sentences(), comment_sentences())
        for where, sentence in source
        if (match := VAGUE.search(sentence))
    ]
    assert found == []


def test_sentences_are_short() -> None:
    found = [
        f"{where}: {len(sentence.split())} words: {sentence[:80]}"
        for source, longest in (
            (document_sentences(), LONGEST_IN_DOCUMENTS),
            (docstring_sentences(), LONGEST_IN_DOCSTRINGS),
        )
        for where, sentence in source
        if len(sentence.split()) > longest
    ]
    assert found == []


def test_prose_is_found_between_code() -> None:
    """The rules above are checked on what these functions find, so they must find it."""
    page = (
        "# Title\n\nOne `a b c` here. Two\nlines.\n\n    code. Code.\n\n| a | b |\n|---|---|\n| cell | [link](x.md) |\n\n"
        "- item\n  goes on. Next.\n\n      code in a list\n\n```sh\nnot. this\n```\n\nLast 1. item.\n"
    )
    assert [sentence for block in document_blocks(page) for sentence in sentences(block)] == [
        "Title", "One X here.", "Two lines.", "a", "b", "cell", "link", "item goes on.", "Next.", "Last 1. item.",
    ]  # fmt: skip
    text = "First line.\n\n    table   row\n\n1. Rule one\n   continues.\n2. Rule two. More.\n"
    assert [sentence for block in docstring_blocks(text) for sentence in sentences(block)] == [
        "First line.", "Rule one continues.", "Rule two.", "More.",
    ]  # fmt: skip
