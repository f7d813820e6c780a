"""Stores are handed over between simulated brokers: sessions, locks and commands under way. The world checks what always
holds."""

from __future__ import annotations

import pytest

from busbar.model import commands as c
from busbar.model.message import ACTIVE
from tests.simulation.cluster_client import SimulatedClient
from tests.simulation.test_cluster_scenarios import PLAIN, SESSIONS, ScenarioWorld

STORE = "store-0"


def owner(world: ScenarioWorld) -> str:
    return next(name for name, process in world.controller.processes.items() if STORE in process.hosts)


def holding(world: ScenarioWorld, client: SimulatedClient) -> None:
    """A client that holds a session with four messages, two of which are locked, and two locks of plain messages."""
    for _ in range(4):
        world.send(client, SESSIONS, "a")
        world.send(client, PLAIN)
    client.accept(SESSIONS, "a")
    world.run(0.1)
    (consumer,) = client.consumers.values()
    client.demand(consumer, 2, False)
    client.demand(client.consume(PLAIN, ACTIVE, False), 2, False)
    world.run(0.1)
    assert len(client.locks) == 4


@pytest.mark.parametrize("gateway", [0, 1, 2], ids=["last-owner", "next-owner", "third"])
def test_a_holder_goes_on_with_its_session_and_its_locks(gateway: int) -> None:
    world = ScenarioWorld(3)
    with world.watched():
        holder, other = world.client(gateway), world.client((gateway + 1) % 3)
        holding(world, holder)
        world.controller.move(STORE, "broker-1")
        world.run(0.5)
        assert owner(world) == "broker-1"
        other.accept(SESSIONS, "a")
        world.run(0.1)
        assert not other.consumers, "no other client gets the session"
        for lock in [*holder.locks]:
            holder.settle(lock, c.COMPLETE)
        (consumer,) = [one for one in holder.consumers.values() if one.session == "a"]
        holder.demand(consumer, 5, False)
        world.run(0.1)
        assert {lock.fragment for lock in holder.locks} == {SESSIONS} and len(holder.locks) == 2
        counts = [world.durable(fragment).head.counts[ACTIVE] for fragment in (SESSIONS, PLAIN)]
        assert counts == [2, 2], "all that was locked is completed"
        holder.leave(consumer)
        world.run(0.1)
        other.accept(SESSIONS, "a")
        world.run(0.1)
        assert other.consumers, "it is free when the holder leaves"
        world.finish()


def test_no_command_is_refused_whatever_is_under_way() -> None:
    """Clients at all gateways send all the time, while the store goes round."""
    world = ScenarioWorld(3)
    with world.watched():
        clients = [world.client(number) for number in range(3)]
        for turn in range(60):
            for client in clients:
                world.send(client, PLAIN)
            if turn % 20 == 5:
                world.controller.move(STORE, f"broker-{1 + turn // 20 if turn < 40 else 0}")
            world.run(0.005)
        world.run(1.0)
        assert owner(world) == "broker-0"
        refused = [line for line in world.notes.lines if "Refused" in line]
        assert not refused
        assert world.durable(PLAIN).head.counts[ACTIVE] == 180
        world.finish()


@pytest.mark.parametrize("victim", [0, 1], ids=["last-owner", "next-owner"])
def test_a_broker_dies_in_the_middle(victim: int) -> None:
    world = ScenarioWorld(3)
    with world.watched():
        holder = world.client(2)
        holding(world, holder)
        world.controller.move(STORE, "broker-1")
        world.run(0.0015 if victim == 0 else 0.006)
        world.kill(world.controller.processes[f"broker-{victim}"])
        world.run(3.0)
        assert STORE in world.controller.processes[owner(world)].hosts
        for lock in [lock for lock in holder.locks if lock.fragment == SESSIONS]:
            holder.settle(lock, c.COMPLETE)
        world.run(0.5)
        assert world.durable(SESSIONS).head.counts[ACTIVE] == 2, "the session and its locks are still held"
        world.finish()
