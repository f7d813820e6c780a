"""Looks at stores that clients cannot use, and finds brokers that can have them.

Rules:
1. A store whose broker is not connected is looked at in its own place: by the controller, and by the brokers if the
   controller cannot reach it. If the session of its owner has ended, or nothing is seen of the owner for a quarter of a
   lease, the store is assigned to a broker. That broker gets what was seen, and counts the lease from there. While the
   owner works, the store stays assigned to it: others may reach it.
2. A store that is unavailable at a connected broker may be out of the reach of that broker alone. So the others look at it.
   If one of them sees that it has no working owner, its broker is asked to try once more. If that fails, the store goes to
   the other one.
3. After such a move the next one waits, twice as long each time, until the store was open: it may be unavailable for all.
4. Each store is looked at by itself. A database that does not answer delays the looks at no other store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from busbar.cluster import protocol
from busbar.cluster.calls import NotAtThisLevel
from busbar.cluster.failures import ChannelClosed
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.errors import BusbarError
from busbar.store.location import OwnerSilence

LOOK_SECONDS = 0.25
LOOK_TIMEOUT = 5.0
"""Seconds for the look of a broker at a store that it may not reach."""
REACH_SECONDS = 1.0
"""Between looks at a store that is unavailable, and for its broker to reach it again."""
LONGEST_PAUSE = 60.0
SHORTEST_SILENCE = 1.5
"""Seconds: an idle owner shows each second that it works."""
SILENT = 4
"""After this part of a lease without a sign of a store's owner, another broker is asked to claim the store."""

_log = logging.getLogger(__name__)


class LookingBroker(Protocol):
    """A broker that can look at stores, and have them."""

    name: str

    @property
    def there(self) -> protocol.NodeApi: ...


class WatchedStores(Protocol):
    """The stores and brokers of a namespace, as the watch sees them."""

    def orphans(self) -> list[RemoteStoreHost]:
        """Stores whose brokers are not connected."""

    def unreached(self) -> list[RemoteStoreHost]:
        """Stores that are unavailable at connected brokers, and not by an operator's wish."""

    def takers(self, without: str = "") -> Sequence[LookingBroker]:
        """The brokers that can own stores, those with the fewest first."""

    def assign(self, host: RemoteStoreHost, taker: Any, seen: OwnerSilence) -> None: ...

    async def move_unreached(self, host: RemoteStoreHost, taker: str) -> None:
        """Move a store to another broker. Raises a BusbarError if it stays."""


class OwnerWatch:
    def __init__(self, stores: WatchedStores, lease: float) -> None:
        self._stores = stores
        self._silent_owner = max(lease / SILENT, SHORTEST_SILENCE)
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, float] = {}

    async def run(self) -> None:
        """Look at all stores that need it, for ever."""
        try:
            while True:
                unreached = self._stores.unreached()
                for host in self._stores.orphans():
                    self._start(host, self._take_over)
                for host in unreached:
                    self._start(host, self._move_away)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._looking.values():
                task.cancel()

    async def take_over_all(self) -> None:
        """Look once at every store whose broker is not connected, and wait for that."""
        await asyncio.gather(*[self._take_over(host) for host in self._stores.orphans()])

    def _start(
        self, host: RemoteStoreHost, look: Callable[[RemoteStoreHost], Coroutine[Any, Any, None]]
    ) -> None:
        if host.name not in self._looking:
            task = self._looking[host.name] = asyncio.get_running_loop().create_task(look(host))
            task.add_done_callback(lambda task: self._looking.pop(host.name))

    # ---- rule 1 ----

    async def _take_over(self, host: RemoteStoreHost) -> None:
        assert host.place is not None
        seen = await asyncio.to_thread(host.place.silence)
        takers = self._stores.takers()
        if seen.seconds < 0:
            views = await self._views(host, takers)
            takers = [broker for broker, view in views if self._is_silent(view)]
            seen = next((view for _, view in views if self._is_silent(view)), seen)
        if self._is_silent(seen) and takers and host in self._stores.orphans():
            self._stores.assign(host, takers[0], seen)

    def _is_silent(self, seen: OwnerSilence) -> bool:
        return seen.seconds >= self._silent_owner

    async def _views(
        self, host: RemoteStoreHost, brokers: Sequence[LookingBroker]
    ) -> list[tuple[LookingBroker, OwnerSilence]]:
        """What brokers see of the owner of a store. One that does not answer in time sees nothing."""
        views = await asyncio.gather(*[_view(broker, host.name) for broker in brokers])
        return [*zip(brokers, views, strict=True)]

    # ---- rule 2 ----

    async def _move_away(self, host: RemoteStoreHost) -> None:
        owner = host.broker
        views = await self._views(host, self._stores.takers(without=owner))
        able = [broker for broker, view in views if self._is_silent(view)]
        if able:
            host.hurry()
        await asyncio.sleep(REACH_SECONDS)
        if not able or host.broker != owner or host not in self._stores.unreached():
            return
        _log.warning("%s is out of the reach of %s, and goes to %s", host.name, owner, able[0].name)
        try:
            await self._stores.move_unreached(host, able[0].name)
        except BusbarError as error:
            _log.warning("%s stays with %s: %s", host.name, owner, error)
        await self._pause(host)

    async def _pause(self, host: RemoteStoreHost) -> None:
        """Wait until the store is open, or may be moved once more (rule 3)."""
        pause = self._pauses.get(host.name, 2 * REACH_SECONDS)
        self._pauses[host.name] = min(2 * pause, LONGEST_PAUSE)
        deadline = asyncio.get_running_loop().time() + pause
        while asyncio.get_running_loop().time() < deadline:
            if host.is_open:
                self._pauses.pop(host.name, None)
                return
            await asyncio.sleep(LOOK_SECONDS)


async def _view(broker: LookingBroker, store: str) -> OwnerSilence:
    with contextlib.suppress(ChannelClosed, NotAtThisLevel, TimeoutError):
        async with asyncio.timeout(LOOK_TIMEOUT):
            return await broker.there.look_at_store(store)
    return OwnerSilence(-1.0)
