"""The local port: who hears what, and what happens to the messages of those who left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.model.commands import Demand, Inspect, Send
from busbar.model.effects import Delivered, Effect
from busbar.model.entities import QueueDescription
from busbar.model.limits import Limits
from busbar.model.message import Draft
from harness.memory_catalogue import CatalogueDisk
from harness.memory_store import MemoryStore
from tests.unit.broker.hosting import clock


class Local:
    def __init__(self) -> None:
        self.port = LocalBroker()
        nonces = iter(range(1, 1 << 30))
        loop = asyncio.get_running_loop()
        self.host = LocalStoreHost("test", MemoryStore, loop, clock, lambda: next(nonces), self.port.dispatch)
        stores = StoreSet([self.host])
        self.catalogue = Catalogue(stores, CatalogueHome(CatalogueDisk().location, loop), Limits())
        self.port.serve(stores, self.catalogue)


@asynccontextmanager
async def local() -> AsyncIterator[tuple[Local, int]]:
    here = Local()
    await here.host.open()
    await here.catalogue.load()
    view = await here.catalogue.create("q", QueueDescription())
    yield here, view.fragments[0]
    await here.host.drain(5)
    await here.catalogue.close()
    await here.host.close()


def some(count: int) -> list[Draft]:
    return [Draft(b"x", "", None, None, 0, 0)] * count


async def test_each_origin_hears_its_own_effects_in_one_call() -> None:
    async with local() as (here, fragment):
        heard: dict[str, list[list[Effect]]] = {"a": [], "b": []}
        a = here.port.connect(heard["a"].append)
        b = here.port.connect(heard["b"].append)
        here.port.submit([Inspect(fragment, origin, request) for request in (1, 2) for origin in (a, b)])
        await here.host.drain(5)
        assert [[effect.request for effect in batch] for batch in heard["a"]] == [[1, 2]]
        assert [[effect.request for effect in batch] for batch in heard["b"]] == [[1, 2]]


async def test_a_sink_that_raises_hurts_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    def broken(effects: list[Effect]) -> None:
        raise ZeroDivisionError("a bug in a connection")

    async with local() as (here, fragment):
        heard: list[Effect] = []
        bad = here.port.connect(broken)
        good = here.port.connect(heard.extend)
        here.port.submit([Inspect(fragment, bad, 1), Inspect(fragment, good, 2)])
        await here.host.drain(5)
        assert [effect.request for effect in heard] == [2]
    assert "a bug in a connection" in caplog.text


async def test_a_connection_whose_sink_raises_is_ended_and_what_it_was_given_is_released() -> None:
    async with local() as (here, fragment):
        heard: list[Effect] = []
        ended: list[bool] = []

        def broken(effects: list[Effect]) -> None:
            raise ZeroDivisionError("a bug in a connection")

        bad = here.port.connect(broken, lambda: ended.append(True))
        good = here.port.connect(heard.extend)
        here.port.submit([Demand(fragment, bad, 1, 0, 10, False, False)])
        here.port.submit([Send(fragment, good, 1, some(4), True)])
        await here.host.drain(5)
        assert ended == [True]
        here.port.submit([Demand(fragment, good, 1, 0, 10, False, False), Inspect(fragment, bad, 2)])
        await here.host.drain(5)
        records = [record for e in heard if isinstance(e, Delivered) for record in e.records]
        assert [record.n for record in records] == [1, 2, 3, 4]
        assert {record.deliveries for record in records} == {0}
        assert ended == [True], "once"


async def test_messages_on_their_way_to_one_who_left_go_to_the_next() -> None:
    async with local() as (here, fragment):
        heard: list[Effect] = []
        leaver = here.port.connect(lambda effects: pytest.fail("it has left"))
        stayer = here.port.connect(heard.extend)
        here.port.submit(
            [Demand(fragment, leaver, 1, 0, 10, False, False), Send(fragment, stayer, 1, some(4), True)]
        )
        here.port.disconnect(leaver)  # the delivery waits for the commit
        here.port.submit([Demand(fragment, stayer, 1, 0, 10, False, False)])
        for _ in range(500):
            records = [record for e in heard if isinstance(e, Delivered) for record in e.records]
            if len(records) == 4:
                break
            await asyncio.sleep(0.002)
        assert [record.n for record in records] == [1, 2, 3, 4]
        assert {record.deliveries for record in records} == {0}, "a delivery that nobody saw does not count"


async def test_a_demand_of_one_who_left_is_not_a_consumer() -> None:
    async with local() as (here, fragment):
        heard: list[Effect] = []
        leaver = here.port.connect(heard.extend)
        here.port.disconnect(leaver)
        here.port.disconnect(leaver)
        here.port.submit([Demand(fragment, leaver, 1, 0, 10, False, False), Inspect(fragment, 0, 0)])
        sender = here.port.connect(heard.extend)
        here.port.submit([Send(fragment, sender, 1, some(1), True)])
        await here.host.drain(5)
        assert [type(effect).__name__ for effect in heard] == ["Sent"]
