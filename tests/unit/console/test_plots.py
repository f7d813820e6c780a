"""Plots: lines are inside their drawing, interrupted where samples are missing, and named in text."""

from __future__ import annotations

import re

from busbar.console.history import TimedValue
from busbar.console.plots import HEIGHT, WIDTH, HourLine, hour_plot, number_text, sparkline


def points(text: str) -> list[tuple[float, float]]:
    found = re.findall(r'd="M([^"LZ]+)" class="line', text)
    return [(float(x), float(y)) for path in found for x, y in zip(*[iter(path.split())] * 2, strict=True)]


def test_a_line_is_inside_its_drawing() -> None:
    values = [TimedValue(age, value) for age, value in ((3600.0, 0), (1800.0, 70), (5.0, 99), (0.0, 3))]
    drawn = points(hour_plot("Backlog", [HourLine("messages", "messages", values)]).text)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)
    assert drawn[-1] == (WIDTH, 97.0)  # the scale ends at 100


def test_a_gap_interrupts_the_line() -> None:
    values = [TimedValue(age, 1) for age in (600.0, 595.0, 590.0, 10.0, 5.0)]
    text = hour_plot("Backlog", [HourLine("messages", "messages", values)]).text
    assert text.count('class="line messages"') == 2


def test_a_plot_without_samples_states_it() -> None:
    text = hour_plot("Rate", [HourLine("in", "in", ())], "/s").text
    assert "no samples yet" in text and "<path" not in text


def test_a_row_without_messages_has_no_line() -> None:
    assert sparkline([TimedValue(5.0, 0), TimedValue(0.0, 0)], "messages", "x") == ""


def test_numbers_are_short() -> None:
    assert [number_text(value) for value in (0, 0.25, 3, 12.4, 12_345, 25_000_000)] == [
        "0", "0.2", "3", "12", "12,345", "25 M",
    ]  # fmt: skip
