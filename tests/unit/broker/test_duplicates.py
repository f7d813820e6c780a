"""Duplicate detection in its host: failed commits, unknown outcomes, and a start while messages come."""

from __future__ import annotations

import asyncio

import pytest

from busbar.broker import store_lifecycle
from busbar.model.commands import InspectDuplicates, Send
from busbar.model.effects import DuplicateReport
from busbar.model.entities import QueueDescription
from busbar.model.message import Draft
from harness.memory_store import Disk, Fault
from tests.unit.broker.hosting import Hosting, hosting

UNIQUE = QueueDescription(requires_duplicate_detection=True).fragment_settings()


def send(request: int, *ids: str) -> Send:
    return Send(1, 1, request, [Draft(b"x", id, None, None, 0, 0) for id in ids], True)


def test_the_description_says_for_how_long() -> None:
    window = {"duplicate_detection_history_time_window": 20_000}
    assert UNIQUE.duplicate_window_ms == 600_000
    assert QueueDescription(**window).fragment_settings().duplicate_window_ms == 0  # type: ignore[arg-type]
    described = QueueDescription(requires_duplicate_detection=True, **window)  # type: ignore[arg-type]
    assert described.fragment_settings().duplicate_window_ms == 20_000


async def test_a_duplicate_of_what_is_under_way_waits_for_it() -> None:
    async with hosting(of=UNIQUE) as here:
        here.gate.clear()
        here.host.submit([send(1, "a")])
        await asyncio.sleep(0.02)
        here.host.submit([send(2, "a")])
        await asyncio.sleep(0.02)
        assert here.said == [], "it rests on a commit that is not made"
        here.gate.set()
        assert (await here.sent(2)).duplicates == [0]


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.LOST, Fault.UNHEARD])
async def test_after_a_failure_the_store_says_what_is_known(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(store_lifecycle, "FULL_PAUSE", 0)
    async with hosting(of=UNIQUE) as here:
        here.host.submit([send(1, "before")])
        await here.sent(1)
        here.store.fail_next_commit(fault)
        here.host.submit([send(2, "a"), send(3, "a", "b", "before")])
        await here.refused(2)
        await here.refused(3)
        await here.serving()
        here.host.submit([send(4, "before", "a", "b", "c")])
        made = [0, 1, 2] if fault is Fault.UNHEARD else [0]
        assert (await here.sent(4)).duplicates == made
        assert await dropped(here, 5) == len(made), "what nobody heard of is not counted"


async def dropped(here: Hosting, request: int) -> int:
    here.host.submit([InspectDuplicates(1, 1, request)])
    answer = await here.answer(request)
    assert isinstance(answer, DuplicateReport)
    return answer.dropped


async def test_messages_that_come_while_the_filter_is_made_again() -> None:
    disk = Disk()
    ids = [f"{i}" for i in range(20_000)]
    async with hosting(disk, of=UNIQUE) as here:
        for request, first in enumerate(range(0, 20_000, 500), 1):
            here.host.submit([send(request, *ids[first : first + 500])])
        await here.sent(40)
    async with hosting(disk, of=UNIQUE) as here:
        for request in range(1, 40):
            here.host.submit([send(request, f"new {request}", ids[request * 500 - 1])])
            assert (await here.sent(request)).duplicates == [1]
        here.host.submit([send(50, *ids[:500], *(f"new {i}" for i in range(1, 41)))])
        assert (await here.sent(50)).duplicates == list(range(539))


async def test_an_id_is_free_when_its_window_has_passed_and_leaves_the_store() -> None:
    brief = QueueDescription(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=100
    ).fragment_settings()
    async with hosting(of=brief) as here:
        here.host.submit([send(1, "a"), send(2, "a")])
        assert (await here.sent(2)).duplicates == [0]
        await here.until(lambda: not here.disk.fragments[1].ids)
        here.host.submit([send(3, "a")])
        assert (await here.sent(3)).duplicates == []
