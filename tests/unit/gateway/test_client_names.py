"""Who the clients of a gateway are or were."""

from __future__ import annotations

from busbar.gateway.client_names import KEPT_CONNECTIONS, KEPT_LINKS, MAX_NAME, ClientNames
from busbar.model.history import ClientName


def test_a_client_is_remembered_after_its_end() -> None:
    names = ClientNames()
    names.opened(5, "shop", "10.0.0.5")
    names.linked(5, "receiver", [1, 2])
    names.linked(6, "of an unknown connection", [1])
    names.ended(5)
    assert names.name(5, 2) == ClientName("shop", "10.0.0.5", "receiver")
    assert names.name(5, 0) == ClientName("shop", "10.0.0.5", "")
    assert names.name(6, 1) is None


def test_what_is_remembered_is_limited() -> None:
    names = ClientNames()
    names.opened(1, "x" * 1000, "a")
    for number in range(KEPT_LINKS + 5):
        names.linked(1, "y" * 1000, [number])
    assert names.name(1, 4) == ClientName("x" * MAX_NAME, "a", "")
    assert names.name(1, 5) == ClientName("x" * MAX_NAME, "a", "y" * MAX_NAME)
    for origin in range(2, KEPT_CONNECTIONS + 3):
        names.opened(origin, "other", "a")
        names.ended(origin)
    assert names.name(2, 0) is None and names.name(3, 0) is not None
    assert names.name(1, 0) is not None, "it lives"
    names.opened(0, "one that has no room", "a")
    assert names.name(0, 0) is None
