"""Commands in, groups to the store, effects out: the rules of commit_loop.py, each on a running host."""

from __future__ import annotations

import asyncio

import pytest

from busbar.broker.fragment_machine import FragmentMachine
from busbar.broker.group import GROUP_BYTES, GROUP_MESSAGES, GROUP_MOVED
from busbar.model.commands import Command, Inspect, Peek, Send, TakeMoved, fence_of
from busbar.model.effects import Delivered, Drained, Inspected, MovedTaken, Peeked, Sent, Settled
from harness.memory_store import Disk
from tests.unit.broker.hosting import clock, complete, demand, draft, hosting, send, settings


async def test_what_arrives_during_a_commit_gathers_in_one_group() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0.02)  # the first job is under way now
        for request in range(2, 12):
            here.host.submit([send(1 + request % 2, request)])
            await asyncio.sleep(0)
        here.gate.set()
        for request in range(1, 12):
            await here.sent(request)
        assert [len(group) for group in here.store.groups] == [1, 2], (
            "one batch for each fragment in the second"
        )
        assert here.disk.commits == 2


async def test_commands_of_one_loop_turn_share_a_commit() -> None:
    async with hosting() as here:
        here.host.submit([send(1, 1)])
        here.host.submit([send(2, 2)])
        here.host.submit([send(1, 3)])
        await here.sent(3)
        assert here.disk.commits == 1


async def test_nothing_is_said_before_it_is_durable() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([demand(1, 5), send(1, 1, count=3), Inspect(1, 1, 2)])
        await asyncio.sleep(0.03)
        assert here.said == [], (
            "neither the acknowledgement, nor the delivery, nor counters that may be undone"
        )
        here.host.submit([Inspect(2, 1, 3)])
        assert isinstance(await here.answer(3), Inspected), "a fragment with nothing under way speaks at once"
        assert len(here.said) == 1
        here.gate.set()
        await here.answer(2)
        assert [type(effect) for effect in here.said[1:]] == [Sent, Delivered, Inspected]


async def test_effects_that_rest_on_a_commit_in_flight_wait_for_it() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0.02)
        here.host.submit([demand(1, 1)])  # changes nothing durable, but delivers what is not durable yet
        await asyncio.sleep(0.02)
        assert here.said == []
        here.gate.set()
        await here.until(lambda: here.delivered() == [1])
        assert here.disk.commits == 1


async def test_answers_of_a_fragment_keep_the_order_of_their_commands() -> None:
    async with hosting() as here:
        requests = range(1, 300)
        for request in requests:
            command: Command = Inspect(1, 1, request) if request % 3 == 0 else send(1, request)
            here.host.submit([command])
            if request % 7 == 0:
                await asyncio.sleep(0)
            if request % 50 == 0:
                await asyncio.sleep(0.003)
        await here.answer(requests[-1])
        assert [effect.request for effect in here.said] == list(requests)


async def test_a_group_is_bounded_in_messages() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1 + i % 2, 1 + i, count=300) for i in range(20)])
        await asyncio.sleep(0.02)
        here.gate.set()
        for request in range(1, 21):
            await here.sent(request)
        weights = [sum(int(changes.weight) for changes in group) for group in here.store.groups]
        assert sum(weights) == 6000
        assert max(weights) <= GROUP_MESSAGES
        assert max(weights) == GROUP_MESSAGES // 300 * 300, (
            "batches are never split, and a group takes as many as fit"
        )


async def test_two_clients_with_a_thousand_messages_in_flight_share_a_commit() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1 + i % 2, 1 + i, count=100) for i in range(20)])
        here.gate.set()
        for request in range(1, 21):
            await here.sent(request)
        (weight,) = [sum(int(changes.weight) for changes in group) for group in here.store.groups]
        assert weight == 2_000


def take(fragment: int, request: int, source: int, count: int) -> TakeMoved:
    numbers = list(range(1, count + 1))
    return TakeMoved(fragment, 1, request, source, fence_of(1, request), numbers, [draft()] * count)


