"""Patterns of entities: what they match, and what they leave out."""

from __future__ import annotations

import pytest

from busbar.spark.entity_names import can_match_subscriptions, entity_of, label_of, matches

SUBSCRIPTION = "shop/events/Subscriptions/audit"


@pytest.mark.parametrize(
    ("pattern", "label", "matching"),
    [
        ("orders", "Orders", True),
        ("shop/*", "shop/orders", True),
        ("shop/*", "shop/eu/orders", False),
        ("shop/**", "shop/eu/orders", True),
        ("shop/*", "shopping/orders", False),
        ("*", "shop/orders", False),
        ("order?", "orders", True),
        ("order?", "order/", False),
        ("a.b", "axb", False),
        ("shop/events/Subscriptions/*", SUBSCRIPTION, True),
        ("shop/*", SUBSCRIPTION, False),
        ("**", SUBSCRIPTION, True),
        ("**", SUBSCRIPTION + "/$deadletterqueue", False),
        ("**/$DeadLetterQueue", SUBSCRIPTION + "/$deadletterqueue", True),
        ("shop/*/$DeadLetterQueue", "shop/orders", False),
    ],
)
def test_patterns(pattern: str, label: str, matching: bool) -> None:
    assert matches(pattern, label) is matching


def test_subscriptions_are_listed_where_they_can_match() -> None:
    assert can_match_subscriptions("shop/*/subscriptions/a*", "shop/events")
    assert can_match_subscriptions("**", "shop/events")
    assert not can_match_subscriptions("shop/*", "shop/events")
    assert not can_match_subscriptions("bills/Subscriptions/*", "shop/events")


def test_a_label_names_an_entity_or_its_dead_letters() -> None:
    for entity in (("orders", ""), (SUBSCRIPTION, "deadletter")):
        assert entity_of(label_of(*entity)) == entity
