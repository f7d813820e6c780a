"""A topic and its subscriptions on one host: one commit for all copies, in every failure, and reads that do not get between.

Fragment 1 is the topic; 2, 3 and 4 are its subscriptions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.broker.commit_loop import STEPS_OF_A_COMMAND, TURN_COMMANDS
from busbar.broker.fragment_machine import FragmentMachine
from busbar.broker.host_api import StoreState
from busbar.model.commands import Command, Demand, Inspect, Peek, StoreCopies, Tick
from busbar.model.effects import Delivered, Inspected, Peeked, Refused, Sent, Settled
from busbar.model.entities import SubscriptionDescription
from busbar.model.errors import ServerBusy
from busbar.model.message import ACTIVE, SCHEDULED, SubscriptionCopy
from busbar.store.contract import StoreError
from harness.memory_store import Fault
from tests.unit.broker.hosting import (
    PLAIN,
    Hosting,
    ToAll,
    clock,
    complete,
    demand,
    hosting,
    send,
    settings,
    topic,
)

pytestmark = pytest.mark.usefixtures("short_pauses")

TOPIC = 1
SUBSCRIPTIONS = [2, 3, 4]
SUBSCRIPTION = SubscriptionDescription().fragment_settings()


@asynccontextmanager
async def publishing() -> AsyncIterator[Hosting]:
    async with hosting(fragments=()) as here:
        await here.host.add_fragments(
            {TOPIC: topic(SUBSCRIPTIONS)} | dict.fromkeys(SUBSCRIPTIONS, SUBSCRIPTION)
        )
        here.store.groups, here.store.log = [], []
        yield here


def peek(fragment: int, request: int) -> Peek:
    return Peek(fragment, 1, request, ACTIVE, 1, 10, 1 << 20)


async def counts(here: Hosting, request: int, lane: int = ACTIVE) -> list[int]:
    """Of the topic and its subscriptions."""
    asked = [TOPIC, *SUBSCRIPTIONS]
    here.host.submit([Inspect(fragment, 1, request + fragment) for fragment in asked])
    found = []
    for fragment in asked:
        answer = await here.answer(request + fragment)
        assert isinstance(answer, Inspected), answer
        found.append(answer.counts[lane])
    return found


async def test_all_copies_are_in_one_commit() -> None:
    async with publishing() as here:
        here.host.submit([demand(2, 5), send(TOPIC, 1, count=2)])
        assert (await here.sent(1)).numbers == [1, 2]
        (group,) = here.store.groups
        assert sorted(changes.fragment for changes in group) == [TOPIC, *SUBSCRIPTIONS]
        await here.until(lambda: here.delivered() == [1, 2])
        assert await counts(here, 100) == [0, 2, 2, 2]


class Slow(ToAll):
    """Its rules take a third of a turn for each message."""

    asked = 0

    def spent(self) -> int:
        return self.asked * TURN_COMMANDS * STEPS_OF_A_COMMAND // 3

    def select_copies(self, content: bytes, n: int, now: int, ttl: int) -> list[SubscriptionCopy]:
        self.asked += 1
        return super().select_copies(content, n, now, ttl)


async def test_a_turn_ends_when_rules_have_taken_long_enough() -> None:
    async with publishing() as here:
        here.rules.kind = Slow
        here.host.change_fragments({TOPIC: topic(SUBSCRIPTIONS)})
        slow = here.host.commit_loop.slots[TOPIC].selector
        assert isinstance(slow, Slow)
        here.host.submit([send(TOPIC, request) for request in range(1, 11)])
        assert slow.asked == 3
        await here.sent(10)
        assert await counts(here, 100) == [0, 10, 10, 10], "the others follow in turns of their own"


@pytest.mark.parametrize("fault", Fault)
async def test_all_copies_or_none_when_the_commit_fails(fault: Fault) -> None:
    async with publishing() as here:
        here.host.submit([send(TOPIC, 1), demand(3, 10)])
        await here.sent(1)
        await here.until(lambda: here.delivered() == [1])
        here.store.fail_next_commit(fault)
        here.host.submit([send(TOPIC, 2, count=3)])
        assert (await here.refused(2)).condition == ServerBusy.condition
        await here.until(lambda: here.host.state is StoreState.OPEN)
        made = 3 if fault is Fault.UNHEARD else 0
        assert await counts(here, 100) == [0, *[1 + made] * 3]
        await here.serving()
        here.host.submit([send(TOPIC, 3)])
        assert (await here.sent(3)).numbers == [2 + made], "the topic's numbers go on from what is durable"
        assert await counts(here, 200) == [0, *[2 + made] * 3]
        await here.until(lambda: here.delivered() == [*range(1, 3 + made)])
        here.host.submit([complete(here.all(Delivered)[0], 4)])
        settled = await here.answer(4)
        assert isinstance(settled, Settled) and settled.lost == [], "locks of a subscription survive"


@pytest.mark.parametrize("fault", Fault)
async def test_what_is_due_when_the_commit_fails_is_passed_on_once(fault: Fault) -> None:
    async with publishing() as here:
        here.host.submit([send(TOPIC, 1, count=4, scheduled=clock() + 60)])
        await here.sent(1)
        assert await counts(here, 100, SCHEDULED) == [4, 0, 0, 0]
        here.store.fail_next_commit(fault)
        await here.until(lambda: here.disk.fragments[2].head.counts[ACTIVE] == 4)
        await here.until(lambda: here.host.state is StoreState.OPEN)
        await asyncio.sleep(0.05)
        assert await counts(here, 200) == [0, 4, 4, 4]
        assert await counts(here, 300, SCHEDULED) == [0, 0, 0, 0]


async def test_a_topic_waits_for_the_reads_of_its_subscriptions_and_they_begin_no_others() -> None:
    async with publishing() as here:
        here.host.submit([send(TOPIC, 1)])
        await here.sent(1)
        here.store.log.clear()
        here.gate.clear()
        here.host.submit([demand(3, 1)])  # a change, whose commit is held up
        here.host.submit([send(TOPIC, 2)])
        await asyncio.sleep(0.02)
        here.host.submit([peek(2, 3)])  # has to read, behind that commit
        await asyncio.sleep(0.02)
        here.host.submit([send(TOPIC, 4), peek(4, 5), peek(2, 6)])
        await asyncio.sleep(0.02)
        assert not [effect for effect in here.said if effect.request > 2]
        here.gate.set()
        first, other, last = [await here.answer(request) for request in (3, 5, 6)]
        assert isinstance(first, Peeked) and isinstance(other, Peeked) and isinstance(last, Peeked)
        assert [len(first.records), len(other.records), len(last.records)] == [2, 3, 3]
        await here.sent(4)
        read = [line for line in here.store.log if line.startswith("read")]
        assert read[0] == "read 2" and here.store.log.index(read[0]) < here.store.log.index("read 4")


async def test_a_topic_does_not_wait_for_a_subscription_that_is_deleted() -> None:
    async with publishing() as here:
        here.gate.clear()
        here.host.submit([send(TOPIC, 1)])
        await asyncio.sleep(0.02)
        here.host.submit([peek(2, 2), send(TOPIC, 3), peek(3, 4)])
        await asyncio.sleep(0.02)
        here.host.change_fragments({TOPIC: topic([3, 4])})
        removal = asyncio.ensure_future(here.host.remove_fragment(2))
        here.gate.set()
        await here.sent(3)
        await here.answer(2)
        assert isinstance(await here.answer(4), Peeked)
        await removal
        here.host.submit([send(TOPIC, 5)])
        await here.sent(5)
        here.host.submit([Inspect(3, 1, 6), Inspect(4, 1, 7)])
        found = [await here.answer(request) for request in (6, 7)]
        assert [one.counts[ACTIVE] for one in found if isinstance(one, Inspected)] == [3, 3]


class Failing:
    """The machine of a subscription with a bug in commands of one kind."""

    def __init__(self, machine: FragmentMachine, kind: type[Command]) -> None:
        self._machine = machine
        self._kind = kind

    def __getattr__(self, name: str) -> object:
        return getattr(self._machine, name)

    def apply(self, command: Command, now: int, nonce: int) -> None:
        self._machine.apply(command, now, nonce)
        if isinstance(command, self._kind):
            raise ZeroDivisionError("a bug")


def break_machine(here: Hosting, fragment: int, kind: type[Command]) -> None:
    slot = here.host.commit_loop.slots[fragment]
    slot.machine = Failing(slot.machine, kind)  # type: ignore[assignment]


def kept(here: Hosting) -> list[int]:
    """Messages that are durable in each subscription, and in the queue beside them."""
    return [here.disk.fragments[fragment].head.counts[ACTIVE] for fragment in (*SUBSCRIPTIONS, 9)]


async def test_a_subscription_that_fails_takes_nothing_along_that_its_sender_was_told_of() -> None:
    async with publishing() as here:
        await here.host.add_fragments({9: PLAIN})
        here.gate.clear()
        here.host.submit([send(TOPIC, 1), send(9, 2)])
        await asyncio.sleep(0.02)  # in flight, and ends well
        here.host.submit([send(TOPIC, 3), send(9, 4)])  # gathered
        break_machine(here, 3, Demand)
        here.host.submit([demand(3, 1), send(TOPIC, 5), send(9, 6)])
        assert not here.said
        here.gate.set()
        await here.sent(1)
        await here.sent(2)
        for request in (3, 5):
            refused = await here.refused(request)
            assert refused.certain and refused.condition == "amqp:internal-error"
        refused = await here.refused(4)
        assert refused.certain and refused.condition == ServerBusy.condition
        await here.sent(6)
        assert kept(here) == [1, 1, 1, 2], "the group is in all subscriptions or in none"
        here.host.submit([send(TOPIC, 7), demand(2, 5), send(9, 8)])
        await here.refused(7)
        await here.sent(8)
        await here.until(lambda: here.delivered() == [1])


@pytest.mark.parametrize("in_flight", [False, True])
async def test_copies_that_cannot_be_passed_on_are_nowhere(in_flight: bool) -> None:
    async with publishing() as here:
        await here.host.add_fragments({9: PLAIN})
        here.host.submit([send(TOPIC, 1)])
        await here.sent(1)
        if in_flight:
            here.gate.clear()
            here.host.submit([send(TOPIC, 2)])
            await asyncio.sleep(0.02)
        break_machine(here, 4, StoreCopies)
        here.host.submit([send(9, 3), send(TOPIC, 4)])
        here.gate.set()
        if in_flight:
            await here.sent(2)
        assert (await here.refused(4)).certain
        before = 2 if in_flight else 1
        here.host.submit([send(9, 5), demand(2, 5)])
        await here.sent(5)
        assert kept(here)[:3] == [before] * 3
        assert (await here.refused(3)).certain, "it was in the group"
        await here.until(lambda: here.delivered() == [*range(1, 1 + before)])


async def test_a_group_that_fails_when_the_store_is_just_back_is_undone() -> None:
    async with hosting(fragments=()) as here:
        await here.host.add_fragments({TOPIC: topic([2, 3])} | dict.fromkeys([2, 3], settings(lock_ms=50)))
        here.host.submit([demand(2, 1), demand(3, 1), send(TOPIC, 1)])
        await here.until(lambda: here.delivered() == [1, 1])
        here.refuse_to_open = StoreError("the disk is not there")
        here.store.fail_next_commit(Fault.LOST)
        here.host.submit([send(TOPIC, 2)])
        await here.refused(2)
        await asyncio.sleep(0.06)  # both locks end
        break_machine(here, 3, Tick)
        here.refuse_to_open = None
        await here.until(lambda: here.host.commit_loop.slots[3].broken)
        here.host.submit([demand(2, 1)])
        await here.until(lambda: here.delivered() == [1, 1, 1])
        assert here.all(Delivered)[-1].records[0].deliveries == 1, "the end of the lock counts once"


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_subscriptions_agree(seed: int) -> None:
    """Sends, schedules, peeks and failing commits in any order: every request is answered once, what was acknowledged is in
    all subscriptions, what was refused with certainty in none, and no two differ."""
    chance = random.Random(seed)
    async with publishing() as here:
        here.host.submit([demand(4, 100)])
        request = 0
        sends: dict[int, int] = {}
        for _ in range(150):
            batch: list[Command] = []
            for _ in range(chance.randrange(1, 6)):
                request += 1
                if chance.random() < 0.5:
                    sends[request] = chance.randrange(1, 4)
                    due = clock() + chance.randrange(30) if chance.random() < 0.3 else 0
                    batch.append(send(TOPIC, request, sends[request], scheduled=due))
                else:
                    batch.append(peek(chance.choice(SUBSCRIPTIONS), request))
            if chance.random() < 0.06:
                here.store.fail_next_commit(chance.choice(list(Fault)))
            here.host.submit(batch)
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.006)
        for number in range(1, request + 1):
            await here.answer(number)
        here.store._faults.clear()
        await asyncio.sleep(0.1)
        await here.serving()
        await asyncio.sleep(0.05)
        topic_left, *held = await counts(here, 10_000)
        assert topic_left == 0 and len(set(held)) == 1, held
        assert await counts(here, 20_000, SCHEDULED) == [0, 0, 0, 0]
        answers = {effect.request: effect for effect in here.said}
        acknowledged = sum(count for number, count in sends.items() if isinstance(answers[number], Sent))
        unknown = sum(
            count
            for number, count in sends.items()
            if isinstance(refused := answers[number], Refused) and "may or may not" in refused.text
        )
        assert acknowledged <= held[0] <= acknowledged + unknown
        assert acknowledged
