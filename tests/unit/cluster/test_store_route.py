"""The owner of a store changes: where commands go, and what becomes of those that were under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from busbar.broker.host_api import StoreState
from busbar.cluster import protocol
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.remote_store import PeerClient
from busbar.cluster.store_route import StoreRoute
from busbar.model.commands import Command, Demand, Inspect, Leave
from busbar.model.effects import Effect, Refused
from busbar.model.message import ACTIVE
from harness.waiting import until
from tests.conformance.port_process import clock
from tests.unit.cluster.test_channel import two_ends
from tests.unit.cluster.test_departed_clients import connected
from tests.unit.cluster.test_remote_store import Peer, demands


class Own:
    """The host of a store in this process."""

    name = "store-1"
    epoch = 7

    def __init__(self) -> None:
        self.is_open = False
        self.commands: list[Command] = []

    def submit(self, commands: Iterable[Command]) -> None:
        self.commands += commands


class Gateway:
    """A broker process beside broker-1, which owns the store, and broker-2."""

    def __init__(self, port: ClusterBroker, route: StoreRoute) -> None:
        self.port = port
        self.route = route
        self.heard: list[Effect] = []
        self.origin = port.connect(self.heard.extend)
        self.channels: list[PeerClient] = []

    async def introduce(self, broker: str) -> Peer:
        peer, channel = Peer(), self.port.add_peer(broker)
        self.channels.append(channel)
        await connected(peer, channel)
        return peer

    def ask(self, request: int) -> None:
        self.port.submit([Inspect(1, self.origin, request)])

    def want(self, consumer: int, credit: int) -> None:
        self.port.submit([Demand(1, self.origin, consumer, ACTIVE, credit, False, False)])

    async def refusal(self, request: int) -> Refused:
        await until(lambda: any(effect.request == request for effect in self.heard))
        (found,) = (effect for effect in self.heard if effect.request == request)
        assert isinstance(found, Refused)
        return found


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    async with two_ends() as (to_controller, _):
        port = ClusterBroker()
        route = StoreRoute("store-1", "broker-1", asyncio.get_running_loop(), clock, port.dispatch)
        others = ["broker-1", "broker-2"]
        port.configure(protocol.CONTROLLER.remote(to_controller), [route], others)
        port.routes.assign([1], [route])
        here = Gateway(port, route)
        yield here
        for channel in here.channels:
            channel.close()


async def test_another_owner_gets_what_consumers_wait_for_and_later_commands() -> None:
    async with gateway() as here:
        first = await here.introduce("broker-1")
        second = await here.introduce("broker-2")
        first.show_open()
        await until(lambda: here.route.state is StoreState.OPEN)
        here.want(1, 5)
        here.ask(1)
        await until(lambda: len(first.commands) == 2)

        second.show_open()  # before the controller has said so
        await asyncio.sleep(0.01)
        assert not second.commands
        here.port.store_moved("store-1", "broker-2")
        await asyncio.sleep(0.01)
        assert not second.commands, "the first one may have written an answer before its end"
        first.close()
        assert not (await here.refusal(1)).certain
        await until(lambda: second.commands)
        assert demands(second) == [(1, 5)]
        here.ask(2)
        await until(lambda: len(second.commands) == 2)
        assert not any(effect.request == 2 for effect in here.heard)


async def test_an_owner_that_ended_before_the_next_is_known_leaves_the_store_unavailable() -> None:
    async with gateway() as here:
        first = await here.introduce("broker-1")
        first.show_open()
        await until(lambda: here.route.state is StoreState.OPEN)
        here.want(1, 5)
        first.close()
        await until(lambda: here.route.state is StoreState.UNAVAILABLE)
        here.ask(1)
        assert (await here.refusal(1)).certain
        here.port.store_moved("store-1", "broker-2")
        second = await here.introduce("broker-2")
        await asyncio.sleep(0.01)
        here.ask(2)
        assert (await here.refusal(2)).certain, "it is claimed, and not open yet"
        second.show_open()
        await until(lambda: second.commands)
        assert demands(second) == [(1, 5)]


async def test_this_process_claims_the_store_and_its_host_gets_what_was_kept() -> None:
    async with gateway() as here:
        first = await here.introduce("broker-1")
        first.show_open()
        await until(lambda: here.route.state is StoreState.OPEN)
        here.want(1, 5)
        here.want(2, 5)
        opened: list[int] = []
        here.route.on_open = lambda: opened.append(here.route.epoch)
        own = Own()
        here.route.use_own(own, "broker-0")
        own.is_open = True
        here.route.own_opened()
        assert not own.commands and not opened, "the channel to the last owner has not ended"
        first.close()
        await until(lambda: own.commands)
        assert [(one.consumer, one.credit) for one in own.commands if isinstance(one, Demand)] == [
            (1, 5),
            (2, 5),
        ]
        assert opened == [7]
        own.commands.clear()
        here.ask(1)
        here.port.submit([Leave(1, here.origin, 1)])
        assert [type(command) for command in own.commands] == [Inspect, Leave]


async def test_while_this_process_claims_the_store_commands_are_refused_and_consumers_kept() -> None:
    async with gateway() as here:
        own = Own()
        here.route.use_own(own, "broker-0")
        here.want(1, 3)
        here.ask(1)
        assert (await here.refusal(1)).certain
        assert not own.commands
        own.is_open = True
        here.route.own_opened()
        assert [one.credit for one in own.commands if isinstance(one, Demand)] == [3]
