"""Long lives of a queue with taps, from printed seeds: the commands of a queue's clients, and readers beside them.

`make simulate WORLD=taps SEED=n` replays a seed.
"""

from __future__ import annotations

import os

from tests.simulation.campaign import run_lives
from tests.simulation.tap_life import TapLife


def test_lives() -> None:
    lives = run_lives(TapLife, 80, 5_000)
    truncated = sum(reader.truncated for life in lives for reader in life.checker.readers.values())
    assert os.environ.get("BUSBAR_SEED") or truncated, "some taps reach their limits"
