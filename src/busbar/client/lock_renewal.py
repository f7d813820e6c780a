"""Renews locks while handlers work on their messages or sessions.

1. A lock is renewed when half of the time to its end has passed, and until `duration` seconds after it was registered.
2. One task renews all locks. Those that are due at about the same time are renewed at the same time.
3. If a lock is lost, it is not renewed any more: the settlement of its message fails. After other errors it is tried again
   while the lock lasts.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import Awaitable, Callable

from busbar.client.errors import BusbarClientError, LockLost

_log = logging.getLogger(__name__)

SOON_SECONDS = 0.5
"""Locks that are due so soon after the first are renewed with it."""
PAUSE_SECONDS = 1.0
"""The time between attempts after an error."""
LOCKS_AT_A_TIME = 100

Renew = Callable[[], Awaitable[int]]
"""Renews a lock. Returns its end in ms since 1970."""


class RenewedLock:
    """A lock that is renewed."""

    __slots__ = ("is_over", "locked_until", "renew", "stop_at")

    def __init__(self, renew: Renew, locked_until: int, stop_at: float) -> None:
        self.renew = renew
        self.locked_until = locked_until
        self.stop_at = stop_at
        self.is_over = False

    def stop(self) -> None:
        """Renew the lock no more: its message is settled, or its session closed."""
        self.is_over = True


class LockRenewal:
    """The locks of one processor."""

    def __init__(self, duration: float, clock: Callable[[], float] = time.time) -> None:
        self._duration = duration
        self._clock = clock  # the end of a lock is a wall-clock time
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, RenewedLock]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._task = self._loop.create_task(self._run()) if duration > 0 else None

    def register(self, renew: Renew, locked_until: int) -> RenewedLock:
        """Renew a lock from now on."""
        lock = RenewedLock(renew, locked_until, self._loop.time() + self._duration)
        if self._task is not None:
            self._schedule(lock)
        return lock

    def _schedule(self, lock: RenewedLock, pause: float = 0.0) -> None:
        left = lock.locked_until / 1000 - self._clock()
        at = self._loop.time() + (pause or max(0.0, left / 2))
        if at >= lock.stop_at:
            return
        heapq.heappush(self._due, (at, next(self._numbers), lock))
        if self._due[0][2] is lock:
            self._changed.set()

    async def _run(self) -> None:
        while True:
            while self._due and self._due[0][2].is_over:
                heapq.heappop(self._due)
            wait = self._due[0][0] - self._loop.time() if self._due else None
            if wait is None or wait > 0:
                self._changed.clear()
                timer = None if wait is None else self._loop.call_later(wait, self._changed.set)
                await self._changed.wait()
                if timer is not None:
                    timer.cancel()
                continue
            await asyncio.gather(*[self._renew(lock) for lock in self._take()])

    def _take(self) -> list[RenewedLock]:
        """The locks that are due now or soon."""
        taken: list[RenewedLock] = []
        limit = self._loop.time() + SOON_SECONDS
        while self._due and self._due[0][0] <= limit and len(taken) < LOCKS_AT_A_TIME:
            lock = heapq.heappop(self._due)[2]
            if not lock.is_over:
                taken.append(lock)
        return taken

    async def _renew(self, lock: RenewedLock) -> None:
        try:
            lock.locked_until = await lock.renew()
            pause = 0.0
        except LockLost:
            lock.is_over = True
        except (
            Exception
        ) as error:  # also a fault of this library: it must not end the renewal of all other locks
            if not isinstance(error, BusbarClientError):
                _log.exception("a lock could not be renewed")
            pause = PAUSE_SECONDS
            if lock.locked_until / 1000 <= self._clock():
                lock.is_over = True
        if not lock.is_over:
            self._schedule(lock, pause)

    async def close(self) -> None:
        """Renew nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
