"""Taps and repeating writers in their host: failed commits, unknown outcomes, a start, and a store that was lost."""

from __future__ import annotations

import pytest

from busbar.broker import store_lifecycle
from busbar.broker.fragment_loading import LastKnownNumbers, load
from busbar.fragment.machine import Fragment
from busbar.model.commands import (
    EVENTS,
    MESSAGES,
    AdvanceTap,
    CommitWrites,
    ReadTap,
    ResumeTap,
    Send,
    ShowTaps,
)
from busbar.model.effects import COMPLETED, Delivered, Done, EventPage, Refused, TapPage, TapStates
from busbar.model.errors import BatchOver, TapTruncated
from busbar.model.message import ACTIVE, DEAD, Draft
from busbar.model.settings import EARLIEST, LATEST, FragmentSettings, TapSettings
from harness.memory_store import Disk, Fault, MemoryStore
from tests.pages import shown
from tests.unit.broker.hosting import Hosting, complete, demand, hosting, send

END = 1 << 60


def tapped(*taps: TapSettings) -> FragmentSettings:
    return FragmentSettings(60_000, 10, 0, False, 1 << 30, True, True, taps=list(taps))


TAP = TapSettings(7, "t", start=EARLIEST, events=True, owner="me")
TAPPED = tapped(TAP)


async def states(here: Hosting, request: int) -> TapStates:
    here.host.submit([ShowTaps(1, 1, request)])
    answer = await here.answer(request)
    assert isinstance(answer, TapStates), answer
    return answer


async def seen(here: Hosting, request: int, after: int = 0) -> list[int]:
    here.host.submit([ReadTap(1, 1, request, 7, ACTIVE, MESSAGES, after, END, 1000, END)])
    page = await here.answer(request)
    assert isinstance(page, TapPage), page
    return [record.n for record in shown(page)]


async def outcomes(here: Hosting, request: int) -> list[tuple[int, int]]:
    here.host.submit([ReadTap(1, 1, request, 7, ACTIVE, EVENTS, 0, END, 1000, END)])
    page = await here.answer(request)
    assert isinstance(page, EventPage), page
    return [(event.n, event.outcome) for event in page.events]


async def receive(here: Hosting, count: int) -> Delivered:
    known = len(here.all(Delivered))
    here.host.submit([demand(1, count)])
    await here.until(lambda: len(here.all(Delivered)) > known)
    return here.all(Delivered)[-1]


async def test_an_end_is_told_when_all_before_it_is_durable() -> None:
    async with hosting(of=TAPPED) as here:
        here.gate.clear()
        here.host.submit([send(1, 1, 3), ShowTaps(1, 1, 2)])
        await here.host.drain(0.05)
        assert here.said == []
        here.gate.set()
        assert (await states(here, 3)).end == 3
        assert isinstance(await here.answer(2), TapStates)


