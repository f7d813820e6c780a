"""Which failed tests run once more, and what becomes of them (tools/second_attempt.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.second_attempt import MOST_AGAIN, Failures, choose, merge, unsteady

ROOT = Path(__file__).resolve().parents[2]


def outcomes(*failed: str, verdict: bool = False) -> dict[str, dict[str, Any]]:
    return {"fine": {"outcome": "passed"}} | {
        test: {"outcome": "failed", "verdict": verdict} for test in failed
    }


def failures(
    *failed: str, suite: str = "interop", again: bool = True, complete: bool = True, verdict: bool = False
) -> Failures:
    return Failures(suite, again, outcomes(*failed, verdict=verdict), complete)


def test_failed_tests_of_real_processes_run_again() -> None:
    assert choose([failures("a", "b"), failures(suite="console"), failures("c", suite="spark")]) == {
        "interop": ["a", "b"],
        "spark": ["c"],
    }
    assert choose([failures()]) == {}


@pytest.mark.parametrize(
    "final",
    [
        failures("a", suite="unit", again=False),
        failures("a", suite="durability", verdict=True),
        failures(suite="types", again=False, complete=False),
        failures("a", suite="spark", complete=False),
    ],
    ids=["a unit test", "a verdict", "a check", "a pytest that broke"],
)
def test_nothing_runs_again_if_the_run_has_failed_anyway(final: Failures) -> None:
    assert choose([failures("b"), final]) == {}


def test_many_failures_are_no_chance() -> None:
    most = [f"test {number}" for number in range(MOST_AGAIN)]
    assert choose([failures(*most)]) == {"interop": most}
    assert choose([failures(*most), failures("one more", suite="spark")]) == {}


def test_what_fails_again_or_does_not_run_has_failed() -> None:
    second = {"a": {"outcome": "passed"}, "b": {"outcome": "failed"}, "c": {"outcome": "skipped"}}
    merged = merge(outcomes("a", "b", "c", "d"), second, ["a", "b", "c", "d"])
    assert {test: result["outcome"] for test, result in merged.items()} == {
        "fine": "passed",
        "a": "passed",
        **dict.fromkeys("bcd", "failed"),
    }
    assert unsteady(merged) == ("a",)


def test_a_verdict_on_messages_is_noted(tmp_path: Path) -> None:
    module = tmp_path / "test_promises.py"
    module.write_text(
        "from harness.promises import require_kept\n"
        "def test_kept(): require_kept('nothing is lost', set())\n"
        "def test_broken(): require_kept('nothing is lost', {'1-17'})\n"
        "def test_other(): assert False\n"
    )
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    plugin = ["-p", "tests.plugins.results", f"--results={results}", str(module)]
    done = subprocess.run([*command, *plugin], cwd=ROOT, capture_output=True, text=True, check=False)
    found = {
        test.rpartition("::")[2]: (result["outcome"], result.get("verdict"))
        for test, result in json.loads(results.read_text()).items()
    }
    assert found == {
        "test_kept": ("passed", None),
        "test_broken": ("failed", True),
        "test_other": ("failed", False),
    }, done.stdout
    assert "nothing is lost: broken 1 times: {'1-17'}" in done.stdout
