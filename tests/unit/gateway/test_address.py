"""Every spelling that SDKs use for an address means the same node."""

from __future__ import annotations

import pytest

from busbar.gateway.address import NodeKind, node_of, plain_path
from busbar.model.errors import ArgumentError


@pytest.mark.parametrize(
    "address",
    ["orders", "/orders", "amqps://localhost:5672/orders", "sb://h/orders/", "amqp://h/%6Frders"],
)
def test_the_spellings_of_a_queue(address: str) -> None:
    node = node_of(address)
    assert (node.kind, node.path, node.dead_letter) == (NodeKind.ENTITY, "orders", False)


def test_names_with_slashes_keep_them() -> None:
    assert node_of("amqps://h:1/eu/orders").path == "eu/orders"


@pytest.mark.parametrize("suffix", ["$DeadLetterQueue", "$deadletterqueue", "$DEADLETTERQUEUE"])
def test_the_dead_letter_queue_in_any_case(suffix: str) -> None:
    node = node_of(f"orders/{suffix}")
    assert (node.path, node.dead_letter, node.transfer) == ("orders", True, False)


def test_management_of_a_dead_letter_queue() -> None:
    node = node_of("orders/$DeadLetterQueue/$management")
    assert (node.kind, node.path, node.dead_letter) == (NodeKind.MANAGEMENT, "orders", True)


def test_the_transfer_dead_letter_queue() -> None:
    node = node_of("orders/$Transfer/$DeadLetterQueue")
    assert (node.path, node.dead_letter, node.transfer) == ("orders", True, True)


def test_cbs() -> None:
    assert node_of("$cbs").kind is NodeKind.CBS


def test_the_key_of_a_node_ignores_case() -> None:
    assert node_of("Orders/$management").key == node_of("/orders/$Management").key
    assert node_of("orders/$management").key != node_of("orders/$DeadLetterQueue/$management").key


@pytest.mark.parametrize("address", [None, "", "/", "$management", "amqps://host", "$nonsense"])
def test_addresses_that_name_nothing(address: str | None) -> None:
    with pytest.raises(ArgumentError):
        node_of(address)


def test_the_plain_path_of_a_namespace_is_empty() -> None:
    assert plain_path("sb://localhost:5672/") == ""
    assert plain_path("sb://localhost") == ""
