"""Long lives of a queue's store from printed seeds, driven by a plain generator.

Hypothesis finds small counterexamples; this goes deep. A failure prints its seed and what happened last: write it as a
scenario with a name (test_scenarios.py), so that it is kept. `make simulate WORLD=queue SEED=n` replays a seed.
"""

from __future__ import annotations

from tests.simulation.campaign import run_lives
from tests.simulation.queue_life import QueueLife


def test_lives() -> None:
    lives = run_lives(QueueLife, 100, 20_000)
    assert sum(life.world.quiet_checks for life in lives) > 50 * len(lives), "most of the time it is served"
