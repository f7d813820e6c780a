"""The host of a store that a broker process has: this end of it, in the serving process.

Rules:
1. Everything is passed on in the order in which it was said; the state of the store is what the broker process last said.
2. When the broker process ends, its stores are out, like those with any other fault: whoever waits for an answer hears that
   its outcome is unknown, later commands are refused at once and certainly did nothing, and what consumers asked for is kept
   (standing.py, parking.py).
3. When it was started again, its stores come back as stores do: each is opened when that is possible, looked at by the
   catalogue, and its fragments are taken into service. Then consumers' credit is asked for again.
4. Message locks and sessions are memory of the process that ended: who holds one finds that it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping

import msgspec

from busbar.broker import channel as says
from busbar.broker.channel import Channel, ChannelLost, Operation
from busbar.broker.host import OFFLINE, STORE_FAILED, STORE_OUT
from busbar.broker.hosting import Admit, HostState, Rows
from busbar.broker.parking import Parking
from busbar.broker.place import Loss, Place
from busbar.broker.settings_wire import encode_settings
from busbar.broker.standing import Standing
from busbar.broker.wire import WireError, commands_codec, effects_codec
from busbar.model.commands import Command, Tick
from busbar.model.effects import Effect, Refused
from busbar.model.errors import ServerBusy
from busbar.model.settings import FragmentSettings
from busbar.store.contract import StoreError

ENDED = "its broker process ended"

_catalogues = msgspec.msgpack.Decoder(tuple[dict[str, bytes], int])


class RemoteHost:
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
        self.name = name
        self.broker = broker
        self.place = place
        self.state = HostState.STOPPED
        self.since = 0
        self.reason = ""
        self.loss: Loss | None = None
        self.admit: Admit | None = None
        self.clock = clock
        self._loop = loop
        self._emit = emit
        self._fenced = fenced
        self._channel: Channel | None = None
        self._away = False
        """The broker process ended, and the store is not back yet."""
        self._trying = False
        self._closed = False
        self._offline = False
        self._reset = False
        self._standing = Standing()
        self._parking = Parking()
        self._active: dict[int, int] = {}

    # ---- the broker process ----

    def found(self, channel: Channel) -> None:
        """The broker process is there (again)."""
        if self._closed:
            return
        self._channel = channel
        channel.tell(self.name, says.Serve())
        if self._away and self._trying:
            self._return()

    def lost(self, reason: str) -> None:
        """Rule 2."""
        self._channel = None
        if self._closed:
            return
        self._away = True
        self._enter(HostState.OUT, OFFLINE if self._offline else reason)
        asked, drained, demands = self._standing.take()
        answers: list[Effect] = [self._busy(*one, STORE_FAILED, certain=False) for one in asked]
        answers += drained
        for fragment, waiting in demands.items():
            self._parking.replace_machine(fragment, waiting)
        self._emit(answers)

    def shown(self, frame: says.State) -> None:
        """The store has another state, there."""
        loss = frame.loss
        self.loss = None if loss is None else Loss(*loss)
        self._enter(HostState(frame.state), frame.reason)
        if self._away and self.state is HostState.OPEN:
            self._away = False
            self.submit(self._parking.take())

    def performed(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._standing.heard(effect)
        self._emit(effects)

    async def admitted(self, anew: bool) -> None:
        if self.admit is not None:
            await self.admit(self, anew)

    def taken_away(self) -> None:
        if self._fenced is not None:
            self._fenced()

    def _enter(self, state: HostState, reason: str) -> None:
        if state is not self.state:
            self.since = self.clock()
        self.state, self.reason = state, reason

    def _return(self) -> None:
        """Rule 3."""
        assert self._channel is not None
        self._channel.tell(self.name, says.Return(self.reason, self._offline, self._reset))
        self._reset = False

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
            if self._away:
                self._return()
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
            await self._serving(says.Add(encode_settings(fragments)))

    def change(self, fragments: Mapping[int, FragmentSettings]) -> None:
        self._tell(says.Change(encode_settings(fragments)))

    async def remove(self, fragment: int) -> None:
        self._active.pop(fragment, None)
        self._parking.drop(fragment)
        self._standing.forget(fragment)
        await self._serving(says.Remove(fragment))

    async def write_catalogue(self, rows: Rows) -> None:
        await self._serving(says.WriteCatalogue(rows))

    def active(self, fragment: int) -> int:
        return self._active.get(fragment, 0)

    def submit(self, commands: Iterable[Command]) -> None:
        commands = list(commands)
        if self._channel is None or self._away:
            self._loop.call_soon(self._emit, self._answers_while_out(commands))
            return
        said, active, now = self._standing.said, self._active, self.clock()
        for command in commands:
            said(command)
            if command.origin:
                active[command.fragment] = now
        if commands:
            self._channel.write(says.Submit(self.name, msgspec.Raw(commands_codec.encode(commands))))

    def _answers_while_out(self, commands: list[Command]) -> list[Effect]:
        answers: list[Effect] = []
        for command in commands:
            if command.request > 0:
                answers.append(self._busy(command.origin, command.request, self._out_text, certain=True))
            elif not isinstance(command, Tick):
                drained = self._parking.add(command)
                if drained is not None:
                    answers.append(drained)
        return answers

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

    @property
    def _out_text(self) -> str:
        return f"{STORE_OUT} ({self.name} is out.)"

    def _busy(self, origin: int, request: int, text: str, *, certain: bool) -> Refused:
        return Refused(origin, request, ServerBusy.condition, text, certain)


class BrokerChannel(Channel):
    """The serving process's end of the channel to one broker process."""

    def __init__(self, hosts: Mapping[str, RemoteHost], ended: Callable[[], None]) -> None:
        super().__init__()
        self._hosts = hosts
        self._ended = ended

    def received(self, frame: says.Submit | says.Perform | says.State) -> None:
        host = self._host(frame.store)
        if isinstance(frame, says.Perform):
            host.performed(effects_codec.decode(frame.effects))
        elif isinstance(frame, says.State):
            host.shown(frame)
        else:
            raise WireError("The serving process has no store to submit to.")

    def perform(self, store: str, operation: Operation) -> Coroutine[None, None, object] | None:
        host = self._host(store)
        if isinstance(operation, says.Admit):
            return host.admitted(operation.anew)
        if isinstance(operation, says.TakenAway):
            host.taken_away()
            return None
        raise WireError(f"The serving process was asked for {type(operation).__name__}.")

    def lost(self) -> None:
        self._ended()

    def _host(self, store: str) -> RemoteHost:
        host = self._hosts.get(store)
        if host is None:
            raise WireError(f"A broker process spoke of the store {store}.")
        return host
