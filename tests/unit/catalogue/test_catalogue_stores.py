"""Changes of the catalogue over several stores, some of which fail: the catalogue stays whole."""

from __future__ import annotations

import asyncio

import pytest

from busbar.catalogue.placement import place
from busbar.catalogue.store_definitions import decode_entry, encode_entry
from busbar.model.commands import Inspect
from busbar.model.effects import Inspected, Sent
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.store.catalogue_contract import VersionedEntry
from busbar.store.contract import StoreError
from harness.memory_store import Fault
from tests.unit.broker.namespaces import NAMES, Disks, started
from tests.unit.catalogue.several_stores import PARTITIONED, QUEUE, copy_of, send

pytestmark = pytest.mark.usefixtures("short_pauses")


def test_entries_say_their_version() -> None:
    for entry in (
        VersionedEntry(0, b"{}"),
        VersionedEntry(12, b""),
        VersionedEntry(12, b"=v1-"),
        VersionedEntry(1 << 60, None),
    ):
        assert decode_entry(encode_entry(entry)) == entry
    assert decode_entry(b'{"kind":"queue"}') == VersionedEntry(0, b'{"kind":"queue"}')
    assert decode_entry(b"") == VersionedEntry(0, b"")
    with pytest.raises(StoreError):
        decode_entry(b"vague")


async def test_a_creation_needs_the_stores_of_its_fragments_and_nothing_else_needs_a_store() -> None:
    disks = Disks()
    async with started(disks) as here:
        first = await here.catalogue.create("p", PARTITIONED)
        regular = {(await here.catalogue.create(f"r{n}", QUEUE)).stores[0]: f"r{n}" for n in range(40)}
        (gone,) = here.catalogue.find(regular["store-2"]).fragments
        assert isinstance(await here.ask(send(here, gone, 1)), Sent)
        await here.port.change_store("store-2", "offline")
        with pytest.raises(ServerBusy, match="store-2 is unavailable, which has to hold a part of it"):
            await here.catalogue.create("new", PARTITIONED)
        with pytest.raises(EntityNotFound):
            here.catalogue.find("new")
        await here.catalogue.update("p", QueueDescription(enable_partitioning=True, max_delivery_count=3))
        await here.catalogue.delete(regular["store-2"])
        for name in NAMES[:2] + NAMES[3:]:
            await here.port.change_store(name, "offline")
        await here.catalogue.delete(regular["store-0"])
        with pytest.raises(ServerBusy):
            await here.catalogue.create("nowhere", QUEUE)
        for name in NAMES:
            assert (await here.port.change_store(name, "online")).state == "open"
        async with asyncio.timeout(5):
            while gone in disks.there["store-2"].fragments:
                await asyncio.sleep(0.002)
        for fragment, store in zip(first.fragments, first.stores, strict=True):
            settings = here.host(store).commit_loop.slots[fragment].machine.settings
            assert settings.max_deliveries == 3, "also in the store that was unavailable"
        await here.catalogue.create("new", PARTITIONED)
        await here.catalogue.delete("p")
    async with started(disks) as here:
        for path in ("p", regular["store-2"], regular["store-0"]):
            with pytest.raises(EntityNotFound):
                here.catalogue.find(path)
        assert here.catalogue.find("new").stores


async def test_a_regular_entity_is_created_in_a_store_that_is_there() -> None:
    async with started(Disks()) as here:
        await here.port.change_store("store-2", "offline")
        names = [f"r{number}" for number in range(12)]
        made = [await here.catalogue.create(name, QUEUE) for name in names]
        placed = [place(name, 1, NAMES) for name in names]
        assert ("store-2",) in placed and all(view.stores != ("store-2",) for view in made)
        for view, expected in zip(made, placed, strict=True):
            assert view.stores == expected or expected == ("store-2",), "others stay where they would be"
        for request, view in enumerate(made, 1):
            assert isinstance(await here.ask(send(here, view.fragments[0], request)), Sent)


async def test_a_deleted_fragment_of_a_store_that_is_back_does_nothing_any_more() -> None:
    """It was deleted while its store was unavailable. Until it is emptied, it would forward what it has."""
    disks = Disks()
    async with started(disks) as here:
        source = await here.catalogue.create("source", QUEUE)
        (store,) = source.stores
        target = next(f"t{n}" for n in range(20) if place(f"t{n}", 1, NAMES) != (store,))
        await here.catalogue.create(target, QUEUE)
        await here.ask(send(here, source.fragments[0], 1, count=5))
        await here.port.change_store(store, "offline")
        await here.catalogue.update("source", QueueDescription(forward_to=target))
        await here.catalogue.delete("source")
        assert source.fragments[0] not in here.host(store).commit_loop.slots
        await here.port.change_store(store, "online")
        async with asyncio.timeout(5):
            while source.fragments[0] in disks.there[store].fragments:
                await asyncio.sleep(0.002)
        assert (await here.port.runtime(target)).active == 0


