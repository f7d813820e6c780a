"""Runs the checks and the test suites, prints their output, and ends with a table and one line of totals.

    python tools/run_suites.py             check and every suite (`make test`)
    python tools/run_suites.py check       format, lint, types, contracts only
    python tools/run_suites.py deep        every suite with its long campaigns, some again with several broker processes
                                           or on a cluster of Spark, then the mutations
    python tools/run_suites.py unit ...    the suites named

Every part runs, also after a failure; the exit code is 1 if any of them failed. A suite leaves its outcomes in
build/results/, where `make requirements` reads them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "results"
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Suite:
    """Directories that one pytest runs, with its options beside the defaults."""

    name: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the final table."""

    name: str
    counts: Counter[str]
    seconds: float
    ok: bool


PARALLEL = ("-n", "2")
# A server for each module is not started twice; files begin in the order in which they are collected.
BY_FILE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# More than there are processors. A worker begins with a part of the files in order, and takes from the others at the end: so
# few modules have a server on two workers, and none is idle while another has many tests left.
WAITING = ("-n", "4", "--dist", "worksteal")

SUITES = (
    Suite("unit", ("tests/unit",), PARALLEL),
    Suite(
        "interpreted",
        (
            "tests/unit/amqp",
            "tests/unit/message",
            "tests/unit/pages",
            "tests/unit/fragment",
            "tests/unit/broker",
            "tests/unit/partitions",
        ),
        PARALLEL,
        {"BUSBAR_INTERPRETED": "1"},
    ),
    Suite("conformance", ("tests/conformance",), PARALLEL),
    Suite("simulation", ("tests/simulation",), PARALLEL),
    # They wait for the SDK's own sleeps more than for the processor; each worker has a server of its own.
    Suite("interop", ("tests/interop",), WAITING),
    Suite("console", ("tests/console",), BY_FILE),  # a browser for each worker that needs one
    Suite("spark", ("tests/spark",), BY_FILE),  # a Spark session for each worker
    # Environments of their own; wheels are built once. The three files that compile begin at once.
    Suite("set-up", ("tests/set_up",), ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")),
    # Their servers restart, recover and wait for timeouts more than they use the processor.
    Suite("durability", ("tests/durability",), (*WAITING, "-m", "not alone")),
    Suite("robustness", ("tests/robustness",), (*BY_FILE, "-m", "not alone")),
    # One after the other, with the machine to themselves: they measure, or their deadlines are short.
    Suite("alone", ("tests/durability", "tests/robustness"), ("-m", "alone")),
)

SEVERAL_BROKERS = {"BUSBAR_TEST_BROKERS": "3"}
# A standalone cluster of Spark. The long campaigns of kills run in the suite `spark`.
SPARK_CLUSTER = {"BUSBAR_SPARK_MASTER": "standalone", "BUSBAR_ROUNDS": "12"}
DEEP_SUITES = (
    Suite("interop, brokers", ("tests/interop",), WAITING, SEVERAL_BROKERS),
    Suite("durability, brokers", ("tests/durability",), (), SEVERAL_BROKERS),
    Suite("robustness, brokers", ("tests/robustness",), (), SEVERAL_BROKERS),
    Suite("spark, cluster", ("tests/spark",), (), SPARK_CLUSTER),  # one cluster for the suite
)

CHECKS = (
    ("format", ("ruff", "format", "--check", "--output-format", "concise", ".")),
    ("lint", ("ruff", "check", "--quiet", ".")),
    ("types", ("mypy",)),
    ("contracts", ("lint-imports",)),
)


def heading(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def run_checks() -> list[Row]:
    """All checks side by side: the types take one processor for most of the time. The output comes in their order."""
    began = time.monotonic()
    running = [
        subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _, command in CHECKS
    ]
    rows = []
    for (name, _), check in zip(CHECKS, running, strict=True):
        heading(f"check: {name}")
        text, _ = check.communicate()
        print(text, end="", flush=True)
        rows.append(Row(f"check: {name}", Counter(), time.monotonic() - began, check.returncode == 0))
        began = time.monotonic()
    return rows


def other_suites() -> list[Suite]:
    """A directory of tests that no suite names is a suite of its own, so that none is left out silently."""
    named = {path for suite in SUITES for path in suite.paths}
    directories = sorted(path for path in (ROOT / "tests").iterdir() if path.is_dir())
    return [
        Suite(path.name, (f"tests/{path.name}",), BY_FILE)
        for path in directories
        if f"tests/{path.name}" not in named and any(path.rglob("test_*.py"))
    ]


def run_suite(suite: Suite) -> Row | None:
    paths = [path for path in suite.paths if any((ROOT / path).rglob("test_*.py"))]
    if not paths:
        heading(f"{suite.name}: no tests yet ({', '.join(suite.paths)})")
        return None
    heading(suite.name)
    results = RESULTS / f"{suite.name}.json"
    results.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *suite.options, f"--results={results}", *paths]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | suite.environment, check=False).returncode
    seconds = time.monotonic() - began
    tests = json.loads(results.read_text()) if results.exists() else {}
    return Row(suite.name, Counter(test["outcome"] for test in tests.values()), seconds, code == 0)


def run_mutations() -> Row:
    heading("mutations")
    began = time.monotonic()
    code = subprocess.run([sys.executable, "tools/mutate.py"], cwd=ROOT, check=False).returncode
    return Row("mutations", Counter(), time.monotonic() - began, code == 0)


def report(rows: list[Row]) -> int:
    heading("summary")
    print(f"{'suite':<20}{'tests':>7}{'skipped':>9}{'seconds':>9}  result")
    for row in rows:
        ran = row.counts["passed"] + row.counts["failed"]
        tests = str(ran) if row.counts else "-"
        skipped = str(row.counts["skipped"]) if row.counts else "-"
        print(f"{row.name:<20}{tests:>7}{skipped:>9}{row.seconds:>9.1f}  {'passed' if row.ok else 'FAILED'}")
    print(f"{'total':<20}{'':>16}{sum(row.seconds for row in rows):>9.1f}")
    failed_parts = [row.name for row in rows if not row.ok]
    if failed_parts:
        print(f"failed: {', '.join(failed_parts)}")
    totals: Counter[str] = sum((row.counts for row in rows), Counter())
    # A check, or a suite that failed without naming a test, counts as one failure.
    failed = totals["failed"] + sum(1 for row in rows if not row.ok and not row.counts["failed"])
    print(f"{totals['passed']} passed, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    chosen = sys.argv[1:]
    known = [*SUITES, *other_suites()]
    names = {"check", "deep", *(suite.name for suite in known)}
    unknown = [name for name in chosen if name not in names]
    if unknown:
        print(f"no suite is named {', '.join(unknown)}; there are: {', '.join(sorted(names))}")
        return 2
    everything = not chosen or "deep" in chosen
    if everything:
        shutil.rmtree(RESULTS, ignore_errors=True)
    rows: list[Row] = []
    if not chosen or "check" in chosen:
        rows += run_checks()
    for suite in known:
        if everything or suite.name in chosen:
            row = run_suite(suite)
            if row is not None:
                rows.append(row)
    if "deep" in chosen:
        rows += [row for row in map(run_suite, DEEP_SUITES) if row is not None]
        rows.append(run_mutations())
    return report(rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
