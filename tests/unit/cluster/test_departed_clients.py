"""Clients that have left: what is kept of them on either side of a channel between brokers is nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from busbar.broker.dispatcher import FragmentRoutes
from busbar.cluster import protocol
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.codec import commands_codec
from busbar.cluster.peer_server import PeerServer
from busbar.cluster.store_route import StoreRoute
from busbar.model.commands import RELEASE, AwaitSession, Command, Demand, Inspect, Leave, Peek, Send, Settle
from busbar.model.effects import Effect
from busbar.model.message import ACTIVE, Draft
from harness.waiting import until
from tests.conformance.port_process import clock, fragments
from tests.unit.cluster.test_channel import two_ends
from tests.unit.cluster.test_remote_store import Peer


async def connected(*ends: asyncio.Protocol) -> None:
    loop = asyncio.get_running_loop()
    for end, one in zip(ends, socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=one)  # type: ignore[misc]


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[ClusterBroker, StoreRoute, Peer]]:
    """A broker process whose only entity has its fragment (1) with another one."""
    async with two_ends() as (to_serving, _):
        port = ClusterBroker()
        store = StoreRoute("store-1", "broker-1", asyncio.get_running_loop(), clock, port.dispatch)
        port.configure(protocol.CONTROLLER.remote(to_serving), [store], ["broker-1"])
        port.routes.assign([1], [store])
        peer, channel = Peer(), port.add_peer("broker-1")
        await connected(peer, channel)
        peer.show_open()
        await asyncio.wait_for(channel.connected.wait(), 10)
        yield port, store, peer
        channel.close()


async def test_requests_of_clients_that_left_are_not_kept() -> None:
    async with gateway() as (port, store, _):
        heard: list[Effect] = []
        staying = port.connect(heard.extend)
        for _ in range(20):
            origin = port.connect(lambda effects: None)
            port.submit([Inspect(1, origin, 1), Demand(1, origin, 1, ACTIVE, 5, False, False)])
            port.submit([AwaitSession(1, origin, 2), Peek(1, origin, 3, ACTIVE, 1, 1, 1)])
            port.disconnect(origin)
        port.submit([Inspect(1, staying, 7)])
        asked, drained, demands = store._standing.fail_all()
        assert asked == [(staying, 7)], "the answers to the others would never come"
        assert drained == [] and not any(demands.values())


async def test_what_a_client_says_after_its_end_does_not_cross() -> None:
    async with gateway() as (port, _, peer):
        origin = port.connect(lambda effects: None)
        port.submit([Inspect(1, origin, 1)])
        port.disconnect(origin)
        give_back = Settle(1, origin, 0, RELEASE, [3], [4], None, False)
        port.submit(
            [Inspect(1, origin, 2), Leave(1, origin, 0), give_back, Peek(1, origin, 3, ACTIVE, 1, 1, 1)]
        )
        await until(lambda: len(peer.commands) == 2)
        assert [type(command) for command in peer.commands] == [Inspect, Settle]
        assert [command.origin for command in peer.commands] == [origin, 0]
        assert peer.asked == [("sessions_resumed", "store-1"), ("origin_closed", origin)]


async def test_no_origin_is_kept_for_a_connection_that_is_gone() -> None:
    async with fragments() as port:
        assert isinstance(port.routes, FragmentRoutes)
        fragment = (await port.entity("orders")).fragments[0]
        host = port.routes.sink_of(fragment)
        assert host is not None
        served, gateway = PeerServer(port, lambda: [host], lambda _: None), Effects()
        await connected(served, gateway)

        def submit(*commands: Command) -> None:
            gateway.write(protocol.CommandsFrame("port", msgspec.Raw(commands_codec.encode([*commands]))))

        before = len(port._sinks)
        submit(Send(fragment, 5, 1, [Draft(b"m", "1", None, None, 0, 0)], True))
        submit(Demand(fragment, 5, 1, ACTIVE, 5, False, False))
        await until(lambda: gateway.answers)
        protocol.PEER.remote(gateway).origin_closed(5)
        submit(Leave(fragment, 5, 0), Settle(fragment, 5, 0, RELEASE, [1], [99], None, False))
        submit(Inspect(fragment, 6, 1))
        answered = gateway.answers
        await until(lambda: gateway.answers > answered)
        assert [*served._origins] == [6]
        assert len(port._sinks) == before + 1
        gateway.close()
        await until(lambda: len(port._sinks) == before)


class Effects(Peer):
    """Another broker process, which hears effects."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        self.answers += isinstance(frame, protocol.EffectsFrame)
