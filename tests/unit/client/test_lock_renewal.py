"""When locks are renewed, in virtual time."""

from __future__ import annotations

from random import Random

import pytest

from busbar.client import ConnectionLost, LockLost
from busbar.client.lock_renewal import LockRenewal
from harness.virtual_loop import VirtualScheduler

LOCK = 60.0


class Locks:
    def __init__(self, duration: float) -> None:
        self.failures: list[str] = []
        self.scheduler = VirtualScheduler(Random(1), self.failures.append)
        self.loop = self.scheduler.make_loop()
        self.renewed: list[float] = []
        self.problems: list[Exception] = []
        with self.loop.running():
            self.renewal = LockRenewal(duration, lambda: self.now)

    @property
    def now(self) -> float:
        return self.scheduler.clock.now

    def end(self) -> int:
        return round((self.now + LOCK) * 1000)

    async def renew(self) -> int:
        self.renewed.append(round(self.now, 3))
        if self.problems:
            raise self.problems.pop(0)
        return self.end()

    def run(self, seconds: float) -> None:
        self.scheduler.run(seconds)
        assert self.failures == []


def test_a_lock_is_renewed_at_half_time_for_its_duration() -> None:
    locks = Locks(150)
    locks.renewal.register(locks.renew, locks.end())
    locks.run(1000)
    assert locks.renewed == [30, 60, 90, 120]


def test_a_lock_that_is_settled_is_renewed_no_more() -> None:
    locks = Locks(1000)
    lock = locks.renewal.register(locks.renew, locks.end())
    locks.run(70)
    lock.stop()
    locks.run(1000)
    assert locks.renewed == [30, 60]


def test_a_lost_lock_is_renewed_no_more() -> None:
    locks = Locks(1000)
    locks.problems = [LockLost("expired")]
    locks.renewal.register(locks.renew, locks.end())
    locks.run(1000)
    assert locks.renewed == [30]


def test_other_errors_are_tried_again_while_the_lock_lasts() -> None:
    locks = Locks(1000)
    locks.problems = [ConnectionLost("for a while")] * 2
    locks.renewal.register(locks.renew, locks.end())
    locks.run(50)
    assert locks.renewed == [30, 31, 32]
    locks.problems = [ConnectionLost("for long")] * 1000
    locks.run(1000)
    assert locks.renewed[3] == 62 and locks.renewed[-1] == pytest.approx(92, abs=1)


def test_an_error_that_nobody_expected_ends_no_renewal() -> None:
    locks = Locks(1000)
    locks.problems = [RuntimeError("a fault")]
    first = locks.renewal.register(locks.renew, locks.end())
    locks.run(40)
    assert locks.renewed == [30, 31], "tried again after the pause"
    first.stop()
    locks.renewed.clear()
    locks.renewal.register(locks.renew, locks.end())
    locks.run(40)
    assert locks.renewed == [70], "other locks are renewed"


def test_locks_of_different_ages() -> None:
    locks = Locks(100)
    locks.renewal.register(locks.renew, locks.end())
    locks.run(10)
    locks.renewal.register(locks.renew, locks.end())
    locks.run(40)
    assert locks.renewed == [30, 40]


def test_without_a_duration_nothing_is_renewed() -> None:
    locks = Locks(0)
    locks.renewal.register(locks.renew, locks.end())
    locks.run(1000)
    assert locks.renewed == []
