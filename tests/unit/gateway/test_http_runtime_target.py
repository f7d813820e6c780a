"""What a runtime path names: the entity, its dead-letter queue, the lock."""

from __future__ import annotations

import pytest

from busbar.gateway.http.runtime_target import Node, Target, target_of
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
        # An entity may be called like the fixed words.
        ("messages/messages", Target(Node.SEND, "messages")),
        ("q/messages/messages/head", Target(Node.HEAD, "q/messages")),
        (f"q/messages/messages/{TOKEN}", Target(Node.LOCK, "q", message="messages", lock=TOKEN)),
    ],
)
def test_paths(path: str, expected: Target) -> None:
    assert target_of(path) == expected


@pytest.mark.parametrize(
    "path",
    ["messages", "messages/head", "q/messages/x", "$DeadLetterQueue/messages", "$cbs/messages", "q/head"],
)
def test_paths_that_name_nothing(path: str) -> None:
    with pytest.raises(EntityNotFound):
        target_of(path)


def test_the_location_has_the_entity_as_it_was_created() -> None:
    view = EntityView("Orders", QueueDescription(), (1,))
    assert target_of("orders/messages/head").location(view) == "Orders/messages"
    assert (
        target_of("ORDERS/$deadletterqueue/messages/head").location(view)
        == "Orders/$DeadLetterQueue/messages"
    )
