"""What the console shows of values, and how it reads what people type."""

from __future__ import annotations

import pytest

from busbar.cli.console_client import readable_time
from busbar.cli.console_diagnosis import typed_pair
from busbar.cli.console_namespace import readable
from busbar.gateway.amqp.connection_view import MAX_TEXT, product_of


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2026-01-31T12:00:00.123Z", "2026-01-31 12:00:00Z"),
        ("16384", "16,384"),
        ("true", "yes"),
        ("false", "no"),
        ("P14D", "14d"),
        ("never", "never"),
        ("2026-01-31T12:00:00 and more", "2026-01-31T12:00:00 and more"),
    ],
)
def test_values_are_for_people(value: str, shown: str) -> None:
    assert readable(value) == shown


def test_an_exact_time_keeps_its_fraction() -> None:
    assert readable_time("2026-01-31T12:00:00.123Z", exact=True) == "2026-01-31 12:00:00.123Z"


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("amount=100", "amount:long=100"),
        ("price=1.5", "price:double=1.5"),
        ("vip=true", "vip:boolean=true"),
        ('number="5"', "number=5"),
        ("region=eu", "region=eu"),
        ("amount:int=5", "amount:int=5"),
        ("nothing", "nothing"),
    ],
)
def test_a_property_is_what_it_looks_like(line: str, pair: str) -> None:
    assert typed_pair(line) == pair


def test_a_client_is_called_by_its_user_agent() -> None:
    sdk: dict[object, object] = {
        "product": "azsdk",
        "version": "7",
        "platform": "Linux",
        "user-agent": "shop azsdk/7",
    }
    assert product_of(sdk) == "shop azsdk/7"
    assert product_of({name: sdk[name] for name in ("product", "version")}) == "azsdk 7"
    long = product_of({"product": "x" * MAX_TEXT, "version": "7"})
    assert len(long) == MAX_TEXT and long.endswith("…")
    assert product_of({}) == "" and product_of({"product": "x" * MAX_TEXT}) == "x" * MAX_TEXT
