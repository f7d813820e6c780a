"""The controller's host of a store that a broker process has.

Rules, beside those of remote_store.py:
1. When the broker process has ended, another one claims the store, or the same one that was started again. The store comes
   back like all unavailable stores. It is opened when that is possible and checked by the catalogue; then its fragments
   are taken into service.
2. Commands of gateways do not come through here. The broker process is asked when a fragment was last used. Uses that were
   not asked for before it ended are lost; so the return of the store counts as a use.
3. When the store goes to another broker process by plan, calls wait until that process is its owner. The store counts as
   open meanwhile, unless it takes too long (move_queue.py).
4. Before fragments are loaded, the broker process gets the names of the gateways that live. Clients of other gateways hold
   no session any more (fragment/session_holds.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from busbar.broker.host_api import IN_SERVICE, Admit, StoreState
from busbar.broker.refusals import OFFLINE, STORE_FAILED
from busbar.catalogue.change import StoreChange
from busbar.cluster import protocol
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.remote_store import ENDED, RemoteStore
from busbar.model.effects import Effect
from busbar.model.errors import ServerBusy
from busbar.model.settings import FragmentSettings
from busbar.store.contract import StoreError
from busbar.store.location import StoreLocation

OPENING = frozenset(("open", "create", "read_definitions", "repair_definitions"))
"""Methods that raise a StoreError if the broker process ends. All others raise ServerBusy."""


MOVABLE = frozenset((StoreState.OPEN, StoreState.UNAVAILABLE))


class RemoteStoreHost(RemoteStore):
    """A StoreHost. The broker process answers every method that is not defined here."""

    def __init__(
        self,
        name: str,
        broker: str,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        emit: Callable[[list[Effect]], None],
        fenced: Callable[[], None] | None = None,
        place: StoreLocation | None = None,
    ) -> None:
        super().__init__(name, broker, loop, clock, emit)
        self.detached = False  # it is opened from here, and takes calls from the beginning
        self.place = place
        self.admit: Admit | None = None
        self._fenced = fenced
        self._trying = False
        self._restoring: asyncio.Task[None] | None = None
        self._closed = False
        self._offline = False
        self._reset = False
        self._active: dict[int, int] = {}
        self._returned = 0
        """When it was last open again, in ms."""
        self.gateways: Callable[[], list[str]] = list
        """The names of the gateways that live."""
        self._has_owner = asyncio.Event()
        """Cleared while no broker process has the store, since one hands it over to another (rule 3)."""
        self._has_owner.set()
        self._unseen: protocol.StoreStatus | None = None
        """The last state that was not shown, since the store is handed over."""

    # ---- the broker process ----

    def attach_channel(self, channel: Channel) -> None:
        """Use the channel to the broker process, which is there for the first time or again."""
        if not self._closed:
            self.connected(channel)
            protocol.STORES.remote(channel, protocol.ALL_STORES).assign_store(self.name)
            self._has_owner.set()

    async def hand_over(self, *, even_unavailable: bool = False) -> None:
        """Have the broker process release the store, so that another one can be made its owner. One that is unavailable is
        left by that process as it is, if that is asked for. Raises ServerBusy if the store stays, and ChannelClosed."""
        states = MOVABLE if even_unavailable else {StoreState.OPEN}
        if self._channel is None or self.detached or self.state not in states:
            raise ServerBusy(f"The store '{self.name}' is not open, and so cannot be moved. Retry later.")
        self._queue.begin()
        self._unseen = None
        self._has_owner.clear()
        try:
            given_back = await self._there.hand_over()
        except BaseException:
            self._has_owner.set()
            self.kept()
            self._show_unseen()
            raise
        self.handed_over(given_back)

    @property
    def is_offline(self) -> bool:
        """Whether an operator has taken the store offline."""
        return self._offline

    def hurry(self) -> None:
        """Have the broker process try an unavailable store at once."""
        if self._channel is not None and not self._offline:
            self._there.bring_online()

    def _show_unseen(self) -> None:
        unseen, self._unseen = self._unseen, None
        if unseen is not None and self._channel is not None:
            self.status_changed(unseen)

    async def until_open(self) -> None:
        """Wait until the store is open at its next owner, or it is too late for those who wait."""
        while self._queue.is_waiting and not self._queue.is_late:
            await asyncio.sleep(0.002)

    async def restore(self) -> None:
        """Bring the store back at the broker that owns it now. Returns when the store takes calls."""
        if self._channel is not None and self.detached and self._trying:
            with contextlib.suppress(ChannelClosed):
                await self._there.restore(self.reason, self._offline, self._take_reset())

    def start_restoring(self) -> None:
        """Bring the store back at another broker, which was made its owner."""
        self._restoring = self._loop.create_task(self.restore())

    def disconnected(self, reason: str) -> None:
        if self._closed:
            self._channel = None
            return
        super().disconnected(OFFLINE if self._offline else reason)

    def status_changed(self, frame: protocol.StoreStatus) -> None:
        if self._queue.is_waiting and frame.state != StoreState.OPEN.value:
            self._unseen = frame  # rule 3
            return
        if self.detached and frame.state == StoreState.OPEN.value:
            self._returned = self.clock()
            self._active.clear()
        super().status_changed(frame)

    async def admitted(self, anew: bool) -> None:
        if self.admit is not None:
            await self.admit(self, anew)

    def fenced(self) -> None:
        if self._fenced is not None:
            self._fenced()

    def _take_reset(self) -> bool:
        reset, self._reset = self._reset, False
        return reset

    # ---- opening and closing ----

    @property
    def is_open(self) -> bool:
        return self.state in IN_SERVICE

    async def mark_unavailable(self, reason: str) -> None:
        if self._channel is None:
            self._enter(StoreState.UNAVAILABLE, reason)
            return
        with contextlib.suppress(ChannelClosed):  # then it is unavailable in any case
            await self._there.mark_unavailable(reason)

    def start_reopening(self) -> None:
        self._trying = True
        if self.state is StoreState.UNAVAILABLE and self._channel is not None:
            if self.detached:
                self.start_restoring()
            else:
                self._there.start_reopening()

    async def drain(self, timeout: float) -> bool:
        if self._channel is None:
            return True
        try:
            return await self._there.drain(timeout)
        except ChannelClosed:
            return False

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed):
                await self._there.close()
        self._channel = None
        self._enter(StoreState.CLOSED, "")

    # ---- serving ----

    async def add_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        if fragments:
            if self._channel is not None:
                self._there.set_gateways(self.gateways())
            await self._ask("add_fragments", fragments)

    def change_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        if self._channel is not None:
            self._there.change_fragments(fragments)

    def note_change(self, change: StoreChange) -> Channel | None:
        """Note a change of the catalogue that goes to the broker process together with that of its other stores.

        Returns the channel to it. None: there is no broker process now."""
        return self._channel

    @property
    def channel(self) -> Channel | None:
        """The channel to the broker process; None: there is none now."""
        return self._channel

    def note_last_used(self, times: Mapping[int, int]) -> None:
        """Note when fragments were last used, as the broker process reports it."""
        self._active.update({fragment: time for fragment, time in times.items() if time})

    async def remove_fragment(self, fragment: int) -> None:
        self._active.pop(fragment, None)
        self.drop_fragment(fragment)
        await self._ask("remove_fragment", fragment)

    def last_used(self, fragment: int) -> int:
        """When the fragment was last used, as the broker reported it last: the clock may have been set back."""
        return self._active.get(fragment, self._returned)

    async def refresh_last_used(self, fragments: Sequence[int]) -> None:
        times = await self._ask("last_uses", fragments)
        self.note_last_used(dict(zip(fragments, times, strict=True)))

    # ---- what operators ask for ----

    async def take_offline(self) -> None:
        self._offline = True
        await self._has_owner.wait()
        if self._channel is None:
            self._enter(StoreState.UNAVAILABLE, OFFLINE)
            return
        with contextlib.suppress(ChannelClosed):
            await self._there.take_offline()

    def bring_online(self) -> None:
        self._offline = False
        if self._channel is not None:
            self._there.bring_online()

    def reset(self) -> None:
        self._offline = False
        self._reset = self._channel is None
        if self._channel is not None:
            self._there.reset()

    # ---- calls ----

    @property
    def _there(self) -> protocol.HostedStore:
        """The store in the broker process. There must be a channel."""
        assert self._channel is not None
        return protocol.STORE.remote(self._channel, self.name)

    def __getattr__(self, name: str) -> Any:
        method = protocol.STORE.methods.get(name)
        if method is None:
            raise AttributeError(name)
        return partial(self._ask if method.has_reply else self._tell, name)

    def _tell(self, method: str, *arguments: object) -> None:
        if self._channel is not None:
            getattr(self._there, method)(*arguments)

    async def _ask(self, method: str, *arguments: object) -> Any:
        """Call a method in the broker process. If that process ends, raises a StoreError or ServerBusy, as in StoreHost."""
        await self._has_owner.wait()
        try:
            if self._channel is not None:
                return await getattr(self._there, method)(*arguments)
            lost = ServerBusy(self._unavailable_text)
        except ChannelClosed:
            lost = ServerBusy(STORE_FAILED)
            lost.certain = False
        raise StoreError(ENDED) if method in OPENING else lost
