"""Receivers of subscriptions, reads that are under way, any schedule with faults: what test_topic_commits.py leaves out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.model.commands import AcceptSession, Peek, Send, StoreCopies
from busbar.model.effects import Delivered, Peeked, Refused, Sent
from busbar.model.entities import SubscriptionDescription
from busbar.model.message import ACTIVE, Draft, SubscriptionCopy
from harness.memory_store import Disk, Fault
from tests.unit.broker.hosting import Hosting, complete, demand, topic

pytestmark = pytest.mark.usefixtures("short_pauses")

TOPIC = 1
FIRST = 10
PLAIN = SubscriptionDescription()


@asynccontextmanager
async def publishing(
    subscriptions: int = 2,
    disk: Disk | None = None,
    duplicates: bool = False,
    of: SubscriptionDescription = PLAIN,
) -> AsyncIterator[Hosting]:
    here = Hosting(disk)
    await here.host.open()
    numbers = range(FIRST, FIRST + subscriptions)
    of_each = of.fragment_settings()
    await here.host.add_fragments({TOPIC: topic([*numbers], duplicates), **dict.fromkeys(numbers, of_each)})
    here.store.groups, here.store.log = [], []
    try:
        yield here
    finally:
        here.gate.set()
        await here.host.drain(5)
        await here.host.close()


def publish(request: int, *contents: bytes, scheduled: int = 0, session: str | None = None) -> Send:
    drafts = [Draft(one, one.decode(), session, None, 0, scheduled) for one in contents]
    return Send(TOPIC, 1, request, drafts, True)


def copies_for(fragment: int) -> StoreCopies:
    """Something to be committed."""
    command = StoreCopies(fragment)
    command.copies = [SubscriptionCopy(fragment, b"x")]
    return command


async def held(here: Hosting, fragment: int, request: int) -> list[bytes]:
    """What a subscription has, in order."""
    here.host.submit([Peek(fragment, 1, request, ACTIVE, 1, 10_000, 1 << 30)])
    answer = await here.answer(request)
    assert isinstance(answer, Peeked), answer
    return [record.content or b"" for record in answer.records]


async def test_a_waiting_receiver_of_a_subscription_gets_its_copy_when_it_is_durable() -> None:
    async with publishing() as here:
        here.host.submit([demand(10, 5)])
        here.gate.clear()
        here.host.submit([publish(1, b"a")])
        await asyncio.sleep(0.02)
        assert here.all(Delivered) == [] and here.all(Sent) == []
        here.gate.set()
        await here.sent(1)
        await here.until(lambda: here.delivered() == [1])


async def test_a_copy_does_not_come_between_a_read_and_what_it_is_for() -> None:
    """A message session is read to its end while a message of that session is published: it must not be overlooked."""
    sessions = SubscriptionDescription(requires_session=True)
    async with publishing(1, of=sessions) as here:
        here.host.submit([publish(1, b"a", session="s")])
        await here.sent(1)
        disk = here.disk
    async with publishing(1, disk, of=sessions) as here:
        await here.host.add_fragments({99: PLAIN.fragment_settings()})
        here.host.submit([AcceptSession(10, 1, 2, 1, "s")])
        await here.answer(2)
        here.gate.clear()
        here.host.submit(
            [copies_for(99), demand(10, 5)]
        )  # one job: a commit that takes its time, then a read
        await asyncio.sleep(0.02)
        here.host.submit([publish(3, b"b", session="s")])
        here.gate.set()
        await here.sent(3)
        await here.until(lambda: here.delivered() == [1, 2])


async def test_while_a_topic_waits_its_subscriptions_begin_no_reads() -> None:
    """Or it would wait for ever when they always have something to read."""
    async with publishing(2) as here:
        here.host.submit([publish(1, b"a")])
        await here.sent(1)
        disk = here.disk
    async with publishing(2, disk) as here:
        await here.host.add_fragments({99: PLAIN.fragment_settings()})
        here.gate.clear()
        here.store.log = []
        here.host.submit([copies_for(99), demand(10, 5)])
        await asyncio.sleep(0.02)
        here.host.submit([publish(2, b"b"), demand(11, 5, consumer=2)])
        here.gate.set()
        await here.until(lambda: here.delivered() == [1, 2, 1, 2])
        assert here.store.log[:4] == ["commit 99", "read 10", "commit 10,11,1", "read 11"]


async def test_a_topic_that_has_to_read_waits_for_its_subscriptions_too() -> None:
    """Duplicates are looked up in the store; what was found is still right when the subscriptions are ready."""
    async with publishing(duplicates=True) as here:
        here.host.submit([publish(1, b"a")])
        await here.sent(1)
        await here.host.drain(5)
        disk = here.disk
    async with publishing(2, disk, duplicates=True) as here:
        here.gate.clear()
        here.host.submit([demand(10, 5), publish(2, b"a"), publish(3, b"b"), demand(11, 5)])
        await asyncio.sleep(0.02)
        here.gate.set()
        assert (await here.sent(2)).duplicates == [0]
        await here.sent(3)
        assert await held(here, 10, 20) == await held(here, 11, 21) == [b"a", b"b"]


async def test_a_subscription_that_comes_and_goes() -> None:
    async with publishing(1) as here:
        here.host.submit([publish(1, b"a")])
        await here.sent(1)
        await here.host.add_fragments({11: PLAIN.fragment_settings()})
        here.host.change_fragments({TOPIC: topic([10, 11])})
        here.host.submit([publish(2, b"b")])
        await here.sent(2)
        here.host.change_fragments({TOPIC: topic([11])})
        await here.host.remove_fragment(10)
        here.host.submit([publish(3, b"c")])
        await here.sent(3)
        assert await held(here, 11, 20) == [b"b", b"c"]


@pytest.mark.parametrize("seed", range(12))
async def test_any_schedule_with_faults_keeps_copies_together(seed: int) -> None:
    """Messages, receivers and failing commits at random: what was acknowledged is in both subscriptions or was completed
    there, what was refused for certain is in none, and the rest is in both or in none."""
    chance = random.Random(seed)
    fates: dict[bytes, bool | None] = {}
    done: dict[int, list[bytes]] = {10: [], 11: []}
    completing: dict[int, tuple[int, list[bytes]]] = {}
    async with publishing() as here:
        request = 100
        sends: dict[int, list[bytes]] = {}
        heard = 0
        for turn in range(120):
            for _ in range(chance.randrange(4)):
                request += 1
                contents = [b"%d-%d" % (request, n) for n in range(chance.randrange(1, 5))]
                sends[request] = contents
                here.host.submit([publish(request, *contents)])
            fragment = chance.choice((10, 11))
            here.host.submit([demand(fragment, chance.randrange(1, 6), consumer=fragment)])
            if chance.random() < 0.08:
                here.store.fail_next_commit(chance.choice([Fault.FULL, Fault.LOST, Fault.UNHEARD]))
            await asyncio.sleep(0 if turn % 3 else 0.003)
            for effect in here.said[heard:]:
                if isinstance(effect, Delivered) and chance.random() < 0.7:
                    request += 1
                    contents = [record.content or b"" for record in effect.records]
                    completing[request] = (effect.fragment, contents)
                    here.host.submit([complete(effect, request)])
            heard = len(here.said)
        await asyncio.sleep(0.1)
        await here.until(lambda: {effect.request for effect in here.said} >= {*sends, *completing})
        for effect in here.said:
            if effect.request in sends:
                refused = isinstance(effect, Refused)
                fate = None if isinstance(effect, Refused) and not effect.certain else not refused
                fates.update(dict.fromkeys(sends[effect.request], fate))
            elif effect.request in completing and not isinstance(effect, Refused):
                fragment, contents = completing[effect.request]
                done[fragment] += contents
        await here.until(lambda: here.host.is_open)
        await here.host.drain(5)
        disk = here.disk
    uncertain = [
        content
        for request, (_, contents) in completing.items()
        if any(effect.request == request and isinstance(effect, Refused) for effect in here.said)
        for content in contents
    ]
    async with publishing(2, disk) as here:
        left = {fragment: await held(here, fragment, fragment) for fragment in (10, 11)}
    for fragment in (10, 11):
        assert len(set(left[fragment])) == len(left[fragment]), "nothing is there twice"
        assert not set(left[fragment]) & set(done[fragment]), "what was completed is gone"
    for content, fate in fates.items():
        there = [content in left[fragment] or content in done[fragment] for fragment in (10, 11)]
        if content in uncertain:
            continue  # whether it was completed is not known
        if fate is not None:
            assert there == [fate, fate], f"{content!r}: {fate}"
        else:
            assert there[0] == there[1], f"{content!r} is in one and not in the other"
