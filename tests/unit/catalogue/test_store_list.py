"""Stores that are drained and removed: where new entities are placed, and what is refused."""

from __future__ import annotations

import pytest

from busbar.model.errors import ArgumentError, InvalidOperation
from harness.waiting import until
from tests.unit.broker.namespaces import NAMES, Disks, started
from tests.unit.catalogue.several_stores import PARTITIONED, QUEUE

LAST = NAMES[-1]

pytestmark = pytest.mark.usefixtures("short_pauses")


async def test_new_entities_are_placed_elsewhere_also_after_a_start() -> None:
    disks = Disks()
    async with started(disks) as here:
        before = await here.catalogue.create("before", PARTITIONED)
        assert (await here.port.change_store(LAST, "drain")).drained
        assert [view.drained for view in await here.port.stores()] == [name == LAST for name in NAMES]
    async with started(disks) as here:
        assert here.catalogue.find("before").stores == before.stores, "what is there stays"
        assert {*(await here.catalogue.create("after", PARTITIONED)).stores} == {*NAMES[:-1]}
        regular = [(await here.catalogue.create(f"r{n}", QUEUE)).stores[0] for n in range(20)]
        assert LAST not in regular
        assert not (await here.port.change_store(LAST, "undrain")).drained
        assert LAST in (await here.catalogue.create("again", PARTITIONED)).stores


async def test_if_all_stores_are_drained_entities_are_placed_as_if_none_were() -> None:
    async with started(Disks()) as here:
        for name in NAMES:
            await here.port.change_store(name, "drain")
        assert {*(await here.catalogue.create("p", PARTITIONED)).stores} == {*NAMES}


async def test_a_store_is_removed_only_if_it_is_drained_and_holds_nothing() -> None:
    forgotten: list[str] = []

    async def forget(name: str) -> None:
        forgotten.append(name)

    async with started(Disks()) as here:
        with pytest.raises(InvalidOperation, match="Only a cluster"):
            await here.port.change_store(LAST, "remove")
        here.catalogue.store_list.forget = forget
        with pytest.raises(InvalidOperation, match="Drain it first"):
            await here.port.change_store(LAST, "remove")
        await here.catalogue.create("p", PARTITIONED)
        await here.port.change_store(LAST, "drain")
        with pytest.raises(InvalidOperation, match=r"holds fragments of 'p' \(4\)\."):
            await here.port.change_store(LAST, "remove")
        await here.catalogue.delete("p")
        await until(lambda: LAST not in here.catalogue.store_list._emptying())
        assert (await here.port.change_store(LAST, "remove")).state == "removed"
        assert forgotten == [LAST] and [view.name for view in await here.port.stores()] == NAMES[:-1]
        with pytest.raises(ArgumentError, match=f"no store '{LAST}'"):
            await here.port.change_store(LAST, "drain")
        for name in NAMES[1:-1]:
            await here.port.change_store(name, "drain")
            await here.port.change_store(name, "remove")
        await here.port.change_store(NAMES[0], "drain")
        with pytest.raises(InvalidOperation, match="the only one"):
            await here.port.change_store(NAMES[0], "remove")
