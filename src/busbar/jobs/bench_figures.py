"""The figures of a benchmark as values: rates, latencies, and both over time.

Latencies are ms from the call that sends a message to the moment when a receiver has it. Rates are messages per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class BenchSlot:
    """A slice of the measured time."""

    second: float
    """Its end, from the beginning of the measurement."""
    sent: float
    received: float
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What one run measured."""

    scenario: str
    settings: Mapping[str, str]
    name: str
    """Naive, preset, or chosen."""
    seconds: float
    sent: int
    received: int
    latency: Mapping[str, float]
    """By percentile (`p50`, `p99`), with `mean` and `most`; empty if nothing was received."""
    slots: Sequence[BenchSlot] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    """How often calls failed, by the error."""

    @property
    def send_rate(self) -> float:
        return self.sent / self.seconds

    @property
    def receive_rate(self) -> float:
        return self.received / self.seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "settings": dict(self.settings),
            "name": self.name,
            "seconds": round(self.seconds, 3),
            "sent": self.sent,
            "received": self.received,
            "sentPerSecond": round(self.send_rate, 1),
            "receivedPerSecond": round(self.receive_rate, 1),
            "latencyMs": {key: round(value, 3) for key, value in self.latency.items()},
            "slots": [
                {
                    "second": round(slot.second, 3),
                    "sentPerSecond": round(slot.sent, 1),
                    "receivedPerSecond": round(slot.received, 1),
                    "p50": slot.p50,
                    "p99": slot.p99,
                }
                for slot in self.slots
            ],
            "failures": dict(self.failures),
        }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value that so many percent of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def latency_of(values: Sequence[float]) -> dict[str, float]:
    """Percentiles, mean and most of latencies; empty without any."""
    if not values:
        return {}
    ordered = sorted(values)
    found = {f"p{percent:g}": percentile(ordered, percent) for percent in PERCENTILES}
    return {**found, "mean": sum(ordered) / len(ordered), "most": ordered[-1]}


class Recorder:
    """Counts messages and their latencies in slots of equal length."""

    def __init__(self, seconds: float, slots: int) -> None:
        self._length = seconds / slots
        self._seconds = seconds
        self._sent = [0] * slots
        self._latencies: list[list[float]] = [[] for _ in range(slots)]
        self.failures: dict[str, int] = {}

    def sent(self, at: float) -> None:
        """Count a message that the broker has stored, so many seconds after the beginning."""
        if 0 <= at < self._seconds:
            self._sent[self._slot(at)] += 1

    def received(self, at: float, latency: float) -> None:
        """Count a message that a receiver has got."""
        if 0 <= at < self._seconds:
            self._latencies[self._slot(at)].append(latency)

    def failed(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def _slot(self, at: float) -> int:
        return min(len(self._sent) - 1, int(at / self._length))

    def figures(self, scenario: str, settings: Mapping[str, str], name: str) -> RunFigures:
        everything = [value for slot in self._latencies for value in slot]
        return RunFigures(
            scenario,
            settings,
            name,
            self._seconds,
            sum(self._sent),
            len(everything),
            latency_of(everything),
            tuple(self._slots()),
            self.failures,
        )

    def _slots(self) -> list[BenchSlot]:
        found = []
        for number, (sent, latencies) in enumerate(zip(self._sent, self._latencies, strict=True)):
            ordered = sorted(latencies)
            found.append(
                BenchSlot(
                    (number + 1) * self._length,
                    sent / self._length,
                    len(ordered) / self._length,
                    percentile(ordered, 50) if ordered else None,
                    percentile(ordered, 99) if ordered else None,
                )
            )
        return found
