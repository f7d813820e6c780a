"""The pictures of the documents: pages of the console with values of a shop, light, dark and narrow.

After a change of the pages, make them again:

    BUSBAR_PICTURES=1 .venv/bin/python -m pytest tests/console/test_console_pictures.py

Without that, a test compares the page with the one that the picture shows, and takes none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import resources
from typing import Literal, NamedTuple

import pytest
from playwright.sync_api import Browser

from tests.console import pictures, sample_pages

pytestmark = pytest.mark.timeout(120)

STYLE = resources.files("busbar.console").joinpath("console.css").read_text()
MOST_BYTES = 80_000


class View(NamedTuple):
    """A picture: its page, colours, width, height at most, and the document that has it."""

    page: Callable[[], str]
    colours: Literal["light", "dark"]
    width: int
    height: int
    document: str = "console.md"


VIEWS = {
    "console-overview": View(sample_pages.overview, "light", 1_000, 720),
    "console-entity": View(sample_pages.orders, "light", 1_000, 760),
    "console-messages": View(sample_pages.messages, "light", 1_000, 640),
    "console-dead-letters": View(sample_pages.dead_letters, "dark", 1_000, 760),
    "console-phone": View(sample_pages.overview, "light", 380, 820),
    "console-connections": View(sample_pages.connections, "light", 1_000, 520, "operations.md"),
    "console-rule-test": View(sample_pages.rule_test, "light", 1_000, 980, "rules.md"),
    "console-history": View(sample_pages.message_history, "dark", 1_000, 740, "history.md"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_pictures_of_the_documents_show_these_pages(chromium: Browser, name: str) -> None:
    view = VIEWS[name]
    source = view.page()
    html = source.replace('<link rel="stylesheet" href="/console.css">', f"<style>{STYLE}</style>")
    assert html != source
    context = chromium.new_context(
        viewport={"width": view.width, "height": 600},
        color_scheme=view.colours,
        offline=True,
        java_script_enabled=True,
    )
    page = context.new_page()
    page.set_content(html)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if os.environ.get("BUSBAR_PICTURES"):
        pictures.keep(name, pictures.take(page, html, view.height))
    context.close()
    picture = (pictures.IMAGES / f"{name}.png").read_bytes()
    assert len(picture) < MOST_BYTES
    assert pictures.source_of(picture) == (view.width, pictures.digest(html)), "BUSBAR_PICTURES=1 renews it"
    assert f"(images/{name}.png)" in (pictures.IMAGES.parent / view.document).read_text()
