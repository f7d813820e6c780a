"""Express entities on a running host: what is acknowledged from memory, when it is written, and what a crash leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from busbar.broker import group
from busbar.fragment.machine import Fragment
from busbar.model.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    Demand,
    Inspect,
    Peek,
    ReceiveDeferred,
    Settle,
    Transact,
)
from busbar.model.effects import DeferredReceived, Delivered, Done, Inspected, Peeked, Settled
from busbar.model.entities import SubscriptionDescription
from busbar.model.message import ACTIVE, DEAD, DEFERRED
from busbar.model.settings import FragmentSettings
from harness.memory_store import Disk, Fault
from tests.unit.broker.express_fragments import express, forced, stored
from tests.unit.broker.hosting import PLAIN, Hosting, clock, complete, demand, hosting, send, topic

pytestmark = pytest.mark.usefixtures("full_for_a_while")

DELAY = 120


@asynccontextmanager
async def warm(of: FragmentSettings, disk: Disk | None = None) -> AsyncIterator[Hosting]:
    """A host whose fragment 1 has given its first number, which is written: no other is, until it is due."""
    async with hosting(disk, of=of) as here:
        here.host.submit([send(1, 900), Demand(1, 1, 99, 0, 1, False, True)])
        await here.until(lambda: len(here.delivered()) == 1)
        await here.until(lambda: here.host.commit_loop.idle)
        here.said.clear()
        here.disk.commits = 0
        yield here


async def counts(here: Hosting, request: int) -> list[int]:
    here.host.submit([Inspect(1, 1, request)])
    answer = await here.answer(request)
    assert isinstance(answer, Inspected), answer
    return list(answer.counts)


def settle(delivered: Delivered, request: int, outcome: int = COMPLETE, at: int = 0) -> Settle:
    return Settle(1, 1, request, outcome, [delivered.records[at].n], [int(delivered.nonce)], None, False)


# ---- while nothing goes wrong ----


async def test_sends_are_acknowledged_while_the_store_cannot_write() -> None:
    async with warm(express()) as here:
        here.gate.clear()
        here.host.submit([send(2, 1)])  # of a fragment that has to write its first number
        await asyncio.sleep(0.02)
        here.host.submit([send(1, 2, count=3)])
        assert (await here.sent(2)).numbers == [2, 3, 4]
        assert len(here.said) == 1 and stored(here) == []
        here.gate.set()


async def test_what_is_consumed_in_time_is_never_written() -> None:
    async with warm(express()) as here:
        here.host.submit([demand(1, 1_000)])
        for request in range(1, 51):
            here.host.submit([send(1, request, count=10)])
            await here.sent(request)
            await here.until(lambda: len(here.delivered()) == 10)
            for effect in here.all(Delivered):
                here.host.submit([complete(effect, 10_000 + request)])
            assert isinstance(await here.answer(10_000 + request), Settled)
            here.said.clear()
        assert (await counts(here, 3))[ACTIVE] == 0
        assert here.disk.commits == 0 and stored(here) == []


async def test_what_is_received_and_deleted_in_time_is_never_written() -> None:
    async with warm(express()) as here:
        here.host.submit([Demand(1, 1, 5, 0, 500, False, True)])
        here.host.submit([send(1, 1, count=100)])
        await here.until(lambda: len(here.delivered()) == 100)
        assert here.disk.commits == 0 and stored(here) == []


async def test_what_stays_is_written_when_it_is_due() -> None:
    async with warm(express(DELAY)) as here:
        here.host.submit([send(1, 1, count=3)])
        numbers = (await here.sent(1)).numbers
        assert stored(here) == []
        await here.until(lambda: stored(here) == numbers)
        assert here.disk.commits == 1
        await asyncio.sleep(2 * DELAY / 1000)
        assert here.disk.commits == 1, "it is written once"


async def test_a_steady_flow_is_not_written_though_there_is_always_something() -> None:
    """At every moment one message is there, and none stays as long as the delay."""
    async with warm(express(DELAY)) as here:
        here.host.submit([send(1, 1), demand(1, 10_000)])
        ends = clock() + 4 * DELAY
        request = 1
        while clock() < ends:
            request += 2
            here.host.submit([send(1, request)])
            await here.until(lambda: len(here.delivered()) >= 2)
            first, *rest = here.all(Delivered)
            here.host.submit([settle(first, request + 1)])
            await here.answer(request + 1)
            here.said[:] = rest
            await asyncio.sleep(0.005)
        assert here.disk.commits == 0, f"{here.disk.commits} commits for {request // 2} messages"


async def test_forced_messages_are_durable_before_they_are_acknowledged() -> None:
    async with warm(express()) as here:
        here.gate.clear()
        here.host.submit([send(1, 1), forced(1, 2), send(1, 3)])
        await here.sent(1)
        await asyncio.sleep(0.03)
        assert len(here.said) == 1, "what comes after it waits with it, so that answers keep their order"
        here.gate.set()
        await here.sent(3)
        assert stored(here)[:2] == [2, 3]
        here.host.submit([send(1, 4)])
        await here.sent(4)
        assert stored(here) == [2, 3, 4] and here.disk.commits == 1, "the last one stays in memory again"


async def test_a_message_that_was_written_is_deleted_before_its_completion_is_acknowledged() -> None:
    async with warm(express()) as here:
        here.host.submit([forced(1, 1), demand(1, 1)])
        await here.until(lambda: len(here.delivered()) == 1)
        here.gate.clear()
        here.host.submit([settle(here.all(Delivered)[0], 2)])
        await asyncio.sleep(0.03)
        assert all(effect.request != 2 for effect in here.said)
        here.gate.set()
        assert isinstance(await here.answer(2), Settled)
        assert stored(here) == []


async def test_a_read_sees_what_only_memory_had() -> None:
    async with warm(express()) as here:
        here.host.submit([send(1, 1, count=5)])
        numbers = (await here.sent(1)).numbers
        here.host.submit([Peek(1, 1, 2, 0, 1, 100, 1 << 20)])
        peeked = await here.answer(2)
        assert isinstance(peeked, Peeked) and [record.n for record in peeked.records] == numbers
        assert stored(here) == numbers


async def test_a_backlog_beyond_the_window_is_received_in_order() -> None:
    async with warm(express()) as here:
        for request in range(1, 31):
            here.host.submit([send(1, request, count=100)])
        numbers = [n for request in range(1, 31) for n in (await here.sent(request)).numbers]
        here.host.submit([demand(1, 3_000)])
        await here.until(lambda: len(here.delivered()) == 3_000)
        assert here.delivered() == numbers


async def test_messages_in_memory_are_bounded_in_bytes() -> None:
    async with warm(express()) as here:
        for request in range(1, 41):
            here.host.submit([send(1, request, count=1, size=1024 * 1024)])
            await here.sent(request)
        slot = here.host.commit_loop.slots[1]
        assert slot.machine.unwritten_bytes() <= slot.machine.bounds.unwritten_bytes + 2 * 1024 * 1024
        assert len(stored(here)) >= 20 and here.disk.commits <= 4


async def test_messages_in_memory_are_bounded_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "EXPRESS_BYTES", 3 * 1024 * 1024)
    async with hosting(fragments=(1, 2, 3, 4), of=express()) as here:
        for request in range(1, 41):
            here.host.submit([send(1 + request % 4, request, count=1, size=512 * 1024)])
            await here.sent(request)
        slots = here.host.commit_loop.slots.values()
        assert sum(slot.machine.unwritten_bytes() for slot in slots) <= 4 * 1024 * 1024


async def test_a_long_flow_leaves_nothing_in_memory() -> None:
    async with warm(express()) as here:
        here.host.submit([Demand(1, 1, 5, 0, 100_000, False, True)])
        for request in range(1, 101):
            here.host.submit([send(1, request, count=100)])
            await here.sent(request)
        state = cast(Fragment, here.host.commit_loop.slots[1].machine)._state
        changes = state.ledger._changes
        assert state.ledger.unwritten.is_empty() and changes is not None
        assert not any(changes.puts.values()) and not any(changes.deletes.values()) and not changes.unlocked


async def test_turned_off_what_is_in_memory_is_written() -> None:
    async with warm(express()) as here:
        here.host.submit([send(1, 1, count=3)])
        numbers = (await here.sent(1)).numbers
        here.host.change_fragments({1: PLAIN})
        await here.until(lambda: stored(here) == numbers)
        here.host.submit([demand(1, 3)])
        await here.until(lambda: here.delivered() == numbers)


async def test_settlements_of_messages_in_memory_stay_in_memory() -> None:
    async with warm(express()) as here:
        here.host.submit([send(1, 1, count=4), demand(1, 4)])
        await here.until(lambda: len(here.delivered()) == 4)
        first = here.all(Delivered)[0]
        outcomes = (COMPLETE, ABANDON, DEFER, DEAD_LETTER)
        here.host.submit([settle(first, 10 + at, outcome, at) for at, outcome in enumerate(outcomes)])
        for at in range(4):
            assert isinstance(await here.answer(10 + at), Settled)
        assert here.disk.commits == 0
        found = await counts(here, 20)
        assert (found[ACTIVE], found[DEFERRED], found[DEAD]) == (1, 1, 1)
        abandoned, deferred, dead = (int(first.records[at].n) for at in (1, 2, 3))
        here.host.submit([demand(1, 1, consumer=2)])
        await here.until(lambda: len(here.delivered()) == 5)
        again = here.all(Delivered)[-1].records[0]
        assert (again.n, again.deliveries) == (abandoned, 1)
        here.host.submit([ReceiveDeferred(1, 1, 30, 0, [deferred], False)])
        received = await here.answer(30)
        assert isinstance(received, DeferredReceived) and received.records[0].n == deferred
        assert stored(here, DEAD) == [dead], "the read of the deferred message has written all of them"


async def test_a_transaction_is_durable_before_it_is_answered() -> None:
    async with warm(express()) as here:
        here.host.submit([send(1, 1), demand(1, 1)])
        await here.until(lambda: len(here.delivered()) == 1)
        done = settle(here.all(Delivered)[0], 0)
        here.gate.clear()
        here.host.submit([Transact(1, 1, 2, [send(1, 0, count=2), done])])
        await asyncio.sleep(0.03)
        assert all(effect.request != 2 for effect in here.said)
        here.gate.set()
        assert isinstance(await here.answer(2), Done)
        assert len(stored(here)) == 2


async def test_a_clean_stop_writes_all() -> None:
    disk = Disk()
    async with warm(express(), disk) as here:
        here.host.submit([send(1, 1, count=3), demand(1, 1)])
        numbers = (await here.sent(1)).numbers
        await here.until(lambda: len(here.delivered()) == 1)
        here.host.stop_timers()
    async with hosting(disk, of=express()) as here:
        assert stored(here) == numbers
        here.host.submit([demand(1, 3)])
        await here.until(lambda: here.delivered() == numbers[1:])


# ---- topics ----


async def test_the_copies_of_an_express_topic_stay_in_memory_and_forced_ones_do_not() -> None:
    async with hosting() as here:
        copies = SubscriptionDescription().fragment_settings()
        published = topic([3, 4])
        copies.express_ms = published.express_ms = 60_000
        await here.host.add_fragments({3: copies, 4: copies})
        await here.host.add_fragments({5: published})
        here.host.submit([send(5, 1)])
        await here.sent(1)  # the first number of each is written
        commits = here.disk.commits
        here.host.submit([send(5, 2, count=3), demand(3, 10)])
        await here.sent(2)
        await here.until(lambda: len(here.delivered()) == 4)
        assert here.disk.commits == commits
        here.gate.clear()
        here.host.submit([forced(5, 3)])
        await asyncio.sleep(0.03)
        assert all(effect.request != 3 for effect in here.said)
        here.gate.set()
        await here.sent(3)
        assert len(stored(here, fragment=3)) == len(stored(here, fragment=4)) == 5


# ---- when things go wrong ----


async def crashed(here: Hosting) -> Disk:
    """What is on the disk when the process ends now."""
    await here.until(lambda: not here.host.commit_loop.job_under_way)
    return here.disk


async def test_a_crash_loses_what_was_in_memory_and_nothing_else() -> None:
    async with warm(express()) as here:
        here.host.submit([send(1, 1, count=2), forced(1, 2), send(1, 3, count=2)])
        await here.sent(3)
        here.host.submit([send(1, 4, count=2)])
        last = (await here.sent(4)).numbers[-1]
        left = stored(here)
        again = Hosting(await crashed(here))  # the first host has written nothing since
        await again.host.open()
        await again.host.add_fragments({1: express()})
        again.host.submit([demand(1, 100), send(1, 5)])
        new = (await again.sent(5)).numbers[0]
        await again.until(lambda: len(again.delivered()) == len(left) + 1)
        assert again.delivered() == [*left, new]
        assert left[:3] == [2, 3, 4] and last not in left
        assert new > last, "a number that was given before the crash is not given again"
        await again.host.close()


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST, Fault.UNHEARD])
async def test_acknowledged_messages_outlive_a_commit_that_fails(fault: Fault) -> None:
    async with warm(express(DELAY)) as here:
        here.store.fail_next_commit(fault)
        here.host.submit([send(1, 1, count=3), demand(1, 1)])
        numbers = (await here.sent(1)).numbers
        await here.until(lambda: len(here.delivered()) == 1)
        held = here.all(Delivered)[0]
        await here.until(lambda: stored(here) == numbers, seconds=10)
        await here.until(lambda: here.host.is_open)
        here.host.submit([settle(held, 5)])
        settled = await here.answer(5)
        assert isinstance(settled, Settled) and settled.lost == [], "its lock is held"
        here.host.submit([demand(1, 5, consumer=2)])
        await here.until(lambda: here.delivered() == numbers)
        await asyncio.sleep(0.05)
        assert here.delivered() == numbers, "none comes twice"


async def test_what_was_not_acknowledged_is_undone_and_the_rest_stays() -> None:
    async with warm(express()) as here:
        here.host.submit([send(1, 1, count=2), demand(1, 2)])
        numbers = (await here.sent(1)).numbers
        await here.until(lambda: len(here.delivered()) == 2)
        held = here.all(Delivered)[0]
        here.gate.clear()
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([forced(1, 2), settle(held, 3), send(1, 4)])
        here.gate.set()
        for request in (2, 3, 4):
            await here.refused(request)
        assert (await counts(here, 5))[ACTIVE] == 2
        await asyncio.sleep(0.2)
        here.host.submit([settle(held, 6), settle(held, 7, at=1)])
        for request in (6, 7):
            settled = await here.answer(request)
            assert isinstance(settled, Settled) and settled.lost == []
        assert numbers == [record.n for record in held.records]
        assert (await counts(here, 8))[ACTIVE] == 0


async def test_a_full_store_is_not_tried_in_a_loop() -> None:
    """Consumers wait for a read, which would have to write first. Meanwhile settlements of others make room."""
    async with warm(express()) as here:
        here.host.submit([send(2, 1), demand(2, 1)])
        await here.until(lambda: len(here.delivered()) == 1)
        other = here.all(Delivered)[0]
        here.host.submit([send(1, 2, count=2)])
        await here.sent(2)
        for _ in range(3):
            here.store.fail_next_commit(Fault.FULL)
        here.host.submit([forced(1, 3), demand(1, 5)])
        await here.refused(3)
        await asyncio.sleep(0.05)
        assert len(here.store._faults) == 2, "it was tried again at once"
        here.host.submit([complete(other, 4)])
        await here.answer(4)
        await here.until(lambda: not here.store._faults, seconds=10)
        await here.until(lambda: len(here.delivered()) == 3, seconds=10)