async def test_a_move_does_not_wait_for_a_group_without_sends() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1, 1, count=900), take(2, 2, 7, 2_000), send(2, 3, count=100)])
        await asyncio.sleep(0.02)
        here.gate.set()
        assert isinstance(await here.answer(2), MovedTaken)
        await here.sent(3)
        (weight,) = [sum(int(changes.weight) for changes in group) for group in here.store.groups]
        assert weight == 3_000 + 1, "with the mark of the source"


async def test_what_a_group_takes_of_moves_is_bounded() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([take(2, 1 + i, 7 + i, 2_500) for i in range(5)])
        await asyncio.sleep(0.02)
        here.gate.set()
        await here.answer(5)
        weights = [sum(int(changes.weight) for changes in group) for group in here.store.groups]
        assert weights == [5_002, 5_002, 2_501] and max(weights) <= GROUP_MOVED


async def test_a_group_is_bounded_in_bytes() -> None:
    async with hosting() as here:
        big = 200 * 1024
        here.gate.clear()
        here.host.submit([send(1, 1 + i, size=big) for i in range(100)])
        here.gate.set()
        await here.sent(100)
        assert all(
            sum(int(changes.bytes) for changes in group) <= GROUP_BYTES + 2 * big
            for group in here.store.groups
        )
        assert len(here.store.groups) >= 5


async def test_a_batch_larger_than_a_group_is_still_one_commit() -> None:
    async with hosting() as here:
        here.host.submit([send(1, 1, count=GROUP_MESSAGES * 2), send(1, 2)])
        await here.sent(2)
        assert [sum(int(changes.weight) for changes in group) for group in here.store.groups] == [
            2 * GROUP_MESSAGES,
            1,
        ]


async def test_sends_that_are_refused_do_not_fill_the_group() -> None:
    async with hosting(of=settings()) as here:
        closed = settings()
        closed.can_send = False
        here.host.change_fragments({1: closed})
        for request in range(1, 101):
            here.host.submit([send(1, request, size=100_000)])
        await here.refused(100)
        here.host.submit([send(2, 101)])
        await here.sent(101)


async def test_a_read_follows_the_commit_of_what_came_before_it() -> None:
    disk = Disk()
    async with hosting(disk) as here:
        here.host.submit([send(1, 1, count=50), send(2, 2, count=50)])
        await here.sent(2)
    async with hosting(disk) as here:
        here.gate.clear()
        here.host.submit([send(1, 1), Peek(1, 1, 2, 0, 1, 100, 1 << 20), send(1, 3), Inspect(2, 1, 4)])
        await here.answer(4)
        assert len(here.said) == 1, "the other fragment does not wait"
        here.gate.set()
        peeked = await here.answer(2)
        assert isinstance(peeked, Peeked)
        assert [record.n for record in peeked.records] == list(range(1, 52)), (
            "it sees the message sent before it only"
        )
        await here.sent(3)
        assert here.store.log[:3] == ["commit 1", "read 1", "commit 1"]


async def test_a_backlog_is_paged_in_and_delivered_in_order() -> None:
    disk = Disk()
    async with hosting(disk) as here:
        for request in range(1, 31):
            here.host.submit([send(1, request, count=100)])
        await here.sent(30)
    async with hosting(disk) as here:
        here.host.submit([demand(1, 5000)])
        await here.until(lambda: len(here.delivered()) == 3000)
        assert here.delivered() == list(range(1, 3001))
        here.host.submit([complete(delivered, 0) for delivered in here.all(Delivered)])
        here.host.submit([Inspect(1, 1, 1)])
        inspected = await here.answer(1)
        assert isinstance(inspected, Inspected)
        assert inspected.counts[0] == 0


