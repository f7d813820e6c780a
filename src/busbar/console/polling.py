"""Asks the broker for its counts every few seconds, and keeps those of the last hour for the plots.

1. While a page is looked at, samples come often, else rarely: what happened before a page is opened is shown, too. Two
   samples are never closer than WATCHED_SECONDS: a rate of a moment has no meaning.
2. One question is under way at a time. The pause after it is many times as long as the answer took. So a namespace with
   thousands of entities is asked less often, and the plots never cost more than a small part of a broker's time.
3. If the broker does not answer, or does not allow it, there is a gap in the plots, and it is asked again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from busbar.console.background import in_background
from busbar.console.history import CountHistory
from busbar.console.namespace import NamespaceFailure, OperatorView

WATCHED_SECONDS = 5.0
UNWATCHED_SECONDS = 15.0
VIEW_SECONDS = 30.0
"""A page counts as looked at for so long after a request."""

PAUSE_FACTOR = 30.0
MAX_PAUSE_SECONDS = 60.0

logger = logging.getLogger(__name__)


class CountPolling:
    def __init__(self, operation: OperatorView) -> None:
        self.history = CountHistory()
        self._operation = operation
        self._viewed_at = -VIEW_SECONDS
        self._viewed = asyncio.Event()

    @property
    def now(self) -> float:
        """The clock of the history."""
        return time.monotonic()

    def note_viewer(self) -> None:
        self._viewed_at = self.now
        self._viewed.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _poll(self) -> None:
        while True:
            begun = self.now
            try:
                counts = await in_background(self._operation.counts)
                self.history.add(self.now, counts)
            except NamespaceFailure as failure:
                logger.debug("no counts: %s", failure.text)
            except Exception as error:
                # A fault of the console. The text of an exception may contain anything, so only its type is logged.
                logger.error("the counts cannot be read: %s", type(error).__name__)
            await self._pause(min(MAX_PAUSE_SECONDS, PAUSE_FACTOR * (self.now - begun)))

    async def _pause(self, least: float) -> None:
        if self.now - self._viewed_at < VIEW_SECONDS:
            await asyncio.sleep(max(WATCHED_SECONDS, least))
            return
        await asyncio.sleep(max(WATCHED_SECONDS, least))
        if self.now - self._viewed_at < VIEW_SECONDS:
            return
        self._viewed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._viewed.wait(), UNWATCHED_SECONDS - WATCHED_SECONDS)
