"""All stores are frozen at one moment, or none is."""

from __future__ import annotations

import time

import pytest

from busbar.broker.store_freezing import PAUSE, freeze_at
from busbar.catalogue.freezing import ATTEMPTS, freeze_together, thaw_all
from busbar.model.errors import InvalidOperation, ServerBusy


class Store:
    """One that is too late for the first times."""

    def __init__(self, late: int = 0, error: Exception | None = None) -> None:
        self.late = late
        self.error = error
        self.times: list[float] = []
        self.is_frozen = False

    async def freeze(self, at: float, seconds: float) -> bool:
        if self.error is not None:
            raise self.error
        self.times.append(at)
        self.is_frozen = len(self.times) > self.late
        return self.is_frozen

    async def thaw(self) -> bool:
        was_frozen, self.is_frozen = self.is_frozen, False
        return was_frozen


async def test_all_get_the_same_time_until_all_are_in_time() -> None:
    one, two = Store(), Store(late=2)
    await freeze_together([one, two], 60)
    assert one.times == two.times and len(one.times) == 3 and one.is_frozen and two.is_frozen
    assert await thaw_all([one, two]) and not await thaw_all([one, two])


async def test_none_stays_frozen_if_one_is_always_late_or_fails() -> None:
    one = Store()
    with pytest.raises(ServerBusy, match="too busy"):
        await freeze_together([one, Store(late=ATTEMPTS)], 60)
    assert not one.is_frozen
    with pytest.raises(InvalidOperation, match="gone"):
        await freeze_together([one, Store(error=InvalidOperation("gone"))], 60)
    assert not one.is_frozen


class File:
    def __init__(self) -> None:
        self.frozen_at = 0.0

    def freeze(self) -> None:
        self.frozen_at = time.monotonic()

    def thaw(self) -> bool:
        return True


def test_a_thread_waits_through_the_moment_or_is_too_late() -> None:
    file = File()
    at = time.monotonic() + 0.01
    assert freeze_at(file, at) and file.frozen_at >= at + PAUSE
    late = File()
    assert not freeze_at(late, time.monotonic() - 1) and not late.frozen_at


def test_a_store_in_a_database_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidOperation, match="pg_dump or pg_basebackup"):
        freeze_at(object(), 0)
