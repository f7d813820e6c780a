"""Labels of plots do not overlap and differ from each other, bars are proportional, and words stay whole."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from busbar.jobs import report_svg as svg
from busbar.jobs.insight_figures import BOUNDS, Bin, Ranking, Share, TimeBucket
from busbar.jobs.insight_html import render
from busbar.jobs.insight_measures import MOST_SLOTS, WIDTHS
from busbar.jobs.insight_plots import bin_label, clock
from busbar.jobs.report_html import STYLE
from tests.insight_reports import MOMENT, busy_orders, report_of, whole_report

BINS = [bin_label(Bin(below, 1)) for below in (*BOUNDS, None)]


def labels_of(drawn: str) -> list[tuple[float, float, str]]:
    """The left and right edges of the labels below the plot, from left to right."""
    found = []
    for text in ElementTree.fromstring(drawn).findall("text"):
        if text.get("text-anchor") == "middle":
            words = text.text or ""
            half = svg.text_width(words) / 2
            found.append((float(text.get("x", "")) - half, float(text.get("x", "")) + half, words))
    return found


def assert_apart(drawn: str) -> None:
    found = labels_of(drawn)
    assert found, "there is room for one label at least"
    assert found[0][0] >= -0.1 and found[-1][1] <= svg.WIDTH + 0.1
    assert all(one[1] < other[0] for one, other in pairwise(found)), found
    assert len({words for _, _, words in found}) == len(found), found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 24, 60, 96])
@pytest.mark.parametrize("form", ["{:d}", "12:{:02d}", "11-17 12:{:02d}", "2026-11-17 12:{:02d}"])
def test_labels_of_lines_do_not_overlap(count: int, form: str) -> None:
    labels = [form.format(at) for at in range(count)]
    line = svg.PlotLine("one", "--first", [float(at) for at in range(count)])
    assert_apart(svg.lines("lines", labels, [line], "/s"))


@pytest.mark.parametrize("count", range(1, len(BINS) + 1))
def test_labels_of_bars_do_not_overlap(count: int) -> None:
    for first in range(len(BINS) - count + 1):
        labels = BINS[first : first + count]
        assert_apart(svg.bars("bars", labels, [1.0] * count, "messages"))
    assert_apart(svg.bars("bars", [str(at) for at in range(16)], [1.0] * 16, "messages", 1.0))


def test_no_two_bins_share_a_label() -> None:
    assert len(set(BINS)) == len(BINS) == len(BOUNDS) + 1
    assert BINS[:2] + BINS[-3:] == ["<1 ms", "<2 ms", "<1 d", "<7 d", "more"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("begin", [MOMENT, MOMENT + 86_400_000 - 1_800_000])
def test_no_two_slots_share_a_label(width: int, begin: int) -> None:
    """A span that passes midnight has its dates."""
    times = [begin // (width * 1000) * (width * 1000) + at * width * 1000 for at in range(MOST_SLOTS)]
    slots = tuple(TimeBucket(time, 1, 1, None, None) for time in times)
    labels = clock(replace(busy_orders(), slot_seconds=width, slots=slots))
    assert len(set(labels)) == len(labels), labels[:3]


def test_the_numbers_of_the_scale_are_right() -> None:
    for most, expected in (
        (2.1, ["0", "1.25", "2.5"]),
        (21, ["0", "12.5", "25"]),
        (21_000, ["0", "12.5k", "25k"]),
    ):
        drawn = svg.bars("bars", ["a"], [most], "messages")
        texts = ElementTree.fromstring(drawn).findall("text")
        assert [text.text for text in texts if text.get("text-anchor") == "end"] == expected


def test_bars_of_plots_are_proportional() -> None:
    drawn = ElementTree.fromstring(svg.bars("bars", list("abcd"), [0, 25, 50, 100], "messages"))
    heights = [float(rect.get("height", "")) for rect in drawn.findall("rect")]
    assert heights[0] == 0 and heights[3] == svg.HEIGHT - svg.TOP - svg.BOTTOM
    assert heights[1:3] == pytest.approx([heights[3] / 4, heights[3] / 2], abs=0.1)


def bars_of(page: str) -> list[float]:
    return [float(width) for width in re.findall(r'<i style="width:([\d.]+)%">', page)]


def test_the_bar_of_a_key_is_its_share() -> None:
    """A key with 0.3 % of the messages has 0.3 % of the width, also if it is the most frequent one."""
    keys = Ranking(1000, 900, (Share("one", 3, 0.003), Share("two", 2, 0.002)))
    nothing = Ranking()
    subject = replace(busy_orders(), keys=keys, sessions=nothing, dead_letters=nothing, duplicates=nothing)
    assert bars_of(render(report_of(subject))) == [0.3, 0.2]


def test_every_ranking_of_the_report_has_bars_of_its_shares() -> None:
    report = whole_report()
    page = render(report)
    expected = [
        round(share.share * 100, 1)
        for each in report.entities
        for ranking in (
            each.figures.keys, each.figures.sessions, each.figures.dead_letters, each.figures.duplicates
        )
        for share in ranking.top
    ]  # fmt: skip
    assert bars_of(page) == expected


def test_words_are_not_broken_where_they_fit() -> None:
    """`anywhere` makes every word of a table breakable; only names that clients chose may need that."""
    rules = re.findall(r"([^{}]+)\{[^{}]*overflow-wrap:anywhere", STYLE)
    assert [rule.strip() for rule in rules] == ["td.name"]
