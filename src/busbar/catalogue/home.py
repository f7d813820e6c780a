"""The home of the catalogue as this process uses it: its entries in memory, and its one writer on a thread of its own.

Rules:
1. A change is made when the home has it. Every change has a number: that of the last one plus one.
2. If the home is full, or was never asked, nothing was changed.
3. After an unknown outcome the home is opened again, and its changes show whether the change was made. As long as it cannot
   be opened, no change is possible, and the outcome stays unknown. `recover` tries again.
4. If another process has claimed the home, this one must stop.
5. Where processes of several machines can claim the home, its owner beats. If a beat fails, the home is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from busbar.broker.refusals import never_began
from busbar.broker.store_freezing import StoreFreezer
from busbar.broker.store_thread import HOWEVER_LONG, LONG, PATIENCE, StoreThread
from busbar.model.errors import ServerBusy
from busbar.store.catalogue_contract import (
    CatalogueContent,
    CatalogueLocation,
    CatalogueStore,
    Changes,
    VersionedEntry,
)
from busbar.store.contract import Fenced, StoreError, StoreFull

FULL = "The disk of the catalogue is full; nothing was changed. Retry later."
UNAVAILABLE = "The catalogue is unavailable for the moment; nothing was changed. Retry later."
UNKNOWN = "The catalogue failed during the change, which may or may not have been made. Retry later."

_log = logging.getLogger(__name__)


class CatalogueHome:
    def __init__(
        self,
        location: CatalogueLocation,
        loop: asyncio.AbstractEventLoop,
        patience: float = PATIENCE,
        fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """`patience` is in seconds: after it a call to the disk hangs. `fenced` is called when another process has claimed
        the catalogue."""
        self.namespace = ""
        self.version = 0
        self.entries: dict[str, VersionedEntry] = {}
        self._location = location
        self._fenced = fenced
        self._thread = StoreThread("busbar-catalogue", loop, patience)
        self._store: CatalogueStore | None = None
        self._unknown: Changes | None = None
        """The change with the next number, if it is not known whether it was made."""
        self._beating: asyncio.Task[None] | None = None
        freezer = StoreFreezer(self._on_store)
        self.freeze, self.thaw = freezer.freeze, freezer.thaw

    @property
    def name(self) -> str:
        return self._location.name

    @property
    def values(self) -> dict[str, bytes]:
        return {name: entry.value for name, entry in self.entries.items() if entry.value is not None}

    # ---- opening and closing ----

    async def exists(self) -> bool:
        return await self._thread.call(self._location.exists, LONG)

    async def create(self, content: CatalogueContent) -> None:
        """Make the home where none is. Raises StoreError."""
        await self._thread.call(lambda: self._location.create(content), LONG)

    async def open(self) -> None:
        """Become its writer, and read all entries. Raises StoreError."""
        content = await self._thread.call(lambda: (self._store or self._claim()).read_all(), LONG)
        self.namespace, self.version, self.entries = content.namespace, content.version, dict(content.entries)
        self._start_beating()

    async def claim(self) -> None:
        """Become its writer, also before it is made. Raises StoreError."""
        await self._thread.call(self._claim, LONG)
        self._start_beating()

    def _start_beating(self) -> None:
        if self._location.beat_seconds and self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._location.beat_seconds)
            if self._unknown is not None:
                continue  # it is opened again by `recover`
            try:
                await self._thread.call(lambda: (self._store or self._claim()).beat())
            except Fenced:
                self._fenced()
                return
            except StoreError as error:
                _log.warning("the catalogue: %s", error)
                if not never_began(error):
                    self._thread.post(self._drop, lambda result, error: None)

    def _claim(self) -> CatalogueStore:
        """Open and claim the home, on the thread."""
        self._drop()
        store = self._location.open()
        try:
            store.claim()
        except BaseException:
            store.close()
            raise
        self._store = store
        return store

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(StoreError):
                store.close()

    async def close(self) -> None:
        """Release the home and end the thread."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if not self._thread.is_stopped:
            self._thread.post(self._release, lambda result, error: None, HOWEVER_LONG)
            if not await self._thread.stop():
                _log.error("the catalogue is left as it is, as after a crash: its disk does not answer")

    def _release(self) -> None:
        if self._store is not None:
            self._store.release()
        self._drop()

    # ---- changes ----

    @property
    def is_unknown(self) -> bool:
        """Whether the outcome of the last change is unknown."""
        return self._unknown is not None

    async def _on_store(self, work: Callable[[Any], bool]) -> bool:
        try:
            return await self._thread.call(lambda: work(self._store or self._claim()))
        except StoreError as error:
            raise ServerBusy(UNAVAILABLE) from error

    async def write(self, changes: Changes) -> None:
        """Make a change. Raises ServerBusy; unless it is certain that nothing was changed, `certain` is False."""
        if self._unknown is not None:
            raise ServerBusy(UNAVAILABLE)
        number = self.version + 1
        try:
            await self._thread.call(lambda: self._write(number, changes))
        except StoreFull as error:
            raise ServerBusy(FULL) from error
        except Fenced as error:
            self._fenced()
            raise ServerBusy(UNAVAILABLE) from error
        except StoreError as error:
            if never_began(error):
                raise ServerBusy(UNAVAILABLE) from error
            _log.error("the catalogue: %s", error)
            self._unknown = changes
            if not await self.recover():
                raise self._refusal() from error
        else:
            self._adopt(number, changes)

    def _write(self, number: int, changes: Changes) -> None:
        (self._store or self._claim()).write(number, changes)

    async def recover(self) -> bool | None:
        """Open the home again, and find out whether the change with an unknown outcome was made. None: that is still not
        known."""
        assert self._unknown is not None
        before, changes = self.version, self._unknown
        try:
            since = await self._thread.call(lambda: self._claim().changes_since(before), LONG)
        except Fenced:
            self._fenced()
            return None
        except StoreError as error:
            _log.warning("the catalogue cannot be opened again yet: %s", error)
            return None
        self._unknown = None
        if not since:
            return False
        self._adopt(before + 1, changes)
        return True

    def _refusal(self) -> ServerBusy:
        refusal = ServerBusy(UNKNOWN if self.is_unknown else UNAVAILABLE)
        refusal.certain = not self.is_unknown
        return refusal

    def _adopt(self, number: int, changes: Changes) -> None:
        self.version = number
        for name, value in changes.items():
            if value is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = VersionedEntry(number, value)
