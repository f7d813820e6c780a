"""A seed replays exactly: the same things happen in the same order, also in another process with other hashes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.worlds import WORLDS, simulate

ROOT = Path(__file__).resolve().parents[2]
SEED, STEPS = 7, 150


def log_of(world: str) -> list[str]:
    lines: list[str] = []
    simulate(world, SEED, STEPS, lines.append)
    return lines


@pytest.mark.parametrize("world", list(WORLDS))
def test_a_seed_run_twice_does_the_same(world: str) -> None:
    first = log_of(world)
    assert len(first) > STEPS
    assert first == log_of(world)


def test_the_command_prints_the_same_with_other_hashes() -> None:
    """What `make simulate` runs."""
    printed = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "tools/simulate.py", "--seed", str(SEED), "--steps", str(STEPS)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        printed.append(done.stdout)
    assert f"world topic, seed {SEED}" in printed[0]
    assert [hashlib.sha256(text.encode()).hexdigest() for text in printed] == [
        hashlib.sha256(printed[0].encode()).hexdigest()
    ] * 2


def test_a_wrong_world_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "tools/simulate.py", "--world", "moon"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "moon" in done.stderr and "topic" in done.stderr
