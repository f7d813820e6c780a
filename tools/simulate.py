"""Replays one seed of the simulations: prints what happens to a store in virtual time, in short lines.

    python tools/simulate.py --seed 7 --steps 500 --world topic

A seed that failed in a test fails here in the same way, with the same lines before it (tests/simulation).
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.simulation.campaign import STEPS
from tests.simulation.cluster_life import WORLD as CLUSTER
from tests.simulation.cluster_life import live
from tests.simulation.worlds import WORLDS, simulate


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay one seed of the simulations of a store.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--world", choices=["all", *WORLDS, CLUSTER], default="all")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # stores that fail are no news here
    for world in [*WORLDS, CLUSTER] if given.world == "all" else [given.world]:
        print(f"world {world}, seed {given.seed}, {given.steps} steps")
        if world == CLUSTER:
            live(given.seed, given.steps, print)
            print(f"world {world}, seed {given.seed}: all is as it should be")
            continue
        life = simulate(world, given.seed, given.steps, print)
        print(f"world {world}, seed {given.seed}: all is as it should be ({life.world.quiet_checks} checks)")


if __name__ == "__main__":
    main()