async def test_what_is_kept_is_there_after_a_start() -> None:
    disk = Disk()
    async with hosting(disk, of=TAPPED) as here:
        here.host.submit([send(1, 1, 3)])
        await here.sent(1)
        here.host.submit([complete(await receive(here, 2), 2)])
        await here.answer(2)
        here.host.submit([AdvanceTap(1, 1, 3, 7, MESSAGES, 1, "me")])
        assert isinstance(await here.answer(3), Done)
    async with hosting(disk, of=TAPPED) as here:
        (state,) = (await states(here, 1)).taps
        assert (state.id, state.position, state.truncated) == (7, 1, False)
        assert await seen(here, 2, 1) == [2, 3]
        assert await outcomes(here, 3) == [(1, COMPLETED), (2, COMPLETED)]
    async with hosting(disk, of=tapped()) as here:  # without the tap: nothing is left of it
        await here.until(lambda: sum(disk.fragments[1].head.counts) == 1)
        await here.until(lambda: not disk.fragments[1].events and not disk.fragments[1].taps)


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST, Fault.UNHEARD])
async def test_after_a_failure_the_store_says_where_taps_stand(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(store_lifecycle, "FULL_PAUSE", 0)
    async with hosting(of=TAPPED) as here:
        here.host.submit([send(1, 1, 4)])
        await here.sent(1)
        delivered = await receive(here, 2)
        here.store.fail_next_commit(fault)
        here.host.submit([complete(delivered, 2), AdvanceTap(1, 1, 3, 7, MESSAGES, 1, "me")])
        await here.refused(2)
        await here.refused(3)
        await here.serving()
        made = fault is Fault.UNHEARD
        (state,) = (await states(here, 4)).taps
        assert state.position == (1 if made else 0)
        assert await seen(here, 5, 1) == [2, 3, 4]
        assert await outcomes(here, 6) == ([(1, COMPLETED), (2, COMPLETED)] if made else [])
        here.host.submit([send(1, 7)])
        assert (await here.sent(7)).numbers == [5]
        assert (await states(here, 8)).end == 5


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST])
async def test_a_number_that_was_told_as_an_end_is_not_given_again(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(store_lifecycle, "FULL_PAUSE", 0)
    disk = Disk()
    async with hosting(disk, of=TAPPED) as here:
        here.host.submit([send(1, 1, 2)])
        await here.sent(1)
        here.store.fail_next_commit(fault)
        here.host.submit([send(1, 2, 5)])
        await here.refused(2)
        await here.serving()
        end = (await states(here, 3)).end
    async with hosting(disk, of=TAPPED) as here:
        here.host.submit([send(1, 1)])
        assert (await here.sent(1)).numbers[0] > end
        assert await seen(here, 2, end) == (await here.sent(1)).numbers


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST, Fault.UNHEARD])
async def test_after_a_failure_the_store_says_what_a_writer_wrote(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(store_lifecycle, "FULL_PAUSE", 0)
    disk = Disk()

    def write(request: int, batch: int, *ids: str) -> Send:
        drafts = [Draft(b"x", id, None, None, 0, 0) for id in ids]
        return Send(1, 1, request, drafts, True, "w", batch)

    async with hosting(disk) as here:
        here.host.submit([write(1, 1, "a")])
        await here.sent(1)
        here.store.fail_next_commit(fault)
        here.host.submit([write(2, 1, "a", "b"), CommitWrites(1, 1, 3, "w", 2)])
        await here.refused(2)
        await here.refused(3)
        await here.serving()
        here.host.submit([write(4, 1, "a", "b")])
        if fault is Fault.UNHEARD:
            assert (await here.refused(4)).condition == BatchOver.condition
        else:
            assert (await here.sent(4)).duplicates == [0]
        here.host.submit([write(5, 2, "c"), CommitWrites(1, 1, 6, "w", 2)])
        await here.answer(6)
    async with hosting(disk) as here:
        here.host.submit([write(1, 2, "c", "d"), write(2, 1, "e")])
        assert (await here.sent(1)).duplicates == [0]
        assert (await here.refused(2)).condition == BatchOver.condition


async def test_other_taps_from_now_on() -> None:
    async with hosting(of=tapped()) as here:
        here.host.submit([send(1, 1, 2)])
        await here.sent(1)
        here.host.change_fragments({1: tapped(TapSettings(8, "late", start=LATEST), TAP)})
        await here.until(lambda: len(here.disk.fragments[1].taps) == 2)  # without a word from anybody
        assert [(s.id, s.position) for s in (await states(here, 2)).taps] == [(8, 2), (7, 0)]
        here.host.change_fragments({1: tapped(TAP)})
        await here.until(lambda: list(here.disk.fragments[1].taps) == [7])


# A store that was lost


@pytest.mark.parametrize("lost", [True, False])
def test_taps_are_told_what_was_lost_with_a_store(lost: bool) -> None:
    store = MemoryStore()
    store.claim()
    settings = tapped(TAP, TapSettings(8, "dead", sub=DEAD), TapSettings(9, "eater", consumes=True))
    before = LastKnownNumbers(100, 50, 25, lost)
    for _ in range(2):  # created, then as the store has it
        durable = load(store, {1: settings}, lambda fragment: before)[1]
        head = durable.head
        assert (head.last, head.last_dead, head.last_event) == (100, 50, 25)
        told = [(row.id, row.truncated, row.lost, row.event_lost) for row in durable.taps]
        assert told == ([(7, True, 100, 25), (8, True, 50, 0)] if lost else [])


def test_a_tap_goes_on_behind_what_was_lost_when_it_is_told_to() -> None:
    store = MemoryStore()
    store.claim()
    durable = load(store, {1: TAPPED}, lambda fragment: LastKnownNumbers(100, 50, 25, lost=True))[1]
    machine = Fragment(1, TAPPED, durable.head, 0, [], taps=durable.taps, writers=durable.writers)
    commands = [
        Send(1, 1, 1, [Draft(b"x", "id", None, None, 0, 0)], True),
        ReadTap(1, 1, 2, 7, ACTIVE, MESSAGES, 90, END, 10, END),
        ResumeTap(1, 1, 3, 7, "me"),
        ReadTap(1, 1, 4, 7, ACTIVE, MESSAGES, 100, END, 10, END),
    ]
    answers = {}
    for command in commands:
        reads = machine.needs(command, 1_000)
        store.read(1, reads)
        machine.supply(reads)
        machine.apply(command, 1_000, 1)
        changes = machine.take_changes()
        if changes is not None:
            store.commit([changes])
        answers.update({effect.request: effect for effect in machine.take_effects()})
    refused, resumed, page = answers[2], answers[3], answers[4]
    assert isinstance(refused, Refused) and refused.condition == TapTruncated.condition
    assert isinstance(resumed, TapStates) and resumed.taps[0].position == 100
    assert isinstance(page, TapPage) and [record.n for record in shown(page)] == [101]
