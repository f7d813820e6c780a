"""Which failed tests run once more, and what is left of the failures afterwards (docs/adr/0038-a-second-attempt.md).

Rules:
1. Only tests of certain suites are repeated (`Suite.again`). Their processes share the machine with others.
2. A verdict on messages stands (harness/promises.py): its test is not repeated.
3. If one failure stands, or more than MOST_AGAIN tests failed, nothing is repeated: the run has failed anyway.
4. A test that fails again has failed. One that passes is `unsteady`: it counts as passed, and the summary names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_AGAIN = 4

Outcomes = Mapping[str, Mapping[str, Any]]
"""The results that a suite leaves: the outcome of each test by its id (tests/plugins/results.py)."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What failed in a suite that has ended."""

    suite: str
    again: bool
    outcomes: Outcomes
    complete: bool
    """Whether all of its failures are those of tests, and none of pytest itself."""

    @property
    def tests(self) -> list[str]:
        return [test for test, result in self.outcomes.items() if result["outcome"] == "failed"]

    @property
    def is_final(self) -> bool:
        """Whether a failure stands whatever a second attempt shows."""
        verdict = any(self.outcomes[test].get("verdict") for test in self.tests)
        return not self.complete or (bool(self.tests) and (verdict or not self.again))


def choose(suites: Iterable[Failures]) -> dict[str, list[str]]:
    """The tests that run once more, by suite; none if the run has failed anyway."""
    suites = list(suites)
    chosen = {failures.suite: failures.tests for failures in suites if failures.tests}
    if any(failures.is_final for failures in suites) or sum(map(len, chosen.values())) > MOST_AGAIN:
        return {}
    return chosen


def merge(first: Outcomes, second: Outcomes, repeated: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The outcomes of a suite after its second attempt. A test that did not run again has failed, as before."""
    merged = {test: dict(result) for test, result in first.items()}
    for test in repeated:
        passed = second.get(test, {}).get("outcome") == "passed"
        merged[test] |= {"outcome": "passed" if passed else "failed", "attempts": 2}
    return merged


def unsteady(outcomes: Outcomes) -> tuple[str, ...]:
    """The tests that passed at their second attempt only."""
    return tuple(
        test
        for test, result in outcomes.items()
        if result["outcome"] == "passed" and result.get("attempts") == 2
    )
