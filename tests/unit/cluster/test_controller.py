"""The controller among nodes: which broker gets which store, and what is known of brokers that come and go."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any

import pytest

from busbar.broker.host_api import StoreState
from busbar.catalogue.local_broker import LocalBroker
from busbar.cluster import controller as module
from busbar.cluster import owner_watch, protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.catalogue_publisher import CataloguePublisher
from busbar.cluster.channel import Channel
from busbar.cluster.connection_counter import UNKNOWN, ConnectionCounter
from busbar.cluster.controller import ClusterController
from busbar.cluster.hello import TAKEN_FOR_ENDED, TO_CONTROLLER, Hello
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.protocol import StoreFrame, StoreStatus
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.api import EntityView
from busbar.model.commands import Command
from busbar.model.errors import ServerBusy
from busbar.model.history import HistoryRecording
from busbar.model.limits import Limits
from busbar.store.location import OwnerSilence, StoreLocation
from harness.waiting import until


class Broker(Channel):
    """A broker process as the controller sees it: it notes calls, and has stores at once."""

    def __init__(self, name: str, held: list[str]) -> None:
        super().__init__()
        self.name = name
        self.held = {*held}
        self.calls: list[tuple[str, tuple[object, ...]]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.reopens = False
        """Whether a store is open as soon as it is asked to try again."""
        self.sees: dict[str, float] = {}
        """By store, for how long it has seen nothing of the owner. Others it cannot reach."""

    def handle_frame(self, frame: StoreFrame) -> None:
        raise AssertionError(frame)

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        if target == protocol.NODE:
            return protocol.NODES, Calls(self, protocol.NODES)
        interface: RemoteInterface[Any] = protocol.STORES if target == protocol.ALL_STORES else protocol.STORE
        return interface, Calls(self, interface)

    def closed(self) -> None:
        pass

    def assigned(self) -> list[object]:
        return [arguments[0] for name, arguments in self.calls if name == "assign_store"]


class Calls:
    """What can be called of a broker."""

    def __init__(self, broker: Broker, interface: RemoteInterface[Any]) -> None:
        self._broker = broker
        self._interface = interface

    async def ping(self) -> None:
        await self._broker.answers.wait()

    def assign_store(self, store: str) -> None:
        state = StoreState.OPEN if store in self._broker.held else StoreState.CLOSED
        self._broker.write(StoreStatus(store, state.value, "", None))
        self._broker.calls.append(("assign_store", (store,)))

    def bring_online(self) -> None:
        self._broker.calls.append(("bring_online", ()))
        if self._broker.reopens:
            self._broker.write(StoreStatus("s0", StoreState.OPEN.value, "", None))

    async def hand_over(self) -> list[Command]:
        self._broker.calls.append(("hand_over", ()))
        return []

    async def look_at_store(self, store: str) -> OwnerSilence:
        return OwnerSilence(self._broker.sees.get(store, -1.0))

    def __getattr__(self, name: str) -> Any:
        async def reply() -> None:
            return None

        def call(*arguments: object) -> object:
            self._broker.calls.append((name, arguments))
            return reply() if self._interface.methods[name].has_reply else None

        return call


class EmptyNamespace(LocalBroker):
    """A namespace without entities."""

    def entries(self) -> tuple[int, list[EntityView]]:
        return 1, []


class Namespace:
    """A controller with stores whose owners the test plays."""

    def __init__(self, *stores: str) -> None:
        port = EmptyNamespace()
        self.silence = dict.fromkeys(stores, inf)
        self.controller = ClusterController(CataloguePublisher(port), ConnectionCounter(Limits()), 6.0, 60.0)
        self.hosts: dict[str, RemoteStoreHost] = {}
        self.looks: dict[str, Callable[[], object]] = {}
        """By store, what a look at it waits for."""
        loop = asyncio.get_running_loop()
        for store in stores:
            silence = partial(self._seen, store)
            self.looks[store] = lambda: True
            place = StoreLocation(store, _never, lambda: 0, lambda: None, silence=silence)
            self.hosts[store] = RemoteStoreHost(store, "", loop, lambda: 0, port.dispatch, None, place)
            self.controller.add_store(self.hosts[store], is_new=False)

    async def serve(self) -> None:
        """Open the gateways of all brokers, and watch the owners of stores from now on."""
        for host in self.hosts.values():
            host.start_reopening()
        await self.controller.serve(NodeSettings([], Limits(), "", ""), _readmit)

    def _seen(self, store: str) -> OwnerSilence:
        self.looks[store]()
        return OwnerSilence(self.silence[store])

    async def connect(self, name: str, *held: str, ended: tuple[str, ...] = (), level: int = 2) -> Broker:
        """Connect a broker as the node port does."""
        node = name.partition(".")[0]
        hello = Hello(TO_CONTROLLER, "n", node, name, f"{name}.{id(held)}", "c", "", [*held], [*ended])
        here = self.controller.attach(hello)
        assert isinstance(here, Channel), here
        here.level = level
        there = Broker(name, [*held])
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: here, sock=ours)
        await loop.create_unix_connection(lambda: there, sock=theirs)
        await until(lambda: name in self.controller._brokers and self.controller._brokers[name].is_connected)
        await self.controller.wait_for_brokers(1, 0)
        return there

    def owners(self) -> dict[str, str]:
        return self.controller._claims.owners


async def _readmit(host: object) -> None:
    """Nothing has changed in the store."""


def _never() -> Any:
    raise AssertionError


@asynccontextmanager
async def namespace(*stores: str) -> AsyncIterator[Namespace]:
    made = Namespace(*stores)
    yield made
    await made.controller.abandon()


async def test_stores_without_an_owner_are_spread_over_the_brokers() -> None:
    async with namespace("s0", "s1", "s2", "s3") as here:
        first, second = await here.connect("a.0"), await here.connect("b.0")
        await here.controller.assign_orphans()
        await until(lambda: len(first.assigned()) == 2 and len(second.assigned()) == 2)
        assert sorted(here.owners().values()) == ["a.0", "a.0", "b.0", "b.0"]


async def test_a_broker_keeps_the_stores_that_another_controller_gave_it() -> None:
    async with namespace("s0", "s1") as here:
        broker = await here.connect("b.0", "s0", "s1", "unknown")
        assert here.owners() == {"s0": "b.0", "s1": "b.0"}
        assert here.hosts["s0"].is_open and here.hosts["s1"].is_open, "their states are known"
        await here.connect("a.0")
        await here.controller.assign_orphans()
        assert here.owners() == {"s0": "b.0", "s1": "b.0"}
        assert sorted(map(str, broker.assigned())) == ["s0", "s1"]


async def test_a_store_whose_owner_works_is_not_assigned_to_another_when_a_channel_ends() -> None:
    async with namespace("s0") as here:
        owner, other = await here.connect("a.0", "s0"), await here.connect("b.0")
        here.silence["s0"] = 0.4
        owner.abort()
        await until(lambda: not here.hosts["s0"].is_open)
        await here.controller.assign_orphans()
        assert here.owners() == {"s0": "a.0"} and other.assigned() == []
        again = await here.connect("a.0", "s0")
        assert here.hosts["s0"].is_open and again.assigned() == ["s0"]


@pytest.mark.parametrize("silence", [inf, 2.0])
async def test_a_store_whose_owner_has_ended_or_is_silent_is_claimed_by_another(silence: float) -> None:
    async with namespace("s0") as here:
        owner, other = await here.connect("a.0", "s0"), await here.connect("b.0")
        here.silence["s0"] = silence
        owner.abort()
        await until(lambda: not here.hosts["s0"].is_open)
        await here.controller.assign_orphans()
        assert here.owners() == {"s0": "b.0"}
        await until(lambda: other.assigned() == ["s0"])


async def test_before_the_catalogue_is_loaded_requests_are_refused_and_reports_ignored() -> None:
    """A broker whose gateway is open reports and asks at once."""
    async with namespace("s0") as here:
        broker = await here.connect("a.0", "s0")
        there = protocol.CONTROLLER.remote(broker)
        there.in_use(["q"])
        with pytest.raises(ServerBusy):
            await there.entity("q")
        with pytest.raises(ServerBusy):
            await there.admit_store("s0", False)
        there.report_connections({"": 3})
        assert await there.take_connections("", 2) == UNKNOWN, "not all gateways have reported"
        assert broker.is_connected


async def test_a_broker_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST_PATIENCE", 0.05)
    async with namespace("s0") as here:
        here.controller._ping_seconds = 0.02
        broker = await here.connect("a.0", "s0")
        broker.answers.clear()
        await until(lambda: broker.is_lost and not here.hosts["s0"].is_open)


async def test_an_owner_that_comes_back_gets_the_store_back_that_nobody_has_claimed() -> None:
    async with namespace("s0") as here:
        owner, other = await here.connect("a.0", "s0"), await here.connect("b.0")
        here.silence["s0"] = 2.0
        owner.abort()
        await until(lambda: not here.hosts["s0"].is_open)
        await here.controller.assign_orphans()
        assert here.owners() == {"s0": "b.0"}
        await here.connect("a.0", "s0")
        assert here.owners() == {"s0": "a.0"} and here.hosts["s0"].is_open
        await until(lambda: ("close", ()) in other.calls)


async def test_a_broker_that_was_started_again_gets_the_stores_back_that_nobody_else_can_have() -> None:
    """It has the name of the one before, and none of its stores."""
    async with namespace("s0") as here:
        await here.connect("a.0", "s0")
        again = await here.connect("a.0")
        assert here.owners() == {"s0": "a.0"} and again.assigned() == []
        await here.controller.assign_orphans()
        await until(lambda: again.assigned() == ["s0"])


async def test_brokers_look_at_a_store_that_the_controller_cannot_reach() -> None:
    async with namespace("s0") as here:
        owner = await here.connect("a.0", "s0")
        other, able = await here.connect("b.0"), await here.connect("c.0")
        here.silence["s0"] = -1.0
        owner.abort()
        await until(lambda: not here.hosts["s0"].is_open)
        able.sees["s0"] = 0.5
        await here.controller.assign_orphans()
        assert here.owners() == {"s0": "a.0"}, "its owner works"
        able.sees["s0"] = 2.0
        await here.controller.assign_orphans()
        assert here.owners() == {"s0": "c.0"} and other.assigned() == []
        await until(lambda: able.assigned() == ["s0"])


async def test_a_database_that_does_not_answer_delays_no_takeover_of_another_store() -> None:
    async with namespace("s0", "s1") as here:
        owner, other = await here.connect("a.0", "s0", "s1"), await here.connect("b.0")
        hangs = threading.Event()
        here.looks["s0"] = hangs.wait
        await here.serve()
        owner.abort()
        await until(lambda: other.assigned() == ["s1"])
        hangs.set()
        await until(lambda: {*other.assigned()} == {"s0", "s1"})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_watch, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(owner_watch, "REACH_SECONDS", 0.05)


@pytest.mark.usefixtures("quick")
async def test_a_store_that_its_broker_cannot_reach_goes_to_one_that_can() -> None:
    async with namespace("s0") as here:
        owner = await here.connect("a.0", "s0")
        other, able = await here.connect("b.0"), await here.connect("c.0")
        await here.serve()
        able.sees["s0"] = inf
        owner.write(StoreStatus("s0", StoreState.UNAVAILABLE.value, "no route to host", None))
        await until(lambda: able.assigned() == ["s0"])
        assert ("bring_online", ()) in owner.calls, "the owner was asked to try once more"
        assert ("hand_over", ()) in owner.calls, "its clients go on at the next one"
        assert here.owners() == {"s0": "c.0"} and other.assigned() == []


@pytest.mark.usefixtures("quick")
async def test_a_store_that_no_broker_reaches_stays_where_it_is() -> None:
    async with namespace("s0") as here:
        owner, other = await here.connect("a.0", "s0"), await here.connect("b.0")
        await here.serve()
        owner.write(StoreStatus("s0", StoreState.UNAVAILABLE.value, "the server is away", None))
        await until(lambda: not here.hosts["s0"].is_open)
        await asyncio.sleep(0.3)
        assert here.owners() == {"s0": "a.0"} and other.assigned() == []
        assert ("bring_online", ()) not in owner.calls


@pytest.mark.usefixtures("quick")
async def test_a_store_that_is_back_at_its_broker_is_not_moved() -> None:
    """The server was restarted: all brokers see a store without an owner."""
    async with namespace("s0") as here:
        owner, other = await here.connect("a.0", "s0"), await here.connect("b.0")
        await here.serve()
        other.sees["s0"] = inf
        owner.reopens = True
        owner.write(StoreStatus("s0", StoreState.UNAVAILABLE.value, "the server is away", None))
        await until(lambda: ("bring_online", ()) in owner.calls)
        await until(lambda: here.hosts["s0"].is_open)
        await asyncio.sleep(0.3)
        assert here.owners() == {"s0": "a.0"} and other.assigned() == []


@pytest.mark.usefixtures("quick")
async def test_a_broker_of_the_level_before_is_not_asked_what_it_does_not_know() -> None:
    async with namespace("s0") as here:
        owner, old = await here.connect("a.0", "s0"), await here.connect("b.0", level=1)
        await here.serve()
        old.sees["s0"] = inf
        owner.write(StoreStatus("s0", StoreState.UNAVAILABLE.value, "no route to host", None))
        await until(lambda: not here.hosts["s0"].is_open)
        await asyncio.sleep(0.3)
        assert old.is_connected and here.owners() == {"s0": "a.0"}
        here.silence["s0"] = inf
        owner.abort()  # a call that it does not know would end the channel
        await until(lambda: old.assigned() == ["s0"])
        assert "owner_seen" not in [name for name, _ in old.calls]


async def test_a_broker_whose_gateway_was_taken_for_ended_has_to_be_started_again() -> None:
    async with namespace("s0") as here:
        broker, other = await here.connect("b.0"), await here.connect("a.0", "s0")
        await here.serve()
        gateway = here.controller._brokers["b.0"].gateway
        assert here.controller.addresses("b") is None, "it is connected"
        broker.abort()
        await until(lambda: here.controller.addresses("b") is not None)
        here.controller.note_node_ended("b", [gateway])
        here.controller.note_node_ended("b", [gateway])
        await until(lambda: other.calls.count(("broker_ended", ("b.0", gateway))) == 1)
        hello = Hello(TO_CONTROLLER, "n", "b", "b.0", gateway, "a")
        assert here.controller.attach(hello) == TAKEN_FOR_ENDED
        hello.gateway = "b.0.next"
        assert isinstance(here.controller.attach(hello), Channel)


async def test_brokers_that_connect_later_record_histories_too() -> None:
    async with namespace("s0") as here:
        first = await here.connect("a.0", "s0")
        await here.serve()
        recording = HistoryRecording(False, ("orders",))
        here.controller.set_recording(recording)
        await until(lambda: ("set_recording", (recording,)) in first.calls)
        second = await here.connect("b.0")
        await until(lambda: any(name == "open_gateway" for name, _ in second.calls))
        (settings,) = next(arguments for name, arguments in second.calls if name == "open_gateway")
        assert isinstance(settings, NodeSettings) and settings.recording == recording
        older = await here.connect("c.0", level=1)
        await until(lambda: any(name == "open_gateway" for name, _ in older.calls))
        here.controller.set_recording(HistoryRecording())
        await until(lambda: ("set_recording", (HistoryRecording(),)) in second.calls)
        assert "set_recording" not in {name for name, _ in older.calls}, "an earlier release does not have it"
