"""Lives of two to four brokers from printed seeds: clients at each of them, channels that are cut, brokers that die, stores
that fail. cluster_world.py says what is checked.

A failure prints its seed and the last of what happened: write it as a scenario with a name (test_cluster_scenarios.py).
BUSBAR_DEEP=1 runs a long campaign, BUSBAR_SEED=n one life. `make simulate WORLD=cluster SEED=n` replays a seed.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.simulation.cluster_life import live

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
LIVES = 5_000 if DEEP else 60
REPLAYED = 3


def test_lives() -> None:
    seed = os.environ.get("BUSBAR_SEED")
    for each in [int(seed)] if seed else range(LIVES):
        live(each)


def test_a_seed_replays_exactly() -> None:
    """Also in another process, in which hashes are others."""
    program = f"from {live.__module__} import live; print(*live({REPLAYED}), sep='\\n')"
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(hashes)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in (1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].splitlines() == live(REPLAYED)
