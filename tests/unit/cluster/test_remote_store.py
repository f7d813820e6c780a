"""A store of another broker process: what becomes of commands while nobody is there, and when another one comes."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from busbar.broker.host_api import StoreState
from busbar.cluster import protocol
from busbar.cluster.codec import commands_codec
from busbar.cluster.remote_store import PeerClient, RemoteStore
from busbar.model.commands import Command, Demand, Inspect, Leave
from busbar.model.effects import Effect, Refused
from busbar.model.message import ACTIVE
from tests.conformance.port_process import clock
from tests.unit.cluster.test_channel import End


class Peer(End):
    """The other broker process: it keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Command] = []

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        assert isinstance(frame, protocol.CommandsFrame)
        self.commands += commands_codec.decode(frame.commands)

    def show_open(self) -> None:
        self.write(protocol.StoreStatus("store-1", StoreState.OPEN.value, "", None))


async def introduced(store: RemoteStore) -> tuple[Peer, PeerClient]:
    loop = asyncio.get_running_loop()
    peer, channel = Peer(), PeerClient(store.broker, {store.name: store}, lambda: None)
    for end, one in zip((peer, channel), socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=one)  # type: ignore[misc]
    return peer, channel


def demands(peer: Peer) -> list[tuple[int, int]]:
    return [(one.consumer, one.credit) for one in peer.commands if isinstance(one, Demand)]


async def test_what_consumers_want_waits_until_the_store_is_open_and_is_asked_again() -> None:
    heard: list[Effect] = []
    store = RemoteStore("store-1", "broker-1", asyncio.get_running_loop(), clock, heard.extend)
    store.submit([Demand(1, 7, 1, ACTIVE, 5, False, False), Inspect(1, 7, 100)])
    await asyncio.sleep(0.01)
    (refused,) = heard
    assert isinstance(refused, Refused) and refused.certain and "store-1" in refused.text

    first, old = await introduced(store)
    assert not first.commands and not old.connected.is_set(), "there, and not open yet"
    first.show_open()
    await asyncio.wait_for(old.connected.wait(), 10)
    store.submit([Inspect(1, 7, 101), Demand(1, 7, 2, ACTIVE, 3, False, False)])
    while len(first.commands) < 3:
        await asyncio.sleep(0.001)
    assert demands(first) == [(1, 5), (2, 3)]

    # Another one is there before we hear of the end of the first.
    second, new = await introduced(store)
    (unknown,) = heard[1:]
    assert isinstance(unknown, Refused) and unknown.request == 101 and not unknown.certain
    first.close()
    await asyncio.wait_for(first.over.wait(), 10)
    await asyncio.sleep(0.01)
    store.submit([Leave(1, 7, 2)])
    second.show_open()
    while not second.commands:
        await asyncio.sleep(0.001)
    assert demands(second) == [(1, 5)]
    store.submit([Inspect(1, 7, 102)])
    while len(second.commands) < 2:
        await asyncio.sleep(0.001)
    new.close()
    old.close()


async def test_a_store_that_is_shown_out_keeps_what_is_wanted_of_it() -> None:
    heard: list[Effect] = []
    store = RemoteStore("store-1", "broker-1", asyncio.get_running_loop(), clock, heard.extend)
    peer, channel = await introduced(store)
    peer.write(protocol.StoreStatus("store-1", StoreState.UNAVAILABLE.value, "its file is gone", None))
    await asyncio.wait_for(channel.connected.wait(), 10)
    assert (store.state, store.reason) == (StoreState.UNAVAILABLE, "its file is gone")
    store.submit([Demand(1, 7, 1, ACTIVE, 5, False, False)])
    peer.show_open()
    while not peer.commands:
        await asyncio.sleep(0.001)
    assert demands(peer) == [(1, 5)]
    peer.write(protocol.EffectsFrame("store-1", msgspec.Raw(b"\xc1")))  # nonsense ends the channel
    while store.state is StoreState.OPEN:
        await asyncio.sleep(0.001)
    channel.close()
