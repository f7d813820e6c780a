"""When a store that is out is opened again: by itself, with growing pauses, or as an operator says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from busbar.broker.place import Place, StoreMissing

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
VANISHED_PATIENCE = 5.0
"""Seconds for which a file that was removed under us may still be put back."""
WATCH_SECONDS = 1.0
"""Between looks at the place of a store: one that is idle finds out that its file is gone."""

Attempt = Callable[[], Awaitable[None]]


class Comeback:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.offline = False
        """An operator wants the store to be left alone."""
        self._resetting = False
        self._told = asyncio.Event()
        self._loop = loop

    def take_offline(self) -> None:
        self.offline = True
        self._told.set()

    def bring_online(self) -> None:
        self.offline = False
        self._told.set()

    def reset(self) -> None:
        self._resetting = True
        self.bring_online()

    async def until(
        self, again: Attempt, anew: Attempt, failed: Callable[[Exception], bool], *, replaces: bool
    ) -> bool:
        """Try to open the store `again` until that succeeds. It is made `anew` instead when an operator says so, and by
        itself when it `replaces` a store that has been missing for too long. `failed` hears why not, and answers whether
        to go on; if not, the answer is False."""
        pause = FIRST_PAUSE
        missing_since = 0.0
        while True:
            now = self._loop.time()
            vanished = replaces and missing_since and now - missing_since >= VANISHED_PATIENCE
            try:
                if self._resetting or (vanished and not self.offline):
                    self._resetting = False
                    await anew()
                    return True
                if not self.offline:
                    await again()
                    return True
            except Exception as error:
                missing_since = (missing_since or now) if isinstance(error, StoreMissing) else 0.0
                if not failed(error):
                    return False
            self._told.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), None if self.offline else pause)
                pause = FIRST_PAUSE
            pause = min(pause * 2, LONGEST_PAUSE)


class Watch:
    """Looks whether a store is still in its place. A commit does so by itself; this is for a store that has none to make."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: Place, moved: Callable[[], None]) -> None:
        self._loop = loop
        self._place = place
        self._moved = moved
        self._mark = place.mark()
        self._timer = loop.call_later(WATCH_SECONDS, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(WATCH_SECONDS, self._look)
        if self._place.mark() != self._mark:
            self._moved()
