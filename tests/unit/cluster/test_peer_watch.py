"""A channel to another broker process that is missing is asked for until there is one."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import pairwise

import pytest

from busbar.cluster import peer_watch, protocol
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.peer_watch import PeerWatch
from busbar.cluster.remote_store import PeerClient
from busbar.cluster.store_route import StoreRoute
from harness.waiting import until
from tests.conformance.port_process import clock
from tests.unit.cluster.test_channel import two_ends


async def test_it_is_asked_for_with_growing_pauses_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_watch, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(peer_watch, "LONGEST_PAUSE", 0.04)
    asked: list[tuple[str, float]] = []
    watch = PeerWatch(lambda broker: asked.append((broker, time.monotonic())))
    watch.is_missing("broker-1")
    watch.is_missing("broker-1")  # once is enough
    await until(lambda: len(asked) == 5)
    gaps = [later - earlier for (_, earlier), (_, later) in pairwise(asked)]
    assert gaps[0] >= 0.015 and min(gaps[1:]) >= 0.03
    watch.is_there("broker-1")
    asked.clear()
    await asyncio.sleep(0.06)
    assert asked == []

    watch.is_missing("broker-1")  # it did not last: no sooner than before
    began = time.monotonic()
    await until(lambda: asked)
    assert asked[0][1] - began >= 0.03
    watch.is_there("broker-1")
    monkeypatch.setattr(peer_watch, "SETTLED_SECONDS", 0.0)
    await asyncio.sleep(0.001)
    asked.clear()
    watch.is_missing("broker-1")
    assert watch._pauses["broker-1"] == 0.02, "it begins anew"
    watch.is_there("broker-1")


async def test_one_that_was_never_handed_over_is_asked_for_and_one_that_broke_too() -> None:
    loop = asyncio.get_running_loop()
    async with two_ends() as (to_serving, serving):
        port = ClusterBroker()
        controller = protocol.CONTROLLER.remote(to_serving)
        port.configure(
            controller, [StoreRoute("store-1", "broker-1", loop, clock, port.dispatch)], ["broker-1"]
        )
        await until(lambda: serving.asked)
        assert serving.asked == [("introduce", "broker-1")]
        there = await introduced(port)
        serving.asked.clear()
        there.close()
        await until(lambda: serving.asked)
        await introduced(port)
        before = port._peers["broker-1"]
        await introduced(port)  # two at once: the first is ended, and no third one is wanted
        await until(lambda: before.is_lost)
        never = port.add_peer("broker-1")
        await introduced(port)  # nor is one that takes its place before it began
        current = port._peers["broker-1"]
        ours, theirs = socket.socketpair()
        await loop.create_unix_connection(lambda: never, sock=ours)
        await until(lambda: never.is_lost)
        assert port._stores["store-1"]._channel is current
        theirs.close()
        serving.asked.clear()
        await asyncio.sleep(0.3)
        assert serving.asked == []


async def introduced(port: ClusterBroker) -> socket.socket:
    """The other end of a channel that was just handed over."""
    here, there = socket.socketpair()
    channel = port.add_peer("broker-1")
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=here)
    return there


async def test_a_broker_that_has_come_back_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its predecessor was asked for in vain, with pauses that have grown. Stores may go to it at any time from now on."""
    monkeypatch.setattr(peer_watch, "FIRST_PAUSE", 600.0)
    loop = asyncio.get_running_loop()
    asked: list[str] = []
    port = ClusterBroker()
    port.introduce_peer = asked.append
    store = StoreRoute("store-1", "b.0", loop, clock, port.dispatch)
    port.configure(protocol.CONTROLLER.remote(PeerClient("c", {}, lambda: None)), [store], ["b.0"])
    assert asked == []
    port.peer_joined("b.0")
    assert asked == ["b.0"]
    port.add_peer("b.0")
    port.peer_joined("b.0")
    assert asked == ["b.0"], "there is a channel"
