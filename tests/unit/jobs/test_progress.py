"""What jobs show."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from busbar.jobs.progress import BatchProgress, ProgressTable, display_for


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
