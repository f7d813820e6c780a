"""A send with more copies than a turn may make: several commits, and each message in all subscriptions or in none.

Fragment 1 is the topic; those from 2 on are its subscriptions.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from busbar.broker.host_api import StoreState
from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes
from busbar.model.commands import Send, StoreCopies
from busbar.model.effects import Effect, Refused, Sent
from busbar.model.entities import SubscriptionDescription
from busbar.model.message import ACTIVE, SCHEDULED
from harness.memory_store import Disk, Fault
from tests.unit.broker.hosting import Hosting, demand, draft, hosting, topic
from tests.unit.broker.test_topic_commits import break_machine

pytestmark = pytest.mark.usefixtures("short_pauses")

TOPIC = 1
SUBSCRIPTION = SubscriptionDescription().fragment_settings()


@asynccontextmanager
async def publishing(
    subscriptions: int, disk: Disk | None = None, in_a_turn: int = 0
) -> AsyncIterator[Hosting]:
    async with hosting(disk, fragments=()) as here:
        beside = list(range(2, 2 + subscriptions))
        await here.host.add_fragments({TOPIC: topic(beside)} | dict.fromkeys(beside, SUBSCRIPTION))
        if in_a_turn:
            here.host.commit_loop.slots[TOPIC].machine.bounds.fan_out_copies = in_a_turn
        here.store.groups = []
        yield here


def send(request: int, contents: Sequence[int], atomic: bool = True) -> Send:
    return Send(TOPIC, 1, request, [draft(b"%d" % content) for content in contents], atomic)


def held(disk: Disk, fragment: int) -> list[int]:
    """What a subscription has on the disk, in its order."""
    records = disk.fragments[fragment].lanes[ACTIVE].records
    return [int(records[n].content or b"") for n in sorted(records)]


def copies_in(group: Sequence[Changes]) -> int:
    return sum(len(changes.puts.get(ACTIVE, [])) for changes in group if changes.fragment != TOPIC)


async def all_passed_on(here: Hosting) -> None:
    await here.until(lambda: here.disk.fragments[TOPIC].head.counts[SCHEDULED] == 0, 20)


async def test_a_large_send_to_many_subscriptions_is_split_over_commits_in_order() -> None:
    messages, subscriptions, most = 90, 1000, Bounds().fan_out_copies
    async with publishing(subscriptions) as here:
        numbers = range(messages)
        here.host.submit([send(1, numbers[:-1]), send(2, numbers[-1:])])
        await here.sent(1)
        assert here.disk.fragments[TOPIC].head.counts[SCHEDULED] > 0, "it is acknowledged when it is durable"
        await here.until(lambda: any(effect.request == 2 for effect in here.said), 20)
        made = [copies for group in here.store.groups if (copies := copies_in(group))]
        assert len(made) > messages * subscriptions // most
        assert max(made) <= most + subscriptions, "a turn is bounded"
        for fragment in range(2, 2 + subscriptions):
            assert held(here.disk, fragment) == list(numbers)
        for group in here.store.groups:
            assert copies_in(group) % subscriptions == 0, "no message is split over commits"


async def test_a_send_that_is_not_split_is_one_commit() -> None:
    async with publishing(100) as here:
        here.host.submit([send(1, range(100))])
        await here.sent(1)
        assert [copies_in(group) for group in here.store.groups] == [10_000]


class Few:
    """A gate that lets a few commits pass."""

    def __init__(self, commits: int) -> None:
        self._left = threading.Semaphore(commits)
        self.open = self._left.release

    def wait(self, timeout: float) -> bool:
        return self._left.acquire(timeout=timeout)


@pytest.mark.parametrize("commits", range(1, 6))
async def test_what_is_owed_when_the_broker_dies_is_passed_on_by_the_next(commits: int) -> None:
    disk = Disk()
    async with publishing(3, disk, in_a_turn=6) as here:
        gate = Few(commits)
        here.store._gate = gate  # type: ignore[assignment]
        here.host.submit([send(1, range(9))])
        await here.sent(1)
        await here.until(lambda: len(held(disk, 4)) == min(2 * commits, 9))
        assert disk.fragments[TOPIC].head.counts[SCHEDULED] == max(9 - 2 * commits, 0)
        async with publishing(3, disk, in_a_turn=6) as other:
            other.host.submit([send(2, [9])])
            await other.sent(2)
            assert not disk.fragments[TOPIC].head.counts[SCHEDULED]
            for fragment in (2, 3, 4):
                assert held(disk, fragment) == list(range(10))
        gate.open(100)


async def test_what_is_owed_goes_on_when_a_subscription_is_deleted_or_comes() -> None:
    async with publishing(3, in_a_turn=3) as here:
        here.host.submit([send(1, range(6)), demand(3, 100)])
        await here.sent(1)
        await here.host.add_fragments({9: SUBSCRIPTION})
        here.host.change_fragments({TOPIC: topic([3, 4, 9])})
        await here.host.remove_fragment(2)
        await all_passed_on(here)
        await here.until(lambda: len(here.delivered()) == 6)
        assert held(here.disk, 4) == list(range(6))
        assert held(here.disk, 9) == list(range(6))[-len(held(here.disk, 9)) :] or not held(here.disk, 9)


async def test_a_subscription_that_fails_while_copies_are_owed_keeps_them_in_the_topic() -> None:
    disk = Disk()
    async with publishing(3, disk, in_a_turn=3) as here:
        here.gate.clear()
        here.host.submit([send(1, range(5))])
        await asyncio.sleep(0.02)
        break_machine(here, 4, StoreCopies)
        here.gate.set()
        await here.sent(1)
        await here.until(lambda: here.host.commit_loop.slots[4].broken)
        await asyncio.sleep(0.02)
        assert [held(disk, fragment) for fragment in (2, 3, 4)] == [[0], [0], [0]]
    async with publishing(3, disk) as again:
        await all_passed_on(again)
        assert [held(disk, fragment) for fragment in (2, 3, 4)] == [list(range(5))] * 3


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_fails_each_message_is_in_all_subscriptions_or_none_in_order(seed: int) -> None:
    """Large sends, commits that fail and brokers that die: after every commit no two subscriptions differ, order holds, what
    was acknowledged is there once, what was refused with certainty is not."""
    chance = random.Random(seed)
    disk = Disk()
    count = chance.choice([2, 5])
    subscriptions = range(2, 2 + count)
    request = content = 0
    sent: dict[int, list[int]] = {}
    answers: dict[int, Effect] = {}
    for _life in range(3):
        async with publishing(count, disk, in_a_turn=chance.choice([1, 4, 20])) as here:
            asked = []
            for _ in range(12):
                request += 1
                size = chance.randrange(1, 12)
                sent[request] = list(range(content, content + size))
                content += size
                asked.append(request)
                if chance.random() < 0.15:
                    here.store.fail_next_commit(chance.choice(list(Fault)))
                here.host.submit([send(request, sent[request], chance.random() < 0.7)])
                await asyncio.sleep(chance.random() * 0.004)
                for group in here.store.groups:
                    assert len({copies_of(group, fragment) for fragment in subscriptions}) == 1
            for number in asked:
                answers[number] = await here.answer(number)
            here.store._faults.clear()
            here.gate.clear()  # the broker dies here, with copies owed or not
            first, *others = [held(disk, fragment) for fragment in subscriptions]
            assert all(one == first for one in others)
            here.host.commit_loop.pause()
            here.gate.set()
            await here.host.close()
    async with publishing(count, disk) as here:
        await here.until(lambda: here.host.state is StoreState.OPEN)
        await all_passed_on(here)
        found = held(disk, 2)
        assert all(held(disk, fragment) == found for fragment in subscriptions)
    assert found == sorted(found) and len(set(found)) == len(found)
    there = set(found)
    for number, contents in sent.items():
        answer = answers[number]
        if isinstance(answer, Sent):
            assert there.issuperset(contents)
        elif isinstance(answer, Refused) and answer.certain:
            assert there.isdisjoint(contents)
        else:
            assert there.issuperset(contents) or there.isdisjoint(contents)


def copies_of(group: Sequence[Changes], fragment: int) -> tuple[bytes, ...]:
    return tuple(
        record.content or b""
        for changes in group
        if changes.fragment == fragment
        for record in changes.puts.get(ACTIVE, [])
    )
