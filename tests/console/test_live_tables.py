"""The live table of a capture as a terminal shows it, in a real browser: light, dark and narrow.

The pictures of docs/capture.md are made here. After a change of the table, make them again:

    BUSBAR_PICTURES=1 .venv/bin/python -m pytest tests/console/test_live_tables.py
"""

from __future__ import annotations

import base64
import html
import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from busbar.jobs.progress import BatchProgress, ProgressTable
from tests.console import pictures

pytestmark = pytest.mark.timeout(120)

BEGIN = datetime(2026, 1, 31, 12, 30, 5, tzinfo=UTC)
STEPS = (
    BatchProgress("shop/orders", 412, 41_800, 3.1, 18_204_310, 12_905),
    BatchProgress("shop/payments", 409, 9_120, 2.2, 4_018_733, 0),
    BatchProgress("news/Subscriptions/audit", 398, 604, 1.4, 288_120, 31),
    BatchProgress("shop/orders/$deadletterqueue", 31, 2, 0.9, 493, 0),
)
NOTICE = "waiting for the broker at broker.example:5671 for up to 5m"
COLOURS = [(128, 128, 128)] * 8
"""Those of the table are the two of the terminal."""
THEMES = {
    "light": TerminalTheme((251, 251, 249), (32, 36, 42), COLOURS),
    "dark": TerminalTheme((20, 24, 29), (222, 226, 230), COLOURS),
}

Scheme = Literal["light", "dark"]
VIEWS: dict[str, tuple[Scheme, int, int]] = {
    "capture-light": ("light", 820, 80),
    "capture-dark": ("dark", 820, 80),
    "capture-narrow": ("light", 420, 44),
}
"""By the name of the picture: colours, its width, and that of the terminal in characters."""
OUTSIDE = """() => [...document.querySelectorAll('svg, svg text')].filter(each => {
  const box = each.getBoundingClientRect();
  return box.left < 0 || box.right > document.documentElement.clientWidth + 1;
}).map(each => each.textContent)"""
MOST_BYTES = 40_000
HEIGHT = 400


def table_page(scheme: Scheme, columns: int) -> str:
    """A page with the table that a terminal of this width shows."""
    now = [BEGIN]
    table = ProgressTable(io.StringIO(), lambda: now[0])
    for step in STEPS:
        now[0] += timedelta(seconds=1)
        table.show(step)
    table.notice(NOTICE)
    now[0] += timedelta(seconds=17)
    console = Console(file=io.StringIO(), record=True, width=columns, highlight=False)
    console.print("$ busbar capture --output archive …\n", table)
    table.close()
    svg = console.export_svg(title="busbar capture", theme=THEMES[scheme], unique_id="table")
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # a page without a network
    paper = "#e4e4df" if scheme == "light" else "#0b0d10"
    return (
        "<!doctype html><html><head><meta charset='utf-8'><style>"
        f"body {{ margin: 8px; background: {paper} }} svg {{ width: 100%; height: auto; display: block }}"
        f"</style></head><body>{svg}</body></html>"
    )


def terminal_font() -> str:
    """A font of this machine in which all characters are equally wide, as terminals have it; the browser of the tests has
    none. Without one, letters are only spaced."""
    rules = []
    for name, weight in (("DejaVuSansMono.ttf", 400), ("DejaVuSansMono-Bold.ttf", 700)):
        for path in [*Path("/usr/share/fonts").rglob(name)][:1]:
            data = base64.b64encode(path.read_bytes()).decode()
            rules.append(
                f"@font-face {{ font-family: 'Fira Code'; font-weight: {weight}; "
                f"src: url(data:font/ttf;base64,{data}) }}"
            )
    return "".join(rules)


def words_of(page: str) -> str:
    """What the picture shows, without its drawing."""
    return " ".join(
        html.unescape(text).replace("\xa0", " ") for text in re.findall(r"<text[^>]*>([^<]*)</text>", page)
    )


@pytest.mark.parametrize("name", VIEWS)
def test_the_pictures_of_the_documents_show_this_table(chromium: Browser, name: str) -> None:
    scheme, width, columns = VIEWS[name]
    source = table_page(scheme, columns)
    shown = words_of(source)
    for word in ("Entity", "Rows", "18,204,310", "12,905", "waiting for the broker"):
        assert word in shown
    assert ("Last batch" in shown) == (columns == 80)
    context = chromium.new_context(
        viewport={"width": width, "height": 100}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.set_content(source)
    page.add_style_tag(content=terminal_font())
    page.evaluate("document.fonts.ready")
    outside = page.evaluate(OUTSIDE)
    assert outside == []
    picture = pictures.take(page, source, HEIGHT)
    context.close()
    assert len(picture) < MOST_BYTES
    path = pictures.keep(name, picture)
    assert pictures.source_of(path.read_bytes()) == (width, pictures.digest(source)), (
        "BUSBAR_PICTURES=1 renews it"
    )
    document = (pictures.IMAGES.parent / "capture.md").read_text()
    assert f"(images/{name}.png)" in document
