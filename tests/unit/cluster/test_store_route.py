"""The owner of a store changes: where commands go, and what becomes of those that were under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from busbar.broker.host_api import StoreState
from busbar.cluster import move_queue, protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.codec import effects_codec
from busbar.cluster.remote_store import PeerClient
from busbar.cluster.store_route import StoreRoute
from busbar.model.commands import (
    RELEASE,
    AcceptSession,
    Command,
    Demand,
    Inspect,
    Leave,
    ReceiveDeferred,
    Settle,
)
from busbar.model.effects import DeferredReceived, Delivered, Effect, Refused, SessionAccepted, SessionLost
from busbar.model.hold_commands import ReleaseHolds, ResumeSession, holder_name
from busbar.model.message import ACTIVE, Record
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

    def release_holds(self, gateway: str) -> None:
        self.commands.append(ReleaseHolds(1, gateway))


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
        here.route.use_own(own, "broker-0", "broker-0.1")
        own.is_open = True
        here.route.own_opened()
        here.want(2, 2)
        here.ask(9)
        other = here.port.connect_served(lambda effects: None, lambda: None)
        here.port.submit([Inspect(1, other, 1)])
        assert [command.origin for command in own.commands] == [other], "another process does not wait"
        own.commands.clear()
        assert not own.commands and not opened, "the channel to the last owner has not ended"
        first.close()
        await until(lambda: own.commands)
        assert [(one.consumer, one.credit) for one in own.commands if isinstance(one, Demand)] == [
            (1, 5),
            (2, 7),
        ], "nothing of it is lost"
        assert not (await here.refusal(9)).certain
        assert opened == [7]
        assert isinstance(own.commands[0], ReleaseHolds) and own.commands[0].gateway == "broker-0.1"
        own.commands.clear()
        here.ask(1)
        here.port.submit([Leave(1, here.origin, 1)])
        assert [type(command) for command in own.commands] == [Inspect, Leave]


async def test_while_this_process_claims_the_store_commands_are_refused_and_consumers_kept() -> None:
    async with gateway() as here:
        own = Own()
        here.route.use_own(own, "broker-0", "broker-0.1")
        here.want(1, 3)
        here.ask(1)
        assert (await here.refusal(1)).certain
        assert not own.commands
        own.is_open = True
        here.route.own_opened()
        assert [one.credit for one in own.commands if isinstance(one, Demand)] == [3]


def say(peer: Peer, *effects: Effect) -> None:
    peer.write(protocol.EffectsFrame("store-1", msgspec.Raw(effects_codec.encode([*effects]))))


def messages(*numbers: int) -> list[Record]:
    return [Record(n, 1, 0, 0, 0, 1, b"m", None, "s") for n in numbers]


async def holding(here: Gateway) -> Peer:
    """The owner of the store, which has granted a session and delivered messages: 3 is settled, 4, 5 and 8 are not."""
    owner = await here.introduce("broker-1")
    owner.show_open()
    await until(lambda: here.route.state is StoreState.OPEN)
    me = here.origin
    here.port.submit([AcceptSession(1, me, 1, 6, "s"), AcceptSession(1, me, 2, 7, "t")])
    say(owner, SessionAccepted(me, 1, 6, "s", 9), SessionAccepted(me, 2, 7, "t", 9))
    await until(lambda: len(here.heard) == 2)
    here.want(6, 10)
    here.port.submit([ReceiveDeferred(1, me, 3, ACTIVE, [8], False, 6)])
    say(owner, Delivered(me, 6, 1, messages(3, 4, 5), 11, 9), DeferredReceived(me, 3, messages(8), 12, 9))
    await until(lambda: len(here.heard) == 4)
    here.port.submit([Settle(1, me, 4, 0, [3], [11], None, False)])
    return owner


def resumed(commands: list[Command]) -> list[tuple[int, str, dict[int, int]]]:
    return [
        (one.consumer, one.session, dict(zip(one.numbers, one.nonces, strict=True)))
        for one in commands
        if isinstance(one, ResumeSession)
    ]


async def test_sessions_are_resumed_at_the_next_owner_before_anything_else() -> None:
    async with gateway() as here:
        first = await holding(here)
        second = await here.introduce("broker-2")
        second.show_open()
        here.port.store_moved("store-1", "broker-2")
        first.close()
        await until(lambda: second.asked)
        assert not any(isinstance(effect, SessionLost) for effect in here.heard), (
            "the end of a channel proves nothing"
        )
        assert resumed(second.commands) == [(6, "s", {4: 11, 5: 11, 8: 12}), (7, "t", {})]
        assert [type(one) for one in second.commands] == [ResumeSession, ResumeSession, Demand]
        assert second.asked == [("sessions_resumed", "store-1")]
        say(second, SessionLost(here.origin, 7))
        await until(lambda: any(isinstance(effect, SessionLost) for effect in here.heard))
        assert [(one.consumer) for one in here.route._standing.resumptions()] == [6]


async def test_who_left_meanwhile_is_not_resumed() -> None:
    async with gateway() as here:
        first = await holding(here)
        first.close()
        await until(lambda: here.route.state is StoreState.UNAVAILABLE)
        here.port.submit([Leave(1, here.origin, 6)])
        again = await here.introduce("broker-1")
        again.show_open()
        await until(lambda: again.asked)
        assert resumed(again.commands) == [(7, "t", {})]
        here.port.disconnect(here.origin)
        assert here.route._standing.resumptions() == []
        assert not here.route._standing._sessions._locked


async def test_sessions_are_resumed_by_name_in_a_store_that_this_process_claims() -> None:
    async with gateway() as here:
        first = await holding(here)
        own = Own()
        here.route.use_own(own, "broker-0", "broker-0.1")
        own.is_open = True
        first.close()
        await until(lambda: own.commands)
        assert resumed(own.commands) == [(6, "s", {4: 11, 5: 11, 8: 12}), (7, "t", {})]
        names = [one.holder for one in own.commands if isinstance(one, ResumeSession)]
        assert names == [f"broker-0.1 {here.origin} 6", f"broker-0.1 {here.origin} 7"]
        assert [type(one) for one in own.commands[2:4]] == [ReleaseHolds, Demand]


async def test_with_nodes_sessions_of_the_owners_own_clients_have_durable_locks() -> None:
    """A frozen node can lose its stores while its clients live: then the next owner has to know of their sessions."""
    async with gateway() as here:
        own = Own()
        own.is_open = True
        for names_holders in (False, True):
            here.route.names_holders = names_holders
            here.route.use_own(own, "broker-0", "gateway-0")
            own.commands.clear()
            here.port.submit([AcceptSession(1, here.origin, 1, 4, "s")])
            (accept,) = own.commands
            assert isinstance(accept, AcceptSession)
            assert accept.holder == (holder_name("gateway-0", here.origin, 4) if names_holders else "")


async def test_the_channel_to_a_silent_owner_is_ended_so_that_the_next_one_is_used() -> None:
    async with gateway() as here:
        first = await here.introduce("broker-1")
        second = await here.introduce("broker-2")
        first.show_open()
        await until(lambda: here.route.state is StoreState.OPEN)
        here.ask(1)
        await until(lambda: first.commands)
        here.port.drop_peer("broker-1")  # it is frozen, and its end of the channel stays open
        here.port.store_moved("store-1", "broker-2")
        second.show_open()
        assert not (await here.refusal(1)).certain
        here.ask(2)
        await until(lambda: second.commands)


# ---- hand-over ----


def show_moving(peer: Peer) -> None:
    peer.write(protocol.StoreStatus("store-1", StoreState.MOVING.value, "", None))


class Leaving(Peer):
    """An owner that hands its store over when the test has it reply."""

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()
        self.replies = asyncio.Event()
        self.given_back: list[Command] | None = []

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return protocol.PEER, self

    async def leave_store(self, store: str) -> list[Command] | None:
        self.left.set()
        await self.replies.wait()
        return self.given_back


async def leaving(here: Gateway) -> Leaving:
    """An owner that is open, with a request under way, and then reports that the store moves."""
    first, channel = Leaving(), here.port.add_peer("broker-1")
    here.channels.append(channel)
    await connected(first, channel)
    first.show_open()
    await until(lambda: here.route.state is StoreState.OPEN)
    here.want(1, 5)
    here.ask(1)
    await until(lambda: len(first.commands) == 2)
    show_moving(first)
    await asyncio.wait_for(first.left.wait(), 10)
    return first


def asked(commands: list[Command]) -> list[int]:
    return [command.request for command in commands if command.request]


async def test_what_is_given_back_comes_first_at_the_next_owner_and_then_what_waited() -> None:
    async with gateway() as here:
        first = await leaving(here)
        here.ask(2)
        here.want(1, 2)
        second = await here.introduce("broker-2")
        second.show_open()
        here.port.store_moved("store-1", "broker-2")
        await asyncio.sleep(0.01)
        assert len(first.commands) == 2 and not second.commands and not here.heard
        me = here.origin
        first.given_back = [
            ResumeSession(1, me, 6, "s", [4], [11]),
            Demand(1, me, 1, ACTIVE, 3, False, False),
            Inspect(1, me, 1),
        ]
        first.replies.set()
        await until(lambda: len(second.commands) == 5)
        assert [type(one) for one in second.commands] == [ResumeSession, Demand, Inspect, Inspect, Demand]
        assert asked(second.commands) == [1, 2] and demands(second) == [(1, 3), (1, 2)]
        assert second.asked == [("sessions_resumed", "store-1")]
        assert not here.heard, "nothing was refused"
        assert resumed([*here.route._standing.resumptions()]) == [(6, "s", {4: 11})]


async def test_a_store_that_stays_gets_what_waited() -> None:
    async with gateway() as here:
        first = await leaving(here)
        here.ask(2)
        first.given_back = None
        first.replies.set()
        await until(lambda: asked(first.commands) == [1, 2])
        assert not here.heard


async def test_nobody_waits_for_longer_than_the_time_of_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_queue, "MOVE_SECONDS", 0.05)
    async with gateway() as here:
        first = await leaving(here)
        here.ask(2)
        assert (await here.refusal(2)).certain, "it was never sent"
        here.ask(3)
        assert (await here.refusal(3)).certain
        here.want(1, 2)
        assert len(here.heard) == 2, "the first request is still with its owner"
        first.given_back = [Demand(1, here.origin, 1, ACTIVE, 5, False, False), Inspect(1, here.origin, 1)]
        first.replies.set()
        assert (await here.refusal(1)).certain, "it comes back unapplied, and it is too late"
        second = await here.introduce("broker-2")
        second.show_open()
        here.port.store_moved("store-1", "broker-2")
        await until(lambda: demands(second) == [(1, 7)])


async def test_clients_that_left_meanwhile_are_not_known_to_the_next_owner() -> None:
    async with gateway() as here:
        first = await leaving(here)
        other = here.port.connect(here.heard.extend)
        me = here.origin
        here.port.submit(
            [Inspect(1, me, 2), Inspect(1, other, 3), Settle(1, me, 0, RELEASE, [7], [1], None, False)]
        )
        here.port.disconnect(me)
        first.given_back = [ResumeSession(1, me, 6, "s", [], []), Demand(1, me, 1, ACTIVE, 5, False, False)]
        first.replies.set()
        second = await here.introduce("broker-2")
        second.show_open()
        here.port.store_moved("store-1", "broker-2")
        await until(lambda: len(second.commands) == 2)
        assert [(type(one), one.origin) for one in second.commands] == [(Inspect, other), (Settle, 0)]


async def test_what_waits_goes_to_the_host_of_this_process_if_that_is_the_next_owner() -> None:
    async with gateway() as here:
        first = await leaving(here)
        here.ask(2)
        own = Own()
        own.is_open = True
        here.route.use_own(own, "broker-0", "broker-0.1")
        assert not own.commands, "the last owner has not given back what it has"
        first.given_back = [ResumeSession(1, here.origin, 6, "s", [], []), Inspect(1, here.origin, 1)]
        first.replies.set()
        await until(lambda: asked(own.commands) == [1, 2])
        assert [type(one) for one in own.commands] == [ResumeSession, ReleaseHolds, Inspect, Inspect]
        first_one = own.commands[0]
        assert isinstance(first_one, ResumeSession) and first_one.holder == f"broker-0.1 {here.origin} 6"


async def test_clients_of_the_last_owner_use_the_next_one_over_the_channel() -> None:
    async with gateway() as here:
        own = Own()
        own.is_open = True
        here.route.use_own(own, "broker-0", "broker-0.1")
        here.ask(1)
        assert here.route.can_be_handed_over
        here.route.hand_over([Inspect(1, here.origin, 1)])
        here.ask(2)
        second = await here.introduce("broker-2")
        second.show_open()
        here.port.store_moved("store-1", "broker-2")
        await until(lambda: asked(second.commands) == [1, 2])
        assert asked(own.commands) == [1] and not here.heard
