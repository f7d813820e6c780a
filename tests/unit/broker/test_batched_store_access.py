"""EnableBatchedOperations on a running host: which writes share a commit, and which have one of their own."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from busbar.broker.commit_loop import CommitLoop
from busbar.broker.slot import Slot
from busbar.fragment.changes import empty_head
from busbar.fragment.machine import Fragment
from busbar.model.commands import Demand
from busbar.model.effects import Delivered
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from tests.unit.broker.hosting import PLAIN, Hosting, complete, demand, hosting, send, topic

NOW = 1_000_000
APART = QueueDescription(enable_batched_operations=False).fragment_settings()


def committed(here: Hosting) -> list[list[int]]:
    """The fragments of each commit, in order."""
    return [[int(changes.fragment) for changes in group] for group in here.store.groups]


async def test_writes_that_wait_for_a_commit_share_the_next_one_across_entities() -> None:
    async with hosting() as here:
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0.02)
        here.host.submit([send(1, 2), send(2, 3), send(1, 4), send(2, 5)])
        here.gate.set()
        await here.sent(5)
        assert committed(here) == [[1], [1, 2]]


async def test_a_lone_write_never_waits() -> None:
    async with hosting() as here:
        loop = asyncio.get_running_loop()
        times = []
        for request in range(1, 21):
            began = loop.time()
            here.host.submit([send(1, request)])
            while not here.said or here.said[-1].request != request:
                await asyncio.sleep(0)
            times.append(loop.time() - began)
        assert sorted(times)[10] < 0.02, "it waited for others that did not come"
        assert here.disk.commits == 20


async def test_without_batched_access_each_send_has_its_own_commit() -> None:
    async with hosting(of=APART) as here:
        here.gate.clear()
        here.host.submit([send(1 + request % 2, request) for request in range(1, 11)])
        here.gate.set()
        for request in range(1, 11):
            await here.sent(request)
        assert [len(group) for group in committed(here)] == [1] * 10
        assert here.disk.commits == 10


async def test_without_batched_access_each_completion_has_its_own_commit() -> None:
    async with hosting(of=APART) as here:
        here.host.submit([send(1, 1, count=6), demand(1, 6)])
        await here.until(lambda: len(here.delivered()) == 6)
        before = here.disk.commits
        settlements = []
        for effect in here.all(Delivered):
            for record in effect.records:
                one = Delivered(1, 1, 1, [record], effect.nonce, effect.until)
                settlements.append(complete(one, 100 + int(record.n)))
        here.host.submit(settlements)
        for command in settlements:
            await here.answer(command.request)
        assert here.disk.commits - before == 6


async def test_a_write_apart_is_not_committed_with_those_of_others() -> None:
    async with hosting() as here:
        here.host.change_fragments({2: APART})
        await asyncio.sleep(0.02)
        here.store.groups.clear()
        here.gate.clear()
        here.host.submit([send(1, 1), send(2, 2), send(1, 3), send(2, 4), send(1, 5)])
        here.gate.set()
        for request in (1, 2, 3, 4, 5):
            await here.sent(request)
        groups = committed(here)
        assert all(group in ([1], [2]) for group in groups), groups
        assert groups.count([2]) == 2


def test_a_write_apart_gets_its_turn_among_many_that_share() -> None:
    """Two others have a write for every commit. The commit after the next one is its own, whatever comes meanwhile."""
    loop = CommitLoop(lambda: 1, RuleCompiler(uuid4))
    for fragment, of in ((1, PLAIN), (2, PLAIN), (3, APART)):
        loop.add(Slot(fragment, Fragment(fragment, of, empty_head(fragment), 0, [])))
    loop.resume(NOW)
    commits: list[list[int]] = []
    loop.submit([send(1, 0)], NOW)
    for _ in range(6):
        step = loop.step(NOW)
        while step.has_more:
            assert step.job is not None
            commits.append([int(changes.fragment) for changes in step.job.batches])
            step = loop.step(NOW)
        if step.job is not None:
            commits.append([int(changes.fragment) for changes in step.job.batches])
        loop.submit([send(1 + len(commits) % 2, 0), send(3, 0), send(2 - len(commits) % 2, 0)], NOW)
        loop.job_done()
    assert [3] in commits[:3], commits
    assert all(3 not in commit or commit == [3] for commit in commits), commits
    assert commits.count([3]) >= 2, commits


async def test_receives_join_the_commit_that_is_there() -> None:
    async with hosting(of=APART) as here:
        here.host.submit([send(1, 1, count=2)])
        await here.sent(1)
        before = here.disk.commits
        here.gate.clear()
        here.host.submit([send(2, 2)])
        await asyncio.sleep(0.02)
        here.host.submit([Demand(1, 1, 7, 0, 2, False, True)])
        here.gate.set()
        await here.until(lambda: len(here.delivered()) == 2)
        assert here.disk.commits - before == 2


async def test_receives_of_an_entity_apart_share_the_commit_of_others() -> None:
    async with hosting() as here:
        here.host.change_fragments({1: APART})
        here.host.submit([send(1, 1, count=2)])
        await here.sent(1)
        here.store.groups.clear()
        here.gate.clear()
        here.host.submit([send(2, 2)])
        await asyncio.sleep(0.02)
        here.host.submit([send(2, 3), Demand(1, 1, 7, 0, 2, False, True)])
        here.gate.set()
        await here.until(lambda: len(here.delivered()) == 2)
        assert [sorted(group) for group in committed(here)] == [[2], [1, 2]]


async def test_the_copies_of_a_topic_follow_the_topic() -> None:
    """A subscription without batched access deletes apart; what its topic publishes still shares commits."""
    apart = SubscriptionDescription(enable_batched_operations=False).fragment_settings()
    async with hosting(fragments=(1, 2)) as here:
        await here.host.add_fragments({3: apart, 4: topic([3])})
        here.store.groups.clear()
        here.gate.clear()
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0.02)
        here.host.submit([send(4, 2), send(2, 3), send(4, 4)])
        here.gate.set()
        for request in (1, 2, 3, 4):
            await here.sent(request)
        assert [sorted(group) for group in committed(here)] == [[1], [2, 3, 4]]


def test_the_description_of_every_kind_of_entity_reaches_its_fragments() -> None:
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription):
        on: FragmentSettings = kind().fragment_settings()
        off: FragmentSettings = kind(enable_batched_operations=False).fragment_settings()
        assert (on.shares_commits, off.shares_commits) == (True, False)
