"""Deletes the messages of fragments that are of no entity any more.

A purge that fails, or concerns an unavailable store, is tried again every PAUSE_SECONDS, and at the next start. The start
finds the fragments in the catalogue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from busbar.catalogue.store_set import StoreSet
from busbar.model.errors import BusbarError

PAUSE_SECONDS = 0.5

_log = logging.getLogger(__name__)


class FragmentPurger:
    def __init__(self, stores: StoreSet, forget: Callable[[Mapping[int, str]], Awaitable[None]]) -> None:
        """`forget` removes the notes of purged fragments, which it gets with their stores. It raises a BusbarError."""
        self._stores = stores
        self._forget = forget
        self._waiting: dict[int, str] = {}
        """Fragments to purge, with their stores."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, fragments: Mapping[int, str]) -> None:
        """Note fragments to purge, with their stores. `start` begins with it."""
        self._waiting.update(fragments)

    def stores(self) -> set[str]:
        """The stores of fragments that are not purged yet."""
        return {*self._waiting.values()}

    def start(self) -> None:
        """Purge the fragments that wait, if nothing is being purged now."""
        if self._waiting and not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._purge())

    async def close(self) -> None:
        """Stop; the next start goes on with what is left."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _purge(self) -> None:
        while self._waiting:
            out = self._stores.unavailable()
            now = {f: store for f, store in sorted(self._waiting.items()) if store not in out}
            purged = {}
            for fragment, store in now.items():
                try:
                    await self._stores.host(store).remove_fragment(fragment)
                    purged[fragment] = store
                except BusbarError as error:
                    _log.warning("fragment %d could not be emptied yet: %s", fragment, error)
            if purged:
                try:
                    await self._forget(purged)
                except BusbarError as error:
                    _log.warning("%d deleted fragments will be looked at again: %s", len(purged), error)
                else:
                    for fragment in purged:
                        del self._waiting[fragment]
            if len(purged) < len(now) or not now:
                await asyncio.sleep(PAUSE_SECONDS)
