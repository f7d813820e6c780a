"""How long each layer of set-up takes in a fresh clone, with an empty environment and an empty package cache.

The most important time is the first: from nothing to `ready`, which has to stay below 90 s on two cores. The table of
docs/installing.md has the output of this benchmark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from harness.installed import empty_caches, made_and_served
from tools.work_tree import copy_to

READY_BUDGET = 90.0


def seconds_until_ready(clone: Path, environment: Mapping[str, str]) -> float:
    """Run `make run` until it prints its connection string; then press Ctrl-C."""
    began = time.monotonic()
    with made_and_served(clone, environment):
        return time.monotonic() - began


def seconds_of(clone: Path, environment: Mapping[str, str], command: str) -> float:
    began = time.monotonic()
    done = subprocess.run(
        ["make", "-s", command], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"`make {command}` failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="busbar-set-up-") as scratch:
        clone = Path(scratch, "clone")
        copy_to(clone)
        environment = empty_caches(Path(scratch))
        first = seconds_until_ready(clone, environment)
        rows = [("make run, until it is ready", first)]
        for command in ("spark", "setup", "wheel"):
            rows.append((f"make {command}, after that", seconds_of(clone, environment, command)))
        rows.append(("make setup, nothing changed", seconds_of(clone, environment, "setup")))
        sending = clone / "src/busbar/fragment/sending.py"
        sending.write_text(sending.read_text().replace('"The ', '"This ', 1))
        rows.append(("make setup, a line of a room changed", seconds_of(clone, environment, "setup")))
        rows.append(("make run, installed and compiled", seconds_until_ready(clone, environment)))
    print(f"{'from an empty package cache, ' + str(os.cpu_count()) + ' processors':<40}{'seconds':>8}")
    for what, seconds in rows:
        print(f"{what:<40}{seconds:>8.1f}")
    if first > READY_BUDGET:
        print(f"\nover the budget: a fresh clone should be ready in {READY_BUDGET:.0f} s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
