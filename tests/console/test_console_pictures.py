"""The pictures of docs/console.md: pages of the console with values of a shop, light, dark and narrow.

After a change of the pages, make them again:

    BUSBAR_PICTURES=1 .venv/bin/python -m pytest tests/console/test_console_pictures.py
"""

from __future__ import annotations

import math
from importlib import resources
from typing import Literal

import pytest
from playwright.sync_api import Browser

from busbar.console.dead_letter_pages import dead_letters_page
from busbar.console.history import CountHistory
from busbar.console.messages import DeadLetterSummary, Lane, MessageRange, MessageSummary
from busbar.console.namespace import Address, Entity, EntityPage, EntityType, HeldCounts
from busbar.console.overview_page import Overview, Shown, overview_page
from tests.console import pictures

pytestmark = pytest.mark.timeout(120)

PLACE = "https://broker.example:443"
STYLE = resources.files("busbar.console").joinpath("console.css").read_text()
MOST_BYTES = 80_000
NOW = 3_600.0
Scheme = Literal["light", "dark"]


def entity(kind: EntityType, name: str, messages: int = 0, dead: int = 0, **more: bool | int | str) -> Entity:
    values: dict[str, object] = {
        "status": "Active", "available": True, "partitioned": False, "requires_session": False,
        "detects_duplicates": False, "scheduled": 0, "size": "0 B", "subscriptions": 0, "settings": {}, "runtime": {},
    }  # fmt: skip
    return Entity(Address(kind, name), messages=messages, dead_letters=dead, **{**values, **more})  # type: ignore[arg-type]


QUEUES = (
    entity(EntityType.QUEUE, "shop/invoices", 312, 0, size="1.1 MiB", detects_duplicates=True),
    entity(EntityType.QUEUE, "shop/orders", 1_840, 6, size="7.4 MiB", partitioned=True, scheduled=12),
    entity(EntityType.QUEUE, "shop/payments", 95, 31, size="402 KiB", requires_session=True),
    entity(EntityType.QUEUE, "shop/returns", status="ReceiveDisabled"),
)
TOPICS = (
    entity(EntityType.TOPIC, "news", subscriptions=3, size="88 KiB"),
    entity(EntityType.TOPIC, "prices", subscriptions=41, size="2.0 MiB", partitioned=True),
)


def history() -> CountHistory:
    """An hour in which a consumer was away for some minutes."""
    found = CountHistory()
    taken = delivered = 0
    for number in range(361):
        rate = 60 + round(25 * math.sin(number / 40))
        away = 150 <= number < 230
        taken += 10 * rate
        delivered += 0 if away else min(10 * rate + 220, taken - delivered)
        backlog = taken - delivered
        found.add(
            number * 10.0,
            {
                "shop/orders": HeldCounts(backlog, 6, taken, delivered),
                "shop/invoices": HeldCounts(312 + number % 40, 0, 4 * number, 4 * number),
                "shop/payments": HeldCounts(95 + number // 9, number // 12, 9 * number, 8 * number),
            },
        )
    return found


def overview() -> str:
    found = Overview(EntityPage(QUEUES, False), EntityPage(TOPICS, False), ())
    return overview_page(found, Shown(0, 0, 50, ""), history(), NOW, PLACE)


def dead_letters() -> str:
    groups = (
        DeadLetterSummary(
            "CardDeclined", "shop/payments", 27, "2026-01-31 09:12:40Z", "2026-01-31 12:30:05Z", "code 51"
        ),
        DeadLetterSummary(
            "MaxDeliveryCountExceeded", "shop/payments", 4, "2026-01-31 11:58:00Z", "2026-01-31 12:02:31Z", ""
        ),
    )
    messages = [
        MessageSummary(
            4_711 + number,
            f"2026-01-31 12:0{number}:13Z",
            "Active",
            10 if number == 1 else 1,
            f"pay-{88_120 + number}",
            f"customer-{number}",
            "payment",
            "MaxDeliveryCountExceeded" if number == 1 else "CardDeclined",
            f'{{"amount": {19 + number}.90, "card": "…{4_000 + number}"}}',
        )
        for number in range(4)
    ]
    return dead_letters_page(
        QUEUES[2], Lane.DEAD_LETTER, groups, MessageRange(messages, 4_715), start=1, place=PLACE
    )


VIEWS: dict[str, tuple[str, Scheme, int, int]] = {
    "console-overview": ("overview", "light", 1_000, 720),
    "console-dead-letters": ("dead letters", "dark", 1_000, 760),
    "console-phone": ("overview", "light", 380, 820),
}
"""By the name of the picture: page, colours, width, and height at most."""


@pytest.mark.parametrize("name", VIEWS)
def test_the_pictures_of_the_documents_show_these_pages(chromium: Browser, name: str) -> None:
    which, scheme, width, height = VIEWS[name]
    source = {"overview": overview, "dead letters": dead_letters}[which]()
    html = source.replace('<link rel="stylesheet" href="/console.css">', f"<style>{STYLE}</style>")
    assert html != source
    context = chromium.new_context(
        viewport={"width": width, "height": 600}, color_scheme=scheme, offline=True, java_script_enabled=True
    )
    page = context.new_page()
    page.set_content(html)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    picture = pictures.take(page, html, height)
    context.close()
    assert len(picture) < MOST_BYTES
    path = pictures.keep(name, picture)
    assert pictures.source_of(path.read_bytes()) == (width, pictures.digest(html)), (
        "BUSBAR_PICTURES=1 renews it"
    )
    assert f"(images/{name}.png)" in (pictures.IMAGES.parent / "console.md").read_text()
