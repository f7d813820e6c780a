"""The pages on the pipeline as they stand: their commands and programs run one after the other, on a server as
`busbar serve --dev` starts it. Blocks that are indented are not run: they need a cluster. test_cluster.py runs those of
spark-cluster.md.

One program reads all pages (page_program.py), and each test looks at what one part of it printed or wrote.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.serving import Busbar
from harness.terminal import TerminalProgram
from tests.spark.conftest import QUICK_JAVA, SOURCES
from tests.spark.page_program import SHORT

ROOT = SOURCES.parent
TUTORIAL = "tutorial-spark.md"
PAGES = (
    "capture.md",
    "replay.md",
    "spark.md",
    "spark-bodies.md",
    "spark-sink.md",
    "spark-recipes.md",
    "taps.md",
    "insight.md",
)
COLUMNS = 80
PRINTED = "printed.txt"

pytestmark = pytest.mark.timeout(1200)  # for a machine that is busy


@dataclass(frozen=True)
class Read:
    """What a reader of the pages has got."""

    tutorial: str
    """What the commands of the tutorial printed."""
    printed: dict[str, str]
    """By command, what those of the other pages printed."""
    place: Path
    """Where it was."""
    terminal: TerminalProgram
    """The terminal of all commands. Their standard output went to a file."""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The pages are read in the directory in which the server was started, the tutorial first."""
    place = tmp_path_factory.mktemp("pages")
    programs = tmp_path_factory.mktemp("bin")
    server = Busbar(place / ".busbar", arguments=("--dev",)).start()  # with the queues that it has by itself
    try:
        terminal = run_pages(place, programs)
    finally:
        assert server.stop() == 0
    assert "Traceback" not in server.error_text
    tutorial, last, others = (place / PRINTED).read_text().partition("$ python revenue_spark.py\n")
    shown, begin, rest = others.partition("\n$ ")
    said = dict(re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", begin.lstrip() + rest, re.MULTILINE))
    return Read(tutorial + last + shown, said, place, terminal)


def run_pages(place: Path, programs: Path) -> TerminalProgram:
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
    }
    command = [sys.executable, "-m", "tests.spark.page_program", TUTORIAL, *PAGES]
    with TerminalProgram(
        command, columns=COLUMNS, directory=place, environment=environment, output=place / PRINTED
    ) as program:
        code = program.end(1150)
    print(program.screen.text)  # with the time of each command, for `-rP`
    assert code == 0, program.screen.text + (place / PRINTED).read_text()
    return program


def shown_by(read: Read, line: str) -> list[list[str]]:
    """What is on the terminal for each time that a command of the pages ran, behind the name of the namespace."""
    text = re.sub(r"^namespace: .*\n", "", read.terminal.screen.text + "\n", flags=re.MULTILINE)
    found = re.findall(
        rf"((?:^(?! *\d+\.\d s: ).*\n)*)^ *\d+\.\d s: {re.escape(line[:SHORT])}$", text, re.MULTILINE
    )
    return [each.splitlines() for each in found]


@pytest.mark.req("D3", "D4")
def test_live_tables_and_bars_stand_alone_on_the_terminal(read: Read) -> None:
    """At the end a table has its last state, and what the job did before is drawn over. A bar is gone."""
    for number, (head, line, row) in enumerate(
        shown_by(read, "busbar capture sales --output sales-archive --available-now")
    ):
        assert head.split() == ["Entity", "Rows", "To", "go", "Rows/s", "Last", "batch", "Batch"]
        assert set(line) == {"─"}
        assert [row.split()[index] for index in (0, 1, 2, -1)] == ["sales", "1,000", "0", str(number)]
    several = "busbar capture orders payments 'orders/$DeadLetterQueue' --output archive"
    ((_, _, *rows),) = shown_by(read, f"{several} --events archive-events --available-now")
    assert [re.split(r" {3,}", row)[0] for row in rows] == [
        "orders (events)",
        "orders/$deadletterqueue",
        "orders/$deadletterqueue (events)",
        "payments",
        "payments (events)",
    ], "orders have no new messages"
    assert shown_by(read, "busbar replay archive orders-again --from 2026-01-31T12:00Z") == [[]]
    raw = re.sub(r"\x1b\[[\d;]*m", "", read.terminal.raw)
    assert "starting Spark (Java) … " in raw and "waiting for the first batch … " in raw
    assert re.search(r"━{40} +2 of 2 sent +\d:\d\d:\d\d", raw)
    assert read.terminal.screen.has_cursor
    assert not re.search(r" (WARN|ERROR) |Exception|Traceback|WARNING|Picked up", raw), "Spark's log"


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
    assert "all of them now" in said["busbar replay archive orders-again --from 2026-01-31T12:00Z"]


@pytest.mark.req("D1")
def test_the_page_of_the_source(read: Read) -> None:
    assert list((read.place / "orders").glob("*.parquet")), "what the stream of spark.md wrote"


@pytest.mark.req("D2")
def test_the_page_of_the_sink(read: Read) -> None:
    """Orders without a subject became alerts: the two of the frame, and those of the pages before."""
    assert read.printed["busbar peek alerts"].count("no subject: ") == 4


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
