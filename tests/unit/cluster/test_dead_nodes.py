"""Which nodes have ended without a word, and when a broker that is cut off lets its clients go."""

from __future__ import annotations

import asyncio
import socket

import pytest

from busbar.cluster.dead_nodes import DeadNodes, is_refused
from busbar.cluster.isolation import Isolation
from harness.postgresql import free_port

LEASE = 6.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Probed:
    """Nodes that do not beat, and what connections to them get."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.refuses = True
        self.dead = DeadNodes(LEASE, self.clock, self._probe)
        self.age = 0.0

    async def _probe(self, address: str) -> bool:
        return self.refuses

    async def after(self, seconds: float) -> list[str]:
        self.clock.now += seconds
        self.age += seconds
        return await self.dead.look({"b": (self.age, ["b:5700", "b:5701"])})


async def test_a_node_that_does_not_beat_and_refuses_connections_has_ended_after_a_lease() -> None:
    node = Probed()
    for _ in range(5):
        assert await node.after(1.0) == []
    assert await node.after(1.0) == ["b"]


@pytest.mark.parametrize("at", [3, 5])
async def test_a_node_that_takes_a_connection_has_not_ended(at: int) -> None:
    """It is frozen, or started again."""
    node = Probed()
    for second in range(6):
        node.refuses = second != at
        assert await node.after(1.0) == []


async def test_time_in_which_the_one_that_looks_was_stopped_proves_nothing() -> None:
    node = Probed()
    assert await node.after(1.0) == []
    assert await node.after(3600.0) == []
    assert await node.after(1.0) == ["b"]


async def test_only_the_kernel_of_a_machine_without_the_process_refuses() -> None:
    assert await is_refused(f"127.0.0.1:{free_port()}")
    with socket.create_server(("127.0.0.1", 0), backlog=1) as frozen:  # nobody accepts
        assert not await is_refused(f"127.0.0.1:{frozen.getsockname()[1]}")
    assert not await is_refused("no-such-host.invalid:1")


def test_a_broker_lets_its_clients_go_before_it_can_be_taken_for_ended() -> None:
    clock = Clock()
    isolation = Isolation(LEASE, clock)
    clock.now += 3.9
    assert not isolation.begins()
    clock.now += 0.2
    assert isolation.begins() and not isolation.begins(), "once"
    isolation.catalogue_seen(0.5)
    assert not isolation.begins()
    clock.now += 10.0
    assert isolation.begins()


@pytest.mark.parametrize("reached", ["catalogue", "controller"])
def test_a_broker_that_reaches_one_of_them_is_not_cut_off(reached: str) -> None:
    clock = Clock()
    isolation = Isolation(LEASE, clock)
    for _ in range(20):
        clock.now += 1.0
        if reached == "catalogue":
            isolation.catalogue_seen(2.0)
        else:
            isolation.controller_seen()
        assert not isolation.begins()


async def test_looks_are_made_at_all_nodes_at_once() -> None:
    waiting = 0

    async def probe(address: str) -> bool:
        nonlocal waiting
        waiting += 1
        while waiting < 4:
            await asyncio.sleep(0)
        return True

    dead = DeadNodes(LEASE, Clock(), probe)
    assert await dead.look({"b": (9.0, ["b:1", "b:2"]), "c": (9.0, ["c:1", "c:2"])}) == []
