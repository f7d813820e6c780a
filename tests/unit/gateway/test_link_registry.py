"""Who is attached to what: the limit of connections, and who hears of changes."""

from __future__ import annotations

import pytest

from busbar.gateway.gateway_quota import GatewayQuota
from busbar.gateway.link_registry import LinkRegistry
from busbar.model.api import EntityView
from busbar.model.errors import QuotaExceeded
from busbar.model.limits import Limits


def registry(most: int) -> LinkRegistry:
    return LinkRegistry(GatewayQuota(Limits(max_entity_connections=most)))


class Connection:
    def __init__(self, client: str = "") -> None:
        self.client = client
        self.heard: list[str] = []

    def entity_changed(self, path: str, view: EntityView | None) -> None:
        self.heard.append(path)
        if path == "bad":
            raise RuntimeError("a fault of this connection alone")

    def session_holder(self, path: str, session: str) -> str:
        return self.client if session == "held" else ""


async def test_connections_are_counted_not_links() -> None:
    attached = registry(2)
    one, two, three = Connection(), Connection(), Connection()
    for _ in range(5):
        await attached.add_link("Q", one)
    await attached.add_link("q", two)
    with pytest.raises(QuotaExceeded, match="'q' has links of as many connections"):
        await attached.add_link("q", three)
    await attached.add_link("t/subscriptions/s", three)
    for _ in range(4):
        attached.remove_link("q", one)
    with pytest.raises(QuotaExceeded):
        await attached.add_link("q", three)
    attached.remove_link("q", one)
    await attached.add_link("q", three)
    assert attached.entities() == ["q", "t/subscriptions/s"]
    attached.remove_link("q", two)
    attached.remove_link("q", three)
    assert attached.entities() == ["t/subscriptions/s"]


async def test_those_who_use_an_entity_or_rely_on_its_rules_hear_once() -> None:
    attached = registry(10)
    one, two = Connection(), Connection()
    await attached.add_link("q", one)
    attached.add_grant("q", one)
    attached.add_grant("q", two)
    await attached.add_link("other", two)
    attached.changed("Q", None)
    assert (one.heard, two.heard) == (["Q"], ["Q"])
    attached.remove_grant("q", two)
    attached.changed("Q", None)
    assert (one.heard, two.heard) == (["Q", "Q"], ["Q"])
    attached.changed("nobody", None)


async def test_a_connection_that_fails_hurts_no_other(caplog: pytest.LogCaptureFixture) -> None:
    attached = registry(10)
    connections = [Connection() for _ in range(3)]
    for connection in connections:
        await attached.add_link("bad", connection)
    attached.changed("bad", None)
    assert [connection.heard for connection in connections] == [["bad"]] * 3
    assert "a connection failed on a change of 'bad'" in caplog.text


async def test_who_holds_a_session_is_found_among_those_who_use_the_entity() -> None:
    attached = registry(10)
    await attached.add_link("Q", Connection())
    await attached.add_link("other", Connection("somebody else"))
    assert attached.session_holder("q", "held") == ""
    await attached.add_link("q", Connection("worker at 127.0.0.1"))
    assert attached.session_holder("Q", "held") == "worker at 127.0.0.1"
    assert attached.session_holder("Q", "free") == ""
