"""A store goes to another owner: what is durable by then, what clients get back, and what happens if it cannot go."""

from __future__ import annotations

import asyncio

import pytest

from busbar.broker.host_api import StoreState
from busbar.model.commands import (
    COMPLETE,
    AcceptSession,
    AwaitSession,
    Command,
    Demand,
    Leave,
    Peek,
    PullOutbox,
    Send,
    Settle,
)
from busbar.model.effects import Delivered, Refused, SessionAccepted, Settled
from busbar.model.entities import QueueDescription
from busbar.model.errors import ServerBusy
from busbar.model.hold_commands import ResumeSession
from busbar.model.message import ACTIVE, Draft
from harness.memory_store import Disk, Fault
from harness.waiting import until
from tests.unit.broker.hosting import PLAIN, GatedStore, Hosting, demand, hosting, send

SESSIONS = QueueDescription(requires_session=True).fragment_settings()
GATEWAY = "broker-0.a"


async def given(here: Hosting) -> list[Command]:
    commands = await here.host.hand_over(GATEWAY)
    await here.host.close()
    return commands


def kinds(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


async def test_what_was_applied_is_durable_and_what_was_not_comes_back_in_its_order() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1, 1), demand(1, 5)])
        await until(lambda: here.host.commit_loop.job_under_way)
        here.host.submit([send(2, 2)])  # applied, and gathered for the next commit
        moving = asyncio.create_task(here.host.hand_over(GATEWAY))
        await until(lambda: here.host.state is StoreState.MOVING)
        here.host.submit(
            [send(1, 3), Peek(1, 1, 4, ACTIVE, 0, 5, 1 << 20, None), PullOutbox(1, -1, 5, 2, 1, 1)]
        )
        here.host.submit([send(2, 6)])
        assert here.host.is_open
        here.gate.set()
        commands = await moving
        await here.host.close()
        assert [(type(one).__name__, one.fragment, one.request) for one in commands] == [
            ("Demand", 1, 0),
            ("Send", 1, 3),
            ("Peek", 1, 4),
            ("Send", 2, 6),
        ], "the mover's commands to an outbox stay behind"
        assert {effect.request for effect in here.said if effect.request} == {1, 2}
        assert [here.disk.fragments[key].head.counts[ACTIVE] for key in (1, 2)] == [1, 1]


async def test_credit_that_was_used_does_not_come_back() -> None:
    async with hosting() as here:
        here.host.submit([demand(1, 5), send(1, 1, count=2)])
        await here.until(lambda: len(here.delivered()) == 2)
        (left,) = await given(here)
        assert isinstance(left, Demand) and left.credit == 3


async def test_locks_of_messages_go_to_the_next_owner() -> None:
    disk = Disk()
    async with hosting(disk) as here:
        here.host.submit([send(1, 1, count=2), demand(1, 2)])
        await here.until(lambda: len(here.delivered()) == 2)
        (delivered,) = here.all(Delivered)
        await given(here)
    async with hosting(disk) as there:
        there.host.submit([demand(1, 5, consumer=2)])
        numbers, nonces = [record.n for record in delivered.records], [int(delivered.nonce)] * 2
        there.host.submit([Settle(1, 9, 1, COMPLETE, numbers, nonces, None, False)])
        settled = await there.answer(1)
        assert isinstance(settled, Settled) and not settled.lost
        assert not there.delivered(), "nobody else got them"


