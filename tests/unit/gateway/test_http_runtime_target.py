"""What a runtime path names: the entity, its dead-letter queue, the lock."""

from __future__ import annotations

import pytest

from busbar.gateway.http.runtime_target import Node, Target, is_runtime, target_of
from busbar.model.entities import QueueDescription
from busbar.model.errors import EntityNotFound
from busbar.model.port import EntityView

TOKEN = "01000000-0000-0000-0001-735f6cf56913"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("q/messages", Target(Node.SEND, "q")),
        ("a/b/Messages", Target(Node.SEND, "a/b")),
        ("q/MESSAGES/Head", Target(Node.HEAD, "q")),
        ("q/$deadletterqueue/messages/head", Target(Node.HEAD, "q", dead_letter=True)),
        ("q/$DeadLetterQueue/messages", Target(Node.SEND, "q", dead_letter=True)),
        ("q/$Transfer/$DeadLetterQueue/messages/head", Target(Node.HEAD, "q", True, True)),
        (f"q/messages/12/{TOKEN}", Target(Node.LOCK, "q", message="12", lock=TOKEN)),
        (f"q/$DeadLetterQueue/messages/x/{TOKEN}", Target(Node.LOCK, "q", True, False, "x", TOKEN)),
        ("t/subscriptions/s/messages/head", Target(Node.HEAD, "t/subscriptions/s")),
        # Ids may have slashes, and be called like the fixed words.
        (f"q/messages/a/b/{TOKEN}", Target(Node.LOCK, "q", message="a/b", lock=TOKEN)),
        (f"q/messages/messages/{TOKEN}", Target(Node.LOCK, "q", message="messages", lock=TOKEN)),
        # So may the first segment of a name, subscriptions and rules.
        ("messages/messages", Target(Node.SEND, "messages")),
        ("subscriptions/messages/head", Target(Node.HEAD, "subscriptions")),
        ("a/rules/messages", Target(Node.SEND, "a/rules")),
        ("t/Subscriptions/messages/messages/head", Target(Node.HEAD, "t/Subscriptions/messages")),
    ],
)
def test_paths(path: str, expected: Target) -> None:
    assert target_of(path) == expected


@pytest.mark.parametrize(
    "path",
    ["messages", "messages/head", "q/messages/x", "$DeadLetterQueue/messages", "$cbs/messages", "q/head", ""],
)
def test_paths_that_name_nothing(path: str) -> None:
    with pytest.raises(EntityNotFound):
        target_of(path)


@pytest.mark.parametrize(
    ("path", "runtime"),
    [
        ("q/messages", True),
        ("q/messages/unknown", True),
        ("messages/messages", True),
        ("messages", False),
        ("q", False),
        ("t/subscriptions/messages", False),
        ("t/subscriptions/messages/rules", False),
        ("t/subscriptions/messages/rules/messages", False),
        ("t/subscriptions/s/rules/messages", False),
    ],
)
def test_what_is_a_resource_to_manage(path: str, runtime: bool) -> None:
    assert is_runtime(path) is runtime


def test_the_location_has_the_entity_as_it_was_created() -> None:
    view = EntityView("Orders", QueueDescription(), (1,))
    assert target_of("orders/messages/head").location(view) == "Orders/messages"
    assert (
        target_of("ORDERS/$deadletterqueue/messages/head").location(view)
        == "Orders/$DeadLetterQueue/messages"
    )
