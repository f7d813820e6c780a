"""When a commit fails: what is undone, who is told, and what survives (the rules of store_lifecycle.py)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from busbar.broker.host_api import StoreState
from busbar.broker.store_host import LocalStoreHost
from busbar.model.commands import Inspect, Leave
from busbar.model.effects import Delivered, Drained, Effect, Inspected, Sent, Settled
from busbar.model.errors import ServerBusy
from busbar.store.contract import StoreError
from busbar.store.sqlite.store import SqliteStore
from harness.memory_store import Disk, Fault, MemoryStore
from tests.unit.broker.hosting import PLAIN, Hosting, clock, complete, demand, hosting, send

pytestmark = pytest.mark.usefixtures("full_for_a_while")


async def three_delivered(here: Hosting) -> Delivered:
    here.host.submit([send(1, 1, count=3), demand(1, 3)])
    await here.until(lambda: len(here.delivered()) == 3)
    return here.all(Delivered)[0]


async def counts(here: Hosting, request: int, fragment: int = 1) -> Inspected:
    here.host.submit([Inspect(fragment, 1, request)])
    answer = await here.answer(request)
    assert isinstance(answer, Inspected), answer
    return answer


async def test_a_full_store_refuses_and_locks_stay() -> None:
    async with hosting() as here:
        held = await three_delivered(here)
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send(1, 2), complete(held, 3), send(2, 4)])
        for request in (2, 3, 4):
            refused = await here.refused(request)
            assert refused.condition == ServerBusy.condition
            assert "full" in refused.text
        here.host.submit([complete(held, 5)])
        settled = await here.answer(5)
        assert isinstance(settled, Settled)
        assert settled.lost == [], "the refused settlement left the locks as they were"
        assert (await counts(here, 6)).counts[0] == 0
        assert len(here.stores) == 1, "the store was not opened again"


async def test_while_full_sends_are_refused_at_once_and_settlements_drain() -> None:
    async with hosting() as here:
        held = await three_delivered(here)
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send(1, 2)])
        await here.refused(2)
        commits = here.disk.commits
        here.host.submit([send(1, 3), complete(held, 4), send(2, 5)])
        await here.refused(3)
        await here.refused(5)
        assert isinstance(await here.answer(4), Settled)
        assert here.disk.commits == commits + 1
        await asyncio.sleep(0.2)
        here.host.submit([send(1, 6)])
        await here.sent(6)


async def test_while_full_what_is_due_waits_and_settlements_drain() -> None:
    """A commit with new messages would fail again, and take the settlements along that make room."""
    async with hosting() as here:
        held = await three_delivered(here)
        here.host.submit([send(1, 2, scheduled=clock() + 30)])
        await here.sent(2)
        here.store.groups = []
        here.store.fail_next_commit(Fault.FULL)  # of the commit in which the message would come
        await here.until(lambda: not here.store._faults)
        await asyncio.sleep(0.03)
        assert not here.store.groups, "it is not tried again at once"
        here.host.submit([complete(held, 3)])
        assert isinstance(await here.answer(3), Settled)
        here.host.submit([demand(1, 1)])
        await here.until(lambda: here.delivered()[3:] == [5])


async def test_what_was_applied_after_the_failed_group_is_undone_with_it() -> None:
    async with hosting() as here:
        here.host.submit([demand(1, 10)])
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0.02)
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send(1, 2), send(2, 3)])  # gathered behind the group that fails
        here.gate.set()
        for request in (1, 2, 3):
            await here.refused(request)
        assert here.delivered() == [], "a delivery of what never was is not made"
        await asyncio.sleep(0.2)
        here.host.submit([send(1, 4, count=10)])
        numbers = (await here.sent(4)).numbers
        await here.until(lambda: here.delivered() == numbers)


async def test_a_drain_is_answered_once_after_the_undo() -> None:
    async with hosting() as here:
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send(1, 1), demand(1, 5, drain=True)])
        await here.refused(1)
        await here.until(lambda: len(here.all(Drained)) == 1)
        await asyncio.sleep(0.05)
        assert len(here.all(Drained)) == 1
        assert here.delivered() == []


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNHEARD])
async def test_after_an_unknown_outcome_the_store_is_opened_again(fault: Fault) -> None:
    async with hosting() as here:
        here.host.submit([send(1, 1), demand(1, 10)])
        await here.until(lambda: here.delivered() == [1])
        here.store.fail_next_commit(fault)
        here.host.submit([send(1, 2, count=2)])
        assert (await here.refused(2)).condition == ServerBusy.condition
        await here.until(lambda: here.host.state is StoreState.OPEN)
        assert len(here.stores) == 2
        here.host.submit([send(1, 3)])
        (number,) = (await here.sent(3)).numbers
        made = [] if fault is Fault.LOST else [2, 3]
        assert number == 2 + len(made), "numbers go on from what is durable"
        await here.until(lambda: here.delivered() == [1, *made, number])
        here.host.submit([complete(here.all(Delivered)[0], 4)])
        settled = await here.answer(4)
        assert isinstance(settled, Settled)
        assert settled.lost == [], "a lock taken before the failure is still held"


async def test_locks_of_messages_that_a_lost_answer_removed_are_forgotten() -> None:
    async with hosting() as here:
        held = await three_delivered(here)
        here.store.fail_next_commit(Fault.UNHEARD)
        here.host.submit([complete(held, 2)])
        await here.refused(2)
        await here.until(lambda: here.host.state is StoreState.OPEN)
        here.host.submit([complete(held, 3)])
        settled = await here.answer(3)
        assert isinstance(settled, Settled)
        assert settled.lost == [0, 1, 2]
        assert (await counts(here, 4)).counts[0] == 0


async def test_locks_of_a_settlement_that_was_not_made_are_held_again() -> None:
    async with hosting() as here:
        held = await three_delivered(here)
        here.store.fail_next_commit(Fault.LOST)
        here.host.submit([complete(held, 2)])
        await here.refused(2)
        await here.until(lambda: here.host.state is StoreState.OPEN)
        assert (await counts(here, 3)).counts[0] == 3
        here.host.submit([complete(held, 4)])
        settled = await here.answer(4)
        assert isinstance(settled, Settled)
        assert settled.lost == []


async def test_while_the_store_is_out_requests_are_refused_and_consumers_kept() -> None:
    async with hosting() as here:
        here.host.submit([demand(1, 1)])
        here.refuse_to_open = StoreError("the disk is not there")
        here.store.fail_next_commit(Fault.LOST)
        here.host.submit([send(1, 1)])
        await here.refused(1)
        here.host.submit([send(1, 2), demand(1, 1, consumer=2), demand(1, 1, consumer=3), Leave(1, 1, 2)])
        assert "unavailable" in (await here.refused(2)).text
        await asyncio.sleep(0.06)
        assert here.host.state is StoreState.UNAVAILABLE
        here.refuse_to_open = None
        await here.until(lambda: here.host.state is StoreState.OPEN)
        here.host.submit([send(1, 3, count=3)])
        await here.sent(3)
        await here.until(lambda: len(here.delivered()) == 2)
        assert [delivered.consumer for delivered in here.all(Delivered)] == [1, 3]


async def test_commands_that_wait_for_a_read_survive_a_failure() -> None:
    disk = Disk()
    async with hosting(disk) as here:
        here.host.submit([send(1, 1, count=5)])
        await here.sent(1)
    async with hosting(disk) as here:
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send(1, 1), demand(1, 5), Inspect(1, 1, 2)])
        await here.refused(1)
        await here.answer(2)
        await here.until(lambda: here.delivered() == [1, 2, 3, 4, 5])


@pytest.mark.parametrize("fault", Fault)
async def test_a_fragment_whose_tick_waits_for_a_read_when_the_store_fails_is_looked_at_again(
    fault: Fault,
) -> None:
    """What it was woken for is done when the store is back, although it changed nothing and nobody asks for it."""
    async with hosting() as here:
        here.host.submit([demand(1, 1), send(1, 1, scheduled=clock() + 60)])
        await here.sent(1)
        here.gate.clear()
        here.host.submit([send(2, 2)])
        await here.until(lambda: here.host.commit_loop.slots[1].reads is not None)
        here.store.fail_next_commit(fault)
        here.gate.set()
        await here.refused(2)
        await here.until(lambda: here.delivered() == [2])


async def test_a_fenced_host_stops_and_refuses() -> None:
    async with hosting() as here:
        here.host.submit([send(1, 1)])
        await here.sent(1)
        MemoryStore(here.disk).claim()  # another owner
        here.host.submit([send(1, 2)])
        await here.refused(2)
        assert here.fenced == 1
        assert here.host.state is StoreState.CLOSED
        here.host.submit([send(2, 3), demand(2, 1)])
        assert "another broker" in (await here.refused(3)).text
        assert here.disk.fragments[1].head.last == 1


async def test_every_request_is_answered_once_through_a_series_of_faults() -> None:
    async with hosting() as here:
        request = 0
        faults = [Fault.FULL, Fault.LOST, Fault.UNHEARD] * 4
        for fault in faults:
            here.store.fail_next_commit(fault)
            for _ in range(20):
                request += 1
                here.host.submit([send(1 + request % 2, request), demand(1 + request % 2, 1)])
                await asyncio.sleep(0.001)
            await here.until(lambda: here.host.state is StoreState.OPEN)
        await here.until(lambda: len({effect.request for effect in here.said} - {0}) == request)
        answered = [effect.request for effect in here.said if effect.request]
        assert len(answered) == len(set(answered))
        for fragment in (1, 2):
            acknowledged = [
                n for sent in here.all(Sent) if 1 + sent.request % 2 == fragment for n in sent.numbers
            ]
            assert acknowledged == sorted(set(acknowledged)), (
                "numbers never go back and are never given twice"
            )
            there = here.disk.fragments[fragment].lanes[0].records
            assert set(acknowledged) <= set(there), "what was acknowledged is there"


async def test_message_locks_survive_a_clean_stop(tmp_path: Path) -> None:
    """On the real store: what a receiver holds can be settled after the restart, and is not given to another."""
    said: list[Effect] = []
    host = LocalStoreHost(
        "a",
        lambda: SqliteStore(tmp_path / "s.db"),
        asyncio.get_running_loop(),
        clock,
        lambda: 77,
        said.extend,
    )
    await host.open()
    await host.add_fragments({1: PLAIN})
    host.submit([send(1, 1, count=4), demand(1, 3)])
    assert await host.drain(5)
    held = next(effect for effect in said if isinstance(effect, Delivered))
    await host.close()

    said.clear()
    host = LocalStoreHost(
        "b",
        lambda: SqliteStore(tmp_path / "s.db"),
        asyncio.get_running_loop(),
        clock,
        lambda: 78,
        said.extend,
    )
    await host.open()
    await host.add_fragments({1: PLAIN})
    host.submit([demand(1, 10), complete(held, 5)])
    assert await host.drain(5)
    await host.close()
    delivered = [record.n for effect in said if isinstance(effect, Delivered) for record in effect.records]
    assert delivered == [4]
    settled = next(effect for effect in said if isinstance(effect, Settled))
    assert settled.lost == []


async def test_work_on_a_failing_store_is_retryable_and_the_next_commit_recovers() -> None:
    async with hosting() as here:
        here.store.crash()
        with pytest.raises(ServerBusy):
            await here.host.on_store(lambda store: store.heads())
        here.host.submit([send(1, 1)])
        await here.refused(1)
        await here.until(lambda: here.host.state is StoreState.OPEN)
        here.host.submit([send(1, 2)])
        await here.sent(2)


async def test_a_machine_that_cannot_undo_is_taken_out_and_the_others_go_on() -> None:
    class Stubborn:
        def __init__(self, machine: object) -> None:
            self._machine = machine

        def __getattr__(self, name: str) -> object:
            return getattr(self._machine, name)

        def undo(self, *_: object) -> None:
            raise ZeroDivisionError("a bug")

    async with hosting() as here:
        slot = here.host.commit_loop.slots[1]
        slot.machine = Stubborn(slot.machine)  # type: ignore[assignment]
        here.store.fail_next_commit(Fault.LOST)
        here.host.submit([send(1, 1), send(2, 2)])
        await here.refused(1)
        await here.refused(2)
        await here.until(lambda: here.host.state is StoreState.OPEN)
        here.host.submit([send(1, 3), send(2, 4)])
        assert (await here.refused(3)).condition == "amqp:internal-error"
        await here.sent(4)


async def test_closing_while_the_store_is_out_ends() -> None:
    async with hosting() as here:
        here.refuse_to_open = StoreError("gone for good")
        here.store.fail_next_commit(Fault.LOST)
        here.host.submit([send(1, 1)])
        await here.refused(1)
        assert here.host.state is StoreState.UNAVAILABLE
        await here.host.close()
        here.host.submit([send(1, 2)])
        await here.refused(2)
