"""Directories of checkpoints: those of processes that were killed are removed, those of others stay."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from busbar.jobs.temporary_checkpoints import PREFIX, TemporaryCheckpoints

SOURCES = Path(__file__).resolve().parents[3] / "src"
PROGRAM = """
import sys, time
from busbar.jobs.temporary_checkpoints import TemporaryCheckpoints
made = TemporaryCheckpoints()
(made.path / "tap" / "offsets").mkdir(parents=True)
print(made.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_next_one_removes_those_of_processes_that_ended(place: Path) -> None:
    (place / f"{PREFIX}of-another-kind").mkdir()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        path = Path(other.stdout.readline().strip())
        mine = TemporaryCheckpoints()
        assert path.parent == place and (path / "tap" / "offsets").is_dir(), "its process runs"
        other.kill()
        other.wait()
    assert path.is_dir()
    second = TemporaryCheckpoints()
    assert not path.exists()
    assert mine.path.is_dir() and mine.path != second.path, "this process has both"
    for each in (mine, second):
        each.remove()
    assert [found.name for found in place.iterdir()] == [f"{PREFIX}of-another-kind"], "it has no lock"
