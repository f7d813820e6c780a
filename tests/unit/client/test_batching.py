"""When a batch of a client goes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random

import pytest

from busbar.client.batching import Batching, Results
from harness.virtual_loop import VirtualLoop, VirtualScheduler

INTERVAL = 0.020


class World:
    """A client in virtual time, and a broker that answers a batch after `answer` seconds."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.scheduler = VirtualScheduler(Random(1), self.failures.append)
        self.loop: VirtualLoop = self.scheduler.make_loop()
        self.answer = 0.005
        self.sent: list[tuple[float, list[str]]] = []
        self.refused: dict[str, Exception] = {}
        self.limit = 100

    @property
    def now(self) -> float:
        return round(self.scheduler.clock.now, 6)

    def client(self, interval: float = INTERVAL, most: int = 1000) -> Batching[str]:
        with self.loop.running():
            return Batching(interval, lambda: self.limit, most, self._transmit)

    async def _transmit(self, items: list[str]) -> Results:
        self.sent.append((self.now, items))
        await asyncio.sleep(self.answer)
        return [self.refused.get(item) for item in items]

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        with self.loop.running():
            return self.loop.create_task(work)

    def run(self, seconds: float) -> None:
        self.scheduler.run(seconds)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    assert made.failures == []


def test_a_message_alone_does_not_wait(world: World) -> None:
    client = world.client()

    async def one_after_the_other() -> None:
        for name in "abc":
            await client.add(name)

    task = world.start(one_after_the_other())
    world.run(1)
    assert task.done()
    assert world.sent == [(0, ["a"]), (0.005, ["b"]), (0.01, ["c"])], "each at once after the last answer"


def test_calls_of_the_same_moment_share_a_batch(world: World) -> None:
    client = world.client()

    async def sender(name: str) -> None:
        for turn in range(3):
            await client.add(f"{name}{turn}")

    tasks = [world.start(sender(name)) for name in "abcde"]
    world.run(1)
    assert all(task.done() for task in tasks)
    assert [(when, len(items)) for when, items in world.sent] == [(0, 5), (0.005, 5), (0.01, 5)]


def test_while_an_answer_is_under_way_a_batch_grows(world: World) -> None:
    client = world.client()

    async def sender(name: str, at: float) -> None:
        await asyncio.sleep(at)
        await client.add(name)

    world.answer = 0.010
    for number in range(5):
        world.start(sender(str(number), number * 0.002))
    world.run(1)
    assert world.sent == [(0, ["0"]), (0.01, ["1", "2", "3", "4"])]


def test_no_batch_waits_longer_than_the_interval(world: World) -> None:
    client = world.client()
    world.answer = 10.0

    async def sender(name: str, at: float) -> None:
        await asyncio.sleep(at)
        await client.add(name)

    for name, at in (("a", 0.0), ("b", 0.001), ("c", 0.020), ("d", 0.0211), ("e", 0.1)):
        world.start(sender(name, at))
    world.run(20)
    assert world.sent == [
        (0, ["a"]),
        (0.021, ["b", "c"]),
        (0.0411, ["d"]),
        (0.12, ["e"]),
    ], "20 ms after the first message of each"


def test_a_message_that_does_not_fit_sends_the_batch_and_opens_the_next(world: World) -> None:
    client = world.client()
    world.answer = 10.0

    async def sender() -> None:
        first = client.add("in the way")
        await asyncio.sleep(0.001)
        futures = [client.add(name, size) for name, size in (("a", 60), ("b", 40), ("c", 1), ("d", 99))]
        await asyncio.gather(first, *futures)

    world.start(sender())
    world.run(20)
    assert world.sent == [(0, ["in the way"]), (0.001, ["a", "b"]), (0.021, ["c", "d"])]


def test_a_batch_that_has_its_number_of_items_goes(world: World) -> None:
    client = world.client(most=2)
    world.answer = 10.0

    async def sender() -> None:
        await asyncio.gather(*[client.add(name) for name in "abcde"])

    world.start(sender())
    world.run(0.001)
    assert world.sent == [(0, ["a", "b"]), (0, ["c", "d"])]
    world.run(1)
    assert world.sent[2:] == [(0.02, ["e"])]


def test_batches_are_not_made_across_clients(world: World) -> None:
    clients = [world.client(), world.client()]

    async def sender(client: Batching[str], name: str) -> None:
        await client.add(name)

    for number, client in enumerate(clients):
        world.start(sender(client, f"{number}"))
        world.start(sender(client, f"{number}"))
    world.run(1)
    assert sorted(items for _when, items in world.sent) == [["0", "0"], ["1", "1"]]


def test_each_call_gets_its_own_answer(world: World) -> None:
    client = world.client()
    world.refused["b"] = ValueError("not b")
    outcomes: list[object] = []

    async def sender() -> None:
        outcomes.extend(await asyncio.gather(*[client.add(name) for name in "abc"], return_exceptions=True))

    world.start(sender())
    world.run(1)
    assert outcomes == [None, world.refused["b"], None]


def test_a_cancelled_call_leaves_the_batch(world: World) -> None:
    client = world.client()
    world.answer = 0.010

    async def sender(name: str) -> None:
        await client.add(name)

    world.start(sender("a"))
    world.run(0.001)
    tasks = [world.start(sender(name)) for name in "bcd"]
    world.run(0.001)
    with world.loop.running():
        tasks[1].cancel()
    world.run(1)
    assert world.sent == [(0, ["a"]), (0.01, ["b", "d"])]


def test_a_failure_of_the_batch_is_that_of_all(world: World) -> None:
    problem = ConnectionError("lost")

    async def fail(items: list[str]) -> Results:
        raise problem

    with world.loop.running():
        client: Batching[str] = Batching(INTERVAL, lambda: 100, 10, fail)
    outcomes: list[object] = []

    async def sender() -> None:
        outcomes.extend(await asyncio.gather(*[client.add(name) for name in "ab"], return_exceptions=True))

    world.start(sender())
    world.run(1)
    assert outcomes == [problem, problem]


def finishing(world: World, client: Batching[str]) -> Callable[[], float]:
    """Begin to finish the client now. The result gives the time at which that was done."""
    done: list[float] = []

    async def finish() -> None:
        await client.finish()
        done.append(world.now)

    world.start(finish())
    return lambda: done[0]


def test_finish_sends_what_is_there_and_waits_for_answers(world: World) -> None:
    client = world.client()
    world.answer = 0.5

    async def sender(name: str) -> None:
        await client.add(name)

    world.start(sender("a"))
    world.run(0.001)
    world.start(sender("b"))
    world.run(0.001)
    finished = finishing(world, client)
    world.run(10)
    assert world.sent == [(0, ["a"]), (0.002, ["b"])]
    assert finished() == 0.502
