"""The reports of insight and bench in a real browser: light, dark and narrow, with nothing over anything else.

The pictures of docs/insight.md are made here. After a change of the page, make them again:

    BUSBAR_PICTURES=1 .venv/bin/python -m pytest tests/console/test_report_pages.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from busbar.client.presets import NAIVE, preset
from busbar.jobs.bench import ScenarioResult
from busbar.jobs.bench_advice import advise_run
from busbar.jobs.bench_figures import Recorder
from busbar.jobs.bench_html import render_bench
from busbar.jobs.bench_workloads import WORKLOADS, shown
from busbar.jobs.insight_html import render
from tests.console import pictures
from tests.insight_reports import whole_report

pytestmark = pytest.mark.timeout(120)

Scheme = Literal["light", "dark"]
VIEWS: dict[str, tuple[Scheme, int, int]] = {
    "insight-light": ("light", 1100, 1700),
    "insight-dark": ("dark", 1100, 1700),
    "insight-narrow": ("light", 420, 2700),
}
"""By the name of the picture: colours, width, and the most of its height."""
MOST_BYTES = 70_000

# The rectangles of the labels of each plot, and what a word covers: a broken word covers two rectangles.
LABELS = """() => [...document.querySelectorAll('svg')].map(svg => {
  const plot = svg.getBoundingClientRect();
  return [[plot.left, plot.top, plot.right, plot.bottom], [...svg.querySelectorAll('text')].map(text => {
    const box = text.getBoundingClientRect();
    return [box.left, box.top, box.right, box.bottom, text.textContent];
  })];
})"""
BROKEN = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const broken = [];
  for (let node; node = walker.nextNode();) {
    if (node.parentElement.closest('td.name, svg, style, script')) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
SCROLLING = """() => [document.documentElement, ...document.querySelectorAll('.scroll')]
  .filter(place => place.scrollWidth > place.clientWidth + 1)
  .map(place => place.tagName + ': ' + place.textContent.slice(0, 60))"""
BARS = """() => [...document.querySelectorAll('td.bar')].map(cell => {
  const style = getComputedStyle(cell);
  const inside = cell.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return [cell.firstElementChild.getBoundingClientRect().width, inside];
})"""


def bench_page() -> str:
    results = []
    for scenario, workload in WORKLOADS.items():
        runs = []
        for name, settings, count in (("naive", NAIVE, 500), ("preset", preset(scenario), 1500)):
            recorder = Recorder(10, 20)
            for number in range(count):
                recorder.sent(number % 10)
                recorder.received(number % 10, 5 + number % 7)
            runs.append(recorder.figures(scenario.value, shown(settings), name))
        results.append(ScenarioResult(workload, tuple(runs), advise_run(runs[-1], workload)))
    return render_bench(results, "2026-01-01 00:00 UTC")


PAGES = {"insight": render(whole_report()), "bench": bench_page()}


@pytest.fixture(params=[(scheme, width) for scheme, width, _ in VIEWS.values()], ids=list(VIEWS))
def view(request: pytest.FixtureRequest, chromium: Browser) -> Iterator[Page]:
    """A page with no network at all, so that whatever a report needs is in its file."""
    scheme, width = request.param
    context = chromium.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True, java_script_enabled=True
    )
    page = context.new_page()
    yield page
    context.close()


@pytest.mark.parametrize("report", PAGES)
def test_nothing_overlaps_breaks_or_scrolls(view: Page, report: str) -> None:
    view.set_content(PAGES[report])
    view.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    plots = view.evaluate(LABELS)
    assert len(plots) >= 10
    for plot, labels in plots:
        assert len(labels) >= 5
        for left, top, right, bottom, words in labels:
            assert (
                plot[0] - 1 <= left and right <= plot[2] + 1 and plot[1] - 1 <= top and bottom <= plot[3] + 1
            ), words
        for one, other in combinations(labels, 2):
            beside = one[2] <= other[0] or other[2] <= one[0]
            above = one[3] <= other[1] + 1 or other[3] <= one[1] + 1
            assert beside or above, (one, other)
    assert view.evaluate(BROKEN) == []
    assert view.evaluate(SCROLLING) == []


def test_the_bar_of_a_share_is_as_wide_as_the_share(view: Page) -> None:
    report = whole_report()
    view.set_content(render(report))
    expected = [
        share.share
        for each in report.entities
        for ranking in (
            each.figures.keys, each.figures.sessions, each.figures.dead_letters, each.figures.duplicates
        )
        for share in ranking.top
    ]  # fmt: skip
    drawn = view.evaluate(BARS)
    assert len(drawn) == len(expected) > 8
    for (width, whole), share in zip(drawn, expected, strict=True):
        assert width == pytest.approx(whole * share, abs=1)


def test_colours_follow_the_system(chromium: Browser) -> None:
    paper = {}
    for scheme in ("light", "dark"):
        page = chromium.new_page(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_content(PAGES["insight"])
        paper[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.close()
    assert paper == {"light": "rgb(251, 251, 249)", "dark": "rgb(20, 24, 29)"}


@pytest.mark.parametrize("name", VIEWS)
def test_the_pictures_of_the_documents_show_this_page(chromium: Browser, name: str) -> None:
    scheme, width, height = VIEWS[name]
    html = PAGES["insight"]
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.set_content(html)
    picture = pictures.take(page, html, height)
    context.close()
    assert len(picture) < MOST_BYTES
    path = pictures.keep(name, picture)
    assert pictures.source_of(path.read_bytes()) == (width, pictures.digest(html)), (
        "BUSBAR_PICTURES=1 renews it"
    )
    assert path.stat().st_size < MOST_BYTES
    document = (pictures.IMAGES.parent / "insight.md").read_text()
    assert f"(images/{name}.png)" in document
