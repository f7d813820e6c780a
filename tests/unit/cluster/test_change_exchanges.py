"""A change of the catalogue is one exchange between the controller and each broker process, however many stores it has."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.catalogue.local_broker import LocalBroker
from busbar.model.entities import (
    EntityKind,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.model.taps import TapChange, TapDescription
from harness.waiting import until
from tests.unit.cluster.real_brokers import RealBrokers, real_brokers

REGULAR = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True)
TOPIC = TopicDescription(enable_partitioning=True)
SUBSCRIPTION = "t/Subscriptions/s"
CHANGES: list[Callable[[LocalBroker], Coroutine[Any, Any, object]]] = [
    lambda broker: broker.create("q", REGULAR),
    lambda broker: broker.update("q", replace(REGULAR, max_delivery_count=3)),
    lambda broker: broker.create("p", PARTITIONED),
    lambda broker: broker.update("p", replace(PARTITIONED, max_delivery_count=3)),
    lambda broker: broker.create_tap("p", TapDescription("tap")),
    lambda broker: broker.change_tap("p", "tap", False, TapChange(delete=True)),
    lambda broker: broker.create("t", TOPIC),
    lambda broker: broker.create(SUBSCRIPTION, SubscriptionDescription()),
    lambda broker: broker.create(f"{SUBSCRIPTION}/Rules/r", RuleDescription(SqlFilter("a = 1"))),
    lambda broker: broker.delete(f"{SUBSCRIPTION}/Rules/r"),
    lambda broker: broker.delete("t"),
    lambda broker: broker.delete("p"),
    lambda broker: broker.delete("q"),
]


async def until_purged(here: RealBrokers) -> None:
    """Messages of deleted entities are deleted afterwards, in exchanges of their own."""
    purger = here.catalogue._purger
    await until(lambda: not purger._waiting and (purger._task is None or purger._task.done()))


async def test_a_change_is_one_exchange_with_each_broker(tmp_path: Path) -> None:
    async with real_brokers(tmp_path / "data") as here:
        assert [len(process.hosts) for process in here.processes] == [2, 2]
        for number, change in enumerate(CHANGES):
            await until_purged(here)
            with here.counted() as counts:
                await change(here.port)
                crossed = [(count.requests[:1], count.replies) for count in counts]
                purging = {request for count in counts for request in count.requests[1:]}
            assert crossed == [(["apply_change"], 1)] * 2, f"change {number}"
            assert purging <= {"remove_fragment"}, f"change {number}"
        assert len(here.catalogue) == 0


async def test_the_counts_of_a_page_are_one_request_to_each_broker(tmp_path: Path) -> None:
    async with real_brokers(tmp_path / "data") as here:
        for number in range(12):
            await here.port.create(f"q{number:02}", REGULAR)
        for name in ("p0", "p1"):
            await here.port.create(name, PARTITIONED)
        with here.counted() as counts:
            page = await here.port.page(EntityKind.QUEUE, "", 0, 100)
            assert [(count.requests, count.replies) for count in counts] == [(["inspect"], 1)] * 2
        assert [view.path for view in page.entities] == [
            "p0",
            "p1",
            *(f"q{number:02}" for number in range(12)),
        ]
        assert all(runtime.available for runtime in page.runtimes)
        with here.counted() as counts:
            assert (await here.port.page(EntityKind.QUEUE, "", 99, 10)).entities == []
            assert [count.requests for count in counts] == [[], []], "nothing is asked for nothing"


async def test_a_broker_that_is_killed_in_the_middle_of_a_creation(tmp_path: Path) -> None:
    async with real_brokers(tmp_path / "data") as here:
        kept = await here.port.create("kept", PARTITIONED)
        os.kill(here.pid(1), signal.SIGSTOP)  # it has the request, and does nothing
        creation = asyncio.create_task(here.port.create("p", PARTITIONED))
        channel = here.processes[0].channel
        assert channel is not None
        await until(lambda: not channel._calls)  # the other one has replied
        assert not creation.done()
        os.kill(here.pid(1), signal.SIGKILL)
        with pytest.raises(ServerBusy, match="taken back"):
            await creation
        with pytest.raises(EntityNotFound):
            await here.port.entity("p")
        with pytest.raises(ServerBusy, match="is unavailable"):
            await here.port.create("p", PARTITIONED)
        await here.port.update("kept", replace(PARTITIONED, max_delivery_count=3))
        await until(lambda: not here.stores.unavailable(), seconds=30)
        made = await here.port.create("p", PARTITIONED)
        assert set(made.fragments).isdisjoint(kept.fragments)
        await here.port.delete("kept")
    async with real_brokers(tmp_path / "data") as here:
        assert await here.port.entity("p") == made
        with pytest.raises(EntityNotFound):
            await here.port.entity("kept")


async def test_nothing_crosses_for_a_change_that_cannot_be_made(tmp_path: Path) -> None:
    async with real_brokers(tmp_path / "data") as here:
        await here.port.create("p", PARTITIONED)
        await here.port.create("t", TOPIC)
        await here.port.change_store("store-3", "offline")
        with here.counted() as counts:
            for change in (
                here.port.create("new", PARTITIONED),
                here.port.create(SUBSCRIPTION, SubscriptionDescription()),
                here.port.create_tap("p", TapDescription("tap")),
            ):
                with pytest.raises(ServerBusy, match="store-3 is unavailable"):
                    await change
            assert [count.requests for count in counts] == [[], []]
            await here.port.delete("p")
            assert [count.requests[0] for count in counts] == ["apply_change"] * 2
        await here.port.change_store("store-3", "online")
        await here.port.create("new", PARTITIONED)
