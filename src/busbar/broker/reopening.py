"""When a store that is unavailable is opened again: by itself, with growing pauses, or as an operator says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from busbar.broker.store_thread import StoreThread
from busbar.store.location import StoreLocation, StoreMissing

MIN_BACKOFF = 0.1
MAX_BACKOFF = 5.0
MISSING_FILE_GRACE = 5.0
"""Seconds for which a file that was removed under us may still be put back."""
WATCH_SECONDS = 1.0
"""Between looks at the place of a store: one that is idle finds out that its file is gone."""

Attempt = Callable[[], Awaitable[None]]


class ReopenLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.offline = False
        """An operator wants the store to be left alone."""
        self._resetting = False
        self._tries_first = False
        self._told = asyncio.Event()
        self._loop = loop

    def take_offline(self) -> None:
        self.offline = True
        self._told.set()

    def bring_online(self) -> None:
        self.offline = False
        self._told.set()

    def reset(self) -> None:
        """Make the store anew. One that was not taken offline may be whole again: it is opened instead, if it can be."""
        self._resetting = True
        self._tries_first = not self.offline
        self.bring_online()

    def try_now(self) -> None:
        """What kept the store out may be over."""
        self._told.set()

    async def run(
        self, again: Attempt, anew: Attempt, failed: Callable[[Exception], bool], *, replaces: bool
    ) -> bool:
        """Try to open the store `again` until that succeeds. It is made `anew` instead when an operator says so, and by
        itself when it `replaces` a store that has been missing for too long. `failed` hears why not, and answers whether
        to go on; if not, the answer is False."""
        pause = MIN_BACKOFF
        missing_since = 0.0
        while True:
            now = self._loop.time()
            vanished = replaces and missing_since and now - missing_since >= MISSING_FILE_GRACE
            try:
                if self._resetting or (vanished and not self.offline):
                    tries_first, self._tries_first = self._tries_first, False
                    if not (self._resetting and tries_first and await _succeeds(again)):
                        self._resetting = False
                        await anew()
                    self._resetting = False
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
                pause = MIN_BACKOFF
            pause = min(pause * 2, MAX_BACKOFF)


async def _succeeds(attempt: Attempt) -> bool:
    try:
        await attempt()
    except Exception:
        return False
    return True


class FileWatch:
    """Looks whether a store is still in its place, and whether its disk answers. A commit does so by itself; this is for a
    store that has none to make. A look touches the disk, and so is a piece of work of the store's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        place: StoreLocation,
        thread: StoreThread,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._place = place
        self._thread = thread
        self._failed = failed
        self._mark: object = None
        self._stopped = False
        self._timer = loop.call_later(WATCH_SECONDS, self._look)
        thread.post(place.fingerprint, self._begun)

    def stop(self) -> None:
        self._stopped = True
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(WATCH_SECONDS, self._look)
        if self._thread.idle:
            self._thread.post(self._place.fingerprint, self._seen)

    def _begun(self, mark: object, error: BaseException | None) -> None:
        self._mark = mark
        self._seen(mark, error)

    def _seen(self, mark: object, error: BaseException | None) -> None:
        if self._stopped:
            return
        if error is not None:
            self._failed(error)
        elif mark != self._mark and self._thread.idle:  # what is under way finds out by itself
            self._failed(StoreMissing("its file was removed or replaced while in use"))
