"""Stops the file of a store from changing, so that it can be copied while the store is in use.

Rules:
1. Files of several stores belong together if there was a moment at which no store had a commit under way. So each store
   gets a time of the monotonic clock, which all processes of a machine share. From then on its thread does nothing else for
   PAUSE seconds. If all threads came in time, the files are those of that moment.
2. What is committed later is not in the file. The store thaws by itself after a time. So a backup that was given up does not
   make its log grow for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

from busbar.model.errors import BusbarError, InvalidOperation
from busbar.store.contract import FrozenFile, StoreError

PAUSE = 0.02
LEAD = 0.05
"""Seconds before the time at which a thread begins to wait for it."""
IN_POSTGRESQL = (
    "Stores and catalogues in PostgreSQL are backed up with its own means while Busbar serves: pg_dump or pg_basebackup, "
    "as docs/cluster-operations.md describes."
)

OnStore = Callable[[Callable[[Any], bool]], Coroutine[Any, Any, bool]]
"""Does something on the thread of the store."""


def freeze_at(store: object, at: float) -> bool:
    """Freeze the file of a store, on its thread. False: it was too late for that time (rule 1)."""
    if not isinstance(store, FrozenFile):
        raise InvalidOperation(IN_POSTGRESQL)
    in_time = time.monotonic() <= at
    if in_time:
        time.sleep(max(0.0, at + PAUSE - time.monotonic()))
        store.freeze()
    return in_time


class StoreFreezer:
    """Freezes and thaws one store. `on_store` runs work on its thread."""

    def __init__(self, on_store: OnStore) -> None:
        self._on_store = on_store
        self._timer: asyncio.TimerHandle | None = None
        self._thawing: asyncio.Task[bool] | None = None

    async def freeze(self, at: float, seconds: float) -> bool:
        """Freeze the file as it is at that time, for so many seconds at most. False if that was too late."""
        await asyncio.sleep(max(0.0, at - LEAD - time.monotonic()))
        frozen = await self._on_store(lambda store: freeze_at(store, at))
        if frozen:
            self._cancel()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)
        return frozen

    async def thaw(self) -> bool:
        """Let the file change again; whether it stayed as it was."""
        self._cancel()
        return await self._on_store(lambda store: isinstance(store, FrozenFile) and store.thaw())

    def _expire(self) -> None:
        async def thaw() -> bool:
            with contextlib.suppress(BusbarError, StoreError):
                return await self.thaw()
            return False

        self._timer = None
        self._thawing = asyncio.get_running_loop().create_task(thaw())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
