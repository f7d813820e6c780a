"""Long lives of a queue that requires sessions, from printed seeds: any order of sends, accepts, receives, settlements,
closes, renewals, time, failed commits and crashes keeps each session in order, in one hand, and its counts by the table.

`make simulate WORLD=sessions SEED=n` replays a seed.
"""

from __future__ import annotations

from tests.simulation.campaign import run_lives
from tests.simulation.session_life import SessionLife


def test_lives() -> None:
    lives = run_lives(SessionLife, 100, 20_000)
    assert sum(life.world.quiet_checks for life in lives) > 50 * len(lives), "most of the time it is served"
