"""A broker process that does not answer: new commands are refused, those under way wait, at last the channel is ended."""

from __future__ import annotations

import asyncio

import pytest

from busbar.broker.host_api import StoreState
from busbar.cluster import peer_ping
from busbar.cluster.channel import ChannelClosed
from busbar.cluster.peer_ping import LOST_AFTER, SILENT_AFTER, PeerPing
from harness.waiting import until
from tests.unit.cluster.test_departed_clients import connected
from tests.unit.cluster.test_remote_store import demands
from tests.unit.cluster.test_store_route import Gateway, Leaving, asked, gateway


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_ping, "PING_SECONDS", 0.01)


class Frozen(Leaving):
    """A process whose answers to pings the test holds up."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def ping(self) -> None:
        await self.answers.wait()


async def frozen(here: Gateway) -> Frozen:
    """An owner with a request under way that has stopped to answer."""
    peer, channel = Frozen(), here.port.add_peer("broker-1")
    here.channels.append(channel)
    await connected(peer, channel)
    peer.show_open()
    await until(lambda: here.route.state is StoreState.OPEN)
    here.ask(1)
    await until(lambda: asked(peer.commands) == [1])
    peer.answers.clear()
    await until(lambda: channel.is_silent)
    return peer


async def test_a_silent_process_gets_no_new_requests_and_keeps_those_it_has() -> None:
    async with gateway() as here:
        peer = await frozen(here)
        here.ask(2)
        refused = await here.refusal(2)
        assert refused.certain, "a message without a key can go elsewhere"
        here.want(1, 5)
        await until(lambda: demands(peer) == [(1, 5)])
        assert [effect.request for effect in here.heard] == [2] and asked(peer.commands) == [1]
        peer.answers.set()
        await until(lambda: not here.channels[0].is_silent)
        here.ask(3)
        await until(lambda: asked(peer.commands) == [1, 3])


async def test_a_process_that_stays_silent_is_lost_and_what_it_had_is_unknown() -> None:
    async with gateway() as here:
        await frozen(here)
        refused = await here.refusal(1)
        assert not refused.certain
        assert here.channels[0].is_lost and here.route.state is StoreState.UNAVAILABLE


async def test_pings_are_counted_and_not_the_time() -> None:
    """One that is late by a single ping is not silent, and an answer ends the count."""
    answers: list[asyncio.Future[None]] = []
    lost: list[bool] = []

    def ping() -> asyncio.Future[None]:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    pings = PeerPing(ping, lambda: lost.append(True))
    pings.start()
    await until(lambda: pings.missing == 1)
    assert not pings.is_silent and SILENT_AFTER == 2
    answers[-1].set_result(None)
    await until(lambda: pings.missing == 0)
    await until(lambda: pings.is_silent)
    answers[-1].set_exception(ChannelClosed())
    await until(lambda: bool(lost))
    assert pings.missing == LOST_AFTER
    pings.stop()
