"""Express topics on a running host: the copies of a message are acknowledged together, each fragment is written by itself.

Fragment 5 is the topic; 3 and 4 are its subscriptions. A content that begins with a digit is for that subscription alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from busbar.broker import commit_loop
from busbar.broker.fragment_machine import FragmentMachine
from busbar.broker.host_api import StoreState
from busbar.model.commands import Command, Inspect, Peek, Send, StoreCopies, Transact
from busbar.model.effects import Delivered, Done, Inspected, Settled
from busbar.model.entities import SubscriptionDescription
from busbar.model.message import ACTIVE, Draft, SubscriptionCopy
from busbar.model.settings import FragmentSettings
from harness.memory_store import Disk, Fault
from tests.unit.broker.hosting import Hosting, ToAll, complete, demand, hosting, topic

pytestmark = pytest.mark.usefixtures("full_for_a_while")

TOPIC, SUBSCRIPTIONS = 5, [3, 4]
DELAY = 120


class ByDigit(ToAll):
    def select_copies(self, content: bytes, n: int, now: int, ttl: int) -> list[SubscriptionCopy]:
        wanted = [int(content[:1])] if content[:1].isdigit() else self.fragments
        return [SubscriptionCopy(fragment, content) for fragment in self.fragments if fragment in wanted]


class Raising:
    """A machine that fails when it gets a copy."""

    def __init__(self, machine: FragmentMachine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def apply(self, command: Command, now: int, nonce: int) -> None:
        if isinstance(command, StoreCopies):
            raise RuntimeError("injected")
        self._machine.apply(command, now, nonce)


def settings(delay: int) -> dict[int, FragmentSettings]:
    copies = SubscriptionDescription().fragment_settings()
    published = topic(SUBSCRIPTIONS)
    copies.express_ms = published.express_ms = delay
    return {3: copies, 4: copies, TOPIC: published}


def publish(request: int, content: bytes = b"x", count: int = 1, forced: bool = False) -> Send:
    drafts = [Draft(content, "id", None, None, 0, 0, forced=forced)] * count
    return Send(TOPIC, 1, request, drafts, True)


def stored(here: Hosting, fragment: int) -> list[bytes | None]:
    return [record.content for record in here.disk.fragment(fragment).lanes[ACTIVE].records.values()]


@asynccontextmanager
async def publishing(delay: int = 60_000, disk: Disk | None = None) -> AsyncIterator[Hosting]:
    """A host whose fragments have given their first numbers, which are written: no other is, until it is due."""
    async with hosting(disk, fragments=()) as here:
        here.rules.kind = ByDigit
        await here.host.add_fragments(settings(delay))
        here.host.submit([publish(900, b"first"), demand(3, 1, 99), demand(4, 1, 99)])
        await here.until(lambda: len(here.delivered()) == 2)
        here.host.submit(
            [complete(effect, 901 + at) for at, effect in enumerate(here.all(Delivered))],
        )
        await here.answer(902)
        await here.until(lambda: here.host.commit_loop.idle)
        here.said.clear()
        here.disk.commits = 0
        yield here


async def counts(here: Hosting, request: int) -> list[int]:
    """Of active messages, by subscription."""
    found = []
    for at, fragment in enumerate(SUBSCRIPTIONS):
        here.host.submit([Inspect(fragment, 1, request + at)])
        answer = await here.answer(request + at)
        assert isinstance(answer, Inspected), answer
        found.append(answer.counts[ACTIVE])
    return found


async def locked(here: Hosting, fragment: int, request: int, consumer: int = 1) -> Delivered:
    """A message that the store has, locked by a consumer of one subscription."""
    here.host.submit([publish(request, b"%d" % fragment, forced=True), demand(fragment, 1, consumer)])
    await here.sent(request)
    await here.until(lambda: any(one.consumer == consumer for one in here.all(Delivered)))
    return next(one for one in here.all(Delivered) if one.consumer == consumer)


# ---- acknowledged together ----


@pytest.mark.parametrize("waiting", SUBSCRIPTIONS)
async def test_a_message_that_waits_in_one_subscription_waits_in_all_and_is_refused_in_all(
    waiting: int,
) -> None:
    """In one of them, a completion waits for its commit, and the message behind it."""
    async with publishing() as here:
        held = await locked(here, waiting, 1)
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([complete(held, 2), publish(3)])
        await here.refused(3)
        await here.refused(2)
        assert sorted(await counts(here, 10)) == [0, 1], "the message that is locked is there, and no other"
        here.host.submit([demand(3, 5, 7), demand(4, 5, 7)])
        await asyncio.sleep(0.25)
        assert [one for one in here.all(Delivered) if one.consumer == 7] == []


async def test_a_message_behind_a_forced_one_waits_in_all_its_subscriptions() -> None:
    """The forced one is for another subscription. The answers of the topic keep their order, so the second one waits."""
    async with publishing() as here:
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([publish(1, b"4", forced=True), publish(2, b"3")])
        await here.refused(1)
        await here.refused(2)
        assert await counts(here, 10) == [0, 0]


async def test_a_message_behind_one_that_is_being_written_waits_in_all_its_subscriptions() -> None:
    async with publishing() as here:
        here.gate.clear()
        here.host.submit([publish(1, b"4", forced=True)])
        await asyncio.sleep(0.03)
        here.host.submit([demand(3, 5), publish(2, b"3")])
        await asyncio.sleep(0.03)
        assert here.said == [], "it was delivered before its sender has an answer that can be relied on"
        here.store.fail_next_commit(Fault.FULL)
        here.gate.set()
        await here.refused(1)
        await here.refused(2)
        assert await counts(here, 10) == [0, 0]


async def test_a_forced_message_is_durable_in_all_subscriptions_before_it_is_acknowledged() -> None:
    async with publishing() as here:
        here.host.submit([publish(1, b"before")])
        await here.sent(1)
        assert here.disk.commits == 0
        here.host.submit([publish(2, b"forced", forced=True)])
        await here.sent(2)
        assert stored(here, 3) == stored(here, 4) == [b"before", b"forced"]
        assert here.disk.commits == 1


async def test_a_transaction_over_topic_and_subscription_is_durable_before_it_is_answered() -> None:
    async with publishing() as here:
        here.host.submit([publish(1, b"3"), demand(3, 1)])
        await here.until(lambda: len(here.delivered()) == 1)
        done = complete(here.all(Delivered)[0], 0)
        here.gate.clear()
        here.host.submit([Transact(TOPIC, 1, 2, [publish(0, b"kept"), done])])
        await asyncio.sleep(0.03)
        assert all(effect.request != 2 for effect in here.said)
        here.gate.set()
        assert isinstance(await here.answer(2), Done)
        assert stored(here, 3) == stored(here, 4) == [b"kept"]


async def test_switched_off_while_a_send_waits_its_copies_are_refused_together() -> None:
    """All fragments have their other settings before any of them applies another command."""
    async with publishing() as here:
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([*[demand(3, 0, 8)] * commit_loop.TURN_COMMANDS, publish(1)])  # it waits for a turn
        changed: dict[int, FragmentSettings] = dict(reversed(settings(0).items()))  # the topic is first
        here.host.change_fragments(changed)
        await here.refused(1)
        assert await counts(here, 10) == [0, 0]


async def test_if_the_machine_of_a_subscription_fails_the_others_do_not_keep_the_copy() -> None:
    async with publishing() as here:
        machine = here.host.commit_loop.slots[4].machine
        here.host.commit_loop.slots[4].machine = cast(FragmentMachine, Raising(machine))
        here.host.submit([publish(1)])
        await here.refused(1)
        await here.until(lambda: here.host.state is StoreState.OPEN and here.host.commit_loop.idle)
        here.host.submit([Inspect(3, 1, 10)])
        answer = await here.answer(10)
        assert isinstance(answer, Inspected) and answer.counts[ACTIVE] == 0


# ---- written each by itself ----


async def commit_of_one(here: Hosting, fragment: int, command: Command) -> None:
    """Have one subscription be written before the other."""
    here.host.submit([command])
    await here.answer(command.request)
    assert len(stored(here, fragment)) == 3


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST, Fault.UNHEARD])
async def test_if_the_write_of_one_subscription_fails_its_copies_stay_and_the_other_has_its_own(
    fault: Fault,
) -> None:
    async with publishing(DELAY) as here:
        here.host.submit([publish(1, count=3)])
        await here.sent(1)
        await commit_of_one(here, 3, Peek(3, 1, 2, 0, 1, 10, 1 << 20))
        assert stored(here, 4) == []
        here.store.fail_next_commit(fault)
        await here.until(lambda: len(stored(here, 4)) == 3, seconds=10)
        await here.until(lambda: here.host.is_open and here.host.commit_loop.idle, seconds=10)
        assert await counts(here, 10) == [3, 3], "each is there once"
        here.host.submit([demand(3, 10), demand(4, 10)])
        await here.until(lambda: len(here.delivered()) == 6)
        for at, effect in enumerate(here.all(Delivered)):
            here.host.submit([complete(effect, 20 + at)])
            settled = await here.answer(20 + at)
            assert isinstance(settled, Settled) and settled.lost == []


async def test_a_crash_between_leaves_the_copies_of_the_subscription_that_was_written() -> None:
    async with publishing() as here:
        here.host.submit([publish(1, count=3)])
        await here.sent(1)
        await commit_of_one(here, 3, Peek(3, 1, 2, 0, 1, 10, 1 << 20))
        again = Hosting(here.disk)  # the first host has written nothing since
        await again.host.open()
        await again.host.add_fragments(settings(60_000))
        assert await counts(again, 10) == [3, 0]
        await again.host.close()
