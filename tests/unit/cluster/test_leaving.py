"""A process hands its store over: what the gateway of another process gets back when it leaves the store."""

from __future__ import annotations

import asyncio
from typing import Any

from busbar.broker.dispatcher import FragmentRoutes
from busbar.cluster.peer_server import PeerServers
from busbar.model.commands import AcceptSession, Command, Demand, Inspect, Settle, Transact
from busbar.model.message import ACTIVE
from harness.waiting import until
from tests.conformance.port_process import fragments
from tests.unit.cluster.test_departed_clients import connected
from tests.unit.cluster.test_stranded_holders import FarGateway

STORE = "port"


def shown(commands: list[Command] | None) -> list[tuple[str, int, int]]:
    return [(type(one).__name__, one.origin, one.request) for one in commands or ()]


async def test_commands_come_back_with_the_gateways_own_origins_and_later_ones_behind_them() -> None:
    async with fragments() as port:
        fragment = (await port.entity("orders")).fragments[0]
        peers = PeerServers(port)
        one, other = FarGateway(), FarGateway()
        served = [peers.serve(name, f"{name}.1", list, lambda peer: None) for name in ("a", "b")]
        await connected(served[0], one)
        await connected(served[1], other)
        one.submit(Demand(fragment, 5, 1, ACTIVE, 1, False, False), Inspect(fragment, 5, 1))
        other.submit(Demand(fragment, 7, 1, ACTIVE, 1, False, False))
        await until(lambda: one.heard and len(port.served) == 2)
        (ours,) = [by_store[STORE] for by_store in served[0]._origins.values()]
        (theirs,) = [by_store[STORE] for by_store in served[1]._origins.values()]
        local = port.connect(lambda effects: None)

        peers.begin_hand_over(STORE)
        leaving = asyncio.ensure_future(served[0].leave_store(STORE))
        parts = [Settle(fragment, ours, 0, 0, [1], [1], None, False)]
        commands: list[Command] = [
            Demand(fragment, theirs, 1, ACTIVE, 1, False, False),
            Demand(fragment, ours, 1, ACTIVE, 1, False, False),
            Inspect(fragment, local, 4),
            Transact(fragment, ours, 2, [*parts]),
            Inspect(fragment, 99, 5),
        ]
        assert shown(peers.give_back(STORE, commands)) == [("Inspect", local, 4), ("Inspect", 99, 5)]
        assert port.served == set(), "no effect for them comes from here any more"
        one.heard.clear()
        one.submit(Inspect(fragment, 5, 3), AcceptSession(fragment, 6, 4, 1, "s"))
        await until(lambda: len(served[0]._given_back[STORE]) == 4)
        assert not leaving.done()
        peers.end_hand_over(STORE)
        given_back = await leaving
        assert shown(given_back) == [
            ("Demand", 5, 0),
            ("Transact", 5, 2),
            ("Inspect", 5, 3),
            ("AcceptSession", 6, 4),
        ]
        assert parts[0].origin == 5, "the parts of a transaction have its origin"
        assert not one.heard and port.served == set(), "nothing of it was submitted here"
        assert shown(await served[1].leave_store(STORE)) == [("Demand", 7, 0)]
        assert await served[0].leave_store(STORE) is None, "it has left"


async def test_a_store_that_stays_is_not_left() -> None:
    async with fragments() as port:
        peers = PeerServers(port)
        served = peers.serve("a", "a.1", list, lambda peer: None)
        peers.begin_hand_over(STORE)
        leaving = asyncio.ensure_future(served.leave_store(STORE))
        await asyncio.sleep(0)
        peers.end_hand_over(STORE)
        assert await leaving is None


async def test_a_gateway_that_did_not_use_the_store_uses_it_when_it_is_back() -> None:
    """Seed 50 of the world `cluster`: such a gateway does not leave the store, and its later commands were kept for ever."""
    async with fragments() as port:
        fragment = (await port.entity("orders")).fragments[0]
        assert isinstance(port.routes, FragmentRoutes)
        host = port.routes.sink_of(fragment)
        here: list[Any] = []
        peers, far = PeerServers(port), FarGateway()
        served = peers.serve("a", "a.1", lambda: here, lambda peer: None)
        await connected(served, far)
        assert peers.give_back(STORE, []) == []
        here.append(host)
        far.submit(Inspect(fragment, 5, 1))
        await until(lambda: [effect.request for effect in far.heard] == [1])
