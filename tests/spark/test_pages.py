"""The pages on the pipeline as they stand: their commands and programs run one after the other, on a server as
`busbar serve --dev` starts it. Blocks that are indented are not run: they need a cluster.

One program reads all pages (page_program.py), and each test looks at what one part of it printed or wrote.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.serving import Busbar
from tests.spark.conftest import QUICK_JAVA, SOURCES

ROOT = SOURCES.parent
TUTORIAL = "tutorial-spark.md"
PAGES = ("capture.md", "replay.md", "spark.md", "spark-sink.md", "spark-recipes.md", "taps.md", "insight.md")

pytestmark = pytest.mark.timeout(600)  # for a machine that is busy


@dataclass(frozen=True)
class Read:
    """What a reader of the pages has got."""

    tutorial: str
    """What the commands of the tutorial printed."""
    printed: dict[str, str]
    """By command, what those of the other pages printed."""
    place: Path
    """Where it was."""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The pages are read in the directory in which the server was started, the tutorial first."""
    place = tmp_path_factory.mktemp("pages")
    programs = tmp_path_factory.mktemp("bin")
    server = Busbar(place / ".busbar", arguments=("--dev",)).start()  # with the queues that it has by itself
    try:
        printed = run_pages(place, programs)
    finally:
        assert server.stop() == 0
    assert "Traceback" not in server.error_text
    tutorial, last, others = printed.partition("$ python revenue_spark.py\n")
    shown, begin, rest = others.partition("\n$ ")
    said = dict(re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", begin.lstrip() + rest, re.MULTILINE))
    return Read(tutorial + last + shown, said, place)


def run_pages(place: Path, programs: Path) -> str:
    """Run the program of the pages. It finds `busbar` and `python` as in an environment that is activated, and no variable
    of Busbar."""
    for name, beginning in (("busbar", "-m busbar "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {beginning}"$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BUSBAR_") or name == "BUSBAR_INTERPRETED"
    }
    environment |= {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{SOURCES}:{ROOT}",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "COLUMNS": "100",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.page_program", TUTORIAL, *PAGES],
        cwd=place,
        env=environment,
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
    print(errors)  # with the time of each command, for `-rP`
    return printed


@pytest.mark.req("D3")
def test_the_tutorial(read: Read) -> None:
    printed = read.tutorial
    assert printed.count("\n$ ") >= 9
    assert re.findall(r"sales: (.*) captured", printed) == ["1,000", "1,000"]
    assert "2000 orders were received and completed" in printed
    assert "2000 orders in all" in printed
    assert re.search(r"archive/entity=sales/date=[\d-]+/hour=\d\d/.*\.parquet", printed)
    # DuckDB and Spark agree on the orders of each country, and on their sum.
    by_country = re.findall(r"[│|]\s*(DE|FR|IT|PL)\s*[│|]\s*(\d+)\s*[│|]\s*(\d+)\s*[│|]", printed)
    assert len(by_country) == 8
    assert sorted(by_country[:4]) == sorted(by_country[4:])
    assert sum(int(orders) for _, orders, _ in by_country[:4]) == 2000


@pytest.mark.req("D3", "D4")
def test_the_pages_of_capture_and_replay(read: Read) -> None:
    said = read.printed
    assert said["busbar capture orders --output archive --available-now"] == "orders: 1 captured\n"
    assert re.search(r"Found\s+2\n", said["busbar replay archive orders-again --dry-run"])
    assert "all now" in said["busbar replay archive orders-again --from 2026-01-31T12:00Z"]


@pytest.mark.req("D1")
def test_the_page_of_the_source(read: Read) -> None:
    assert list((read.place / "orders").glob("*.parquet")), "what the stream of spark.md wrote"


@pytest.mark.req("D2")
def test_the_page_of_the_sink(read: Read) -> None:
    """The two orders of the frame have no subject, and became alerts."""
    assert read.printed["busbar peek alerts"].count("no subject: ") == 2


@pytest.mark.req("D5")
def test_the_page_of_recipes_and_the_sample_without_arguments(read: Read) -> None:
    said = read.printed
    assert said["python takings.py"] == "DE: 4950\nFR: 4950\n"
    assert said["python refunds.py"] == "(50, 1225)\n"
    table = said["python samples/spark/sessions.py"]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|order-" in line
    ]
    assert rows == [
        ["order-1", "1", "reserve", "", ""],
        ["order-1", "2", "charge", "reserve", ""],
        ["order-1", "3", "ship", "charge", ""],
        ["order-2", "1", "reserve", "", ""],
        ["order-2", "2", "charge", "reserve", ""],
        ["order-2", "3", "charge", "charge", "repeated"],
        ["order-2", "4", "ship", "charge", ""],
        ["order-3", "1", "reserve", "", ""],
        ["order-3", "2", "charge", "reserve", ""],
        ["order-3", "3", "ship", "charge", ""],
        ["order-3", "4", "charge", "ship", "after the last step"],
        ["order-4", "1", "reserve", "", ""],
    ]


def test_the_page_of_taps(read: Read) -> None:
    assert "archive" in read.printed["busbar tap show orders archive"]
    assert json.loads(read.printed["busbar tap list orders -o json"])


@pytest.mark.req("D6")
def test_the_page_of_insight(read: Read) -> None:
    assert "insight.html has the whole report" in read.printed["busbar insight orders"]
    advised = read.printed["busbar insight orders --senders 3 --receivers 2 --goal throughput"]
    assert "insight-2.html has the whole report" in advised and "high-throughput" in advised
    assert "</html>" in (read.place / "insight-2.html").read_text()
