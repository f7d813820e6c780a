"""Nothing acknowledged is lost when the power goes, on a disk that forgets whatever was not synced.

`kill -9` proves little: the page cache survives it. Here a shim (harness/faults/unsynced.c) keeps what the disk would
really hold, ends the writer at a random operation, and lets a random part of the unsynced writes survive, some torn.
Each round goes on from the image that the round before left, so that recovery is cut short as well.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.durability.store_writer import commits_in, opened

ROOT = Path(__file__).resolve().parents[2]
WRITER = ROOT / "tests" / "durability" / "store_writer.py"
ROUNDS = 24
POWER_CUT = 137

JOURNAL = "--journal"
KINDS = pytest.mark.parametrize("options", [[], [JOURNAL]], ids=["sqlite", "journal"])

pytestmark = pytest.mark.shim("unsynced")


def write_until_the_power_goes(
    shim: Path, directory: Path, image: Path, after: int, seed: int, *options: str, fail_every: int = 0
) -> tuple[int, int]:
    """Run the writer on `directory`; what a power cut leaves is in `image`.

    How many commits it found first, and how many it then acknowledged or found again.
    """
    # What was there before is durable, also when the writer never opens it.
    shutil.copytree(directory, image, ignore=shutil.ignore_patterns("*.reserve"))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "LD_PRELOAD": str(shim),
        "UNSYNCED_DIR": str(directory),
        "UNSYNCED_IMAGE": str(image),
        "UNSYNCED_AFTER": str(after),
        "UNSYNCED_SEED": str(seed),
        "UNSYNCED_FAIL": str(fail_every),
    }
    command = [sys.executable, str(WRITER), str(directory / "store.db"), "--log-limit", "40", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == POWER_CUT, done.stderr
    first = acknowledged = 0
    for line in done.stdout.splitlines():
        what, k = line.split()
        if what == "acked":
            assert int(k) == acknowledged + 1
        elif acknowledged:
            assert acknowledged <= int(k) <= acknowledged + 1, (
                "an acknowledged commit is gone after reopening"
            )
        else:
            first = int(k)
        acknowledged = int(k)
    return first, acknowledged


def commits_of(image: Path, options: Sequence[str]) -> int:
    store = opened(image / "store.db", JOURNAL in options)
    store.claim()
    try:
        return commits_in(store)
    finally:
        store.release()


@KINDS
def test_nothing_acknowledged_is_lost_with_what_was_not_synced(
    shim: Path, tmp_path: Path, options: list[str]
) -> None:
    seed = int(os.environ.get("BUSBAR_SEED", "0")) or random.randrange(1, 1 << 32)
    print(f"BUSBAR_SEED={seed}")
    chance = random.Random(seed)
    directory = tmp_path / "0"
    directory.mkdir()
    durable = 0
    for n in range(1, ROUNDS + 1):
        image = tmp_path / str(n)
        after = chance.choice((chance.randint(1, 60), chance.randint(60, 1500)))
        found, acknowledged = write_until_the_power_goes(
            shim, directory, image, after, chance.getrandbits(32), *options
        )
        assert found in (0, durable), "a commit that was found once is gone (0: ended before it looked)"
        # A copy is looked into, so that the next round meets the image as it is and not as recovery left it.
        look = tmp_path / f"look-{n}"
        shutil.copytree(image, look, ignore=shutil.ignore_patterns("*.reserve"))
        there = commits_of(look, options)
        least = max(durable, acknowledged)
        assert least <= there <= least + 1, f"round {n}: {there} commits are there, {least} were acknowledged"
        durable, directory = there, image
    assert durable > ROUNDS, f"the rounds were too short to mean anything: {durable} commits"


@pytest.mark.parametrize(
    ("options", "fail_every"), [([], 5), ([], 8), ([], 13), ([JOURNAL], 11), ([JOURNAL], 16), ([JOURNAL], 21)]
)
def test_a_failed_sync_never_takes_later_commits_with_it(
    shim: Path, tmp_path: Path, fail_every: int, options: list[str]
) -> None:
    """What the cache took for written must be written again before anything is built on it.

    A store with a journal makes more syncs to open, so fewer of them fail."""
    directory, image = tmp_path / "store", tmp_path / "image"
    directory.mkdir()
    _, acknowledged = write_until_the_power_goes(
        shim, directory, image, 1500, fail_every, *options, fail_every=fail_every
    )
    assert acknowledged > 10
    assert acknowledged <= commits_of(image, options) <= acknowledged + 1


@KINDS
def test_a_writer_that_does_not_sync_is_caught(shim: Path, tmp_path: Path, options: list[str]) -> None:
    lost = 0
    for seed in range(6):
        directory = tmp_path / str(seed)
        directory.mkdir()
        image = tmp_path / f"image-{seed}"
        _, acknowledged = write_until_the_power_goes(
            shim, directory, image, 900, seed, "--careless", *options
        )
        assert acknowledged > 2
        try:
            lost += commits_of(image, options) < acknowledged
        except Exception:
            lost += 1  # the store is damaged
    assert lost, "acknowledged commits survived although nothing was synced: this disk does not forget"
