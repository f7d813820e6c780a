"""When the event loop commits small groups itself, and that it is then as if the thread had done it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from busbar.broker import inline_commits
from busbar.broker.host_api import StoreState
from busbar.broker.inline_commits import (
    FAST_BY_THREAD,
    FAST_IN_A_ROW,
    LONGEST,
    MAX_BYTES,
    PAUSE,
    InlineCommits,
)
from busbar.broker.job import Job
from busbar.fragment.changes import Changes
from busbar.fragment.reads import ReadPage
from busbar.model.commands import Inspect
from busbar.model.effects import Delivered, Inspected, Sent
from busbar.model.message import ACTIVE
from busbar.store.contract import Store
from busbar.store.journal.store import JournalStore
from harness.memory_store import Fault
from tests.unit.broker.hosting import PLAIN, GatedStore, Hosting, complete, demand, send
from tests.unit.broker.namespaces import quick_pauses

MESSAGES = 4


def job(messages: int, size: int = 10, reads: bool = False) -> Job:
    changes = Changes(1)
    changes.weight, changes.bytes = messages, size
    return Job([changes], [(1, [ReadPage(ACTIVE, 1, 1, 1)])] if reads else [])


def fast() -> InlineCommits:
    inline = InlineCommits(MESSAGES)
    for _ in range(FAST_IN_A_ROW):
        inline.took_thread(FAST_BY_THREAD)
    return inline


def test_a_small_group_has_few_messages_few_bytes_and_no_reads() -> None:
    inline = InlineCommits(MESSAGES)
    assert inline.is_small(job(MESSAGES)) and inline.is_small(job(1, MAX_BYTES))
    assert not inline.is_small(job(MESSAGES + 1))
    assert not inline.is_small(job(1, MAX_BYTES + 1))
    assert not inline.is_small(job(1, reads=True))
    assert not InlineCommits(0).is_small(job(1)), "it is off unless it is asked for"


def test_the_thread_has_to_be_fast_in_a_row_first() -> None:
    inline = InlineCommits(MESSAGES)
    for seconds in [FAST_BY_THREAD] * (FAST_IN_A_ROW - 1) + [FAST_BY_THREAD * 1.01]:
        inline.took_thread(seconds)
        assert not inline.is_allowed(0)
    assert fast().is_allowed(0)


@pytest.mark.parametrize("times", [[LONGEST], [0.0001] * 50 + [0.0015] * 8])
def test_slow_commits_are_left_to_the_thread_for_a_while(times: list[float]) -> None:
    inline = fast()
    for seconds in times:
        assert inline.is_allowed(100)
        inline.took_loop(seconds, 100)
    for _ in range(FAST_IN_A_ROW):
        assert not inline.is_allowed(100 + PAUSE)
        inline.took_thread(FAST_BY_THREAD)
    assert not inline.is_allowed(100 + PAUSE - 1) and inline.is_allowed(100 + PAUSE)


def test_one_slow_commit_among_fast_ones_changes_nothing() -> None:
    inline = fast()
    for seconds in [0.0001] * 20 + [0.005] + [0.0001] * 20:
        inline.took_loop(seconds, 100)
    assert inline.is_allowed(100)


class AtOnceStore(GatedStore):
    """Writes down which thread commits."""

    is_loop: list[bool]

    def commit(self, batches: Sequence[Changes]) -> None:
        self.is_loop.append(threading.current_thread() is threading.main_thread())
        super().commit(batches)


class InlineHosting(Hosting):
    def _open(self) -> GatedStore:
        store = AtOnceStore(self.disk, self.gate)
        store.is_loop, store.is_at_once = [], True
        self.stores.append(store)
        return store

    @property
    def is_loop(self) -> list[bool]:
        assert isinstance(self.store, AtOnceStore)
        return self.store.is_loop


@asynccontextmanager
async def inlining() -> AsyncIterator[InlineHosting]:
    """A host whose event loop commits from now on, however slow the machine is."""
    here = InlineHosting(inline_messages=MESSAGES)
    await here.host.open()
    await here.host.add_fragments({1: PLAIN, 2: PLAIN})
    patience = pytest.MonkeyPatch()
    for limit in ("FAST_BY_THREAD", "SLOW_AVERAGE", "LONGEST"):
        patience.setattr(inline_commits, limit, 60.0)
    try:
        for request in range(FAST_IN_A_ROW):
            here.host.submit([send(2, 1_000 + request)])
            await here.sent(1_000 + request)
        assert True not in here.is_loop
        here.is_loop.clear()
        yield here
    finally:
        patience.undo()
        here.gate.set()
        await here.host.drain(5)
        await here.host.close()


async def test_the_event_loop_commits_and_answers_in_one_turn() -> None:
    async with inlining() as here:
        here.host.submit([demand(1, 5), send(1, 1), Inspect(1, 1, 2)])
        assert here.all(Sent)[FAST_IN_A_ROW:] == [], "a turn is taken when all commands of this one are there"
        before = len(here.said)
        await asyncio.sleep(0)
        assert here.is_loop == [True]
        assert [type(effect) for effect in here.said[before:]] == [Sent, Delivered, Inspected]
        here.host.submit([complete(here.all(Delivered)[-1], 3)])
        await here.answer(3)
        assert here.is_loop == [True, True]


async def test_larger_groups_and_reads_go_to_the_thread() -> None:
    async with inlining() as here:
        here.host.submit([send(1, 1, count=MESSAGES + 1)])
        await here.sent(1)
        here.host.submit([send(1, 2, count=MESSAGES)])
        await here.sent(2)
        assert here.is_loop == [False, True]


async def test_a_store_that_has_more_to_do_commits_on_its_thread() -> None:
    async with inlining() as here:
        here.store.is_at_once = False
        here.host.submit([send(1, 1)])
        await here.sent(1)
        assert here.is_loop == [False]


async def test_nobody_else_uses_the_store_while_its_thread_does() -> None:
    async with inlining() as here:
        free, inside = threading.Event(), threading.Event()

        def work(_: Store) -> bool:
            inside.set()
            return free.wait(10)

        using = asyncio.create_task(here.host.on_store(work))
        await here.until(inside.is_set)
        here.host.submit([send(1, 1)])
        await asyncio.sleep(0.01)
        assert here.is_loop == [], "it waits for the thread"
        free.set()
        assert await using
        await here.sent(1)
        assert here.is_loop == [False]


async def test_what_is_refused_on_the_loop_is_undone() -> None:
    async with inlining() as here:
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send(1, 1)])
        assert (await here.refused(1)).certain
        assert here.is_loop == [True]
        await here.serving()
        here.host.submit([send(1, 2), demand(1, 5)])
        await here.sent(2)
        await here.until(lambda: here.delivered() == [1])
        assert here.is_loop[1:] == [False], "the thread commits after a failure"


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNHEARD])
async def test_an_unknown_outcome_on_the_loop_takes_the_store_out(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_pauses(monkeypatch)
    async with inlining() as here:
        here.store.fail_next_commit(fault)
        here.host.submit([send(1, 1)])
        assert not (await here.refused(1)).certain
        await here.until(lambda: here.host.state is StoreState.OPEN)
        assert len(here.stores) == 2
        here.host.submit([send(1, 2), demand(1, 5)])
        await here.sent(2)
        await here.until(lambda: len(here.delivered()) == (1 if fault is Fault.LOST else 2))


class JournalHosting(Hosting):
    path: Path

    def _open(self) -> JournalStore:  # type: ignore[override]
        return JournalStore(self.path, segment_size=1 << 16)


async def test_a_journal_that_is_written_by_both_is_read_again(tmp_path: Path) -> None:
    """Through many segments, with commits of the loop and the thread by turns."""
    for _ in range(2):
        here = JournalHosting(inline_messages=MESSAGES)
        here.path = tmp_path / "store.db"
        await here.host.open()
        await here.host.add_fragments({1: PLAIN})
        numbers = []
        for request in range(1, 200):
            here.host.submit([send(1, request, count=9 if request % 10 == 0 else 1, size=900)])
            numbers += (await here.sent(request)).numbers
        assert len(numbers) == 199 + 19 * 8
        await here.host.close()
    again = JournalStore(tmp_path / "store.db")
    again.claim()
    page = ReadPage(ACTIVE, 1, 10_000, 1 << 40)
    again.read(1, [page])
    assert [record.n for record in page.records] == [*range(1, 2 * len(numbers) + 1)]
    again.close()
