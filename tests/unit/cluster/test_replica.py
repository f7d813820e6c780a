"""Lists are answered by the gateway of each broker, from what it has of the catalogue."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from busbar.catalogue.replica import CatalogueReplica, ReplicaFault
from busbar.model.api import EntityView
from busbar.model.commands import Send
from busbar.model.effects import Effect
from busbar.model.entities import (
    EntityKind,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import EntityNotFound
from busbar.model.message import Draft
from harness.waiting import until
from tests.unit.cluster.several_brokers import Cluster, cluster

QUEUE = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True)


def names(views: list[EntityView]) -> list[str]:
    return [view.path for view in views]


def calls(here: Cluster, broker: str) -> int:
    """How often a broker has called the controller."""
    return here.brokers[broker].there._last_call


async def test_lists_cost_no_request_and_pages_one_for_their_counts() -> None:
    async with cluster() as here:
        for number in range(5):
            await here.controller.create(f"q{number}", QUEUE)
        await here.controller.create("t", TopicDescription())
        await here.controller.create("t/Subscriptions/s", SubscriptionDescription())
        await here.controller.create("t/Subscriptions/s/Rules/r", RuleDescription(SqlFilter("a = 1")))
        for broker in ("broker-0", "broker-1"):
            port = here.brokers[broker].port
            rules = await port.list(EntityKind.RULE, "T/subscriptions/S", 0, 10)
            assert names([*rules]) == ["t/Subscriptions/s/Rules/$Default", "t/Subscriptions/s/Rules/r"]
            before = calls(here, broker)
            assert names([*await port.list(EntityKind.QUEUE, "", 1, 2)]) == ["q1", "q2"]
            with pytest.raises(EntityNotFound):
                await port.list(EntityKind.SUBSCRIPTION, "none", 0, 10)
            assert calls(here, broker) == before
            first = await port.page(EntityKind.QUEUE, "", 0, 3)
            before = calls(here, broker)
            second = await port.page(EntityKind.QUEUE, "", 3, 3)
            assert calls(here, broker) == before + 1
            assert (names([*first.entities]), first.has_more) == (["q0", "q1", "q2"], True)
            assert (names([*second.entities]), second.has_more) == (["q3", "q4"], False)
            assert first.namespace == "busbar" and len(first.runtimes) == 3


async def test_the_counts_of_a_page_are_those_of_all_brokers() -> None:
    async with cluster() as here:
        view = await here.controller.create("p", PARTITIONED)
        port = here.brokers["broker-0"].port
        heard: list[Effect] = []
        origin = port.connect(heard.extend)
        for request, fragment in enumerate(view.fragments, 1):
            port.submit([Send(fragment, origin, request, [Draft(b"m", "1", None, None, 0, 0)], True)])
        await until(lambda: len(heard) == 16)
        for broker in here.brokers.values():
            page = await broker.port.page(EntityKind.QUEUE, "", 0, 10)
            assert [(one.active, one.available) for one in page.runtimes] == [(16, True)]
            assert page.runtimes[0].accessed > 0
        await here.controller.change_store("store-2", "offline")
        (limited,) = (await port.page(EntityKind.QUEUE, "", 0, 10)).runtimes
        assert (limited.active, limited.available) == (12, False)
        await here.kill("broker-1")
        (limited,) = (await port.page(EntityKind.QUEUE, "", 0, 10)).runtimes
        assert (limited.active, limited.available) == (4, False)


async def test_a_list_waits_for_a_creation_that_may_be_taken_back() -> None:
    async with cluster() as here:
        quick = here.brokers["broker-0"]
        hangs = here.disks.hanging["store-1"]
        hangs.begin("commit")
        here.disks.failing.add("store-1")
        creation = asyncio.create_task(here.controller.create("p", PARTITIONED))
        await until(lambda: quick.knows("p"))
        listing = asyncio.create_task(quick.port.list(EntityKind.QUEUE, "", 0, 10))
        await asyncio.sleep(0.05)
        assert not listing.done()
        hangs.end()
        await asyncio.gather(creation, return_exceptions=True)
        assert [*await listing] == []


def test_numbers_rise() -> None:
    replica = CatalogueReplica()
    view = EntityView("Q", QUEUE, (1,), 1, 1, ("store-0",))
    replica.load(7, [view])
    assert replica.apply(9, [("q", None), ("new", EntityView("new", QUEUE, (2,)))]) == [view]
    assert replica.version == 9 and replica.get("q") is None and replica.find("NEW").fragments == (2,)
    for number in (8, 9):
        with pytest.raises(ReplicaFault):
            replica.apply(number, [("new", None)])
    assert replica.get("new") is not None


async def test_entities_of_another_controller_are_taken_over_as_a_change() -> None:
    """It has deleted one entity, changed another and created a third while this broker had no controller."""
    async with cluster() as here:
        for path in ("gone", "changed", "same"):
            await here.controller.create(path, QUEUE)
        port = here.brokers["broker-0"].port
        told: list[tuple[str, bool]] = []
        port.watch(lambda path, view: told.append((path, view is not None)))
        version, views = here.controller.entries()
        known = {view.path: view for view in views}
        changed = replace(known["changed"], description=QueueDescription(max_delivery_count=3))
        created = replace(known["same"], path="created", fragments=(99,))
        port.reload_entities(version + 7, [known["same"], changed, created])
        assert sorted(told) == [("changed", True), ("created", True), ("gone", False)]
        assert names(port.replica.page(EntityKind.QUEUE, "", 0, 9)) == ["changed", "created", "same"]
        assert port.replica.version == version + 7
        assert (await port.entity("created")).fragments == (99,), "nobody has to be asked"
        port.reload_entities(version + 7, [known["same"], changed, created])
        assert len(told) == 3, "nothing is different"
