"""A broker process: the hosts of its stores, at the end of the channel to the controller.

The broker process alone has its stores: their fragments' machines, commit loops and threads are here. The controller decides
which entities there are, and when the process ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from busbar.broker.dispatcher import BROKER_ORIGIN
from busbar.broker.host_api import StoreHost, StoreState
from busbar.broker.inspection import OWN_REQUESTS, FragmentCounts, FragmentInquiry
from busbar.broker.refusals import STORE_UNAVAILABLE, busy
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.change import EntityChange, StoreChange
from busbar.catalogue.replica import ReplicaFault
from busbar.catalogue.store_set import HostCarrier
from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.codec import WireError, commands_codec, effects_codec
from busbar.cluster.peer_server import PeerServer, state_of
from busbar.model.commands import Command
from busbar.model.effects import Effect, Inspected
from busbar.model.errors import ServerBusy
from busbar.store.contract import StoreError
from busbar.store.location import OwnerSilence

_log = logging.getLogger(__name__)

Emit = Callable[[list[Effect]], None]
MakeHost = Callable[[str, Emit, Callable[[], None]], LocalStoreHost]
"""For a store's name, with what performs its effects and what is called when another owner has claimed it."""


class NodeHandler(protocol.NodeApi, Protocol):
    """What a broker process is besides its stores: a gateway, and the broker API for the fragments of all."""

    def emit(self, effects: list[Effect]) -> None: ...

    def entities_changed(self, version: int, entities: Sequence[EntityChange]) -> None:
        """Entities are other than before, at this gateway from now on."""

    def store_opened(self, store: str) -> None:
        """A store of this process is open, perhaps again."""

    async def hand_over(self, host: LocalStoreHost) -> list[Command]:
        """Release a store of this process for another one. Returns commands of the controller that were not applied. Raises
        ServerBusy if the store stays."""


