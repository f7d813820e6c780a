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
    """Two brokers; the fragments of the scenario are those of the first."""

    def __init__(self) -> None:
        super().__init__(Shape(2, 1, 4, LOCK, 10, 0.001, 0.001), Random(1))
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
def test_who_awaits_a_barred_session_and_leaves_during_an_outage_is_forgotten(
    world: ScenarioWorld, cancels: bool
) -> None:
    """While its store was unavailable, the bar kept those who had left, and handed them to the fragment afterwards."""
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
