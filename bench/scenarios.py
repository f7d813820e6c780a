"""The presets of the seven documented scenarios against naive settings, each as a ratio: never worse, and mostly better."""

from __future__ import annotations

import sys

import uvloop

from busbar.client.advice import Scenario
from busbar.jobs.bench import ScenarioResult, compare
from busbar.jobs.bench_run import BenchTarget
from harness.measured import MeasuredServer, measured_server

SECONDS = 4.0
NEVER_WORSE = 0.8
"""Runs of a few seconds differ by this much on a machine that does other work."""
BETTER = 1.5
MAY_BE_EQUAL = (Scenario.LOW_LATENCY, Scenario.MANY_SENDERS)
"""The rate of these is given. A naive program may reach it too; the preset must not be slower."""


def line_of(result: ScenarioResult) -> str:
    naive, preset = result.runs
    return (
        f"{result.workload.scenario.value:32} {naive.receive_rate:9,.0f}/s {preset.receive_rate:9,.0f}/s   "
        f"{naive.latency.get('p50', 0):8,.1f} ms {preset.latency.get('p50', 0):8,.1f} ms   {result.ratio or 0:6.2f} ×"
    )


def measure(server: MeasuredServer) -> list[ScenarioResult]:
    return uvloop.run(compare(BenchTarget(server.busbar.connection_string), seconds=SECONDS))


def main() -> int:
    with measured_server({}) as server:
        results = measure(server)
    print(f"{'':32} {'naive':>11} {'preset':>11}   {'median':>11} {'median':>11}   {'ratio':>8}")
    failed = False
    for result in results:
        least = NEVER_WORSE if result.workload.scenario in MAY_BE_EQUAL else BETTER
        is_good = (result.ratio or 0) >= least
        failed = failed or not is_good
        print(line_of(result) + ("" if is_good else f"   below {least:g}"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
