"""Measures the documented scenarios against a running Busbar: `busbar bench`.

    report = bench_scenario(target, WORKLOADS[Scenario.LOW_LATENCY], seconds=10)
    report = compare(target, seconds=5)

1. A preset needs the rate of the receivers for its prefetch count. So a short run without prefetching comes first, and is
   not reported.
2. A comparison runs each scenario twice, with naive settings and with its preset, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from busbar.client.advice import LATENCY, Scenario
from busbar.client.presets import NAIVE, ScenarioPreset, preset
from busbar.jobs.bench_advice import BenchAdvice, advise_run
from busbar.jobs.bench_figures import RunFigures
from busbar.jobs.bench_run import BenchTarget, run_workload
from busbar.jobs.bench_workloads import WORKLOADS, Workload

PROBE_SECONDS = 1.5
NAIVE_NAME = "naive"
PRESET_NAME = "preset"
CHOSEN_NAME = "chosen"

OnPhase = Callable[[str, float], None]
"""Called with what runs, and the share of it that is over."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings that take precedence over those of the preset; None leaves a setting as it is."""

    prefetch_count: int | None = None
    batch_flush_interval: float | None = None
    enable_partitioning: bool | None = None

    @property
    def are_empty(self) -> bool:
        return (self.prefetch_count, self.batch_flush_interval, self.enable_partitioning) == (
            None,
            None,
            None,
        )

    def applied_to(self, chosen: ScenarioPreset) -> ScenarioPreset:
        factory, client, entity = chosen.factory, chosen.client, chosen.entity
        if self.batch_flush_interval is not None:
            factory = replace(factory, batch_flush_interval=self.batch_flush_interval)
        if self.prefetch_count is not None:
            client = replace(client, prefetch_count=self.prefetch_count)
        if self.enable_partitioning is not None:
            entity = replace(entity, enable_partitioning=self.enable_partitioning)
        return replace(chosen, factory=factory, client=client, entity=entity)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The runs of a scenario, and the advice from the last one."""

    workload: Workload
    runs: tuple[RunFigures, ...]
    advice: BenchAdvice

    @property
    def last(self) -> RunFigures:
        return self.runs[-1]

    @property
    def ratio(self) -> float | None:
        """How many times better the last run is than the first one: by its rate, or its median where latency is the goal.

        None for a single run, or if nothing was received.
        """
        first, last = self.runs[0], self.last
        if len(self.runs) == 1 or not (first.received and last.received):
            return None
        if self.workload.goal == LATENCY:
            return first.latency["p50"] / last.latency["p50"]
        return last.receive_rate / first.receive_rate

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.workload.scenario.key,
            "senders": self.workload.senders,
            "receivers": self.workload.receivers,
            "queues": self.workload.queues,
            "subscriptions": self.workload.subscriptions,
            "runs": [run.to_json() for run in self.runs],
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "advice": self.advice.to_json(),
        }


async def bench_scenario(
    target: BenchTarget,
    workload: Workload,
    *,
    seconds: float,
    is_naive: bool = False,
    overrides: Overrides | None = None,
    on_phase: OnPhase = lambda text, share: None,
) -> ScenarioResult:
    """Measure one scenario, with its preset, with naive settings, or with others."""
    overrides = overrides or Overrides()
    title = workload.scenario.value
    if is_naive:
        chosen, name = replace(NAIVE, scenario=workload.scenario), NAIVE_NAME
    else:
        chosen, name = await _probed(target, workload, on_phase), PRESET_NAME
    if not overrides.are_empty:
        chosen, name = overrides.applied_to(chosen), CHOSEN_NAME
    run = await run_workload(
        target, workload, chosen, seconds, name, lambda share: on_phase(f"{title}, {name} settings", share)
    )
    return ScenarioResult(workload, (run,), advise_run(run, workload))


async def compare(
    target: BenchTarget,
    workloads: Iterable[Workload] = tuple(WORKLOADS.values()),
    *,
    seconds: float,
    on_phase: OnPhase = lambda text, share: None,
) -> list[ScenarioResult]:
    """Measure scenarios with naive settings and with their presets."""
    results = []
    for workload in workloads:
        naive = await bench_scenario(target, workload, seconds=seconds, is_naive=True, on_phase=on_phase)
        tuned = await bench_scenario(target, workload, seconds=seconds, on_phase=on_phase)
        results.append(ScenarioResult(workload, (naive.last, tuned.last), tuned.advice))
    return results


async def _probed(target: BenchTarget, workload: Workload, on_phase: OnPhase) -> ScenarioPreset:
    """The preset for the rate that a short run without prefetching has."""
    scenario = workload.scenario
    probe = preset(scenario, workload.load(None, None))
    measured = await run_workload(
        target,
        workload,
        probe,
        PROBE_SECONDS,
        "probe",
        lambda share: on_phase(f"{scenario.value}, rate of receivers", share),
    )
    return preset(scenario, workload.load(measured.send_rate, measured.receive_rate))


def workload_named(key: str) -> Workload:
    """The workload of the scenario with this key. Raises ValueError, which lists the keys."""
    for scenario, workload in WORKLOADS.items():
        if scenario.key == key:
            return workload
    keys = ", ".join(scenario.key for scenario in Scenario)
    raise ValueError(f"there is no scenario {key!r}; there are {keys}")