class ControllerConnection(Channel):
    """A protocol.BrokerStoresApi."""

    def __init__(
        self, make_host: MakeHost, ended: Callable[[], None], member: NodeHandler | None = None
    ) -> None:
        """Without a member, all effects go to the controller."""
        super().__init__()
        self.hosts: dict[str, LocalStoreHost] = {}
        """Those that were not closed."""
        self.peers: set[PeerServer] = set()
        """Other broker processes that have commands for them."""
        self.controller: protocol.ControllerApi = protocol.CONTROLLER.remote(self)
        self._make_host = make_host
        self._ended = ended
        self._member = member
        self._inquiry = FragmentInquiry(OWN_REQUESTS)
        self._closing: set[asyncio.Task[None]] = set()

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        if not isinstance(frame, protocol.CommandsFrame):
            raise WireError(f"A broker process got {type(frame).__name__}.")
        self._host(frame.store).submit(commands_codec.decode(frame.commands))

    def closed(self) -> None:
        self._ended()

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        if target == protocol.NODE and self._member is not None:
            return protocol.NODES, self._member
        if target == protocol.ALL_STORES:
            return protocol.STORES, self
        return protocol.STORE, OwnedStore(self._host(target), self._closed, self._hand_over)

    # ---- all stores ----

    def assign_store(self, store: str) -> None:
        if store in self.hosts:  # by an earlier controller
            self.write(state_of(self.hosts[store]))
            return

        def emit(effects: list[Effect]) -> None:
            if self._member is not None:
                others = [effect for effect in effects if effect.origin != BROKER_ORIGIN]
                if others:
                    self._member.emit(others)
                if len(others) == len(effects):
                    return
                effects = [effect for effect in effects if effect.origin == BROKER_ORIGIN]
            own = [effect for effect in effects if effect.request >= OWN_REQUESTS]
            if own:
                self._inquiry.answered(own)
                effects = [effect for effect in effects if effect.request < OWN_REQUESTS]
                if not effects:
                    return
            self.write(protocol.EffectsFrame(store, msgspec.Raw(effects_codec.encode(effects))))

        def show() -> None:
            state = state_of(host)
            self.write(state)
            for peer in self.peers:
                peer.write(state)
            if host.is_open and host.state is not StoreState.MOVING and self._member is not None:
                self._member.store_opened(store)

        async def admit(_: StoreHost, anew: bool) -> None:
            try:
                await self.controller.admit_store(store, anew)
            except ChannelClosed:  # and so this process ends
                raise StoreError("the controller ended") from None

        host = self._make_host(store, emit, lambda: self.controller.store_fenced(store))
        host.shown = show
        host.admit = admit
        self.hosts[store] = host

    async def inspect(self, fragments: Sequence[int]) -> dict[int, FragmentCounts]:
        """What fragments hold. All are asked at once, since each may have to wait for a commit."""
        found: dict[int, FragmentCounts] = {}
        asked: list[int] = []
        waiting: list[asyncio.Future[Effect]] = []
        for host in self.hosts.values():
            here = [fragment for fragment in fragments if fragment in host]
            commands, answers = self._inquiry.questions(here)
            host.submit(commands)
            asked += here
            waiting += answers
            found.update({fragment: FragmentCounts(host.last_used(fragment)) for fragment in here})
        for fragment, answer in zip(asked, await asyncio.gather(*waiting), strict=True):
            if isinstance(answer, Inspected):
                used = found[fragment].last_used
                found[fragment] = FragmentCounts(
                    used, list(answer.counts), answer.size, answer.locked, answer.oldest
                )
        return found

    async def apply_change(
        self, version: int, stores: Mapping[str, StoreChange], entities: Sequence[EntityChange]
    ) -> dict[str, Exception]:
        """Carry out a change in all stores at once, then at the gateway.

        The gateway gets the change also if a store failed here. If fragments could not be created, the controller sends the
        opposite change."""
        try:
            return await HostCarrier().carry_out(
                version, {self._host(store): change for store, change in stores.items()}, ()
            )
        finally:
            if self._member is not None and entities:
                self._put_in_force(version, entities)

    def _put_in_force(self, version: int, entities: Sequence[EntityChange]) -> None:
        assert self._member is not None
        try:
            self._member.entities_changed(version, entities)
        except ReplicaFault as fault:
            _log.error("this broker process has missed something, and ends: %s", fault)
            self.abort()

    async def _hand_over(self, host: LocalStoreHost) -> list[Command]:
        if self._member is None:
            raise ServerBusy(f"The store '{host.name}' cannot be handed over before there are gateways.")
        is_reached = host.is_open
        commands = await self._member.hand_over(host)
        self._closed(host)
        own = [command for command in commands if command.request >= OWN_REQUESTS]
        self._inquiry.answered([busy(one.origin, one.request, STORE_UNAVAILABLE) for one in own])
        closing = asyncio.get_running_loop().create_task(host.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        if is_reached:
            await closing  # the next owner can open it when this one has closed it
        return [command for command in commands if command.request < OWN_REQUESTS]

    def _closed(self, host: LocalStoreHost) -> None:
        self.hosts.pop(host.name, None)

    def _host(self, store: str) -> LocalStoreHost:
        host = self.hosts.get(store)
        if host is None:
            raise WireError(f"There is no store {store} here.")
        return host


class OwnedStore:
    """A protocol.HostedStore. The host answers every method that is not defined here."""

    def __init__(
        self,
        host: LocalStoreHost,
        closed: Callable[[LocalStoreHost], None],
        hand_over: Callable[[LocalStoreHost], Coroutine[Any, Any, list[Command]]],
    ) -> None:
        self._host = host
        self._closed = closed
        self._hand_over = hand_over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def set_gateways(self, gateways: Sequence[str]) -> None:
        self._host.gateways = {*gateways}

    def owner_seen(self, seen: OwnerSilence) -> None:
        if self._host.place is not None:
            self._host.place.note_silence(seen)

    async def last_uses(self, fragments: Sequence[int]) -> Sequence[int]:
        return [self._host.last_used(fragment) for fragment in fragments]

    async def restore(self, reason: str, offline: bool, reset: bool) -> None:
        await self._host.mark_unavailable(reason)
        if offline:
            await self._host.take_offline()
        if reset:
            self._host.reset()
        self._host.start_reopening()

    async def hand_over(self) -> list[Command]:
        return await self._hand_over(self._host)

    async def close(self) -> None:
        self._closed(self._host)  # the same store can be assigned again while the thread of this host ends
        await self._host.close()
