"""What jobs show."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime

import pytest

from busbar.jobs.progress import BatchProgress, ProgressTable, display_for
from harness.terminal import Screen, TerminalProgram


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def clock() -> datetime:
    return datetime(2026, 1, 31, 12, 30, 5, tzinfo=UTC)


STEP = BatchProgress("orders", 3, 1200, 0.8, 5000, 42)


def test_a_log_gets_a_line_for_each_batch() -> None:
    file = io.StringIO()
    display = display_for(file, clock)
    display.show(STEP)
    display.close()
    assert file.getvalue() == "2026-01-31T12:30:05Z orders: batch 3, 1,200 in 0.8 s (1,500/s), 42 to go\n"


def test_a_terminal_gets_a_table() -> None:
    file = Terminal()
    display = display_for(file, clock)
    assert isinstance(display, ProgressTable)
    display.show(STEP)
    display.close()
    shown = file.getvalue()
    for word in ("orders", "5,000", "1,500", "42", "12:30:05"):
        assert word in shown


def test_what_a_job_does_before_its_first_batch_is_shown() -> None:
    lines, table = io.StringIO(), Terminal()
    for file in (lines, table):
        display = display_for(file, clock)
        display.notice("starting Spark")
        if isinstance(display, ProgressTable):
            display._live.refresh()
        display.show(STEP)
        display.close()
    assert lines.getvalue().splitlines()[0] == "2026-01-31T12:30:05Z starting Spark"
    assert "starting Spark … 0 s" in table.getvalue()
    assert "starting Spark" not in table.getvalue().rpartition("Entity")[2]


def test_a_table_gives_way_to_lines_that_would_cut_through_it() -> None:
    assert not isinstance(display_for(Terminal(), clock, table=False), ProgressTable)


@pytest.mark.parametrize(
    ("columns", "head"),
    [
        (80, ["Entity", "Rows", "To go", "Rows/s", "Last", "batch", "Batch"]),
        (60, ["Entity", "Rows", "To go", "Rows/s", "Last", "batch"]),
        (44, ["Entity", "Rows", "To go"]),
        (30, ["Entity", "Rows"]),
    ],
)
def test_a_table_fits_its_terminal_and_nothing_cuts_through_it(columns: int, head: list[str]) -> None:
    with TerminalProgram(
        [sys.executable, "-m", "tests.unit.jobs.terminal_table"], columns=columns
    ) as program:
        assert program.end() == 0
    screen = program.screen
    assert screen.wrapped == 0 and screen.has_cursor
    assert "starting Spark … 0 s" in program.raw
    warnings = " ".join(screen.text.split("Entity")[0].split())
    assert warnings == " ".join(f"The tap 'tap {batch}' could not be advanced." for batch in range(3))
    table = screen.text[screen.text.index("Entity") :]
    assert table.count("Entity") == 1 and "waiting" not in table, "it was drawn over"
    first, line, *rows = table.splitlines()
    assert " ".join(first.split()) == " ".join(head) and set(line) <= {"─", " "}
    assert rows.pop() == "done"
    assert "".join(row.split()[0] for row in rows) == (
        "ordersorders/$deadletterqueueshop/invoices/Subscriptions/audit"
    )
    numbers = [row.split()[1] for row in rows if len(row.split()) > 1]
    assert numbers == ["1,200,006", "3,600,006", "2,400,006"]


def test_the_screen_of_the_tests_is_drawn_like_a_terminal() -> None:
    screen = Screen(5)
    screen.feed("abcde")
    assert (screen.text, screen.wrapped) == ("abcde", 0)
    screen.feed("f\r\n\x1b[1A\x1b[2K\x1b[")
    screen.feed("1Axy\x1b[?25l")
    assert (screen.text, screen.wrapped, screen.has_cursor) == ("xycde", 1, False)
    with pytest.raises(AssertionError, match="3J"):
        screen.feed("\x1b[3J")
