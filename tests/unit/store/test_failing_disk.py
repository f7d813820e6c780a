"""A disk that fills up or fails to sync, under the real store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = (
    "a_full_disk_refuses_and_stays_as_it_was",
    "a_full_disk_can_be_drained",
    "the_reserve_comes_back",
    "a_disk_that_is_full_from_the_start",
    "what_settles_leaves_nothing_for_sends",
    "what_frees_has_a_reserve_of_its_own",
    "a_commit_whose_sync_fails_is_unknown",
    "a_checkpoint_whose_sync_fails_breaks_the_store",
    "a_full_disk_ends_the_journal_and_can_be_drained",
    "a_disk_that_others_fill_at_once_can_be_drained",
    "a_journal_is_recovered_on_a_full_disk",
    "a_disk_that_has_no_room_for_a_journal",
    "a_record_whose_sync_fails_is_unknown",
    "a_catalogue_on_a_full_disk_takes_deletions",
    "a_change_of_the_catalogue_whose_sync_fails_is_unknown",
)

pytestmark = pytest.mark.shim("failing_disk")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_failing_disk(shim: Path, tmp_path: Path, scenario: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "LD_PRELOAD": str(shim),
        "FAILING_DIR": str(disk),
        "FAILING_LOG": str(tmp_path / "syncs"),
    }
    script = Path(__file__).with_name("disk_scenarios.py")
    done = subprocess.run(
        [sys.executable, str(script), scenario], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
