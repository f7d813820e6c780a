"""The live table of a capture as a terminal shows it, in a real browser: light, dark and narrow.

The pictures of docs/capture.md are made here. After a change of the table, make them again:

    BUSBAR_PICTURES=1 .venv/bin/python -m pytest tests/console/test_live_tables.py
"""

from __future__ import annotations

import html
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from playwright.sync_api import Browser
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI, TerminalTheme

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
LIGHT = TerminalTheme((251, 251, 249), (32, 36, 42), DIMMED_MONOKAI.ansi_colors, None)  # type: ignore[arg-type]
DARK = TerminalTheme((20, 24, 29), (222, 226, 230), DIMMED_MONOKAI.ansi_colors, None)  # type: ignore[arg-type]

Scheme = Literal["light", "dark"]
VIEWS: dict[str, tuple[Scheme, int, int]] = {
    "capture-light": ("light", 820, 80),
    "capture-dark": ("dark", 820, 80),
    "capture-narrow": ("light", 420, 44),
}
"""By the name of the picture: colours, its width, and that of the terminal in characters."""
MOST_BYTES = 40_000
HEIGHT = 400


def table_page(scheme: Scheme, columns: int) -> str:
    """A page with the table that a terminal of this width shows."""
    times = iter([BEGIN, *(BEGIN + timedelta(seconds=number) for number in range(4)), BEGIN])
    last = [BEGIN]

    def clock() -> datetime:
        last[0] = next(times, BEGIN + timedelta(seconds=17))
        return last[0]

    table = ProgressTable(io.StringIO(), clock)
    for step in STEPS:
        table.show(step)
    table.notice(NOTICE)
    console = Console(file=io.StringIO(), record=True, width=columns, force_terminal=True)
    console.print("$ busbar capture shop/orders shop/payments …" if columns < 80 else COMMAND)
    console.print(table)
    table.close()
    svg = console.export_svg(
        title="busbar capture", theme=LIGHT if scheme == "light" else DARK, unique_id="t"
    )
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # no network
    svg = re.sub(r"font-family: Fira Code, ?monospace", "font-family: monospace", svg)
    paper = "#e9e9e4" if scheme == "light" else "#0b0d10"
    return (
        "<!doctype html><html><head><meta charset='utf-8'><style>"
        f"body {{ margin: 8px; background: {paper} }} svg {{ width: 100%; height: auto; display: block }}"
        f"</style></head><body>{svg}</body></html>"
    )


COMMAND = "$ busbar capture shop/orders shop/payments news/Subscriptions/audit …"


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
        viewport={"width": width, "height": 300}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.set_content(source)
    box = page.evaluate(
        "(() => { const b = document.querySelector('svg').getBoundingClientRect(); return [b.left, b.right, b.height] })()"
    )
    assert box[0] >= 0 and box[1] <= width and 100 < box[2] < HEIGHT
    outside = page.evaluate(
        """() => { const all = document.querySelector('svg').getBoundingClientRect();
        return [...document.querySelectorAll('svg text')].filter(text => {
          const box = text.getBoundingClientRect();
          return box.width > 0 && (box.right > all.right + 1 || box.bottom > all.bottom + 1);
        }).map(text => text.textContent) }"""
    )
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
