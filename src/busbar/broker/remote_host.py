"""The host of a store that a broker process has: this end of it, in the serving process.

Rules, beside those of far_store.py:
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

from busbar.broker import says
from busbar.broker.calls import Request
from busbar.broker.channel import Channel, ChannelLost
from busbar.broker.far_store import ENDED, FarStore
from busbar.broker.hosting import Admit, HostState, Rows
from busbar.broker.place import Place
from busbar.broker.refusals import OFFLINE, STORE_FAILED
from busbar.broker.says import Operation
from busbar.broker.settings_wire import encode_settings
from busbar.broker.wire import WireError, effects_codec
from busbar.model.effects import Effect
from busbar.model.errors import ServerBusy
from busbar.model.settings import FragmentSettings
from busbar.store.contract import StoreError

_catalogues = msgspec.msgpack.Decoder(tuple[dict[str, bytes], int])
_times = msgspec.msgpack.Decoder(list[int])


class RemoteHost(FarStore):
    """A hosting.Host."""

    def __init__(
        self,
        name: str,
        broker: str,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        emit: Callable[[list[Effect]], None],
        fenced: Callable[[], None] | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(name, broker, loop, clock, emit)
        self.away = False  # it is opened from here, and may be asked for that from the beginning
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

    def found(self, channel: Channel) -> None:
        """The broker process is there (again)."""
        if not self._closed:
            self.met(channel)
            channel.tell(self.name, says.Serve())

    async def come_back(self) -> None:
        """Rule 1. Returns when the store is in a state to be asked for something."""
        if self._channel is not None and self.away and self._trying:
            with contextlib.suppress(ChannelLost):
                await self._channel.call(self.name, self._as_it_was())

    def lost(self, reason: str) -> None:
        if self._closed:
            self._channel = None
            return
        if not self.away:
            self._note_locks()
        super().lost(OFFLINE if self._offline else reason)

    def _note_locks(self) -> None:
        """Rule 3."""
        now = self.clock()
        for fragment, lock in self._session_locks.items():
            earlier = max(self._believed.get(fragment, 0), self._longer.get(fragment, 0))
            self._believed[fragment] = max(earlier, now + lock)

    def shown(self, frame: says.State) -> None:
        if self.away and frame.state == HostState.OPEN.value:
            self._returned = self.clock()
            self._active.clear()
        super().shown(frame)

    async def admitted(self, anew: bool) -> None:
        if self.admit is not None:
            await self.admit(self, anew)

    def taken_away(self) -> None:
        if self._fenced is not None:
            self._fenced()

    def _as_it_was(self) -> says.Return:
        reset, self._reset = self._reset, False
        return says.Return(self.reason, self._offline, reset)

    # ---- opening and closing ----

    @property
    def is_open(self) -> bool:
        return self.state is HostState.OPEN or self.state is HostState.UNDOING

    async def open(self) -> None:
        await self._opening(says.Open())

    async def make(self) -> None:
        await self._opening(says.Make())

    async def catalogue(self) -> tuple[dict[str, bytes], int]:
        return _catalogues.decode(await self._opening(says.ReadCatalogue()))

    async def repair_catalogue(self, rows: Rows) -> None:
        await self._opening(says.RepairCatalogue(rows))

    async def keep_out(self, reason: str) -> None:
        if self._channel is None:
            self._enter(HostState.OUT, reason)
            return
        with contextlib.suppress(ChannelLost):  # then it is out in any case
            await self._channel.call(self.name, says.KeepOut(reason))

    def keep_trying(self) -> None:
        self._trying = True
        if self.state is HostState.OUT and self._channel is not None:
            if self.away:
                self._channel.tell(self.name, self._as_it_was())
            else:
                self._channel.tell(self.name, says.KeepTrying())

    def wind_down(self) -> None:
        self._tell(says.WindDown())

    async def drain(self, timeout: float) -> bool:
        if self._channel is None:
            return True
        try:
            return msgspec.msgpack.decode(await self._channel.call(self.name, says.Drain(timeout)), type=bool)
        except ChannelLost:
            return False

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            with contextlib.suppress(ChannelLost):
                await self._channel.call(self.name, says.Close())
        self._channel = None
        self._enter(HostState.STOPPED, "")

    # ---- serving ----

    async def add(self, fragments: Mapping[int, FragmentSettings]) -> None:
        if fragments:
            self._learn_locks(fragments)
            now = self.clock()
            barred = {
                fragment: until
                for fragment, until in self._believed.items()
                if fragment in fragments and until > now
            }
            if barred:
                self._tell(says.BarSessions(barred))
            await self._serving(says.Add(encode_settings(fragments)))

    def _learn_locks(self, fragments: Mapping[int, FragmentSettings]) -> None:
        for fragment, settings in fragments.items():
            if settings.requires_session:
                before = self._session_locks.get(fragment, 0)
                if before > settings.lock_ms:
                    self._longer[fragment] = max(self.clock() + before, self._longer.get(fragment, 0))
                self._session_locks[fragment] = settings.lock_ms

    def change(self, fragments: Mapping[int, FragmentSettings]) -> None:
        self._learn_locks(fragments)
        self._tell(says.Change(encode_settings(fragments)))

    async def remove(self, fragment: int) -> None:
        self._active.pop(fragment, None)
        self._session_locks.pop(fragment, None)
        self._longer.pop(fragment, None)
        self._believed.pop(fragment, None)
        self.forget(fragment)
        await self._serving(says.Remove(fragment))

    async def write_catalogue(self, rows: Rows) -> None:
        await self._serving(says.WriteCatalogue(rows))

    def active(self, fragment: int) -> int:
        """Rule 2. What came last, whatever time it has: the clock may have been set back."""
        return self._active.get(fragment, self._returned)

    async def learn_use(self, fragments: Sequence[int]) -> None:
        times = _times.decode(await self._serving(says.TellUse([*fragments])))
        for fragment, time in zip(fragments, times, strict=True):
            if time:
                self._active[fragment] = time

    # ---- what operators say ----

    async def take_offline(self) -> None:
        self._offline = True
        if self._channel is None:
            self._enter(HostState.OUT, OFFLINE)
            return
        with contextlib.suppress(ChannelLost):
            await self._channel.call(self.name, says.TakeOffline())

    def bring_online(self) -> None:
        self._offline = False
        self._tell(says.BringOnline())

    def reset(self) -> None:
        self._offline = False
        self._reset = self._channel is None
        self._tell(says.Reset())

    # ---- calls ----

    def _tell(self, operation: Operation) -> None:
        if self._channel is not None:
            self._channel.tell(self.name, operation)

    async def _opening(self, operation: Operation) -> msgspec.Raw:
        try:
            if self._channel is not None:
                return await self._channel.call(self.name, operation)
        except ChannelLost:
            pass
        raise StoreError(ENDED)

    async def _serving(self, operation: Operation) -> msgspec.Raw:
        if self._channel is None:
            raise ServerBusy(self._out_text)
        try:
            return await self._channel.call(self.name, operation)
        except ChannelLost:
            busy = ServerBusy(STORE_FAILED)
            busy.certain = False
            raise busy from None


class Served(Protocol):
    """The namespace, as broker processes ask for it."""

    def perform(self, request: Request) -> Coroutine[None, None, list[bytes]]: ...

    def in_use(self, channel: Channel, frame: says.InUse) -> None: ...


class BrokerChannel(Channel):
    """The serving process's end of the channel to one broker process."""

    def __init__(
        self,
        hosts: Mapping[str, RemoteHost],
        ended: Callable[[], None],
        namespace: Served | None = None,
        introduce: Callable[[str], None] = lambda broker: None,
    ) -> None:
        """`introduce` hears that the broker process misses a channel to another one."""
        super().__init__()
        self._hosts = hosts
        self._ended = ended
        self._namespace = namespace
        self._introduce = introduce

    def received(self, frame: says.Submit | says.Perform | says.State) -> None:
        host = self._host(frame.store)
        if isinstance(frame, says.Perform):
            host.performed(effects_codec.decode(frame.effects))
        elif isinstance(frame, says.State):
            host.shown(frame)
        else:
            raise WireError("The serving process has no store to submit to.")

    def perform(self, store: str, operation: Operation) -> Coroutine[None, None, object] | None:
        if isinstance(operation, says.Ask) and self._namespace is not None:
            return self._namespace.perform(operation.request)
        if isinstance(operation, says.InUse) and self._namespace is not None:
            self._namespace.in_use(self, operation)
            return None
        if isinstance(operation, says.Introduce):
            self._introduce(operation.broker)
            return None
        if isinstance(operation, says.Admit):
            return self._host(store).admitted(operation.anew)
        if isinstance(operation, says.TakenAway):
            self._host(store).taken_away()
            return None
        raise WireError(f"The serving process was asked for {type(operation).__name__}.")

    def lost(self) -> None:
        self._ended()

    def _host(self, store: str) -> RemoteHost:
        host = self._hosts.get(store)
        if host is None:
            raise WireError(f"A broker process spoke of the store {store}.")
        return host
