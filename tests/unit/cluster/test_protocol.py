"""Calls of the broker's API between processes: arguments and results cross as they are."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from busbar.cluster import protocol
from busbar.cluster.protocol import ApiCall
from busbar.model.api import (
    BrokerApi,
    EntityListing,
    EntityView,
    FragmentView,
    NamespaceProperties,
    RuntimeProperties,
    StoreView,
)
from busbar.model.entities import (
    EntityKind,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    Tier,
)
from busbar.model.taps import TapChange, TapDescription

VIEW = EntityView("Orders", QueueDescription(lock_duration=7_000), (3,), 1, 2, ("store-0",))
RULE = ("blue", RuleDescription(SqlFilter("colour = 'blue'")))
TAP = TapDescription("tap", owner="me")
STORE = StoreView("store-0", "sqlite:store-0", "open", 5, fragments=2)

CALLS: list[tuple[ApiCall[..., Any], tuple[object, ...], object]] = [
    (protocol.ENTITY, ("orders",), VIEW),
    (protocol.CREATE, ("orders", QueueDescription(), None), VIEW),
    (protocol.CREATE, ("t/Subscriptions/s", SubscriptionDescription(), RULE), VIEW),
    (protocol.UPDATE, ("orders", QueueDescription(max_delivery_count=3)), VIEW),
    (protocol.DELETE, ("orders",), None),
    (protocol.CHANGE_RULES, ([RULE, ("t/Subscriptions/s/Rules/r", None)],), None),
    (protocol.LIST, (EntityKind.QUEUE, "", 0, 10), [VIEW, VIEW]),
    (protocol.CREATE_TAP, ("orders", TAP), VIEW),
    (protocol.CHANGE_TAP, ("orders", "tap", False, TapChange(owner="me")), VIEW),
    (protocol.RUNTIME, ("orders",), RuntimeProperties(active=3)),
    (protocol.RUNTIMES, (["orders", "gone"],), [RuntimeProperties(active=3), None]),
    (
        protocol.PAGE,
        (EntityKind.QUEUE, "", 0, 10),
        EntityListing("busbar", [VIEW], [RuntimeProperties()], True),
    ),
    (protocol.NAMESPACE, (), NamespaceProperties("busbar", Tier.PREMIUM, 1, 2)),
    (protocol.FRAGMENTS, ("orders",), list[FragmentView]()),
    (protocol.STORES, (), [STORE]),
    (protocol.CHANGE_STORE, ("store-0", "offline"), STORE),
]


class Recorder:
    """A broker that returns what it was made with, and keeps how it was called."""

    def __init__(self, result: object) -> None:
        self.called: tuple[str, tuple[object, ...]] | None = None
        self._result = result

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: object) -> object:
            self.called = name, arguments
            return self._result

        return call


@pytest.mark.parametrize(("call", "arguments", "result"), CALLS, ids=lambda value: getattr(value, "name", ""))
async def test_a_call_crosses(call: ApiCall[..., Any], arguments: tuple[object, ...], result: object) -> None:
    broker = Recorder(result)
    answer = await protocol.perform(cast(BrokerApi, broker), call.request(*arguments))
    assert broker.called == (call.name, arguments)
    assert call.result(msgspec.Raw(msgspec.msgpack.encode(answer))) == result


def test_every_call_is_tried() -> None:
    assert {call.name for call, _, _ in CALLS} == set(protocol._CALLS)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("submit", []),
        ("entity", []),
        ("entity", [1]),
        ("entity", ["a", "b"]),
        ("update", ["q", b"{}"]),
        ("change_rules", [[["r", b"{}"]]]),
    ],
)
async def test_what_is_no_call_is_refused(method: str, arguments: list[object]) -> None:
    broker = Recorder(None)
    request = protocol.CatalogueRequest(method, msgspec.msgpack.encode(arguments))
    with pytest.raises(msgspec.DecodeError):
        await protocol.perform(cast(BrokerApi, broker), request)
    assert broker.called is None
