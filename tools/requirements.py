"""Prints which requirements are proven, and by which tests: docs/requirements.md against the results of the last test run.

A row is proven only by a test that has its id, ran and passed. A skipped test proves nothing, and a row with one failed test
among its own is not proven.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "results"
ROW = re.compile(r"^\|\s*(?P<id>[A-Z]\d+)\s*\|\s*(?P<title>.+?)\s*\|\s*$")


@dataclass(slots=True)
class Requirement:
    """A row of docs/requirements.md, and its results."""

    id: str
    title: str
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        return bool(self.passed) and not self.failed


def read_requirements(root: Path = ROOT) -> list[Requirement]:
    """Every row, in the order of the document."""
    text = (root / "docs" / "requirements.md").read_text()
    rows = [
        Requirement(match["id"], match["title"]) for line in text.splitlines() if (match := ROW.match(line))
    ]
    ids = [row.id for row in rows]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"docs/requirements.md lists {', '.join(twice)} more than once")
    return rows


def add_results(rows: list[Requirement], results: Path = RESULTS) -> None:
    """Add to each row the tests that have its id."""
    by_id = {row.id: row for row in rows}
    for path in sorted(results.glob("*.json")):
        for node, test in json.loads(path.read_text()).items():
            for name in test["requirements"]:
                row = by_id.get(name)
                if row is not None and test["outcome"] != "skipped":
                    (row.passed if test["outcome"] == "passed" else row.failed).append(node)


def main() -> int:
    rows = read_requirements()
    if not any(RESULTS.glob("*.json")):
        print("no results yet: run `make test` first")
        return 1
    add_results(rows)
    for row in rows:
        print(f"{row.id:<4} {row.title}")
        if not row.passed and not row.failed:
            print("       NOT PROVEN")
        for node in row.failed:
            print(f"       FAILED by {node}")
        for node in row.passed:
            print(f"       {'proven by' if row.proven else 'passed'} {node}")
    print(f"{sum(row.proven for row in rows)} of {len(rows)} requirements proven")
    return 0


if __name__ == "__main__":
    sys.exit(main())
