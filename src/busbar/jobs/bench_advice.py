"""Conclusions from a measured run: the scenario of its load, what to change and why, and what stands out.

The rules are those of busbar.client.advice, with the rates that the run measured. A prefetch count that differs from the
advised one by less than `TOLERANCE` is not advised to be changed: rates of short runs differ as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from busbar.client.advice import Setting, because, prefetch_of, scenario_of, settings_of
from busbar.client.presets import preset
from busbar.jobs.bench_figures import RunFigures
from busbar.jobs.bench_workloads import Workload, shown

TOLERANCE: Final = 2.0
BEHIND: Final = 0.9
"""Below this share of what was offered, senders or receivers do not keep up."""


@dataclass(frozen=True, slots=True)
class BenchAdvice:
    """The advice for one run."""

    scenario: str
    because: str
    settings: tuple[Setting, ...]
    """All settings of the scenario, with their values in the run."""
    findings: tuple[str, ...]

    @property
    def changes(self) -> tuple[Setting, ...]:
        """The settings that should be changed."""
        return tuple(each for each in self.settings if not _is_met(each))

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "because": self.because,
            "changes": [
                {"name": each.name, "value": each.value, "now": each.now, "why": each.why}
                for each in self.changes
            ],
            "findings": list(self.findings),
        }


def advise_run(figures: RunFigures, workload: Workload) -> BenchAdvice:
    """Advice from what a run measured."""
    load = workload.load(figures.send_rate, figures.receive_rate)
    scenario = scenario_of(load)
    advised = shown(preset(scenario, load))
    _, why = prefetch_of(scenario, load.receive_rate, load.receivers, load.lock_seconds, "in this run")
    named = [*settings_of(scenario, load), Setting("prefetch", advised["prefetch"], None, why)]
    settings = tuple(
        Setting(each.name, each.value, figures.settings.get(each.name), each.why) for each in named
    )
    return BenchAdvice(scenario.value, because(load), settings, tuple(_findings(figures, workload)))


def _is_met(setting: Setting) -> bool:
    if setting.now is None or setting.now == setting.value:
        return True
    if setting.name == "factories":
        return setting.now == "one" and setting.value.startswith("one")
    if setting.name != "prefetch" or "0" in (setting.now, setting.value):
        return False
    now, advised = int(setting.now), int(setting.value)
    return max(now, advised) < TOLERANCE * min(now, advised)


def _findings(figures: RunFigures, workload: Workload) -> list[str]:
    found: list[str] = []
    rate = workload.rate
    if rate and figures.send_rate < rate * BEHIND:
        found.append(
            f"Senders reached {figures.send_rate:,.0f} of {rate:,.0f} messages/s: the broker, or this process, has no more."
        )
    copies = max(1, workload.subscriptions)
    if figures.receive_rate < figures.send_rate * copies * BEHIND:
        found.append(
            f"Receivers got {figures.receive_rate:,.0f} of {figures.send_rate * copies:,.0f} messages/s: they do not keep "
            "up, and messages wait. If the settings are those of the scenario, add receivers in other processes."
        )
    for reason, count in figures.failures.items():
        found.append(f"{count:,} calls failed: {reason}.")
    return found
