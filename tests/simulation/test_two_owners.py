"""Two simulated brokers take themselves for the owner of a store: one was frozen for so long that the other claimed it."""

from __future__ import annotations

from random import Random

from busbar.model import commands as c
from busbar.model.message import ACTIVE
from tests.simulation.cluster_process import SILENT_SECONDS
from tests.simulation.cluster_world import Shape, World
from tests.simulation.test_cluster_scenarios import PLAIN, SESSIONS

LOCK = 30_000


def test_the_frozen_one_delivers_nothing_and_its_sessions_are_not_free() -> None:
    world = World(Shape(2, 1, 4, LOCK, 10, 0.001, 0.001, has_nodes=True), Random(1))
    with world.watched():
        world.run(1.0)
        first, second = (world.controller.processes[name] for name in ("broker-0", "broker-1"))
        holder, receiver, other = world.connect(first), world.connect(first), world.connect(second)
        holder.accept(SESSIONS, "a")
        holder.send([world.truth.message(PLAIN, "id", None)], 0, True)
        world.run(0.1)
        assert holder.consumers
        first.loop.frozen_until = world.scheduler.clock.now + SILENT_SECONDS + 1.0
        receiver.demand(receiver.consume(PLAIN, ACTIVE, False), 5, False)  # it is read when the broker thaws
        world.run(SILENT_SECONDS + 0.1)
        world.controller.usurp("broker-0")
        world.run(0.5)
        assert second.hosts["store-0"].is_open and first.hosts["store-0"].is_open, "both take it for theirs"
        other.accept(SESSIONS, "a")
        other.demand(other.consume(PLAIN, ACTIVE, False), 5, False)
        world.run(0.1)
        assert not any(consumer.session == "a" for consumer in other.consumers.values())
        (lock,) = other.locks
        other.settle(lock, c.COMPLETE)
        world.run(0.1)
        world.note(
            "the message is completed, and the first broker goes on"
        )  # lines are the clock of what was seen
        world.run(2.0)
        assert first.is_dead, "it was fenced"
        assert not receiver.locks, "the message was completed elsewhere before"
        world.run(1.0)
        other.accept(SESSIONS, "a")
        world.run(0.1)
        assert any(consumer.session == "a" for consumer in other.consumers.values()), "its gateway has ended"
        world.finish()
