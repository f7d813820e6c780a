"""One timer for all parts of a connection."""

from __future__ import annotations

import asyncio

import pytest

from busbar.clock import wall_clock
from busbar.gateway import wake_timer
from busbar.gateway.wake_timer import WakeTimer


class Part:
    def __init__(self, *later: int) -> None:
        self.woken: list[int] = []
        self._later = list(later)
        self.done = asyncio.Event()

    def wake(self, now: int) -> int:
        self.woken.append(now)
        if self._later:
            return now + self._later.pop(0)
        self.done.set()
        return 0


class Flushed:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


async def test_parts_are_woken_in_the_order_of_their_times() -> None:
    flush = Flushed()
    timer = WakeTimer(flush)
    late, early, again = Part(), Part(), Part(5, 5)
    now = wall_clock()
    for part, at in ((late, now + 30), (early, now + 5), (again, now + 10)):
        timer.wake_at(part, at)
    async with asyncio.timeout(5):
        await late.done.wait()
    assert len(early.woken) == len(late.woken) == 1 and len(again.woken) == 3
    assert early.woken[0] <= again.woken[0] <= late.woken[0] >= now + 30
    await asyncio.sleep(0)
    assert flush.times >= 3


async def test_a_new_time_takes_the_place_of_the_old_one() -> None:
    timer = WakeTimer(Flushed())
    moved, never, last = Part(), Part(), Part()
    now = wall_clock()
    timer.wake_at(moved, now + 60_000)
    timer.wake_at(moved, now + 5)
    timer.wake_at(never, now + 5)
    timer.wake_at(never, 0)
    timer.wake_at(last, now + 20)
    async with asyncio.timeout(5):
        await last.done.wait()
    assert len(moved.woken) == 1 and not never.woken


async def test_parts_are_woken_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = WakeTimer(Flushed())
    part = Part()
    at = wall_clock() + 5
    timer.wake_at(part, at)
    monkeypatch.setattr(wake_timer, "wall_clock", lambda: at - 3_600_000)
    async with asyncio.timeout(5):
        await part.done.wait()
    assert part.woken == [at]


class Failing(Part):
    def wake(self, now: int) -> int:
        raise AssertionError("a fault in this part")


async def test_a_part_that_fails_does_not_keep_the_others_from_being_woken() -> None:
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
    timer = WakeTimer(Flushed())
    failing, part = Failing(), Part()
    now = wall_clock()
    timer.wake_at(part, now + 10)
    timer.wake_at(failing, now + 5)
    async with asyncio.timeout(5):
        await part.done.wait()
    assert len(faults) == 1


async def test_a_closed_timer_wakes_nobody() -> None:
    timer = WakeTimer(Flushed())
    part, later = Part(), Part()
    timer.wake_at(part, wall_clock() + 1)
    timer.close()
    timer.wake_at(later, wall_clock() + 1)
    await asyncio.sleep(0.02)
    assert not part.woken and not later.woken
