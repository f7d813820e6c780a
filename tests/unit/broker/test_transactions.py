"""Transactions in the commit loop: of one fragment, and of a topic (1) with its subscriptions (2, 3 and 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.broker.host_api import StoreState
from busbar.model.commands import COMPLETE, Inspect, Send, Settle, Transact, TransactionPart
from busbar.model.effects import Delivered, Done, Inspected, Refused
from busbar.model.entities import SubscriptionDescription
from busbar.model.errors import EntityNotFound, MessageLockLost
from busbar.model.message import ACTIVE
from harness.memory_store import Fault
from tests.unit.broker.hosting import Hosting, demand, draft, hosting, send, topic

pytestmark = pytest.mark.usefixtures("short_pauses")

TOPIC = 1
SUBSCRIPTIONS = [2, 3, 4]
SUBSCRIPTION = SubscriptionDescription().fragment_settings()


@asynccontextmanager
async def publishing(duplicates: bool = False) -> AsyncIterator[Hosting]:
    async with hosting(fragments=()) as here:
        await here.host.add_fragments(
            {TOPIC: topic(SUBSCRIPTIONS, duplicates)} | dict.fromkeys(SUBSCRIPTIONS, SUBSCRIPTION)
        )
        here.host.submit([demand(2, 1), demand(3, 1), send(TOPIC, 1)])
        await here.sent(1)
        await here.until(lambda: len(here.delivered()) == 2)
        here.store.groups, here.store.log = [], []
        yield here


def settling(fragment: int, here: Hosting, nonce: int = 0) -> Settle:
    """Completes what was delivered of a fragment."""
    effect = next(effect for effect in here.all(Delivered) if effect.fragment == fragment)
    numbers = [record.n for record in effect.records]
    return Settle(fragment, 1, 0, COMPLETE, numbers, [nonce or int(effect.nonce)] * len(numbers), None, True)


def sending(count: int = 1) -> Send:
    return Send(TOPIC, 1, 0, [draft()] * count, True)


async def counts(here: Hosting, request: int) -> list[int]:
    asked = [TOPIC, *SUBSCRIPTIONS]
    here.host.submit([Inspect(fragment, 1, request + fragment) for fragment in asked])
    found = []
    for fragment in asked:
        answer = await here.answer(request + fragment)
        assert isinstance(answer, Inspected), answer
        found.append(answer.counts[ACTIVE])
    return found


async def test_a_topic_and_its_subscriptions_are_in_one_commit() -> None:
    async with publishing() as here:
        parts: list[TransactionPart] = [settling(2, here), settling(3, here), sending(2)]
        here.host.submit([Transact(TOPIC, 1, 7, parts)])
        assert isinstance(await here.answer(7), Done)
        (group,) = here.store.groups
        assert sorted(changes.fragment for changes in group) == [TOPIC, *SUBSCRIPTIONS]
        assert await counts(here, 100) == [0, 2, 2, 3], (
            "two messages more each, and those of 2 and 3 are completed"
        )


async def test_if_one_part_cannot_be_done_nothing_is() -> None:
    async with publishing() as here:
        parts: list[TransactionPart] = [settling(2, here), settling(3, here, nonce=999), sending()]
        here.host.submit([Transact(TOPIC, 1, 7, parts)])
        refused = await here.refused(7)
        assert refused.condition == MessageLockLost.condition and refused.certain
        assert here.store.groups == []
        assert await counts(here, 100) == [0, 1, 1, 1]
        here.host.submit([Transact(TOPIC, 1, 8, [settling(2, here), sending()])])
        assert isinstance(await here.answer(8), Done), "the lock is still held"


async def test_a_transaction_of_subscriptions_alone_is_answered_when_they_are_durable() -> None:
    async with publishing() as here:
        here.gate.clear()
        here.host.submit([Transact(TOPIC, 1, 7, [settling(2, here), settling(3, here)])])
        await asyncio.sleep(0.03)
        assert not [effect for effect in here.said if effect.request == 7], (
            "the topic itself has nothing to commit"
        )
        here.gate.set()
        assert isinstance(await here.answer(7), Done)
        assert await counts(here, 100) == [0, 0, 0, 1]


async def test_a_transaction_of_one_subscription_needs_no_topic() -> None:
    async with publishing() as here:
        here.host.submit([Transact(2, 1, 7, [settling(2, here)])])
        assert isinstance(await here.answer(7), Done)
        assert await counts(here, 100) == [0, 0, 1, 1]


@pytest.mark.parametrize("fault", Fault)
async def test_a_commit_that_fails_leaves_all_of_it_or_nothing(fault: Fault) -> None:
    async with publishing() as here:
        here.store.fail_next_commit(fault)
        here.host.submit([Transact(TOPIC, 1, 7, [settling(2, here), sending()])])
        refused = await here.refused(7)
        assert refused.certain is (fault is Fault.FULL)
        await here.until(lambda: here.host.state is StoreState.OPEN)
        whole = [0, 1, 2, 2] if fault is Fault.UNHEARD else [0, 1, 1, 1]
        assert await counts(here, 100) == whole
        await asyncio.sleep(0.02)
        here.host.submit([Transact(TOPIC, 1, 8, [settling(2, here)])])
        answer = await here.answer(8)
        assert isinstance(answer, Refused if fault is Fault.UNHEARD else Done), (
            "its lock is as the store has it"
        )


async def test_what_is_dropped_as_a_duplicate_is_looked_for_in_the_transaction() -> None:
    async with publishing(duplicates=True) as here:
        here.host.submit([Transact(TOPIC, 1, 7, [settling(2, here), sending(2)])])
        assert isinstance(await here.answer(7), Done)
        assert await counts(here, 100) == [0, 0, 1, 1], "all have the id of the first one"


@pytest.mark.parametrize("leader", [TOPIC, 2])
async def test_parts_of_strange_fragments_are_refused(leader: int) -> None:
    async with publishing() as here:
        await here.host.add_fragments({9: SUBSCRIPTION})
        parts: list[TransactionPart] = [settling(2, here), Send(9, 1, 0, [draft()], True)]
        here.host.submit([Transact(leader, 1, 7, parts)])
        assert (await here.refused(7)).condition == EntityNotFound.condition
        assert await counts(here, 100) == [0, 1, 1, 1]
        assert not any(slot.broken for slot in here.host.commit_loop.slots.values())


async def test_a_machine_that_raises_takes_the_whole_transaction_along() -> None:
    class Exploding:
        def __init__(self, machine: object) -> None:
            self._machine = machine

        def __getattr__(self, name: str) -> object:
            return getattr(self._machine, name)

        def apply(self, *_: object) -> None:
            raise ZeroDivisionError("a bug")

    async with publishing() as here:
        parts: list[TransactionPart] = [settling(2, here), settling(3, here), sending()]
        slot = here.host.commit_loop.slots[2]
        slot.machine = Exploding(slot.machine)  # type: ignore[assignment]
        here.host.submit([Transact(TOPIC, 1, 7, parts)])
        await here.refused(7)
        await here.until(lambda: here.host.state is StoreState.OPEN)
        assert here.disk.fragments[3].head.counts[ACTIVE] == 1, "what 3 had to settle is not settled"
        assert here.host.commit_loop.slots[TOPIC].broken