async def test_sessions_of_clients_of_this_gateway_are_resumed_at_the_next_owner() -> None:
    disk = Disk()
    async with hosting(disk, (1,), SESSIONS) as here:
        drafts = [Draft(b"m", "id", "a", None, 0, 0)] * 3
        here.host.submit([Send(1, 1, 1, drafts, True), AcceptSession(1, 1, 2, 7, "a")])
        assert isinstance(await here.answer(2), SessionAccepted)
        here.host.submit([Demand(1, 1, 7, ACTIVE, 2, False, False), AwaitSession(1, 1, 3)])
        await here.until(lambda: len(here.delivered()) == 2)
        assert not disk.fragments[1].holds, "a client of this gateway does not outlive this owner"
        commands = await given(here)
        assert kinds(commands) == ["ResumeSession", "Demand", "AwaitSession"]
        resume = commands[0]
        assert isinstance(resume, ResumeSession) and (resume.session, resume.numbers) == ("a", [1, 2])
        assert disk.fragments[1].holds["a"][0] == f"{GATEWAY} 1 7"
    there = Hosting(disk)
    await there.host.open()
    there.host.gateways = {GATEWAY}
    await there.host.add_fragments({1: SESSIONS})
    resume.holder = f"{GATEWAY} 1 7"
    there.host.submit([AcceptSession(1, 5, 1, 9, "a")])
    assert isinstance(await there.answer(1), Refused)
    there.host.submit([resume, Settle(1, 1, 2, COMPLETE, resume.numbers, resume.nonces, None, False)])
    settled = await there.answer(2)
    assert isinstance(settled, Settled) and not settled.lost
    await there.host.drain(5)
    await there.host.close()


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST])
async def test_a_store_that_fails_meanwhile_stays_and_serves_again(fault: Fault) -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await until(lambda: here.host.commit_loop.job_under_way)
        moving = asyncio.create_task(here.host.hand_over(GATEWAY))
        await until(lambda: here.host.state is StoreState.MOVING)
        here.host.submit([demand(2, 1)])
        here.store.fail_next_commit(fault)
        here.gate.set()
        with pytest.raises(ServerBusy):
            await moving
        assert isinstance(await here.answer(1), Refused)
        await here.serving()
        here.host.submit([send(2, 2)])
        await here.sent(2)
        await here.until(lambda: here.delivered() == [1])


async def test_a_store_that_is_not_open_cannot_go() -> None:
    async with hosting() as here:
        await here.host.take_offline()
        with pytest.raises(ServerBusy, match="taken offline"):
            await here.host.hand_over(GATEWAY)
        here.host.bring_online()
        await here.serving()


async def test_clients_of_a_store_that_cannot_be_reached_get_their_sessions_and_credit_back() -> None:
    """Another process may reach it. The session of a client that left meanwhile is not resumed there."""
    here = Hosting(patience=0.1)
    await here.host.open()
    await here.host.add_fragments({1: SESSIONS})
    drafts = [Draft(b"m", "id", session, None, 0, 0) for session in "aab"]
    here.host.submit([Send(1, 1, 1, drafts, True)])
    for consumer, session in ((7, "a"), (8, "b")):
        accept = AcceptSession(1, 1, consumer, consumer, session)
        accept.holder = f"{GATEWAY} 1 {consumer}"
        here.host.submit([accept])
        assert isinstance(await here.answer(consumer), SessionAccepted)
    here.host.submit([Demand(1, 1, 7, ACTIVE, 1, False, False)])
    await here.until(lambda: len(here.delivered()) == 1)
    here.gate.clear()
    here.host.submit([Send(1, 1, 2, drafts, True), AwaitSession(1, 1, 3)])
    assert not (await here.refused(2)).certain, "it was given to the store, which does not answer"
    here.host.submit([Demand(1, 1, 7, ACTIVE, 5, False, False), Leave(1, 1, 8)])
    commands = await here.host.hand_over(GATEWAY)
    assert kinds(commands) == ["ResumeSession", "Demand"]
    resume, left = commands
    assert isinstance(resume, ResumeSession) and (resume.session, resume.numbers) == ("a", [1])
    assert isinstance(left, Demand) and left.credit == 5
    assert isinstance(await here.answer(3), Refused), "the client asks again"
    here.gate.set()
    await here.host.close()
    assert here.disk.fragments[1].holds.keys() == {"a", "b"}, "the next owner has the locks"


@pytest.mark.parametrize("hangs", ["commit", "release"])
async def test_a_disk_that_does_not_answer_keeps_the_store_here(
    monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    here = Hosting(patience=0.1)
    await here.host.open()
    await here.host.add_fragments({1: PLAIN})
    release = GatedStore.release

    def gated(store: GatedStore) -> None:
        assert here.gate.wait(10)
        release(store)

    monkeypatch.setattr(GatedStore, "release", gated)
    here.gate.clear()
    if hangs == "commit":
        here.host.submit([send(1, 1)])
        await until(lambda: here.host.commit_loop.job_under_way)
    moving = asyncio.create_task(here.host.hand_over(GATEWAY))
    await until(lambda: here.host.state is StoreState.MOVING)
    here.host.submit([send(1, 2)])
    with pytest.raises(ServerBusy):
        await moving
    assert here.host.state is StoreState.UNAVAILABLE
    assert (await here.refused(2)).certain, "it was never given to the store"
    here.gate.set()
    await here.serving()
    here.host.submit([send(1, 3)])
    await here.sent(3)
    if hangs == "commit":
        assert not (await here.refused(1)).certain
    await here.host.drain(5)
    await here.host.close()
