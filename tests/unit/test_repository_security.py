"""What docs/security.md says of tests, and what no source may do (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
WEAKNESSES = "## Known weaknesses of other brokers\n"
RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "code", "imp", "ctypes"}
CALLS = {"eval", "exec", "__import__"}


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "security.md").read_text().partition(WEAKNESSES)[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_weakness_says_where_it_was_known_what_is_done_and_how_that_is_tested() -> None:
    table = rows()
    assert len(table) > 20
    for row in table:
        assert len(row) == 4 and all(row), row
        assert row[3] == "no test" or re.fullmatch(r"`[^`]+`(, `[^`]+`)*", row[3]), row


@pytest.mark.parametrize("node", sorted({node for row in rows() for node in re.findall("`([^`]+)`", row[3])}))
def test_the_tests_that_the_document_names_are_there(node: str) -> None:
    file, _, name = node.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), node


def loaded(tree: ast.Module) -> set[str]:
    """The modules that a source imports, and the functions that run text as code."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & RUNS_CODE
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & RUNS_CODE
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.add(node.func.id)
    return found


def test_nothing_is_loaded_that_can_run_code() -> None:
    assert loaded(ast.parse("from pickle import loads\neval('1')")) == {"pickle", "eval"}
    assert {
        str(path.relative_to(ROOT)): found
        for path in SOURCES
        if (found := loaded(ast.parse(path.read_text())))
    } == {}
