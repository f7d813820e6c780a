"""Pings the process at the other end of a channel, which may be frozen, or out of reach, while the channel does not end.

Rules:
1. A ping goes out every PING_SECONDS. If SILENT_AFTER of them in a row have no answer when the next one is due, the process
   is silent. It is not silent any more when it answers.
2. After LOST_AFTER of them the channel is lost: it is ended, and another one is made (peer_watch.py).
3. Pings are counted, not seconds. If this process was stopped for a while, nothing is blamed on the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PING_SECONDS = 1.0
SILENT_AFTER = 2
LOST_AFTER = 30


class PeerPing:
    def __init__(self, ping: Callable[[], Awaitable[None]], lost: Callable[[], None]) -> None:
        """`ping` returns when the other process has answered, and raises if the channel has ended. `lost` ends the
        channel."""
        self.missing = 0
        """Pings in a row without an answer."""
        self._ping = ping
        self._lost = lost
        self._task: asyncio.Task[None] | None = None

    @property
    def is_silent(self) -> bool:
        return self.missing >= SILENT_AFTER

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self.missing < LOST_AFTER:
            answer = asyncio.ensure_future(self._ping())
            answer.add_done_callback(self._answered)
            await asyncio.sleep(PING_SECONDS)
            if not answer.done():
                self.missing += 1
        self._lost()

    def _answered(self, answer: asyncio.Future[None]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.missing = 0
