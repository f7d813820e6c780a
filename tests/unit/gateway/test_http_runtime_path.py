"""What a runtime path names: the entity, its dead-letter queue, the lock."""

from __future__ import annotations

import pytest

from busbar.gateway.http.runtime_path import RuntimePath, RuntimePathKind, is_runtime, target_of
from busbar.model.api import EntityView
from busbar.model.entities import QueueDescription
from busbar.model.errors import EntityNotFound

TOKEN = "01000000-0000-0000-0001-735f6cf56913"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("q/messages", RuntimePath(RuntimePathKind.SEND, "q")),
        ("a/b/Messages", RuntimePath(RuntimePathKind.SEND, "a/b")),
        ("q/MESSAGES/Head", RuntimePath(RuntimePathKind.HEAD, "q")),
        ("q/$deadletterqueue/messages/head", RuntimePath(RuntimePathKind.HEAD, "q", dead_letter=True)),
        ("q/$DeadLetterQueue/messages", RuntimePath(RuntimePathKind.SEND, "q", dead_letter=True)),
        ("q/$Transfer/$DeadLetterQueue/messages/head", RuntimePath(RuntimePathKind.HEAD, "q", True, True)),
        (f"q/messages/12/{TOKEN}", RuntimePath(RuntimePathKind.LOCK, "q", message="12", lock=TOKEN)),
        (
            f"q/$DeadLetterQueue/messages/x/{TOKEN}",
            RuntimePath(RuntimePathKind.LOCK, "q", True, False, "x", TOKEN),
        ),
        ("t/subscriptions/s/messages/head", RuntimePath(RuntimePathKind.HEAD, "t/subscriptions/s")),
        # Ids may have slashes, and be called like the fixed words.
        (f"q/messages/a/b/{TOKEN}", RuntimePath(RuntimePathKind.LOCK, "q", message="a/b", lock=TOKEN)),
        (
            f"q/messages/messages/{TOKEN}",
            RuntimePath(RuntimePathKind.LOCK, "q", message="messages", lock=TOKEN),
        ),
        # So may the first segment of a name, subscriptions and rules.
        ("messages/messages", RuntimePath(RuntimePathKind.SEND, "messages")),
        ("subscriptions/messages/head", RuntimePath(RuntimePathKind.HEAD, "subscriptions")),
        ("a/rules/messages", RuntimePath(RuntimePathKind.SEND, "a/rules")),
        (
            "t/Subscriptions/messages/messages/head",
            RuntimePath(RuntimePathKind.HEAD, "t/Subscriptions/messages"),
        ),
    ],
)
def test_paths(path: str, expected: RuntimePath) -> None:
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
