"""The host of a store that a broker process has: this end of it, in the controller.

Rules, beside those of remote_store.py:
1. When the broker process was started again, its stores come back as stores do: each is opened when that is possible, looked
   at by the catalogue, and its fragments are taken into service.
2. Commands of gateways do not come through here. When a fragment was last used is learnt from the broker process; what was
   not learnt when it ended is made good by taking its return for a use.
3. When the broker process ended, gateways of others may have clients that hold sessions of its fragments. Until the longest
   lock that was granted would have ended, the next broker process lets nobody accept them (session_bar.py). A lock that
   was granted before the entity got a shorter one counts as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

import msgspec

from busbar.broker.host_api import Admit, Rows, StoreState
from busbar.broker.refusals import OFFLINE, STORE_FAILED
from busbar.cluster import protocol
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.codec import WireError, effects_codec
from busbar.cluster.protocol import Operation
from busbar.cluster.remote_store import ENDED, RemoteStore
from busbar.cluster.settings_codec import encode_settings
from busbar.model.effects import Effect
from busbar.model.errors import ServerBusy
from busbar.model.settings import FragmentSettings
from busbar.store.contract import StoreError
from busbar.store.location import StoreLocation

_catalogues = msgspec.msgpack.Decoder(tuple[dict[str, bytes], int])
_times = msgspec.msgpack.Decoder(list[int])


class RemoteStoreHost(RemoteStore):
    """A hosting.Host."""

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
        self.detached = False  # it is opened from here, and may be asked for that from the beginning
        self.place = place
        self.admit: Admit | None = None
        self._fenced = fenced
        self._trying = False
        self._closed = False
        self._offline = False
        self._reset = False
        self._active: dict[int, int] = {}
        self._returned = 0
        """When it was last open again, in ms."""
        self._session_locks: dict[int, int] = {}
        """By fragment that has sessions: how long they are locked, in ms."""
        self._longer: dict[int, int] = {}
        """By fragment: until when locks may last that were granted when the entity had longer ones."""
        self._believed: dict[int, int] = {}
        """By fragment: until when locks may be believed in that a process gave which has ended."""

    # ---- the broker process ----

    def attach_channel(self, channel: Channel) -> None:
        """The broker process is there (again)."""
        if not self._closed:
            self.connected(channel)
            channel.notify(self.name, protocol.AssignStore())

    async def restore(self) -> None:
        """Bring the store back after its broker was started again. Returns when the store is in a state to be asked for
        something."""
        if self._channel is not None and self.detached and self._trying:
            with contextlib.suppress(ChannelClosed):
                await self._channel.call(self.name, self._as_it_was())

    def disconnected(self, reason: str) -> None:
        if self._closed:
            self._channel = None
            return
        if not self.detached:
            self._note_locks()
        super().disconnected(OFFLINE if self._offline else reason)

    def _note_locks(self) -> None:
        """Remember until when clients of other brokers may believe in session locks of these fragments."""
        now = self.clock()
        for fragment, lock in self._session_locks.items():
            earlier = max(self._believed.get(fragment, 0), self._longer.get(fragment, 0))
            self._believed[fragment] = max(earlier, now + lock)

    def status_changed(self, frame: protocol.StoreStatus) -> None:
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

    def _as_it_was(self) -> protocol.RestoreStore:
        reset, self._reset = self._reset, False
        return protocol.RestoreStore(self.reason, self._offline, reset)

    # ---- opening and closing ----

    @property
    def is_open(self) -> bool:
        return self.state is StoreState.OPEN or self.state is StoreState.ROLLING_BACK

    async def open(self) -> None:
        await self._opening(protocol.OpenStore())

    async def create(self) -> None:
        await self._opening(protocol.CreateStore())

    async def read_catalogue(self) -> tuple[dict[str, bytes], int]:
        return _catalogues.decode(await self._opening(protocol.ReadCatalogue()))

    async def repair_catalogue(self, rows: Rows) -> None:
        await self._opening(protocol.RepairCatalogue(rows))

    async def mark_unavailable(self, reason: str) -> None:
        if self._channel is None:
            self._enter(StoreState.UNAVAILABLE, reason)
            return
        with contextlib.suppress(ChannelClosed):  # then it is unavailable in any case
            await self._channel.call(self.name, protocol.MarkUnavailable(reason))

    def start_reopening(self) -> None:
        self._trying = True
        if self.state is StoreState.UNAVAILABLE and self._channel is not None:
            if self.detached:
                self._channel.notify(self.name, self._as_it_was())
            else:
                self._channel.notify(self.name, protocol.StartReopening())

    def stop_timers(self) -> None:
        self._tell(protocol.StopTimers())

    async def drain(self, timeout: float) -> bool:
        if self._channel is None:
            return True
        try:
            return msgspec.msgpack.decode(
                await self._channel.call(self.name, protocol.DrainStore(timeout)), type=bool
            )
        except ChannelClosed:
            return False

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed):
                await self._channel.call(self.name, protocol.CloseStore())
        self._channel = None
        self._enter(StoreState.CLOSED, "")

    # ---- serving ----

    async def add_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        if fragments:
            self._learn_locks(fragments)
            now = self.clock()
            barred = {
                fragment: until
                for fragment, until in self._believed.items()
                if fragment in fragments and until > now
            }
            if barred:
                self._tell(protocol.BarSessions(barred))
            await self._serving(protocol.AddFragments(encode_settings(fragments)))

    def _learn_locks(self, fragments: Mapping[int, FragmentSettings]) -> None:
        for fragment, settings in fragments.items():
            if settings.requires_session:
                before = self._session_locks.get(fragment, 0)
                if before > settings.lock_ms:
                    self._longer[fragment] = max(self.clock() + before, self._longer.get(fragment, 0))
                self._session_locks[fragment] = settings.lock_ms

    def change_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        self._learn_locks(fragments)
        self._tell(protocol.ChangeFragments(encode_settings(fragments)))

    async def remove_fragment(self, fragment: int) -> None:
        self._active.pop(fragment, None)
        self._session_locks.pop(fragment, None)
        self._longer.pop(fragment, None)
        self._believed.pop(fragment, None)
        self.drop_fragment(fragment)
        await self._serving(protocol.RemoveFragment(fragment))

    async def write_catalogue(self, rows: Rows) -> None:
        await self._serving(protocol.WriteCatalogue(rows))

    def last_used(self, fragment: int) -> int:
        """When the fragment was last used, as the broker reported it last: the clock may have been set back."""
        return self._active.get(fragment, self._returned)

    async def refresh_last_used(self, fragments: Sequence[int]) -> None:
        times = _times.decode(await self._serving(protocol.GetLastUsed([*fragments])))
        for fragment, time in zip(fragments, times, strict=True):
            if time:
                self._active[fragment] = time

    # ---- what operators say ----

    async def take_offline(self) -> None:
        self._offline = True
        if self._channel is None:
            self._enter(StoreState.UNAVAILABLE, OFFLINE)
            return
        with contextlib.suppress(ChannelClosed):
            await self._channel.call(self.name, protocol.SetOffline())

    def bring_online(self) -> None:
        self._offline = False
        self._tell(protocol.SetOnline())

    def reset(self) -> None:
        self._offline = False
        self._reset = self._channel is None
        self._tell(protocol.ResetStore())

    # ---- calls ----

    def _tell(self, operation: Operation) -> None:
        if self._channel is not None:
            self._channel.notify(self.name, operation)

    async def _opening(self, operation: Operation) -> msgspec.Raw:
        try:
            if self._channel is not None:
                return await self._channel.call(self.name, operation)
        except ChannelClosed:
            pass
        raise StoreError(ENDED)

    async def _serving(self, operation: Operation) -> msgspec.Raw:
        if self._channel is None:
            raise ServerBusy(self._unavailable_text)
        try:
            return await self._channel.call(self.name, operation)
        except ChannelClosed:
            busy = ServerBusy(STORE_FAILED)
            busy.certain = False
            raise busy from None


class CatalogueService(Protocol):
    """The namespace, as broker processes ask for it."""

    def handle_request(self, request: protocol.CatalogueRequest) -> Coroutine[None, None, object]: ...

    def in_use(self, channel: Channel, frame: protocol.ReportInUse) -> None: ...


class BrokerConnection(Channel):
    """The controller's end of the channel to one broker process."""

    def __init__(
        self,
        hosts: Mapping[str, RemoteStoreHost],
        ended: Callable[[], None],
        namespace: CatalogueService | None = None,
        introduce: Callable[[str], None] = lambda broker: None,
    ) -> None:
        """`introduce` hears that the broker process misses a channel to another one."""
        super().__init__()
        self._hosts = hosts
        self._ended = ended
        self._namespace = namespace
        self._introduce = introduce

    def handle_frame(
        self, frame: protocol.CommandsFrame | protocol.EffectsFrame | protocol.StoreStatus
    ) -> None:
        host = self._host(frame.store)
        if isinstance(frame, protocol.EffectsFrame):
            host.effects_received(effects_codec.decode(frame.effects))
        elif isinstance(frame, protocol.StoreStatus):
            host.status_changed(frame)
        else:
            raise WireError("The controller has no store to submit to.")

    def handle_call(self, store: str, operation: Operation) -> Coroutine[None, None, object] | None:
        if isinstance(operation, protocol.CatalogueRequest) and self._namespace is not None:
            return self._namespace.handle_request(operation)
        if isinstance(operation, protocol.ReportInUse) and self._namespace is not None:
            self._namespace.in_use(self, operation)
            return None
        if isinstance(operation, protocol.Introduce):
            self._introduce(operation.broker)
            return None
        if isinstance(operation, protocol.AdmitStore):
            return self._host(store).admitted(operation.anew)
        if isinstance(operation, protocol.StoreFenced):
            self._host(store).fenced()
            return None
        raise WireError(f"The controller was asked for {type(operation).__name__}.")

    def closed(self) -> None:
        self._ended()

    def _host(self, store: str) -> RemoteStoreHost:
        host = self._hosts.get(store)
        if host is None:
            raise WireError(f"A broker process spoke of the store {store}.")
        return host
