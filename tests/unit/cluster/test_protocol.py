"""Calls between processes: arguments and results cross as they are, for every method of the protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import msgspec
import pytest

from busbar.broker.inspection import FragmentCounts
from busbar.catalogue.change import StoreChange
from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.codec import WireError
from busbar.cluster.hello import PROTOCOL_VERSIONS
from busbar.cluster.node_settings import NodeSettings
from busbar.model.access import AccessAction, AccessChange
from busbar.model.api import (
    EntityView,
    FragmentView,
    NamespaceProperties,
    RuntimeProperties,
    StoreView,
    TransferReport,
)
from busbar.model.commands import Command, Inspect, Leave
from busbar.model.connection_views import ConnectionQuery, ConnectionReport, ConnectionView, LinkShown
from busbar.model.entities import (
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    Tier,
)
from busbar.model.errors import ServerBusy
from busbar.model.figures import GatewayFigures, HistogramView, ProcessFigures
from busbar.model.history import ClientName, HistoryRecording, HistoryStep
from busbar.model.limits import Limits
from busbar.model.node_views import NodeView, StoreFigures
from busbar.model.sas import SasRule
from busbar.model.settings import FragmentSettings
from busbar.model.taps import TapChange, TapDescription
from busbar.store.contract import StoreFull
from busbar.store.location import OwnerSilence

VIEW = EntityView("Orders", QueueDescription(lock_duration=7_000), (3,), 1, 2, ("store-0",))
RULE = ("blue", RuleDescription(SqlFilter("colour = 'blue'")))
TAP = TapDescription("tap", owner="me")
RECORDING = HistoryRecording(False, ("orders", "news/Subscriptions/eu"))
STEP = HistoryStep(5, "q", "sent", "m", 1, 7, 2, "why", "g", 3, 4, 7, ClientName("shop", "10.0.0.5", "r"))
TRANSFERS = TransferReport(7, [])
TIMES = HistogramView([1, 2], 30)
FIGURES = ProcessFigures(
    "broker-0", 7, GatewayFigures(3, {"other": 1}, TIMES), {"store-0": TIMES}, {"other": 2}, {7: [1, 2, 3]}
)
NODE_VIEW = NodeView(
    "broker-0", since=5, channels=["broker-1"], stores=["store-0"], figures=[StoreFigures("store-0", 3)]
)
STORE = StoreView("store-0", "sqlite:store-0", "open", 5, fragments=2)
ROWS = {"entity/orders": b"v1={}", "emptying/7": None}
SETTINGS = {7: QueueDescription(lock_duration=21_000).fragment_settings()}
NODE = NodeSettings(
    [SasRule("root", ("k",), frozenset(("Send",)))], Limits(), "c", "k", {"store-0": "broker-0"}, ["broker-0"]
)

Case = tuple[str, tuple[object, ...], object]

QUERY = ConnectionQuery("orders", "unsettled", 10, 20)
LINK = LinkShown("l", "orders", "receiver", 2**40, 1.5, 3, 4)
CONNECTIONS = ConnectionReport(
    [ConnectionView("5f2c09ab-17", "127.0.0.1:1", 1, "broker-1", key_names=["Root"], links=[LINK])], 12, 1
)
CONTROLLER: list[Case] = [
    ("entity", ("orders",), VIEW),
    ("create", ("orders", QueueDescription(), None), VIEW),
    ("create", ("t/Subscriptions/s", SubscriptionDescription(), RULE), VIEW),
    ("update", ("orders", QueueDescription(max_delivery_count=3)), VIEW),
    ("delete", ("orders",), None),
    ("change_access", ("", "Root", AccessChange(AccessAction.RENEW, renewed="primary")), VIEW),
    (
        "change_rules",
        ([("t/Subscriptions/s/Rules/blue", RULE[1]), ("t/Subscriptions/s/Rules/red", None)],),
        None,
    ),
    ("check_rules", ([("t/Subscriptions/s/Rules/blue", RULE[1])],), None),
    ("transfers", (), TRANSFERS),
    ("create_tap", ("orders", TAP), VIEW),
    ("change_tap", ("orders", "tap", False, TapChange(owner="me")), VIEW),
    ("runtime", ("orders",), RuntimeProperties(active=3)),
    ("runtimes", (["orders", "gone"],), [RuntimeProperties(active=3), None]),
    ("namespace", (), NamespaceProperties("busbar", Tier.PREMIUM, 1, 2)),
    ("fragments", ("orders",), list[FragmentView]()),
    ("stores", (), [STORE]),
    ("nodes", (), [NODE_VIEW]),
    ("connection_report", (QUERY,), CONNECTIONS),
    ("close_connection", ("5f2c09ab-17",), True),
    ("figures", (), [FIGURES]),
    ("history", ("m", "orders"), [STEP]),
    ("recording", (), RECORDING),
    ("record_history", ("orders", True), RECORDING),
    ("log_level", ("debug",), "debug"),
    ("begin_backup", (), ["store-0", "store-1"]),
    ("end_backup", (), True),
    ("unavailable_stores", (), ["store-1"]),
    ("change_store", ("store-0", "offline"), STORE),
    ("move_store", ("store-0", "broker-1"), STORE),
    ("restart_brokers", (), ["broker-0", "broker-1"]),
    ("in_use", (["orders"],), None),
    ("out_of_use", (["orders"],), None),
    ("changes_decided", (), None),
    ("introduce", ("broker-1",), None),
    ("leaving", (), None),
    ("release_stores", (), None),
    ("admit_store", ("store-0", True), None),
    ("store_fenced", ("store-0",), None),
    ("take_connections", ("orders", 16), 3),
    ("return_connections", ("orders", 2), None),
    ("report_connections", ({"": 7, "orders": 2},), None),
]
HOSTED: list[Case] = [
    *[(name, (), None) for name in ("open", "create", "start_reopening", "stop_timers", "close")],
    *[(name, (), None) for name in ("take_offline", "bring_online", "reset")],
    ("mark_unavailable", ("gone",), None),
    ("read_definitions", (), ({"a": b"b"}, 7)),
    ("repair_definitions", (ROWS,), None),
    ("write_definitions", (ROWS,), None),
    ("drain", (1.5,), True),
    ("freeze", (1234.5, 60.0), True),
    ("thaw", (), False),
    ("add_fragments", (SETTINGS,), None),
    ("change_fragments", (SETTINGS,), None),
    ("retire_fragments", ([7, 8],), None),
    ("remove_fragment", (7,), None),
    ("restore", ("gone", True, False), None),
    ("set_gateways", (["broker-0.1"],), None),
    ("last_uses", ([7, 8],), [0, 1_800_000_000_000]),
    ("hand_over", (), [Inspect(7, 0, 3)]),
    ("owner_seen", (OwnerSilence(inf, "7 now 3"),), None),
]
CALLS: list[tuple[RemoteInterface[Any], list[Case]]] = [
    (protocol.CONTROLLER, CONTROLLER),
    (protocol.STORE, HOSTED),
    (
        protocol.STORES,
        [
            ("assign_store", ("store-0",), None),
            ("inspect", ([7, 8],), {7: FragmentCounts(1_800_000_000_000, [1, 2], 3)}),
            (
                "apply_change",
                (8, {"store-0": StoreChange(ROWS, SETTINGS, {}, [9])}, [("Orders", VIEW), ("gone", None)]),
                {"store-0": ServerBusy("later"), "store-1": StoreFull("no room")},
            ),
        ],
    ),
    (
        protocol.NODES,
        [
            ("load_entities", (7, [VIEW]), None),
            ("reload_entities", (7, [VIEW]), None),
            ("broker_joined", ("b.0", "127.0.0.1:5701"), None),
            ("broker_lost", ("b.0",), None),
            ("ping", (), None),
            ("open_gateway", (NODE,), None),
            ("connect_peers", (["broker-1"],), None),
            ("broker_ended", ("broker-1", "broker-1.1"), None),
            ("stores_moved", ({"store-1": "broker-0"},), None),
            ("close_gateway", (), None),
            ("view", (), NODE_VIEW),
            ("look_at_store", ("store-1",), OwnerSilence(2.5, "7 now 3")),
            ("figures", (), FIGURES),
            ("history", ("m",), [STEP]),
            ("client_names", ([(5, 1), (6, 0)],), [ClientName("shop", "10.0.0.5", "r"), None]),
            ("set_recording", (RECORDING,), None),
            ("set_log_level", ("debug",), None),
            ("transfers", (), TRANSFERS),
            ("connection_report", (QUERY,), CONNECTIONS),
            ("close_connection", ("5f2c09ab-17",), False),
        ],
    ),
    (
        protocol.PEER,
        [
            ("sessions_resumed", ("store-0",), None),
            ("origin_closed", (2**60,), None),
            ("leave_store", ("store-0",), [Leave(7, 2, 3), Inspect(7, 2, 4)]),
            ("leave_store", ("store-0",), None),
            ("ping", (), None),
        ],
    ),
]


@dataclass
class Wire:
    """Both ends at once: a call is performed where it is made, on the object that the other process would have."""

    interface: RemoteInterface[Any]
    result: object
    called: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)

    level = max(PROTOCOL_VERSIONS)

    def __getattr__(self, name: str) -> Any:
        method = self.interface.methods[name]

        async def reply() -> object:
            return self.result

        def call(*arguments: object) -> object:
            self.called.append((name, arguments))
            return reply() if method.has_reply else None

        return call

    def notify(self, target: str, method: str, arguments: msgspec.Raw) -> None:
        assert self.interface.perform(self, method, arguments) is None

    def start_call(self, target: str, method: str, arguments: msgspec.Raw) -> asyncio.Future[msgspec.Raw]:
        work = self.interface.perform(self, method, arguments)
        assert work is not None

        async def answer() -> msgspec.Raw:
            return msgspec.Raw(msgspec.msgpack.encode(await work))

        return asyncio.ensure_future(answer())


def plain(value: object) -> object:
    """What can be compared: settings are native objects, and errors are never equal."""
    if isinstance(value, StoreChange):
        return (value.rows, plain(value.new), plain(value.changed))
    if isinstance(value, FragmentSettings):
        return ("settings", value.lock_ms, value.max_deliveries)
    if isinstance(value, Command):
        return (type(value), value.fragment, value.origin, value.request)
    if isinstance(value, Exception):
        return (type(value), str(value))
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(one) for one in value]
    return value


@pytest.mark.parametrize(
    ("interface", "case"),
    [(interface, case) for interface, cases in CALLS for case in cases],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
async def test_a_call_crosses(interface: RemoteInterface[Any], case: Case) -> None:
    name, arguments, result = case
    wire = Wire(interface, result)
    found = getattr(interface.remote(wire), name)(*arguments)
    if interface.methods[name].has_reply:
        assert plain(await found) == plain(result)
    ((called, given),) = wire.called
    assert called == name and plain(given) == plain(arguments)


@pytest.mark.parametrize(("interface", "cases"), CALLS, ids=["controller", "store", "stores", "node", "peer"])
def test_every_call_is_tried(interface: RemoteInterface[Any], cases: list[Case]) -> None:
    assert {name for name, _, _ in cases} == {*interface.methods}


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("submit", []),
        ("watch", []),
        ("__init__", []),
        ("entity", []),
        ("entity", [1]),
        ("entity", ["a", "b"]),
        ("update", ["q", b"{}"]),
    ],
)
def test_what_is_no_call_is_refused(method: str, arguments: list[object]) -> None:
    wire = Wire(protocol.CONTROLLER, None)
    with pytest.raises(WireError):
        protocol.CONTROLLER.perform(wire, method, msgspec.Raw(msgspec.msgpack.encode(arguments)))
    assert wire.called == []


class Grown(protocol.PeerApi, Protocol):
    async def added(self, path: str, times: int = 2) -> Sequence[EntityView]: ...


async def test_a_method_that_is_added_to_a_protocol_can_be_called() -> None:
    interface = RemoteInterface[Grown](Grown)  # type: ignore[type-abstract]
    wire = Wire(interface, [VIEW])
    there = interface.remote(wire)
    assert await there.added("orders") == [VIEW]
    assert await there.added(times=3, path="orders") == [VIEW]
    assert wire.called == [("added", ("orders", 2)), ("added", ("orders", 3))]
    with pytest.raises(AttributeError):
        getattr(there, "missing")  # noqa: B009


FIRST_LEVEL = {
    "STORE": """
        add_fragments bring_online change_fragments close create drain hand_over last_uses mark_unavailable open
        read_definitions remove_fragment repair_definitions reset restore retire_fragments set_gateways
        start_reopening stop_timers take_offline write_definitions
    """,
    "STORES": """
        apply_change assign_store inspect
    """,
    "NODES": """
        broker_ended broker_joined broker_lost close_gateway connect_peers load_entities open_gateway ping
        reload_entities stores_moved transfers view
    """,
    "CONTROLLER": """
        admit_store change_rules change_store change_tap changes_decided check_rules create create_tap delete entity
        fragments in_use introduce leaving move_store namespace nodes out_of_use release_stores report_connections
        restart_brokers return_connections runtime runtimes store_fenced stores take_connections transfers
        unavailable_stores update
    """,
    "PEER": """
        leave_store origin_closed ping sessions_resumed
    """,
}
"""The calls of level 1, which the release before this one has."""


@pytest.mark.parametrize("interface", FIRST_LEVEL)
def test_what_the_release_before_does_not_have_is_marked_with_a_later_level(interface: str) -> None:
    calls: RemoteInterface[Any] = getattr(protocol, interface)
    unmarked = [name for name, method in calls.methods.items() if method.level == 1]
    assert sorted(unmarked) == FIRST_LEVEL[interface].split()
