"""The pages on the pipeline as they stand: their commands and programs run one after the other, on a server as
`busbar serve --dev` starts it. Blocks that are indented are not run: they need a cluster. The tutorial is in
test_tutorial.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.serving import Busbar
from tests.spark.conftest import QUICK_JAVA, SOURCES

ROOT = SOURCES.parent
PAGES = ("capture.md", "replay.md", "spark.md", "spark-bodies.md")


@pytest.mark.req("D3", "D4")
@pytest.mark.timeout(600)  # for a machine that is busy
def test_the_pages_run_as_they_stand(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    server = Busbar(tmp_path / "data", arguments=("--dev",)).start()
    try:
        printed = run_pages(server.connection_string, place)
    finally:
        assert server.stop() == 0
    said = dict(re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", printed, re.MULTILINE))
    assert said["busbar capture orders --output archive --available-now"] == "orders: 1 captured\n"
    assert re.search(r"Found\s+2\n", said["busbar replay archive orders-again --dry-run"])
    assert "all now" in said["busbar replay archive orders-again --from 2026-01-31T12:00Z"]
    assert list((place / "orders").glob("*.parquet")), "what the stream of spark.md wrote"


def run_pages(connection: str, place: Path) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.page_program", *(str(ROOT / "docs" / name) for name in PAGES)],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": f"{SOURCES}:{ROOT}",
            "BUSBAR_CONNECTION_STRING": connection,
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=550)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, printed + errors
    return printed
