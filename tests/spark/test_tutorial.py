"""docs/tutorial-spark.md as it stands: its files are saved, its commands run one after the other, on a fresh server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.serving import Busbar
from tests.spark.conftest import QUICK_JAVA, SOURCES

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial-spark.md"
BLOCK = re.compile(r"^```(\w+)(?: ([\w.]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The directory of a reader who has done the first step: `busbar serve --dev` runs there, on a port that is free."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("busbar", "-m busbar "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
        (programs / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    server = Busbar(work / ".busbar", arguments=("--dev",)).start()  # with the queues that it has by itself
    yield work
    assert server.stop() == 0
    assert "Traceback" not in server.error_text


@pytest.mark.req("D3")
@pytest.mark.timeout(500)  # three Sparks are started, on a machine that may be busy
def test_the_tutorial(place: Path) -> None:
    script = ["set -e"]
    for language, name, text in BLOCK.findall(TUTORIAL.read_text()):
        if language == "sh":
            script.append(text)
        else:
            assert language == "python" and name, "the tutorial shows a block that nobody runs"
            (place / name).write_text(text)
    assert len(script) > 6
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BUSBAR_")}
    environment |= {
        "PATH": f"{place.parent / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCES),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "COLUMNS": "100",
    }
    process = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complaints = process.communicate(timeout=450)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, printed + complaints
    assert re.findall(r"sales: (.*) captured", printed) == ["1,000", "1,000"]
    assert "2000 orders were received and completed" in printed
    assert "2000 orders in all" in printed
    assert re.search(r"archive/entity=sales/date=[\d-]+/hour=\d\d/.*\.parquet", printed)
    # DuckDB and Spark agree on the orders of each country, and on their sum.
    by_country = re.findall(r"[│|]\s*(DE|FR|IT|PL)\s*[│|]\s*(\d+)\s*[│|]\s*(\d+)\s*[│|]", printed)
    assert len(by_country) == 8
    assert sorted(by_country[:4]) == sorted(by_country[4:])
    assert sum(int(orders) for _, orders, _ in by_country[:4]) == 2000
