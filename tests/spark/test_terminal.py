"""`busbar capture` and `busbar replay` on a real pseudo-terminal: a table and a bar that fit, and nothing of Spark in them.

Both commands run in one process and share its Java.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from harness.terminal import TerminalProgram
from tests.spark.conftest import QUICK_JAVA, SOURCES, Namespace
from tests.spark.letters import make

PROGRAM = """
import sys
from busbar.cli import main
assert main.run(["capture", sys.argv[1], sys.argv[2], "--output", "archive", "--available-now"]) == 0
input("next? ")
sys.exit(main.run(["replay", "archive", sys.argv[3], "--rate", "40", "--wait", "20s"]))
"""
NARROW = 44
ENDS_WITHIN = 2.0
SLACK = 0.5
"""For a machine that is busy: the time to start a signal handler, and to reap the process."""


@pytest.mark.req("D3", "D4")
@pytest.mark.timeout(300)
def test_a_capture_and_a_replay_on_a_terminal(
    namespace: Namespace, queue: str, wide: str, tmp_path: Path
) -> None:
    target = f"{queue}-target"
    make(namespace, target)
    bodies = [f"body {number}".encode() for number in range(1500)]
    namespace.send(queue, bodies[:1000])
    namespace.send(wide, bodies, keyed=True)
    environment = os.environ | {
        "PYTHONPATH": str(SOURCES),
        "BUSBAR_CONNECTION_STRING": namespace.server.connection_string,
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    command = [sys.executable, "-c", PROGRAM, queue, wide, target]
    with TerminalProgram(command, columns=80, directory=tmp_path, environment=environment) as program:
        program.wait_for("next? ")
        captured, shown = program.screen.text, program.raw
        program.resize(NARROW)
        program.type("\n")
        program.wait_for(" of 2,500 sent")
        began = time.monotonic()
        program.press_ctrl_c()
        code = program.end()
        seconds = time.monotonic() - began

    # The table stands alone, behind the name of the namespace and in front of what was captured.
    named, first, line, *rows = captured.splitlines()
    assert named.startswith("namespace: sb://")
    assert " ".join(first.split()) == "Entity Rows To go Rows/s Last batch Batch"
    assert set(line) == {"─"}
    assert [row.split()[:3] for row in rows[:2]] == [[queue, "1,000", "0"], [wide, "1,500", "0"]]
    assert rows[2:] == [f"{queue}: 1,000 captured", f"{wide}: 1,500 captured", "next?"]
    for text in ("starting Spark … 1 s", "waiting for the first batch"):
        assert text in shown, "what it does before the first batch"

    # The bar was in one line of the narrow terminal, and Ctrl-C has left one sentence.
    assert code == 130 and seconds < ENDS_WITHIN + SLACK
    assert re.search(r"━+╸?\S* +\d+ of 2,500 sent \d:\d\d:\d\d", re.sub(r"\x1b\[[\d;]*m", "", program.raw))
    last = " ".join(program.screen.text.partition("next?")[2].split())
    assert re.fullmatch(
        r"namespace: sb://\S+ \(by BUSBAR_CONNECTION_STRING\) "
        r"busbar: replay stopped by Ctrl-C; the same command sends the rest, and nothing twice\.",
        last.replace("- ", "-"),
    )
    assert program.screen.has_cursor
    assert not re.search(r" (WARN|ERROR) |Exception|Traceback|WARNING|Picked up", program.raw), "Spark's log"
