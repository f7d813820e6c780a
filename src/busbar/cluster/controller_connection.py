"""A broker process: the hosts of its stores, at the end of the channel to the controller.

It has its stores alone: their fragments' machines, turns and threads are here. Which entities there are, and when all ends,
is the controller's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

import msgspec

from busbar.broker.dispatcher import BROKER_ORIGIN
from busbar.broker.host_api import StoreHost
from busbar.broker.store_host import LocalStoreHost
from busbar.cluster import protocol
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.codec import WireError, commands_codec, effects_codec
from busbar.cluster.peer_server import PeerServer, state_of
from busbar.cluster.protocol import Operation
from busbar.cluster.session_bar import SessionBar
from busbar.cluster.settings_codec import SettingsReader
from busbar.model.effects import Effect
from busbar.store.contract import StoreError

Emit = Callable[[list[Effect]], None]
MakeHost = Callable[[str, Emit, Callable[[], None]], LocalStoreHost]
"""For a store's name, with what performs its effects and who hears that another owner took it."""


class NodeHandler(Protocol):
    """What a broker process is besides its stores: a gateway, and a port to the fragments of all."""

    def emit(self, effects: list[Effect]) -> None: ...

    def perform(self, operation: protocol.NodeOperation) -> Coroutine[None, None, object] | None: ...


class ControllerConnection(Channel):
    def __init__(
        self, make_host: MakeHost, ended: Callable[[], None], member: NodeHandler | None = None
    ) -> None:
        """Without a member, all effects go to the controller."""
        super().__init__()
        self.hosts: dict[str, LocalStoreHost] = {}
        """Those that were not closed."""
        self.takers: dict[str, SessionBar] = {}
        """Where commands for them go."""
        self.peers: set[PeerServer] = set()
        """Other broker processes that have commands for them."""
        self._make_host = make_host
        self._ended = ended
        self._member = member
        self._settings = SettingsReader()

    def handle_frame(
        self, frame: protocol.CommandsFrame | protocol.EffectsFrame | protocol.StoreStatus
    ) -> None:
        if not isinstance(frame, protocol.CommandsFrame):
            raise WireError(f"A broker process got {type(frame).__name__}.")
        self._host(frame.store)
        self.takers[frame.store].submit(commands_codec.decode(frame.commands))

    def closed(self) -> None:
        self._ended()

    def handle_call(self, store: str, operation: Operation) -> Coroutine[None, None, object] | None:
        if isinstance(operation, protocol.NodeOperation) and self._member is not None:
            return self._member.perform(operation)
        if isinstance(operation, protocol.AssignStore):
            self._serve(store)
            return None
        host = self._host(store)
        if isinstance(operation, protocol.BarSessions):
            self.takers[store].bar(operation.until)
        elif isinstance(operation, protocol.ChangeFragments):
            host.change_fragments(self._settings.read(operation.settings))
        elif isinstance(operation, protocol.StartReopening):
            host.start_reopening()
        elif isinstance(operation, protocol.SetOnline):
            host.bring_online()
        elif isinstance(operation, protocol.ResetStore):
            host.reset()
        elif isinstance(operation, protocol.StopTimers):
            host.stop_timers()
        else:
            return self._work(host, operation)
        return None

    def _work(self, host: LocalStoreHost, operation: Operation) -> Coroutine[None, None, object]:
        if isinstance(operation, protocol.AddFragments):
            return host.add_fragments(self._settings.read(operation.settings))
        if isinstance(operation, protocol.RemoveFragment):
            return host.remove_fragment(operation.fragment)
        if isinstance(operation, protocol.WriteCatalogue):
            return host.write_catalogue(operation.rows)
        if isinstance(operation, protocol.DrainStore):
            return host.drain(operation.timeout)
        if isinstance(operation, protocol.SetOffline):
            return host.take_offline()
        if isinstance(operation, protocol.GetLastUsed):
            return _use_of(host, operation.fragments)
        return self._open_or_close(host, operation)

    def _open_or_close(self, host: LocalStoreHost, operation: Operation) -> Coroutine[None, None, object]:
        if isinstance(operation, protocol.OpenStore):
            return host.open()
        if isinstance(operation, protocol.CreateStore):
            return host.create()
        if isinstance(operation, protocol.ReadCatalogue):
            return host.read_catalogue()
        if isinstance(operation, protocol.RepairCatalogue):
            return host.repair_catalogue(operation.rows)
        if isinstance(operation, protocol.MarkUnavailable):
            return host.mark_unavailable(operation.reason)
        if isinstance(operation, protocol.RestoreStore):
            return _return(host, operation)
        if isinstance(operation, protocol.CloseStore):
            return self._close(host)
        raise WireError(f"A broker process was asked for {type(operation).__name__}.")

    def _serve(self, store: str) -> None:
        def emit(effects: list[Effect]) -> None:
            if self._member is not None:
                others = [effect for effect in effects if effect.origin != BROKER_ORIGIN]
                if others:
                    self._member.emit(others)
                if len(others) == len(effects):
                    return
                effects = [effect for effect in effects if effect.origin == BROKER_ORIGIN]
            self.write(protocol.EffectsFrame(store, msgspec.Raw(effects_codec.encode(effects))))

        def show() -> None:
            state = state_of(host)
            self.write(state)
            for peer in self.peers:
                peer.write(state)

        async def admit(_: StoreHost, anew: bool) -> None:
            try:
                await self.call(store, protocol.AdmitStore(anew))
            except ChannelClosed:  # and so this process ends
                raise StoreError("the controller ended") from None

        host = self._make_host(store, emit, lambda: self.notify(store, protocol.StoreFenced()))
        host.shown = show
        host.admit = admit
        self.hosts[store] = host
        self.takers[store] = SessionBar(host, asyncio.get_running_loop(), host.clock, emit)

    async def _close(self, host: LocalStoreHost) -> None:
        await host.close()
        self.hosts.pop(host.name, None)
        self.takers.pop(host.name, None)

    def _host(self, store: str) -> LocalStoreHost:
        host = self.hosts.get(store)
        if host is None:
            raise WireError(f"There is no store {store} here.")
        return host


async def _use_of(host: LocalStoreHost, fragments: list[int]) -> list[int]:
    return [host.last_used(fragment) for fragment in fragments]


async def _return(host: LocalStoreHost, as_it_was: protocol.RestoreStore) -> None:
    await host.mark_unavailable(as_it_was.reason)
    if as_it_was.offline:
        await host.take_offline()
    if as_it_was.reset:
        host.reset()
    host.start_reopening()
