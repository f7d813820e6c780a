"""What express entities make durable before they answer, and what a commit that fails must neither lose nor bring back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from busbar.model.commands import AcceptSession, Command, Demand, Send, SetSessionState, Settle, TakeMoved
from busbar.model.effects import Delivered, MovedTaken, SessionAccepted, Settled
from busbar.model.message import OUTBOX, SCHEDULED, Draft
from busbar.model.settings import ForwardSettings, FragmentSettings
from harness.memory_store import Disk, Fault
from tests.unit.broker.express_fragments import express, forced, stored
from tests.unit.broker.hosting import PLAIN, Hosting, clock, complete, demand, hosting, send

pytestmark = pytest.mark.usefixtures("full_for_a_while")

DELAY = 120


@asynccontextmanager
async def warm(of: FragmentSettings, disk: Disk | None = None) -> AsyncIterator[Hosting]:
    """A host whose fragments 1 and 2 have given their first number, which is written."""
    async with hosting(disk, of=of) as here:
        if not of.requires_session:
            for fragment in (1, 2):
                here.host.submit([send(fragment, 900 + fragment), Demand(fragment, 1, 99, 0, 1, False, True)])
            await here.until(lambda: len(here.delivered()) == 2)
        await here.until(lambda: here.host.commit_loop.idle)
        here.said.clear()
        here.disk.commits = 0
        yield here


async def is_held(here: Hosting, command: Command) -> bool:
    """Submit a command while the store cannot write. Whether it is answered only when the store has written."""
    here.gate.clear()
    here.host.submit([command])
    await asyncio.sleep(0.03)
    held = all(effect.request != command.request for effect in here.said)
    here.gate.set()
    await here.answer(command.request)
    return held


# ---- durable before the answer ----


async def test_the_first_number_is_written_before_it_is_acknowledged() -> None:
    """Otherwise it would be given again after a crash."""
    async with hosting(of=express()) as here:
        assert await is_held(here, send(1, 1))
        assert here.disk.fragment(1).head.last > 1_000_000, "many numbers more can be given without a write"
        assert not await is_held(here, send(1, 2))


async def test_switched_off_and_on_again_the_first_number_is_written() -> None:
    """While it was off, commits wrote the last number that was given, and no higher one."""
    async with warm(express()) as here:
        here.host.change_fragments({1: PLAIN})
        here.host.submit([send(1, 1)])
        await here.sent(1)
        here.host.change_fragments({1: express()})
        assert await is_held(here, send(1, 2))
        assert here.disk.fragment(1).head.last > (await here.sent(2)).numbers[0]


async def test_a_scheduled_message_is_durable_before_it_is_acknowledged() -> None:
    async with warm(express()) as here:
        assert await is_held(here, send(1, 1, scheduled=clock() + 60_000))
        assert len(stored(here, SCHEDULED)) == 1


async def test_a_session_state_is_durable_before_it_is_acknowledged() -> None:
    async with warm(express(requires_session=True)) as here:
        here.host.submit([AcceptSession(1, 1, 1, 5, "s")])
        assert isinstance(await here.answer(1), SessionAccepted)
        assert await is_held(here, SetSessionState(1, 1, 2, 5, b"state"))
        assert here.disk.fragment(1).states["s"][1] == b"state"


async def test_a_message_that_is_moved_here_is_durable_before_its_source_removes_it() -> None:
    async with warm(express()) as here:
        drafts = [Draft(b"moved", "id", None, None, 0, 0)]
        assert await is_held(here, TakeMoved(1, 1, 1, 77, 1, [1], drafts))
        taken = await here.answer(1)
        assert isinstance(taken, MovedTaken)
        assert len(stored(here)) == 1


@pytest.mark.parametrize("requires_session", [False, True])
async def test_what_is_to_be_forwarded_is_durable_before_it_is_acknowledged(requires_session: bool) -> None:
    """Messages of sessions are forwarded by a later turn."""
    settings = express(requires_session=requires_session)
    settings.forward = ForwardSettings("target", [7])
    drafts = [Draft(b"x", "id", "s", None, 0, 0)]
    async with hosting(of=settings) as here:
        assert await is_held(here, Send(1, 1, 1, drafts, True))
        await here.until(lambda: here.host.commit_loop.idle)
        here.said.clear()
        assert await is_held(here, Send(1, 1, 2, drafts, True))
        assert len(stored(here)) + len(stored(here, OUTBOX)) == 2


async def test_what_is_sent_while_the_broker_stops_is_written() -> None:
    disk = Disk()
    async with warm(express(), disk) as here:
        here.host.stop_timers()
        here.host.submit([send(1, 1)])
        numbers = (await here.sent(1)).numbers
    async with hosting(disk, of=express()) as here:
        assert stored(here) == numbers


# ---- commits that fail ----


def settle(delivered: Delivered, request: int, at: int) -> Settle:
    return Settle(1, 1, request, 0, [delivered.records[at].n], [int(delivered.nonce)], None, False)


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST, Fault.UNHEARD])
async def test_what_was_completed_in_memory_does_not_come_back_with_the_rest(fault: Fault) -> None:
    async with warm(express()) as here:
        here.host.submit([send(1, 1, count=3), demand(1, 3)])
        numbers = (await here.sent(1)).numbers
        await here.until(lambda: len(here.delivered()) == 3)
        held = here.all(Delivered)[0]
        here.host.submit([settle(held, 2, at=1)])
        assert isinstance(await here.answer(2), Settled)
        here.store.fail_next_commit(fault)
        here.host.submit([forced(1, 3)])
        await here.refused(3)
        await here.until(lambda: here.host.is_open and here.host.commit_loop.idle, seconds=10)
        await asyncio.sleep(0.2)
        for request, at in ((4, 0), (5, 1), (6, 2)):
            here.host.submit([settle(held, request, at)])
            settled = await here.answer(request)
            assert isinstance(settled, Settled) and settled.lost == ([0] if at == 1 else [])
        here.host.submit([demand(1, 10, consumer=3)])
        await asyncio.sleep(0.05)
        again = [n for one in here.all(Delivered) if one.consumer == 3 for n in [r.n for r in one.records]]
        assert not set(again) & set(numbers)


async def test_what_is_due_while_the_store_is_full_is_written_when_there_is_room() -> None:
    """The fragment has no part in the commit that failed."""
    async with warm(express(DELAY)) as here:
        here.host.submit([send(2, 1, count=2)])
        numbers = (await here.sent(1)).numbers
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([forced(1, 2)])
        await here.refused(2)
        await asyncio.sleep(DELAY / 1000)
        assert stored(here, fragment=2) == [], "the store was full a moment ago"
        await here.until(lambda: stored(here, fragment=2) == numbers)


async def test_a_completion_that_is_refused_can_be_repeated_and_what_was_sent_before_it_stays() -> None:
    async with warm(express()) as here:
        here.host.submit([forced(1, 1), demand(1, 1)])
        await here.until(lambda: len(here.delivered()) == 1)
        held = here.all(Delivered)[0]
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send(1, 2), complete(held, 3)])
        numbers = (await here.sent(2)).numbers
        await here.refused(3)
        await asyncio.sleep(0.2)
        here.host.submit([complete(held, 4)])
        settled = await here.answer(4)
        assert isinstance(settled, Settled) and settled.lost == []
        here.host.submit([demand(1, 5, consumer=3)])
        await here.until(lambda: here.delivered()[1:] == numbers)
