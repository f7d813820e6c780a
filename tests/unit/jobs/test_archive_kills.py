"""A writer that is killed at every point: the next one continues, and every message is in the archive once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from busbar.jobs import archive
from harness.object_store import ObjectStore

POINTS = ("mid-write", "before-commit:2", "before-place:2", "inside-compaction", "before-replace")
EACH = 6
PROGRAM = str(Path(__file__).with_name("archive_program.py"))
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("kind", "table_format"), [("s3", "parquet"), ("s3", "delta"), ("local", "delta")])
def test_every_message_is_there_once(
    kind: str, table_format: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    place = f"{object_store.bucket()}/archive" if kind == "s3" else str(tmp_path / "archive")
    last = 0
    with subprocess.Popen(
        [sys.executable, PROGRAM, place, table_format],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        for point in (*POINTS, "none"):
            last += EACH
            program.stdin.write(f"{point} {last}\n")
            program.stdin.flush()
            expected = 0 if point == "none" else -signal.SIGKILL
            assert int(program.stdout.readline()) == expected, point
            there = numbers(place)
            assert len(there) == len(set(there)), f"twice after {point}"
        program.stdin.close()
    assert there == list(range(1, last + 1))


def numbers(place: str) -> list[int]:
    found: list[int] = archive.dataset(place).to_table().column("sequence_number").to_pylist()
    return sorted(found)
