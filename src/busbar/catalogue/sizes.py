"""The sizes of the stores on their disks, and the state of their places, for people.

To read a size touches the disk, which may not answer. So each store is asked on a thread of its own, and its
answer is awaited for PATIENCE at most. A store that has not answered yet is not asked again. Its size is then the last one
that was known.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping

from busbar.store.location import StoreLocation

PATIENCE = 1.0


class Sizes:
    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self.free: dict[str, int] = {}
        """What was free on their disks, by the names of the stores; -1: not known."""
        self.status: dict[str, str] = {}
        """The last known state of the places, by the names of the stores."""
        self._asked: dict[str, asyncio.Future[None]] = {}

    async def of(self, places: Mapping[str, StoreLocation | None]) -> dict[str, int]:
        """The sizes in bytes, by the names of the stores."""
        asked = [self._ask(name, place) for name, place in places.items() if place is not None]
        if asked:
            await asyncio.wait(asked, timeout=PATIENCE)
        return {name: self._known.get(name, 0) for name in places}

    def _ask(self, name: str, place: StoreLocation) -> asyncio.Future[None]:
        before = self._asked.get(name)
        if before is not None and not before.done():
            return before
        loop = asyncio.get_running_loop()
        answered = self._asked[name] = loop.create_future()

        def told(size: int, free: int, status: str) -> None:
            self._known[name] = size
            self.free[name] = free
            self.status[name] = status
            if not answered.done():
                answered.set_result(None)

        def ask() -> None:
            size, free, status = place.size(), place.free(), place.status()
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(told, size, free, status)

        threading.Thread(target=ask, name=f"busbar-size-{name}", daemon=True).start()
        return answered
