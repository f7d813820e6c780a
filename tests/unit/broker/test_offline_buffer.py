"""Who comes and goes while a store is unavailable: when it is back, its fragments know exactly those who are still there."""

from __future__ import annotations

import pytest

from busbar.broker.host_api import StoreState
from busbar.broker.offline_buffer import ALL_CREDIT, OfflineBuffer
from busbar.model.commands import AcceptSession, AwaitSession, CancelAwait, Command, Demand, Leave, Send
from busbar.model.effects import Delivered, Drained, SessionAccepted
from busbar.model.message import Draft
from busbar.model.settings import FragmentSettings
from busbar.store.contract import StoreError
from harness.memory_store import Fault
from tests.unit.broker.hosting import Hosting, demand, hosting, send

SESSIONS = FragmentSettings(60_000, 10, 0, False, 1 << 30, True, True, 0, True)


def in_session(request: int, session: str) -> Send:
    return Send(1, 1, request, [Draft(b"x", "id", session, None, 0, 0)], True)


async def go_out(here: Hosting, command: Command) -> None:
    """The commit of this command fails, and the store cannot be opened again."""
    here.refuse_to_open = StoreError("the disk is not there")
    here.store.fail_next_commit(Fault.LOST)
    here.host.submit([command])
    await here.refused(command.request)
    await here.until(lambda: here.host.state is StoreState.UNAVAILABLE)


async def come_back(here: Hosting) -> None:
    here.refuse_to_open = None
    here.host.bring_online()
    await here.until(lambda: here.host.state is StoreState.OPEN)


@pytest.mark.parametrize("whole_connection", [True, False])
async def test_a_session_whose_holder_left_meanwhile_is_free(whole_connection: bool) -> None:
    """It holds the session without having asked for a message: it has no credit."""
    async with hosting(of=SESSIONS) as here:
        here.host.submit([in_session(1, "s")])
        await here.sent(1)
        here.host.submit([AcceptSession(1, 7, 2, 70, "s")])
        assert isinstance(await here.answer(2), SessionAccepted)
        await go_out(here, in_session(3, "other"))
        here.host.submit([Leave(1, 7, 0 if whole_connection else 70)])
        await come_back(here)
        here.host.submit([AcceptSession(1, 8, 4, 80, "s")])
        assert isinstance(await here.answer(4), SessionAccepted), (
            "long before its lock of 60 s would have ended"
        )


async def test_a_holder_that_stays_keeps_its_session() -> None:
    async with hosting(of=SESSIONS) as here:
        here.host.submit([in_session(1, "s")])
        await here.sent(1)
        here.host.submit([AcceptSession(1, 7, 2, 70, "s")])
        await here.answer(2)
        await go_out(here, in_session(3, "other"))
        here.host.submit([Leave(1, 8, 0), Leave(1, 7, 71)])
        await come_back(here)
        here.host.submit([AcceptSession(1, 8, 4, 80, "s")])
        await here.refused(4)
        here.host.submit([Demand(1, 7, 70, 0, 1, False, False)])
        await here.until(lambda: len(here.all(Delivered)) == 1)


async def test_an_accept_that_was_refused_with_the_store_holds_nothing() -> None:
    async with hosting(of=SESSIONS) as here:
        here.host.submit([in_session(1, "s")])
        await here.sent(1)
        here.refuse_to_open = StoreError("the disk is not there")
        here.store.fail_next_commit(Fault.LOST)
        here.host.submit([in_session(2, "other"), AcceptSession(1, 7, 3, 70, "s")])
        await here.refused(2)
        await here.refused(3)
        await come_back(here)
        here.host.submit([AcceptSession(1, 8, 4, 80, "s")])
        assert isinstance(await here.answer(4), SessionAccepted)


async def test_consumers_that_left_get_nothing_whether_they_had_credit_or_not() -> None:
    async with hosting() as here:
        here.host.submit([demand(1, 5, consumer=1), demand(1, 1, consumer=2), send(1, 1, count=6)])
        await here.sent(1)
        await here.until(lambda: len(here.delivered()) == 6)
        here.host.submit([demand(1, 3, consumer=3)])
        await go_out(here, send(1, 2))
        here.host.submit([Leave(1, 1, consumer) for consumer in (1, 2, 3)])
        here.host.submit([demand(1, 4, consumer=4), Leave(1, 1, 4), demand(1, 1, consumer=5)])
        await come_back(here)
        already = len(here.all(Delivered))
        here.host.submit([send(1, 3, count=2)])
        await here.sent(3)
        await here.until(lambda: len(here.all(Delivered)) == already + 1)
        assert here.all(Delivered)[-1].consumer == 5


def test_what_is_kept_does_not_grow_with_those_who_come_and_go() -> None:
    parking = OfflineBuffer()
    parking.seed(1, [Demand(1, 1, 1, 0, 0, False, False)], [AwaitSession(1, 2, 5)])
    for consumer in range(100, 1_100):
        assert parking.add(Demand(1, 3, consumer, 0, 1, False, False)) is None
        assert isinstance(parking.add(Demand(1, 3, consumer, 0, 0, True, False)), Drained)
        parking.add(Leave(1, 3, consumer))
        parking.add(CancelAwait(1, 3, consumer))
    assert parking.replay() == []


def test_what_is_told_to_the_machine_in_the_end() -> None:
    parking = OfflineBuffer()
    known = [Demand(1, 1, consumer, 0, credit, False, False) for consumer, credit in ((1, 0), (2, 5), (3, 5))]
    parking.seed(1, known, [AwaitSession(1, 1, 9)])
    parking.add(Leave(1, 1, 1))
    parking.add(Demand(1, 1, 2, 0, 0, True, False))
    parking.add(Demand(1, 1, 3, 0, 4, False, False))
    parking.add(Demand(1, 1, 3, 0, 3, False, False))
    parking.add(CancelAwait(1, 1, 9))
    told = parking.replay()
    assert [type(command) for command in told] == [Leave, CancelAwait, Demand, Demand]
    leave, _cancel, emptied, more = told
    assert isinstance(leave, Leave) and leave.consumer == 1
    assert isinstance(emptied, Demand) and (emptied.consumer, emptied.credit) == (2, -ALL_CREDIT)
    assert isinstance(more, Demand) and (more.consumer, more.credit) == (3, 7)
    assert parking.replay() == []