async def test_drain_is_answered_after_what_was_there() -> None:
    async with hosting() as here:
        here.host.submit([send(1, 1, count=3), demand(1, 10, drain=True)])
        await here.until(lambda: bool(here.all(Drained)))
        assert here.delivered() == [1, 2, 3]
        assert isinstance(here.said[-1], Drained)


async def test_a_lock_that_ends_wakes_its_fragment() -> None:
    async with hosting(of=settings(lock_ms=60)) as here:
        here.host.submit([send(1, 1), demand(1, 2)])
        await here.until(lambda: here.delivered() == [1, 1])
        assert here.all(Delivered)[1].records[0].deliveries == 1


async def test_a_scheduled_message_comes_when_it_is_due_also_after_a_restart() -> None:
    disk = Disk()
    async with hosting(disk) as here:
        here.host.submit(
            [send(1, 1, scheduled=clock() + 250), send(2, 2, scheduled=clock() + 80), demand(2, 1)]
        )
        await here.until(lambda: len(here.delivered()) == 1)
    async with hosting(disk) as here:
        here.host.submit([demand(1, 1)])
        await here.until(lambda: len(here.delivered()) == 1)


async def test_one_timer_serves_many_fragments_and_thousands_of_locks() -> None:
    fragments = tuple(range(1, 51))
    async with hosting(fragments=fragments, of=settings(lock_ms=150)) as here:
        for fragment in fragments:
            here.host.submit([send(fragment, fragment, count=20), demand(fragment, 40)])
        await here.until(lambda: len(here.delivered()) == 2000)
        timers = here.host.commit_loop._timers
        assert len(timers._heap) < 3 * len(fragments)


async def test_an_unknown_fragment_is_refused() -> None:
    async with hosting() as here:
        here.host.submit([send(99, 1), send(1, 2)])
        assert (await here.refused(1)).condition == "amqp:not-found"
        await here.sent(2)


async def test_a_machine_that_raises_takes_only_its_own_fragment_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0.02)  # 1 is in flight and ends well
        here.host.submit([send(1, 2)])  # gathered; given up with the machine
        here.host.commit_loop.slots[1].machine = _Exploding(here.host.commit_loop.slots[1].machine)  # type: ignore[assignment]
        here.host.submit([Send(1, 1, 3, [draft()], True), send(1, 4), send(2, 5)])
        here.gate.set()
        await here.sent(1)
        await here.sent(5)
        for request in (2, 3, 4):
            assert (await here.refused(request)).condition == "amqp:internal-error"
        here.host.submit([send(1, 6), send(2, 7)])
        await here.refused(6)
        await here.sent(7)
        assert here.disk.fragments[1].head.last == 1
    assert "fragment 1 failed" in caplog.text


class _Exploding:
    """A machine with a bug."""

    def __init__(self, machine: FragmentMachine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> object:
        return getattr(self._machine, name)

    def apply(self, command: Command, now: int, nonce: int) -> None:
        raise ZeroDivisionError("a bug")


async def test_a_deleted_fragment_refuses_and_loses_its_messages() -> None:
    async with hosting() as here:
        here.host.submit([send(1, 1, count=2500)])
        await here.sent(1)
        here.host.submit([send(1, 2)])
        await here.host.remove_fragment(1)
        assert {type(await here.answer(2)).__name__} <= {"Sent", "Refused"}
        assert 1 not in here.disk.fragments
        here.host.submit([send(1, 3)])
        assert (await here.refused(3)).condition == "amqp:not-found"


async def test_settlements_travel_the_same_road() -> None:
    async with hosting() as here:
        here.host.submit([send(1, 1, count=10), demand(1, 10)])
        await here.until(lambda: len(here.delivered()) == 10)
        here.gate.clear()
        here.host.submit([complete(here.all(Delivered)[0], 2)])
        await asyncio.sleep(0.02)
        assert not here.all(Settled)
        here.gate.set()
        settled = await here.answer(2)
        assert isinstance(settled, Settled)
        assert settled.lost == []
        assert sum(here.disk.fragments[1].head.counts) == 0
