"""Runs changes of the catalogue: one at a time, each to its end.

Rules:
1. A change that has begun is carried to its end, also when its caller is cancelled, for example by a lost client
   connection. Stores, memory and watchers then agree about it.
2. When a caller is cancelled while it waits for its turn, its change is not made. So clients that come and go leave at most
   one change behind.
3. `close` waits for the change under way, and refuses those that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from busbar.model.errors import ServerBusy

CLOSE_SECONDS = 10.0
"""How long `close` waits. The next start treats a change that takes longer like one that a crash cut short."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ChangeRunner:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held during every change, and by what excludes changes."""
        self._under_way: asyncio.Task[Any] | None = None
        self.closed = False

    async def run(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a change when it is its turn, and return or raise what it does. Raises ServerBusy after `close`."""
        await self.turn.acquire()
        if self.closed:
            self.turn.release()
            raise ServerBusy("The broker is shutting down; nothing was changed. Retry later.")
        task = asyncio.get_running_loop().create_task(change())
        self._under_way = task
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way = None
        self.turn.release()

    async def close(self) -> None:
        """Wait for the change under way, and refuse those that wait."""
        self.closed = True
        if self._under_way is not None:
            _, late = await asyncio.wait([self._under_way], timeout=CLOSE_SECONDS)
            if late:
                _log.warning("a change of the catalogue did not end within %g s", CLOSE_SECONDS)


def _report(task: asyncio.Task[Any]) -> None:
    """Log the outcome of a change whose caller is gone."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.warning("a change of the catalogue whose caller is gone was not made: %s", error)
