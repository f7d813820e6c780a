"""The report stands alone, says what was measured, and lets no message's text act."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

from busbar.jobs import report_svg as svg
from busbar.jobs.insight_advice import Clients, advise_all
from busbar.jobs.insight_figures import (
    Bin,
    Coverage,
    EntityFigures,
    Flow,
    FragmentCoverage,
    FragmentFigures,
    Latency,
    Ranking,
    Report,
    Share,
    TimeBucket,
)
from busbar.jobs.insight_html import render

EVIL = "<script>alert(1)</script>\"'&"
MOMENT = 1_767_225_600_000  # 2026-01-01


def figures(entity: str = "orders") -> EntityFigures:
    slots = tuple(
        TimeBucket(
            MOMENT + at * 1000,
            at,
            at // 2,
            None if at % 7 == 0 else at * 1.5,
            None if at % 7 == 0 else at * 4.0,
        )
        for at in range(60)
    )
    return EntityFigures(
        entity=entity,
        coverage=Coverage(
            "tap 'insight'", MOMENT, 1770, 885, (FragmentCoverage(0, 0, 1770, 0, 0, 885, 12),), (EVIL,)
        ),
        sent=Flow(1770, MOMENT, MOMENT + 59_000, 30.0, 30.0, 59.0),
        done=Flow(885, MOMENT, MOMENT + 59_000, 15.0, 15.0, 29.0),
        latency=Latency(
            885, 40.0, 30.0, 90.0, 120.0, 1500.0, 130_000.0, 9_000_000.0, (Bin(1, 5), Bin(1024, 880))
        ),
        slot_seconds=1,
        slots=slots,
        fragments=(FragmentFigures(0, 1000, 0.56, 500, 10.0), FragmentFigures(1, 770, 0.44, 385, None)),
        keys=Ranking(1770, 40, (Share(EVIL, 1000, 0.56), Share("", 770, 0.44))),
        sessions=Ranking(),
        dead_letters=Ranking(3, 1, (Share(EVIL, 3, 1.0),)),
        duplicates=Ranking(),
        outcomes={"completed": 885, "dead-lettered": 3},
        redelivered=4,
    )


def report(*entities: EntityFigures) -> Report:
    return Report(MOMENT, advise_all(entities, Clients(), {}))


class Page(HTMLParser):
    """Tags and their attributes; elements that need closing must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_it_needs_nothing_from_elsewhere() -> None:
    text = render(report(figures()))
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "a"}
    assert not any(
        name in ("src", "href") or name.startswith("on") for _, attrs in page.tags for name in attrs
    )
    assert "http" not in text and "@import" not in text and "url(" not in text
    assert "prefers-color-scheme:dark" in text and "width=device-width" in text


def test_what_messages_say_stays_text() -> None:
    text = render(report(figures(EVIL)))
    assert "<script" not in text
    assert EVIL in "".join(Page(text).words)


def test_figures_and_advice_are_in_it() -> None:
    words = " ".join(Page(render(report(figures()))).words)
    for expected in (
        "1,770",
        "2.17 min",
        "2.5 h",
        "Hot keys",
        "Dead-letter reasons",
        "low-latency queue",
        "prefetch",
        "300",
    ):
        assert expected in words, expected


def test_nothing_measured_is_no_failure() -> None:
    empty = EntityFigures(
        "empty",
        Coverage("tap 'insight'", None, 0, None),
        Flow(),
        Flow(),
        None,
        1,
        (),
        (),
        Ranking(),
        Ranking(),
        Ranking(),
        Ranking(),
        {},
        None,
    )
    words = " ".join(Page(render(report(empty))).words)
    assert "No message came" in words
    assert "There is nothing to report" in render(Report(MOMENT, ()))


def test_plots_are_well_formed() -> None:
    labels = [f"12:00:{at:02d}" for at in range(60)]
    values = [None if at % 5 == 0 else float(at) for at in range(60)]
    drawn = svg.lines(
        "a & b",
        labels,
        [svg.PlotLine("<one>", "--first", values), svg.PlotLine("two", "--second", values)],
        "ms",
    )
    root = ElementTree.fromstring(drawn)
    assert root.get("aria-label") == "a & b"
    assert len(root.findall("polyline")) == 24
    assert len(root.findall("rect")) == 60
    bars = ElementTree.fromstring(svg.bars("bars", ["<a>", "b"], [0, 1e7], "messages", 5e6))
    heights = [float(rect.get("height", "")) for rect in bars.findall("rect")]
    assert heights[0] == 0 < heights[1] <= svg.HEIGHT
    for nothing in (svg.lines("none", [], [], "s"), svg.bars("none", [], [], "s")):
        ElementTree.fromstring(nothing)


def test_json_has_names_times_and_whether_it_is_complete() -> None:
    document = json.loads(json.dumps(report(figures()).to_json()))
    assert document["madeTime"] == "2026-01-01T00:00:00.000Z"
    (entity,) = document["entities"]
    assert entity["figures"]["sent"]["firstTime"] == "2026-01-01T00:00:00.000Z"
    assert entity["figures"]["sent"]["busyRate"] == 30.0
    assert entity["figures"]["slots"][1]["time"] == "2026-01-01T00:00:01.000Z"
    assert entity["figures"]["coverage"]["complete"] is False
    assert entity["figures"]["coverage"]["fragments"][0]["eventLost"] == 12
    assert entity["advice"]["prefetch"] == 300
