"""A change of the catalogue during which a store or a broker fails: what gateways, fragments and stores have of it then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from busbar.catalogue.placement import place
from busbar.catalogue.store_definitions import decode_entry
from busbar.model.api import EntityView
from busbar.model.commands import Send
from busbar.model.effects import Effect, Sent
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.model.message import Draft
from harness.memory_store import Fault
from harness.waiting import until
from tests.unit.broker.namespaces import quick_pauses
from tests.unit.cluster.several_brokers import FOUR, Cluster, cluster

PARTITIONED = QueueDescription(enable_partitioning=True)
SHORTER = QueueDescription(enable_partitioning=True, lock_duration=30_000)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    quick_pauses(monkeypatch)
    yield


async def send(here: Cluster, broker: str, fragment: int) -> Effect:
    """Send a message to a fragment through the gateway of a broker."""
    heard: list[Effect] = []
    port = here.brokers[broker].port
    origin = port.connect(heard.extend)
    port.submit([Send(fragment, origin, 1, [Draft(b"m", "1", None, None, 0, 0)], True)])
    await until(lambda: heard)
    port.disconnect(origin)
    return heard[0]


def locks(here: Cluster) -> set[int]:
    """The lock durations of all fragments that are in service."""
    return {
        int(slot.machine.settings.lock_ms)
        for broker in here.brokers.values()
        for host in broker.there.hosts.values()
        for slot in host.commit_loop.slots.values()
    }


def has_entry(here: Cluster, store: str, name: str) -> bool:
    encoded = here.disks.entry(store, name)
    return encoded is not None and decode_entry(encoded).value is not None


async def test_a_gateway_is_answered_for_an_entity_when_its_change_is_decided() -> None:
    async with cluster() as here:
        quick, slow = here.brokers["broker-0"], here.brokers["broker-1"]
        hangs = here.disks.hanging["store-1"]
        hangs.begin("write_definitions")
        creation = asyncio.create_task(here.controller.create("p", PARTITIONED))
        await until(lambda: quick.knows("p"))
        assert not slow.knows("p") and not creation.done()
        asking = asyncio.create_task(quick.port.entity("P"))
        await asyncio.sleep(0.05)
        assert not asking.done(), "its definition may still be taken back"
        hangs.end()
        view = await creation
        assert await asking == view
        assert slow.knows("p") and await slow.port.entity("p") == view
        for fragment in view.fragments:
            assert isinstance(await send(here, "broker-0", fragment), Sent)
            assert isinstance(await send(here, "broker-1", fragment), Sent)


async def test_a_creation_that_fails_in_one_store_is_nowhere() -> None:
    async with cluster() as here:
        quick, slow = here.brokers["broker-0"], here.brokers["broker-1"]
        here.disks.failing.add("store-1")
        hangs = here.disks.hanging["store-1"]
        hangs.begin("commit")  # of the new fragments
        creation = asyncio.create_task(here.controller.create("p", PARTITIONED))
        await until(lambda: quick.knows("p"))
        asking = asyncio.create_task(quick.port.entity("p"))
        hangs.end()
        with pytest.raises(ServerBusy, match="store-1 failed, and the change was taken back"):
            await creation
        with pytest.raises(EntityNotFound):
            await asking
        assert [view is None for path, view in quick.told if path == "p"] == [False, True]
        for broker in (quick, slow):
            assert not broker.knows("p")
            with pytest.raises(EntityNotFound):
                await broker.port.entity("p")
        await here.until_open()
        assert not any(has_entry(here, store, "entity/p") for store in FOUR)
        await until(lambda: all(not disk.fragments for disk in here.disks.there.values()))
        view = await here.controller.create("p", PARTITIONED)
        assert isinstance(await send(here, "broker-0", view.fragments[1]), Sent)


async def test_an_update_stands_in_settings_and_views_although_a_store_fails() -> None:
    async with cluster() as here:
        await here.controller.create("p", PARTITIONED)
        here.disks.failing.add("store-3")
        updated = await here.controller.update("p", SHORTER)
        assert locks(here) == {30_000}
        for broker in here.brokers.values():
            assert await broker.port.entity("p") == updated
            assert broker.told[-1] == ("p", updated)
        await here.until_open()
        assert locks(here) == {30_000}
        kept = decode_entry(here.disks.entry("store-3", "entity/p") or b"")
        assert kept.value == here.disks.catalogue.value("entity/p"), "it has got its definition"


async def test_an_update_that_is_not_made_is_nowhere() -> None:
    async with cluster() as here:
        view = await here.controller.create("p", PARTITIONED)
        here.disks.catalogue.faults.extend([Fault.FULL, Fault.LOST])
        for _ in range(2):
            with pytest.raises(ServerBusy, match="nothing was changed"):
                await here.controller.update("p", SHORTER)
        assert locks(here) == {60_000}
        for broker in here.brokers.values():
            assert await broker.port.entity("p") == view
            assert broker.told == [("p", view)]


async def test_a_deletion_stands_although_a_store_fails_and_its_messages_go() -> None:
    async with cluster() as here:
        view = await here.controller.create("p", PARTITIONED)
        for fragment in view.fragments:
            assert isinstance(await send(here, "broker-1", fragment), Sent)
        here.disks.failing.add("store-0")
        await here.controller.delete("p")
        for broker in here.brokers.values():
            with pytest.raises(EntityNotFound):
                await broker.port.entity("p")
            assert broker.told[-1] == ("p", None)
        await here.until_open()
        await until(lambda: all(not disk.fragments for disk in here.disks.there.values()))
        assert not any(has_entry(here, store, "entity/p") for store in FOUR)


async def test_a_subscription_that_fails_is_unknown_to_its_topic() -> None:
    async with cluster() as here:
        topic = await here.controller.create("t", TopicDescription(enable_partitioning=True))
        here.disks.failing.add("store-1")
        with pytest.raises(ServerBusy):
            await here.controller.create("t/Subscriptions/s", SubscriptionDescription())
        await here.until_open()
        assert subscribers(here, topic) == set(), "there is nothing to pass messages on to"
        made = await here.controller.create("t/Subscriptions/s", SubscriptionDescription())
        assert subscribers(here, topic) == {*made.fragments}


def subscribers(here: Cluster, topic: EntityView) -> set[int]:
    """The fragments to which those of a topic pass messages on."""
    found: set[int] = set()
    for fragment, store in zip(topic.fragments, topic.stores, strict=True):
        settings = here.brokers[FOUR[store]].host(store).commit_loop.slots[fragment].machine.settings
        assert settings.topic is not None
        found.update(settings.topic.fragments)
    return found


async def test_a_broker_that_dies_in_the_middle_takes_the_creation_along() -> None:
    async with cluster() as here:
        here.disks.hanging["store-1"].begin("write_definitions")
        creation = asyncio.create_task(here.controller.create("p", PARTITIONED))
        left = here.brokers["broker-0"]
        await until(lambda: left.knows("p"))
        await here.kill("broker-1")
        with pytest.raises(ServerBusy, match="taken back"):
            await creation
        assert not left.knows("p") and left.told[-1] == ("p", None)
        assert not has_entry(here, "store-0", "entity/p")
        with pytest.raises(ServerBusy, match="unavailable"):
            await here.controller.create("p", PARTITIONED)
        here.disks.hanging["store-1"].end()
        await here.start("broker-1")
        await here.until_open()
        await here.join("broker-1")
        assert not has_entry(here, "store-1", "entity/p"), "what it had written goes when it returns"
        view = await here.controller.create("p", PARTITIONED)
        for broker in here.brokers.values():
            assert await broker.port.entity("p") == view


async def test_a_broker_without_a_part_of_it_may_die() -> None:
    async with cluster() as here:
        name = next(name for name in map(str, range(50)) if place(name, 1, here.stores.names) == ("store-0",))
        hangs = here.disks.hanging["store-0"]
        hangs.begin("write_definitions")
        creation = asyncio.create_task(here.controller.create(name, QueueDescription()))
        await until(lambda: here.brokers["broker-1"].knows(name))
        await here.kill("broker-1")
        hangs.end()
        view = await creation
        left = here.brokers["broker-0"]
        assert await left.port.entity(name) == view
        back = await here.start("broker-1")
        await here.until_open()
        await here.join("broker-1")
        assert await back.port.entity(name) == view
        assert has_entry(here, "store-0", f"entity/{name}") and not has_entry(
            here, "store-3", f"entity/{name}"
        )


async def test_a_broker_that_joins_while_a_change_is_under_way_has_it_when_the_client_is_answered() -> None:
    async with cluster() as here:
        await here.kill("broker-1")
        await here.start("broker-1")
        await here.until_open()
        hangs = here.disks.hanging["store-0"]
        hangs.begin("write_definitions")
        creation = asyncio.create_task(here.controller.create("p", PARTITIONED))
        await asyncio.to_thread(hangs.reached.wait, 10)
        await here.join("broker-1")
        late = here.brokers["broker-1"]
        assert not late.knows("p")
        hangs.end()
        view = await creation
        assert late.knows("p") and await late.port.entity("p") == view


async def test_without_one_of_two_brokers_all_is_possible_that_needs_no_store_of_it() -> None:
    async with cluster() as here:
        await here.controller.create("p", PARTITIONED)
        gone = await here.controller.create("gone", PARTITIONED)
        for fragment in gone.fragments:
            assert isinstance(await send(here, "broker-0", fragment), Sent)
        await here.kill("broker-1")
        left = here.brokers["broker-0"]
        calls = left.channel._last_call
        with pytest.raises(ServerBusy, match="unavailable"):
            await here.controller.create("new", PARTITIONED)
        assert left.channel._last_call == calls, "nothing was asked of brokers"
        regular = [await here.controller.create(f"r{number}", QueueDescription()) for number in range(8)]
        assert {view.stores for view in regular} == {("store-0",), ("store-2",)}
        updated = await here.controller.update("p", SHORTER)
        await here.controller.delete("gone")
        assert await left.port.entity("p") == updated
        assert isinstance(await send(here, "broker-0", regular[0].fragments[0]), Sent)
        back = await here.start("broker-1")
        await here.until_open()
        await here.join("broker-1")
        assert locks(here) == {30_000, 60_000} and await back.port.entity("p") == updated
        assert {
            int(slot.machine.settings.lock_ms)
            for host in back.there.hosts.values()
            for slot in host.commit_loop.slots.values()
        } == {30_000}
        with pytest.raises(EntityNotFound):
            await back.port.entity("gone")
        held = {*gone.fragments}
        await until(lambda: all(not held & disk.fragments.keys() for disk in here.disks.there.values()))
        assert not any(has_entry(here, store, "entity/gone") for store in FOUR)
        assert isinstance(await send(here, "broker-1", updated.fragments[1]), Sent)
