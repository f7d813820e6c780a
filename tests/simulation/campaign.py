"""How many lives a test runs: some in `make test`, a long campaign with BUSBAR_DEEP=1, one with BUSBAR_SEED=n."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from tests.simulation.express_life import ExpressLife
from tests.simulation.life import StoreLife
from tests.simulation.move_life import MoveLife

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
STEPS = 120

L = TypeVar("L", bound=StoreLife | MoveLife | ExpressLife)


def run_lives(life: Callable[[int], L], count: int, deep_count: int, steps: int = STEPS) -> list[L]:
    """Each from its seed. A failure prints the seed and what happened last."""
    seed = os.environ.get("BUSBAR_SEED")
    lives = []
    for each in [int(seed)] if seed else range(deep_count if DEEP else count):
        one = life(each)
        one.live(steps)
        lives.append(one)
    return lives
