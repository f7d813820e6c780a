"""Runs the checks and the test suites, prints their output, and ends with a table and one line of totals.

    python tools/run_suites.py             check and every suite (`make test`)
    python tools/run_suites.py check       format, lint, types, contracts only
    python tools/run_suites.py deep        every suite with its long campaigns, some again with several broker processes
                                           or on a cluster of Spark, then the mutations
    python tools/run_suites.py unit ...    the suites named

Every part runs, also after a failure; the exit code is 1 if any of them failed. A suite leaves its outcomes in
build/results/, where `make requirements` reads them. The column `busy` is the share of the machine's processors that were in
use meanwhile: where it is low, tests wait.

A suite of real processes may depend on the load of the machine. If only a few tests fail in all (MOST_AGAIN), they run once
more, alone, and the summary names them (docs/adr/0038-a-second-attempt.md). A verdict on messages is not repeated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "results"
BIN = Path(sys.executable).parent
sys.path.insert(0, str(ROOT))

from tools.second_attempt import Failures, choose, merge, unsteady  # noqa: E402


@dataclass(frozen=True, slots=True)
class Suite:
    """Directories that one pytest runs, with its options beside the defaults."""

    name: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    beside: str = ""
    """The suite at whose start this one starts too, if both are asked for."""
    again: bool = False
    """Whether a failed test runs once more: its processes share the machine with those of other tests."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the final table."""

    name: str
    counts: Counter[str]
    seconds: float
    ok: bool
    busy: float | None = None
    complete: bool = True
    """Whether all that failed are tests."""
    unsteady: tuple[str, ...] = ()
    """Tests that passed at their second attempt only."""


PARALLEL = ("-n", "2")
# A server for each module is not started twice; files begin in the order in which they are collected.
BY_FILE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# More than there are processors. A worker begins with a part of the files in order, and takes from the others at the end: so
# few modules have a server on two workers, and none is idle while another has many tests left.
WAITING = ("-n", "4", "--dist", "worksteal")
# Four leave the processors idle for half of the time.
MOSTLY_WAITING = ("-n", "6", "--dist", "worksteal")

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
    # Environments of their own; wheels are built once. The three files that compile begin at once.
    Suite(
        "set-up", ("tests/set_up",), ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"), again=True
    ),
    # No time is measured in these, and set-up waits for files from the network and for one compiler.
    Suite("conformance", ("tests/conformance",), PARALLEL, beside="set-up"),
    Suite("simulation", ("tests/simulation",), PARALLEL, beside="set-up"),
    # They wait for the SDK's own sleeps more than for the processor; each worker has a server of its own.
    Suite("interop", ("tests/interop",), MOSTLY_WAITING, again=True),
    Suite("console", ("tests/console",), BY_FILE, again=True),  # a browser for each worker that needs one
    Suite("spark", ("tests/spark",), BY_FILE, again=True),  # a Spark session for each worker
    # Their servers restart, recover and wait for timeouts more than they use the processor.
    Suite("durability", ("tests/durability",), (*WAITING, "-m", "not alone"), again=True),
    # A server for each module; half of the time they wait for limits of time, and for servers that start.
    Suite("robustness", ("tests/robustness",), ("-n", "4", *BY_FILE[2:], "-m", "not alone"), again=True),
    # One after the other, with the machine to themselves: they measure, or their deadlines are short.
    Suite("alone", ("tests/durability", "tests/robustness"), ("-m", "alone"), again=True),
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
    ("contracts", ("lint-imports",)),
    # One processor for half a minute: the first suite begins beside it.
    ("types", ("mypy",)),
)


