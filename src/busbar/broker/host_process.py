"""A broker process: the hosts of its stores, at the end of the channel to the serving process.

It has its stores alone: their fragments' machines, turns and threads are here. Which entities there are, and when all ends,
is the serving process's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

import msgspec

from busbar.broker import says
from busbar.broker.channel import Channel, ChannelLost
from busbar.broker.exchange import OURSELVES
from busbar.broker.host import StoreHost
from busbar.broker.hosting import Host
from busbar.broker.says import Operation
from busbar.broker.served_peer import ServedPeer, state_of
from busbar.broker.session_bar import SessionBar
from busbar.broker.settings_wire import SettingsReader
from busbar.broker.wire import WireError, commands_codec, effects_codec
from busbar.model.effects import Effect
from busbar.store.contract import StoreError

Emit = Callable[[list[Effect]], None]
MakeHost = Callable[[str, Emit, Callable[[], None]], StoreHost]
"""For a store's name, with what performs its effects and who hears that another owner took it."""


class Member(Protocol):
    """What a broker process is besides its stores: a gateway, and a port to the fragments of all."""

    def emit(self, effects: list[Effect]) -> None: ...

    def perform(self, operation: says.OfMembers) -> Coroutine[None, None, object] | None: ...


class HostsChannel(Channel):
    def __init__(self, make_host: MakeHost, ended: Callable[[], None], member: Member | None = None) -> None:
        """Without a member, all effects go to the serving process."""
        super().__init__()
        self.hosts: dict[str, StoreHost] = {}
        """Those that were not closed."""
        self.takers: dict[str, SessionBar] = {}
        """Where commands for them go."""
        self.peers: set[ServedPeer] = set()
        """Other broker processes that have commands for them."""
        self._make_host = make_host
        self._ended = ended
        self._member = member
        self._settings = SettingsReader()

    def received(self, frame: says.Submit | says.Perform | says.State) -> None:
        if not isinstance(frame, says.Submit):
            raise WireError(f"A broker process got {type(frame).__name__}.")
        self._host(frame.store)
        self.takers[frame.store].submit(commands_codec.decode(frame.commands))

    def lost(self) -> None:
        self._ended()

    def perform(self, store: str, operation: Operation) -> Coroutine[None, None, object] | None:
        if isinstance(operation, says.OfMembers) and self._member is not None:
            return self._member.perform(operation)
        if isinstance(operation, says.Serve):
            self._serve(store)
            return None
        host = self._host(store)
        if isinstance(operation, says.BarSessions):
            self.takers[store].bar(operation.until)
        elif isinstance(operation, says.Change):
            host.change(self._settings.read(operation.settings))
        elif isinstance(operation, says.KeepTrying):
            host.keep_trying()
        elif isinstance(operation, says.BringOnline):
            host.bring_online()
        elif isinstance(operation, says.Reset):
            host.reset()
        elif isinstance(operation, says.WindDown):
            host.wind_down()
        else:
            return self._work(host, operation)
        return None

    def _work(self, host: StoreHost, operation: Operation) -> Coroutine[None, None, object]:
        if isinstance(operation, says.Add):
            return host.add(self._settings.read(operation.settings))
        if isinstance(operation, says.Remove):
            return host.remove(operation.fragment)
        if isinstance(operation, says.WriteCatalogue):
            return host.write_catalogue(operation.rows)
        if isinstance(operation, says.Drain):
            return host.drain(operation.timeout)
        if isinstance(operation, says.TakeOffline):
            return host.take_offline()
        if isinstance(operation, says.TellUse):
            return _use_of(host, operation.fragments)
        return self._open_or_close(host, operation)

    def _open_or_close(self, host: StoreHost, operation: Operation) -> Coroutine[None, None, object]:
        if isinstance(operation, says.Open):
            return host.open()
        if isinstance(operation, says.Make):
            return host.make()
        if isinstance(operation, says.ReadCatalogue):
            return host.catalogue()
        if isinstance(operation, says.RepairCatalogue):
            return host.repair_catalogue(operation.rows)
        if isinstance(operation, says.KeepOut):
            return host.keep_out(operation.reason)
        if isinstance(operation, says.Return):
            return _return(host, operation)
        if isinstance(operation, says.Close):
            return self._close(host)
        raise WireError(f"A broker process was asked for {type(operation).__name__}.")

    def _serve(self, store: str) -> None:
        def emit(effects: list[Effect]) -> None:
            if self._member is not None:
                others = [effect for effect in effects if effect.origin != OURSELVES]
                if others:
                    self._member.emit(others)
                if len(others) == len(effects):
                    return
                effects = [effect for effect in effects if effect.origin == OURSELVES]
            self.write(says.Perform(store, msgspec.Raw(effects_codec.encode(effects))))

        def show() -> None:
            state = state_of(host)
            self.write(state)
            for peer in self.peers:
                peer.write(state)

        async def admit(_: Host, anew: bool) -> None:
            try:
                await self.call(store, says.Admit(anew))
            except ChannelLost:  # and so this process ends
                raise StoreError("the serving process ended") from None

        host = self._make_host(store, emit, lambda: self.tell(store, says.TakenAway()))
        host.shown = show
        host.admit = admit
        self.hosts[store] = host
        self.takers[store] = SessionBar(host, asyncio.get_running_loop(), host.clock, emit)

    async def _close(self, host: StoreHost) -> None:
        await host.close()
        self.hosts.pop(host.name, None)
        self.takers.pop(host.name, None)

    def _host(self, store: str) -> StoreHost:
        host = self.hosts.get(store)
        if host is None:
            raise WireError(f"There is no store {store} here.")
        return host


async def _use_of(host: StoreHost, fragments: list[int]) -> list[int]:
    return [host.active(fragment) for fragment in fragments]


async def _return(host: StoreHost, as_it_was: says.Return) -> None:
    await host.keep_out(as_it_was.reason)
    if as_it_was.offline:
        await host.take_offline()
    if as_it_was.reset:
        host.reset()
    host.keep_trying()
