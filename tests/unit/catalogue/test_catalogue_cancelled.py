"""Who asked for a change of the catalogue may be gone before it is made: then it is made all the same, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.definition import encode_definition
from busbar.model.api import EntityView
from busbar.model.entities import (
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.model.names import key_of
from busbar.model.taps import TapChange, TapDescription
from harness.memory_store import Fault
from tests.unit.broker.namespaces import Disks, Namespace, started

SUBSCRIPTION = "T/Subscriptions/s"
RULE = RuleDescription(SqlFilter("colour = 'blue'"))
CHANGES: dict[str, Callable[[Catalogue], Awaitable[object]]] = {
    "create a queue": lambda to: to.create("new", QueueDescription()),
    "create a partitioned queue": lambda to: to.create("new", QueueDescription(enable_partitioning=True)),
    "create a subscription": lambda to: to.create("T/Subscriptions/new", SubscriptionDescription()),
    "add a rule": lambda to: to.create(f"{SUBSCRIPTION}/Rules/blue", RULE),
    "remove a rule": lambda to: to.delete(f"{SUBSCRIPTION}/Rules/$Default"),
    "update": lambda to: to.update("q", QueueDescription(max_delivery_count=3)),
    "delete a queue": lambda to: to.delete("q"),
    "delete a topic": lambda to: to.delete("T"),
    "create a tap": lambda to: to.create_tap("q", TapDescription("second")),
    "change a tap": lambda to: to.change_tap("q", "first", False, TapChange(delete=True)),
}


class Steps:
    """Counts what hosts begin and end, and cancels a task at one of these steps."""

    def __init__(self, here: Namespace) -> None:
        self.taken = 0
        self.at = 0
        self.whom: asyncio.Task[object] | None = None
        home = here.catalogue._home
        setattr(home, "write", self._stepping(home.write))  # noqa: B010
        for host in here.stores.hosts:
            for name in ("add_fragments", "write_definitions"):
                setattr(host, name, self._stepping(getattr(host, name)))

    def _stepping(self, work: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Any]:
        async def stepping(argument: Any) -> None:
            await self._step()
            await work(argument)
            await self._step()

        return stepping

    async def _step(self) -> None:
        self.taken += 1
        if self.taken == self.at and self.whom is not None:
            self.whom.cancel()
        await asyncio.sleep(0)


def in_memory(catalogue: Catalogue) -> dict[str, bytes]:
    return {key_of(view.path): encode_definition(view) for view in catalogue._entries}


async def cancelled_at(step: int, change: Callable[[Catalogue], Awaitable[object]]) -> bool:
    """Try a change whose caller is cancelled at a step; False: it was over before."""
    disks = Disks()
    async with started(disks) as here:
        catalogue = here.catalogue
        await catalogue.create("q", QueueDescription())
        await catalogue.create("T", TopicDescription())
        await catalogue.create(SUBSCRIPTION, SubscriptionDescription())
        await catalogue.create_tap("q", TapDescription("first"))
        heard = in_memory(catalogue)

        def hear(path: str, view: EntityView | None) -> None:
            if view is None:
                del heard[key_of(path)]
            else:
                heard[key_of(path)] = encode_definition(view)

        catalogue.watch(hear)
        steps = Steps(here)
        steps.at = step

        async def ask() -> object:
            return await change(catalogue)

        steps.whom = asyncio.get_running_loop().create_task(ask())
        (outcome,) = await asyncio.gather(steps.whom, return_exceptions=True)
        steps.whom = None
        await catalogue.create("after", QueueDescription())
        kept = in_memory(catalogue)
        assert heard == kept, f"step {step}: who watches has heard of something else"
    async with started(disks) as here:
        assert in_memory(here.catalogue) == kept, f"step {step}: a restart finds something else"
    if outcome is not None and isinstance(outcome, BaseException):
        assert isinstance(outcome, asyncio.CancelledError), outcome
        return True
    return False


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_is_the_same_in_memory_and_in_the_stores_whenever_its_caller_goes(name: str) -> None:
    step = 1
    while await cancelled_at(step, CHANGES[name]):
        step += 1
    assert step > 4, "at least the catalogue and the definitions of a store are written"


async def test_a_change_that_has_not_begun_goes_with_its_caller() -> None:
    async with started(Disks()) as here:
        steps = Steps(here)
        first = asyncio.get_running_loop().create_task(here.catalogue.create("first", QueueDescription()))
        while not steps.taken:
            await asyncio.sleep(0)
        second = asyncio.get_running_loop().create_task(here.catalogue.create("second", QueueDescription()))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await first
        await here.catalogue.create("third", QueueDescription())
        assert [view.path for view in here.catalogue.entities()] == ["first", "third"]


async def test_the_end_waits_for_the_change_under_way_and_refuses_those_that_wait() -> None:
    disks = Disks()
    async with started(disks) as here:
        steps = Steps(here)
        under_way = asyncio.get_running_loop().create_task(here.catalogue.create("first", QueueDescription()))
        while not steps.taken:
            await asyncio.sleep(0)
        waiting = asyncio.get_running_loop().create_task(here.catalogue.create("second", QueueDescription()))
        await asyncio.sleep(0)
        under_way.cancel()
        await here.catalogue.close()
        assert here.catalogue.find("first").fragments
        with pytest.raises(ServerBusy, match="shutting down"):
            await waiting
    async with started(disks) as here:
        assert here.catalogue.find("first").fragments
        with pytest.raises(EntityNotFound):
            here.catalogue.find("second")


async def test_what_fails_after_its_caller_is_gone_is_not_made_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disks = Disks()
    async with started(disks) as here:
        view = await here.catalogue.create("q", QueueDescription())
        disks.catalogue.faults.append(Fault.LOST)
        steps = Steps(here)
        steps.at = 1
        steps.whom = asyncio.get_running_loop().create_task(here.catalogue.delete("q"))
        await asyncio.gather(steps.whom, return_exceptions=True)
        async with asyncio.timeout(5):
            while "caller is gone" not in caplog.text:
                await asyncio.sleep(0.002)
        assert here.catalogue.find("q") == view
    async with started(disks) as here:
        assert here.catalogue.find("q") == view
