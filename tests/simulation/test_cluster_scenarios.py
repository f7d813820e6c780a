"""Failures that seeds of several brokers have found, each as the steps that lead to it.

The world checks what always holds."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from busbar.model import commands as c
from busbar.model.message import ACTIVE
from harness.memory_store import Fault
from tests.simulation.cluster_client import SimulatedClient
from tests.simulation.cluster_world import Shape, World

SESSIONS, PLAIN = 1, 2
"""Fragments, of one store: that of broker-0."""
LOCK = 5_000


class ScenarioWorld(World):
    """Some brokers; the fragments of the scenario are those of the first."""

    def __init__(self, brokers: int = 2) -> None:
        super().__init__(Shape(brokers, 1, 4, LOCK, 10, 0.001, 0.001), Random(1))
        self.run(1.0)
        self.disk = self.stores["store-0"].disk

    def client(self, broker: int) -> SimulatedClient:
        return self.connect(self.controller.processes[f"broker-{broker}"])

    def send(self, client: SimulatedClient, fragment: int, session: str | None = None) -> None:
        client.send([self.truth.message(fragment, "id", session)], 0, True)


@pytest.fixture
def world() -> Iterator[ScenarioWorld]:
    made = ScenarioWorld()
    with made.watched():
        yield made
        made.finish()


@pytest.mark.parametrize("broker", [0, 1])
def test_a_consumer_that_was_drained_during_an_outage_gets_nothing_after_it(
    world: ScenarioWorld, broker: int
) -> None:
    """The delivery of a group that was lost gave its credit back. A tick came before the end of that credit."""
    client = world.client(broker)
    consumer = client.consume(PLAIN, ACTIVE, False)
    client.demand(consumer, 5, False)
    world.run(0.1)
    world.disk.hang = 2.0
    world.send(client, PLAIN)
    world.run(1.0)
    client.demand(consumer, 0, True)
    world.run(0.1)
    assert not consumer.is_draining and consumer.credit == 0
    world.run(5.0)
    assert world.durable(PLAIN).head.counts[ACTIVE] == 1, "the commit was made"
    assert not client.locks and not world.machine(PLAIN).locks()


@pytest.mark.parametrize("cancels", [True, False])
def test_who_awaits_a_session_and_leaves_during_an_outage_is_forgotten(
    world: ScenarioWorld, cancels: bool
) -> None:
    """The outage is one of the broker that has just claimed the store."""
    world.kill(world.controller.processes["broker-0"])
    world.run(3.0)
    client, other = world.client(1), world.client(1)
    client.ask(c.AwaitSession(SESSIONS, client.origin, client.request()))
    world.disk.fail_next_commit(Fault.LOST)
    world.disk.refuses = 2
    world.send(other, PLAIN)
    world.run(0.02)
    assert not world.controller.processes["broker-1"].hosts["store-0"].is_open
    if cancels:
        client.asked.clear()
        client.submit(c.CancelAwait(SESSIONS, client.origin, 1))
    else:
        world.disconnect(client)
    world.run(LOCK / 1000)
    assert not world.machine(SESSIONS).awaits()


@pytest.mark.parametrize("gateway", [1, 2])
@pytest.mark.parametrize("cut", [False, True])
def test_a_holder_goes_on_with_its_session_and_its_messages_when_their_owner_ends(
    gateway: int, cut: bool
) -> None:
    """It holds the session at a gateway that claims the store, or at a third one. Or the channels break and nothing ends."""
    world = ScenarioWorld(3)
    with world.watched():
        holder, other = world.client(gateway), world.client(3 - gateway)
        for _ in range(4):
            world.send(holder, SESSIONS, "a")
        holder.accept(SESSIONS, "a")
        world.run(0.1)
        (consumer,) = holder.consumers.values()
        holder.demand(consumer, 2, False)
        world.run(0.1)
        assert len(holder.locks) == 2
        if cut:
            for stream in [*world.controller.streams]:
                stream.cut((0.0, 0.0))
        else:
            world.kill(world.controller.processes["broker-0"])
        world.run(2.0)
        other.accept(SESSIONS, "a")
        world.run(0.1)
        assert not other.consumers, "nobody else gets it"
        assert [*holder.consumers.values()] == [consumer]
        for lock in [*holder.locks]:
            holder.settle(lock, c.COMPLETE)
        holder.demand(consumer, 5, False)
        holder.ask(c.RenewSession(SESSIONS, holder.origin, holder.request(), consumer.number))
        world.run(0.1)
        assert len(holder.locks) == 2, "the next two, and not the first again"
        assert world.durable(SESSIONS).head.counts[ACTIVE] == 2, "what it had is completed"
        holder.leave(consumer)
        world.run(0.1)
        other.accept(SESSIONS, "a")
        world.run(0.1)
        assert other.consumers, "it is free when the holder leaves"
        world.finish()


def test_the_sessions_of_a_gateway_that_ended_are_free_at_once() -> None:
    """They were held at another gateway than that of their owner, and both end together."""
    world = ScenarioWorld(3)
    with world.watched():
        holder, other = world.client(1), world.client(2)
        holder.accept(SESSIONS, "a")
        world.run(0.1)
        assert holder.consumers and world.durable(SESSIONS).holds
        world.kill(world.controller.processes["broker-0"])
        world.kill(world.controller.processes["broker-1"])
        world.run(2.0)
        other.accept(SESSIONS, "a")
        world.run(0.1)
        assert other.consumers
        world.finish()


def test_a_session_that_was_accepted_in_the_last_moment_is_free_if_its_client_got_no_answer() -> None:
    """The owner dies between the commit of the hold and the answer. The gateway does not name it."""
    world = ScenarioWorld(3)
    with world.watched():
        holder, other = world.client(1), world.client(2)
        world.run(0.1)
        holder.accept(SESSIONS, "a")
        while not (fragment := world.durable(SESSIONS)).holds:
            world.run(0.0005)
        world.kill(world.controller.processes["broker-0"])
        assert not holder.consumers and fragment.holds
        world.run(2.0)  # others may notice the end of a channel after a second
        assert not holder.consumers
        other.accept(SESSIONS, "a")
        world.run(0.1)
        assert other.consumers
        world.finish()
