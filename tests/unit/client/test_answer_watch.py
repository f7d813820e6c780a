"""How long calls of a link wait for answers, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from busbar.client.answer_watch import AnswerWatch, WatchedCall
from harness.virtual_loop import VirtualScheduler

TIMEOUT = 10.0


class _Call(WatchedCall):
    __slots__ = ("_name", "_world")

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def expire(self) -> None:
        self._world.events.append((self._world.now, self._name))


class World:
    """A link in virtual time, and what its watch has reported."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.scheduler = VirtualScheduler(Random(1), self.failures.append)
        self.loop = self.scheduler.make_loop()
        self.events: list[tuple[float, str]] = []
        with self.loop.running():
            self.watch = AnswerWatch(TIMEOUT, lambda: self.events.append((self.now, "silence")))

    @property
    def now(self) -> float:
        return round(self.scheduler.clock.now, 6)

    def begin(self, name: str, *, expires: bool = True) -> _Call:
        call = _Call(self, name)
        with self.loop.running():
            self.watch.begin(call, expires=expires)
        return call

    def answer(self, call: _Call | None = None) -> None:
        with self.loop.running():
            self.watch.answered()
            if call is not None:
                self.watch.end(call)

    def run(self, seconds: float) -> None:
        self.scheduler.run(seconds)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    assert made.failures == []


def test_a_call_without_an_answer_expires_and_the_broker_is_silent(world: World) -> None:
    world.begin("a")
    world.run(TIMEOUT + 1)
    assert world.events == [(TIMEOUT, "a"), (TIMEOUT, "silence")]
    world.run(5 * TIMEOUT)
    assert len(world.events) == 2


def test_calls_that_are_answered_report_nothing(world: World) -> None:
    for _ in range(100):
        call = world.begin("a")
        world.run(0.7)
        world.answer(call)
    world.run(5 * TIMEOUT)
    assert world.events == []


def test_each_call_has_its_own_deadline(world: World) -> None:
    world.begin("a")
    world.run(4)
    answered = world.begin("b")
    world.run(2)
    world.begin("c")
    world.run(1)
    world.answer(answered)
    world.run(5 * TIMEOUT)
    assert world.events == [(TIMEOUT, "a"), (6 + TIMEOUT, "c")], "something was answered since they began"


def test_a_call_on_an_idle_link_has_the_whole_time(world: World) -> None:
    world.answer(world.begin("a"))
    world.run(TIMEOUT - 1)
    world.begin("b")
    world.run(TIMEOUT - 0.5)
    assert world.events == []
    world.run(1)
    assert world.events == [(2 * TIMEOUT - 1, "b"), (2 * TIMEOUT - 1, "silence")]


def test_a_call_that_does_not_expire_waits_while_answers_come(world: World) -> None:
    world.begin("long", expires=False)
    for _ in range(30):
        world.run(TIMEOUT / 3)
        world.answer()
    assert world.events == []
    last = world.now
    world.run(2 * TIMEOUT)
    assert world.events == [(round(last + TIMEOUT, 6), "silence")]


def test_a_call_expires_in_its_time_behind_one_that_does_not(world: World) -> None:
    world.begin("long", expires=False)
    world.run(1)
    world.begin("short")
    for _ in range(30):
        world.run(TIMEOUT / 3)
        world.answer()
    assert world.events == [(1 + TIMEOUT, "short")]


def test_nothing_is_reported_after_the_end_of_the_link(world: World) -> None:
    world.begin("a")
    world.begin("b", expires=False)
    world.run(1)
    with world.loop.running():
        world.watch.stop()
    world.run(5 * TIMEOUT)
    assert world.events == []
