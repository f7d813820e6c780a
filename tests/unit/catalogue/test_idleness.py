"""When an entity with AutoDeleteOnIdle is deleted: by a clock that does not jump, and never while a link is attached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.idleness import LATE, Idleness
from busbar.catalogue.store_set import StoreSet
from busbar.model.commands import Peek
from busbar.model.effects import Effect
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.limits import Limits
from harness.memory_catalogue import CatalogueDisk
from harness.memory_store import Disk, MemoryStore

DAY = 86_400_000
IDLE = 200
PAUSE = 10.0


class Clocks:
    """Both go on by the real time that passes, and jump when a test says so."""

    def __init__(self) -> None:
        self.wall_jumped = 0
        self.stopped_for = 0.0
        self._loop = asyncio.get_running_loop()

    def wall(self) -> int:
        return 1_800_000_000_000 + int(self._loop.time() * 1000) + self.wall_jumped

    def monotonic(self) -> float:
        return self._loop.time() + self.stopped_for


class Namespace:
    def __init__(self, catalogue: Catalogue, host: LocalStoreHost, clocks: Clocks) -> None:
        self.catalogue = catalogue
        self.host = host
        self.clocks = clocks

    def paths(self) -> list[str]:
        return [view.path for view in self.catalogue.entities()]

    async def until(self, *paths: str) -> None:
        async with asyncio.timeout(10):
            while self.paths() != [*paths]:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def namespace() -> AsyncIterator[Namespace]:
    clocks = Clocks()
    said: list[Effect] = []
    disk = Disk()
    loop = asyncio.get_running_loop()
    host = LocalStoreHost("test", lambda: MemoryStore(disk), loop, clocks.wall, lambda: 1, said.extend)
    await host.open()
    limits = Limits(min_auto_delete_on_idle=200)
    home = CatalogueHome(CatalogueDisk().location, loop)
    catalogue = Catalogue(StoreSet([host]), home, limits, monotonic=clocks.monotonic)
    await catalogue.load()
    try:
        yield Namespace(catalogue, host, clocks)
    finally:
        await catalogue.close()
        await host.close()


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_a_jump_of_the_wall_clock_makes_nothing_idle(jump: int) -> None:
    """What is used after the clock was set back is seen to be used."""
    async with namespace() as here:
        for name in ("linked", "peeked"):
            await here.catalogue.create(name, QueueDescription(auto_delete_on_idle=IDLE))
        await here.catalogue.create("long", QueueDescription(auto_delete_on_idle=DAY // 2))
        await here.catalogue.create("forgotten", QueueDescription(auto_delete_on_idle=2 * IDLE))
        here.catalogue.usage.note_links(["linked"])
        (fragment,) = here.catalogue.find("peeked").fragments
        here.host.submit([Peek(fragment, 1, 1, 0, 0, 1, 1000)])
        await asyncio.sleep(0.15)
        here.clocks.wall_jumped = jump
        for request in range(2, 50):
            here.host.submit([Peek(fragment, 1, request, 0, 0, 1, 1000)])
            await asyncio.sleep(0.02)
        assert {"linked", "long", "peeked"} <= {*here.paths()}
        here.catalogue.usage.note_no_links(["linked"])
        await here.until("long")


async def test_what_waits_with_a_link_stays_until_every_gateway_has_left() -> None:
    async with namespace() as here:
        for name in ("a", "b"):
            await here.catalogue.create(name, QueueDescription(auto_delete_on_idle=IDLE))
            here.catalogue.usage.note_links([name], "one")
            here.catalogue.usage.note_links([name], "two")
        here.catalogue.usage.note_no_links(["A"], "one")
        here.catalogue.usage.note_gateway_ended("one")
        await asyncio.sleep(3 * IDLE / 1000)
        assert here.paths() == ["a", "b"]
        here.catalogue.usage.note_no_links(["a"], "two")
        await here.until("b")
        here.catalogue.usage.note_gateway_ended("two")
        await here.until()


async def test_a_topic_stays_while_somebody_waits_at_a_subscription() -> None:
    async with namespace() as here:
        await here.catalogue.create("t", TopicDescription(auto_delete_on_idle=IDLE))
        await here.catalogue.create("t/Subscriptions/s", SubscriptionDescription())
        here.catalogue.usage.note_links(["t/Subscriptions/s"])
        await asyncio.sleep(3 * IDLE / 1000)
        assert here.paths() == ["t", "t/Subscriptions/s"]
        here.catalogue.usage.note_no_links(["t/Subscriptions/s"])
        await here.until()


async def test_time_in_which_the_process_was_stopped_is_not_idle_time() -> None:
    async with namespace() as here:
        await here.catalogue.create("q", QueueDescription(auto_delete_on_idle=DAY))
        await asyncio.sleep(0.2)
        here.clocks.stopped_for = 2 * DAY / 1000
        await asyncio.sleep(0.3)
        assert here.paths() == ["q"]


class Ticking:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_idle_time_is_counted_from_look_to_look_and_begins_anew_with_every_use() -> None:
    clock = Ticking()
    times = Idleness(PAUSE, clock)

    def look(seconds: float, stamp: int) -> None:
        clock.now += seconds
        times.begin()
        times.look("q", stamp)

    look(PAUSE, 1)
    assert times.is_idle("q", 1, 0) and not times.is_idle("q", 1, 1), "it begins now"
    look(PAUSE, 1)
    look(PAUSE, 1)
    assert times.is_idle("q", 1, 2 * PAUSE) and not times.is_idle("q", 1, 2 * PAUSE + 1)
    assert not times.is_idle("q", 2, PAUSE), "it was used since"
    look(PAUSE, 0)  # the clock of its stamps was set back
    assert not times.is_idle("q", 0, 1)
    look(1_000 * PAUSE, 0)
    assert times.is_idle("q", 0, LATE * PAUSE) and not times.is_idle("q", 0, LATE * PAUSE + 1)
    times.attached("q", "here")
    look(PAUSE, 0)
    look(PAUSE, 0)
    assert not times.is_idle("q", 0, 0)
    times.detached("q", "somewhere else")
    assert not times.is_idle("q", 0, 0) and times.has_links("q")
    times.detached("q", "here")
    assert not times.has_links("q")
    look(PAUSE, 0)
    assert not times.is_idle("q", 0, 1), "it begins with the end of the last link"
