"""Seeded lives of an express queue: what clients were told holds through faults and crashes."""

from __future__ import annotations

import os

import pytest

from tests.simulation.express_life import live

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
SEEDS = range(400 if DEEP else 30)


@pytest.mark.parametrize("seed", SEEDS)
def test_seed(seed: int) -> None:
    life = live(seed, 600)
    assert life.delivered > 20, "nothing happened"