async def test_a_creation_that_fails_in_one_of_its_stores_is_taken_back() -> None:
    disks = Disks()
    async with started(disks) as here:
        disks.failing.add("store-1")
        with pytest.raises(ServerBusy, match="store-1 failed, and the change was taken back"):
            await here.catalogue.create("p", PARTITIONED)
        with pytest.raises(EntityNotFound):
            here.catalogue.find("p")
        assert disks.catalogue.value("entity/p") is None
        await here.until_open()
        async with asyncio.timeout(5):
            while any(disk.fragments for disk in disks.there.values()):
                await asyncio.sleep(0.002)
        first = (await here.catalogue.create("p", PARTITIONED)).fragments
    async with started(disks) as here:
        assert here.catalogue.find("p").fragments == first
        assert isinstance(await here.ask(Inspect(first[0], here.origin, 1)), Inspected)


async def test_a_creation_that_cannot_be_taken_back_stands_and_that_is_said() -> None:
    disks = Disks()
    async with started(disks) as here:
        disks.failing.add("store-1")
        hangs = disks.hanging["store-1"]
        hangs.begin("commit")  # of the new fragments
        creation = asyncio.create_task(here.catalogue.create("p", PARTITIONED))
        await asyncio.to_thread(hangs.reached.wait, 5)
        disks.catalogue.faults.append(Fault.FULL)
        hangs.end()
        with pytest.raises(ServerBusy) as failed:
            await creation
        assert not failed.value.certain
        await here.until_open()
        for request, fragment in enumerate(here.catalogue.find("p").fragments, 1):
            assert isinstance(await here.ask(send(here, fragment, request)), Sent)


async def test_a_deletion_stands_although_one_of_its_stores_fails() -> None:
    disks = Disks()
    async with started(disks) as here:
        first = (await here.catalogue.create("p", PARTITIONED)).fragments
        disks.failing.add("store-1")
        await here.catalogue.delete("p")
        with pytest.raises(EntityNotFound):
            here.catalogue.find("p")
        await here.until_open()
        async with asyncio.timeout(5):
            while any(disk.fragments for disk in disks.there.values()):
                await asyncio.sleep(0.002)
        second = await here.catalogue.create("p", PARTITIONED)
        assert set(first).isdisjoint(second.fragments)
    async with started(disks) as here:
        assert here.catalogue.find("p") == second
        assert disks.entry("store-1", "entity/p") is not None


async def test_a_change_that_was_cut_short_is_finished_by_the_next_start() -> None:
    """The process died when the catalogue had the change, and no store had anything of it."""
    disks = Disks()
    async with started(disks) as here:
        old = await here.catalogue.create("old", QUEUE)
        await here.ask(send(here, old.fragments[0], 1))
    before = {name: copy_of(disks.there[name]) for name in NAMES}
    async with started(disks) as here:
        await here.catalogue.create("p", PARTITIONED)
        await here.catalogue.delete("old")
        found = disks.catalogue.content
    disks.there, disks.catalogue.content = before, found
    async with started(disks) as here:
        with pytest.raises(EntityNotFound):
            here.catalogue.find("old")
        for request, fragment in enumerate(here.catalogue.find("p").fragments, 1):
            assert isinstance(await here.ask(send(here, fragment, request)), Sent)
        async with asyncio.timeout(5):
            while any(old.fragments[0] in disk.fragments for disk in disks.there.values()):
                await asyncio.sleep(0.002)
    assert all((disks.entry(name, "entity/p") or b"")[:1] == b"v" for name in NAMES)


async def test_each_store_has_the_definitions_of_its_own_fragments() -> None:
    disks = Disks()

    def kept(store: str) -> set[str]:
        return {name for name in disks.there[store].definitions if name.startswith(("entity/", "emptying/"))}

    async with started(disks) as here:
        await here.catalogue.create("p", PARTITIONED)
        topic = await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create("t/Subscriptions/s", SubscriptionDescription())
        (store,) = topic.stores
        subscription = {"entity/t", "entity/t/subscriptions/s", "entity/t/subscriptions/s/rules/$default"}
        for name in NAMES:
            assert kept(name) == {"entity/p"} | (subscription if name == store else set())
        await here.catalogue.delete("t/Subscriptions/s/Rules/$Default")
        assert kept(store) == {"entity/p", "entity/t", "entity/t/subscriptions/s"}
        out = next(name for name in NAMES if name != store)
        await here.port.change_store(out, "offline")
        await here.catalogue.delete("p")
        await here.catalogue.delete("t")
        assert not any(name.startswith("entity/") for name in kept(store))
        assert kept(out) == {"entity/p"}, "it is behind"
        assert (await here.port.change_store(out, "online")).state == "open"
        assert "entity/p" not in kept(out)
    async with started(disks):
        pass
    assert not any(name.startswith("entity/") for store in NAMES for name in kept(store))


async def test_definitions_that_a_full_store_did_not_get_come_with_the_next_change() -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("r", QUEUE)
        (store,) = view.stores
        old = disks.entry(store, "entity/r")
        disks.full.add(store)
        await here.catalogue.update("r", QueueDescription(max_delivery_count=3))
        assert disks.entry(store, "entity/r") == old and not here.stores.unavailable()
        assert here.host(store).commit_loop.slots[view.fragments[0]].machine.settings.max_deliveries == 3
        await here.catalogue.create("p", PARTITIONED)
        new = decode_entry(disks.entry(store, "entity/r") or b"")
        assert new.value == disks.catalogue.value("entity/r")