def heading(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def run_check(name: str, command: Sequence[str]) -> tuple[Row, str]:
    """Run a check; returns its row and its output."""
    began = time.monotonic()
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Row(f"check: {name}", Counter(), time.monotonic() - began, done.returncode == 0), done.stdout


def shown(checks: Iterable[Future[tuple[Row, str]]]) -> Iterator[Row]:
    """Print what checks have found, each when it has ended."""
    for check in checks:
        row, output = check.result()
        heading(row.name)
        print(output, end="", flush=True)
        yield row


def other_suites() -> list[Suite]:
    """A directory of tests that no suite names is a suite of its own, so that none is left out silently."""
    named = {path for suite in SUITES for path in suite.paths}
    directories = sorted(path for path in (ROOT / "tests").iterdir() if path.is_dir())
    return [
        Suite(path.name, (f"tests/{path.name}",), BY_FILE)
        for path in directories
        if f"tests/{path.name}" not in named and any(path.rglob("test_*.py"))
    ]


def processor_time() -> tuple[int, int]:
    """Read how long all processors of the machine have worked, and how long they could have."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = ticks[3:5]
    return sum(ticks) - idle - waiting, sum(ticks)


def in_groups(suites: Sequence[Suite]) -> list[list[Suite]]:
    """Group the suites that run at once. A suite whose companion is not among them begins a group of its own."""
    groups: dict[str, list[Suite]] = {}
    for suite in suites:
        groups.setdefault(suite.beside if suite.beside in groups else suite.name, []).append(suite)
    return list(groups.values())


def run_group(group: Sequence[Suite]) -> list[Row]:
    """Run suites at once. The output of the first comes as it is written, that of the others when the first has ended."""
    group = [suite for suite in group if has_tests(suite)]
    if not group:
        return []
    first, *others = group
    with ThreadPoolExecutor(len(group)) as pool:
        beside = [pool.submit(run_suite, suite, kept=True) for suite in others]
        heading(" beside ".join(suite.name for suite in group))
        row, _ = run_suite(first)
        rows = [row]
        for suite, under_way in zip(others, beside, strict=True):
            row, output = under_way.result()
            heading(suite.name)
            print(output, end="", flush=True)
            rows.append(row)
    return rows


def has_tests(suite: Suite) -> bool:
    if any(any((ROOT / path).rglob("test_*.py")) for path in suite.paths):
        return True
    heading(f"{suite.name}: no tests yet ({', '.join(suite.paths)})")
    return False


def run_suite(suite: Suite, *, kept: bool = False) -> tuple[Row, str]:
    """Run a suite; returns its row, and its output if that is kept instead of written."""
    began, (worked, could) = time.monotonic(), processor_time()
    code, tests, output = run_pytest(suite.name, [*suite.options, *suite.paths], suite.environment, kept=kept)
    seconds, (worked_now, could_now) = time.monotonic() - began, processor_time()
    busy = (worked_now - worked) / max(1, could_now - could)
    return Row(suite.name, counts_of(tests), seconds, code == 0, busy, complete=code in (0, 1)), output


def run_pytest(
    name: str, arguments: Sequence[str], environment: dict[str, str], *, kept: bool = False
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Run a pytest; returns its exit code, what became of each test, and its output if that is kept."""
    results = results_of(name)
    results.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--results={results}", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE if kept else None,
        stderr=subprocess.STDOUT if kept else None,
        text=True,
        check=False,
    )
    return done.returncode, read_results(name), done.stdout or ""


def results_of(name: str) -> Path:
    return RESULTS / f"{name}.json"


def read_results(name: str) -> dict[str, dict[str, Any]]:
    path = results_of(name)
    return json.loads(path.read_text()) if path.exists() else {}


def counts_of(tests: dict[str, dict[str, Any]]) -> Counter[str]:
    return Counter(test["outcome"] for test in tests.values())


def try_again(rows: list[Row], suites: Sequence[Suite]) -> list[Row]:
    """Run the failed tests that may depend on the machine's load once more, alone; returns the rows as they are then."""
    by_name = {suite.name: suite for suite in suites}
    failures = [
        Failures(row.name, by_name[row.name].again, read_results(row.name), row.complete)
        if row.name in by_name
        else Failures(row.name, again=False, outcomes={}, complete=row.ok)
        for row in rows
    ]
    chosen = choose(failures)
    return [
        tried_again(row, by_name[row.name], chosen[row.name]) if row.name in chosen else row for row in rows
    ]


def tried_again(row: Row, suite: Suite, tests: list[str]) -> Row:
    name = f"{suite.name}, second attempt"
    heading(name)
    first = read_results(suite.name)
    began = time.monotonic()
    _, second, _ = run_pytest(name, tests, suite.environment)
    results_of(name).unlink(missing_ok=True)
    merged = merge(first, second, tests)
    results_of(suite.name).write_text(json.dumps(merged, indent=1))
    counts = counts_of(merged)
    seconds = row.seconds + time.monotonic() - began
    return replace(row, counts=counts, seconds=seconds, ok=not counts["failed"], unsteady=unsteady(merged))


def run_mutations() -> Row:
    heading("mutations")
    began = time.monotonic()
    code = subprocess.run([sys.executable, "tools/mutate.py"], cwd=ROOT, check=False).returncode
    return Row("mutations", Counter(), time.monotonic() - began, code == 0)


def report(rows: list[Row], seconds: float) -> int:
    heading("summary")
    print(f"{'suite':<20}{'tests':>7}{'skipped':>9}{'seconds':>9}{'busy':>7}  result")
    for row in rows:
        ran = row.counts["passed"] + row.counts["failed"]
        tests = str(ran) if row.counts else "-"
        skipped = str(row.counts["skipped"]) if row.counts else "-"
        busy = "-" if row.busy is None else f"{row.busy:.0%}"
        result = "passed" if row.ok else "FAILED"
        print(f"{row.name:<20}{tests:>7}{skipped:>9}{row.seconds:>9.1f}{busy:>7}  {result}")
    print(f"{'total':<20}{'':>16}{seconds:>9.1f}")
    for row in rows:
        for test in row.unsteady:
            print(f"unsteady: {test} failed, and passed alone (suite {row.name})")
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
    began = time.monotonic()
    rows: list[Row] = []
    suites = [suite for suite in known if everything or suite.name in chosen]
    # Long campaigns load the machine for hours: one at a time.
    groups = [[suite] for suite in (*suites, *DEEP_SUITES)] if "deep" in chosen else in_groups(suites)
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        wanted = CHECKS if not chosen or "check" in chosen else ()
        checks = [pool.submit(run_check, *check) for check in wanted]
        rows += shown(checks[:-1])
        for group in groups[:1]:
            rows += run_group(group)
        rows += shown(checks[-1:])
    for group in groups[1:]:
        rows += run_group(group)
    if "deep" in chosen:
        rows.append(run_mutations())
    else:
        rows = try_again(rows, suites)
    return report(rows, time.monotonic() - began)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
