"""The source speaks one language: a class name once, docstrings that say something, and none of the words that were
retired."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "busbar").rglob("*.py"))

MIRRORED = {ROOT / "src" / "busbar" / "client" / "errors.py"}
"""What programs import: its errors have the names of model/errors.py, which they stand for."""

RETIRED = (
    "porch", "lobby", "hatch", "newcomer", "hoarders", "shelf", "shelves", "comeback", "begin_anew", "take_census",
    "wake_ups", "serving process", "unproven", "far_store", "begun anew", "made anew",
)  # fmt: skip
"""Words of our own for what other brokers have a word for (docs/glossary.md). In SQL a column is still called `shelf`."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def test_a_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and path not in MIRRORED:
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_docstring_has_a_sentence() -> None:
    """It states its rule. A number leads the reader away, and is wrong as soon as a rule is put in front of it."""
    empty = [where for where, text in docstrings() if not re.search(r"[A-Za-z]{2}", text)]
    numbers = [where for where, text in docstrings() if re.match(r"Rules? \d", text)]
    assert empty + numbers == []


def test_retired_words_do_not_come_back() -> None:
    pattern = re.compile(rf"(?<![A-Za-z-])({'|'.join(map(re.escape, RETIRED))})(?![A-Za-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := pattern.search(line)) and not _is_sql(path)
    ]
    assert found == []


def _is_sql(path: Path) -> bool:
    return path.parent.name == "sqlite" and path.name in {"duplicate_ids.py", "schema.py"}
