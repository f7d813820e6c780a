"""Checks requirement marks against docs/requirements.md and writes what each test proved.

`--results FILE` makes the run leave one JSON object: the suite's counts, and for every test its outcome, its seconds
and the requirement ids it carries. tools/run_suites.py and tools/requirements.py read it. Works under xdist: ids
travel with the reports, only the controller writes.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.promises import PromiseBroken
from tools.requirements import read_requirements

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", metavar="FILE", help="write outcomes and proven requirements as JSON")


@cache
def known() -> frozenset[str]:
    return frozenset(requirement.id for requirement in read_requirements(ROOT))


def marked(item: pytest.Item) -> list[str]:
    return [str(name) for mark in item.iter_markers("req") for name in mark.args]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.user_properties.extend(("req", name) for name in marked(item))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail the test, not the collection: a collection that fails under xdist hides its reason."""
    unknown = [name for name in marked(item) if name not in known()]
    if unknown:
        pytest.fail(
            f"marked with {', '.join(unknown)}, which docs/requirements.md does not list", pytrace=False
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a failure is a verdict on messages, which no second attempt takes back."""
    report = yield
    excinfo = call.excinfo
    if report.failed and excinfo and excinfo.errisinstance(PromiseBroken):
        report.user_properties.append(("verdict", True))
    return report


class ResultsWriter:
    """Gathers reports in the process that prints them, and writes the file at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        entry = self.tests.setdefault(
            report.nodeid, {"outcome": "passed", "seconds": 0.0, "requirements": []}
        )
        entry["seconds"] = round(entry["seconds"] + report.duration, 3)
        entry["requirements"] = sorted(
            {str(value) for name, value in report.user_properties if name == "req"}
        )
        if report.outcome == "failed":
            entry["outcome"] = "failed"
            entry["verdict"] = ("verdict", True) in map(tuple, report.user_properties)
        elif report.outcome == "skipped" and entry["outcome"] != "failed":
            entry["outcome"] = "skipped"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome == "failed":
            self.tests[report.nodeid] = {"outcome": "failed", "seconds": 0.0, "requirements": []}

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.tests, indent=1))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    target = session.config.getoption("--results")
    if target and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(ResultsWriter(Path(target)), "busbar-results")
