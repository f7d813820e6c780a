"""The fragments of this broker process, served to the gateway of another one.

Rules:
1. The other process has its own numbers for its connections. Each of them is another origin here for each store that it
   uses, so that effects go back with the store they are of.
2. The other process gets the state of every store when it connects, and whenever the state changes.
3. When the other process ends, its connections have ended. But a channel can also break between two processes that live.
   That proves nothing: clients of the gateway there may hold sessions here. Such consumers stay until the gateway has
   resumed all sessions over the next channel. They also end when the controller reports the end of the process, and when
   their locks end.
4. Nothing is kept of a connection that has ended. Only a command that has an answer, or that a fragment remembers, makes an
   origin.
5. When a store goes to a third process, the other process leaves it: it sends no more commands. Then it gets back what
   fragments had of its clients, and all commands that were not applied, in their order.
6. A client of another process can outlive this one. So the sessions that it accepts here have the name of the holder, and
   their locks are durable (fragment/session_holds.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import msgspec

from busbar.broker.dispatcher import BROKER_ORIGIN, REGISTERING, EffectDispatcher
from busbar.broker.host_api import StoreHost
from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel
from busbar.cluster.codec import WireError, commands_codec, effects_codec
from busbar.cluster.held_sessions import HeldSessions
from busbar.model.api import Commands, EffectSink
from busbar.model.commands import AcceptSession, Command, Leave, Probe, Settle, Transact
from busbar.model.effects import Delivered, Effect
from busbar.model.hold_commands import ResumeSession, holder_name


def state_of(host: StoreHost) -> protocol.StoreStatus:
    loss = host.loss
    lost = None if loss is None else (loss.at, loss.messages, loss.size)
    return protocol.StoreStatus(host.name, host.state.value, host.reason, lost)


class ServedStore(StoreHost, Protocol):
    """A store of this process, as other processes use it."""

    def release_holds(self, gateway: str) -> None: ...


class PeerServer(Channel):
    """A protocol.PeerApi."""

    def __init__(
        self,
        exchange: EffectDispatcher,
        hosts: Callable[[], Collection[StoreHost]],
        ended: Callable[[PeerServer], None],
        gateway: str = "",
        resumed: Callable[[PeerServer, str], None] = lambda peer, store: None,
        hand_over_ended: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`gateway` is the name of the gateway of the other process. `resumed` is called when its clients rely on nothing
        from earlier channels in a store. `hand_over_ended` waits for the hand-over of a store that is under way."""
        super().__init__()
        self._exchange = exchange
        self._hosts = hosts
        self._ended = ended
        self._origins: dict[int, dict[str, int]] = {}
        """By theirs, by store: ours."""
        self.gateway = gateway
        self._resumed = resumed
        self._sessions = HeldSessions()
        self._settled: set[str] = set()
        """Stores in which no client relies on this channel any more."""
        self._is_settled = False
        self._given_back: dict[str, Commands] = {}
        """Of stores that this process has handed over, until the other process leaves them."""
        self._hand_over_ended = hand_over_ended
        self.stranded: dict[int, str] = {}
        """Of our origins, those whose clients may rely on sessions after the end of the channel, with the store."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        for host in self._hosts():  # rule 2
            self.write(state_of(host))

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        if not isinstance(frame, protocol.CommandsFrame):
            raise WireError(f"A broker process got {type(frame).__name__} of another one.")
        commands = commands_codec.decode(frame.commands)
        if frame.store in self._given_back:
            if self._given_back[frame.store] or not self._has(frame.store):
                self._given_back[frame.store] += commands
                return
            del self._given_back[
                frame.store
            ]  # it never used the store before it went, and now the store is back
        taken: Commands = []
        for command in commands:
            if command.origin != BROKER_ORIGIN:
                if self.gateway and isinstance(command, AcceptSession | ResumeSession):
                    command.holder = holder_name(self.gateway, command.origin, command.consumer)
                if command.request > 0 or isinstance(command, REGISTERING):
                    command.origin = self._ours(command.origin, frame.store)
                else:
                    command.origin = self._known(command.origin, frame.store)
                    if command.origin == BROKER_ORIGIN and not isinstance(command, Settle):
                        continue  # there is no consumer here that could leave
                if isinstance(command, AcceptSession | ResumeSession | Leave):
                    self._sessions.said(command)
                _set_origin_of_parts(command)
            taken.append(command)
        self._exchange.submit(taken)

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return protocol.PEER, self

    def sessions_resumed(self, store: str) -> None:
        self._resumed(self, store)

    async def ping(self) -> None:
        """Completes at once; the completion is the reply to the gateway."""

    async def leave_store(self, store: str) -> Commands | None:
        if self._hand_over_ended is not None:
            await self._hand_over_ended(store)
        return self._given_back.pop(store, None)

    def give_back(self, store: str, commands: Commands) -> Commands:
        """Keep what the clients of the other process get back of a store, until it leaves the store. Returns the commands
        of other clients."""
        theirs = {here.pop(store): there for there, here in self._origins.items() if store in here}
        mine = [command for command in commands if command.origin in theirs]
        others = [command for command in commands if command.origin not in theirs]
        for command in mine:
            command.origin = theirs[command.origin]
            _set_origin_of_parts(command)
        self._given_back[store] = (
            self._given_back.get(store, []) + mine
        )  # it may have yet to leave us once more
        for ours in [*theirs, *[ours for ours, where in self.stranded.items() if where == store]]:
            self._sessions.gone(ours)
            self.stranded.pop(ours, None)
            self._exchange.forget(ours)
        return others

    def _has(self, store: str) -> bool:
        return any(host.name == store for host in self._hosts())

    def origin_closed(self, origin: int) -> None:
        for ours in self._origins.pop(origin, {}).values():
            self._sessions.gone(ours)
            self._exchange.disconnect(ours)

    def closed(self) -> None:
        """Forget the connections of the other broker, except those that hold sessions here."""
        origins, self._origins = self._origins, {}
        for by_store in origins.values():
            for store, ours in by_store.items():
                holding = self._sessions.of(ours)
                if holding and not self._is_settled and store not in self._settled:
                    self._exchange.strand(ours, holding)
                    self.stranded[ours] = store
                else:
                    self._exchange.disconnect(ours)
        self._ended(self)

    def settle(self) -> None:
        """End the channel and its origins: no client at the other end relies on them."""
        self._is_settled = True
        self.abort()
        for store in {*self.stranded.values()}:
            self.settle_store(store)

    def settle_store(self, store: str) -> None:
        """End the channel, and its origins in a store: no client at the other end relies on these."""
        self._settled.add(store)
        self.abort()
        for ours in [ours for ours, where in self.stranded.items() if where == store]:
            del self.stranded[ours]
            self._exchange.disconnect(ours)

    def _known(self, theirs: int, store: str) -> int:
        """The origin of one of the other broker's connections here; without one, the broker's own, which may give back
        messages."""
        return self._origins.get(theirs, {}).get(store, BROKER_ORIGIN)

    def _ours(self, theirs: int, store: str) -> int:
        """The origin here that stands for one of the other broker's, in a store."""
        by_store = self._origins.setdefault(theirs, {})
        ours = by_store.get(store)
        if ours is None:
            ours = by_store[store] = self._exchange.connect_served(
                self._sink(theirs, store), self.abort, self.gateway, theirs
            )
        return ours

    def _sink(self, theirs: int, store: str) -> EffectSink:
        def sink(effects: list[Effect]) -> None:
            for effect in effects:
                if not isinstance(effect, Delivered):
                    self._sessions.heard(effect)
                effect.origin = theirs  # ours alone once they were handed to us
            self.write(protocol.EffectsFrame(store, msgspec.Raw(effects_codec.encode(effects))))

        return sink


def _set_origin_of_parts(command: Command) -> None:
    """Give the parts of a transaction its origin, which identifies the holder of a message session."""
    if isinstance(command, Probe | Transact):
        for part in command.parts:
            part.origin = command.origin


class PeerServers:
    """The channels over which other broker processes use the stores of this one, by broker process."""

    def __init__(self, dispatcher: EffectDispatcher) -> None:
        self._dispatcher = dispatcher
        self._served: dict[str, list[PeerServer]] = {}
        """Those that are there, and those that have ended and left holders of sessions behind."""
        self._handing_over: dict[str, asyncio.Event] = {}
        """Stores that this process hands over now."""

    def serve(
        self,
        broker: str,
        gateway: str,
        hosts: Callable[[], Collection[ServedStore]],
        on_end: Callable[[PeerServer], None],
    ) -> PeerServer:
        """A channel for another broker process and its gateway, to be connected."""

        def ended(peer: PeerServer) -> None:
            on_end(peer)
            self._forget(broker, peer)

        def resumed(peer: PeerServer, store: str) -> None:
            for earlier in [*self._served.get(broker, ())]:
                if earlier is not peer:
                    earlier.settle_store(store)
                    self._forget(broker, earlier)
            for host in hosts():
                if host.name == store:
                    host.release_holds(gateway)

        served = PeerServer(self._dispatcher, hosts, ended, gateway, resumed, self._hand_over_ended)
        self._served.setdefault(broker, []).append(served)
        return served

    def settle(self, broker: str, gateway: str) -> None:
        """End all channels to a broker process that has ended, with the gateway of that name."""
        for peer in [peer for peer in self._served.get(broker, ()) if peer.gateway == gateway]:
            peer.settle()
            if peer in self._served[broker]:
                self._served[broker].remove(peer)

    # ---- rule 5 ----

    def begin_hand_over(self, store: str) -> None:
        self._handing_over[store] = asyncio.Event()

    def give_back(self, store: str, commands: Commands) -> Commands:
        """Keep for every other process what it gets back of a store. Returns the commands of clients of this process."""
        served = {*self._dispatcher.served}
        for broker, peers in [*self._served.items()]:
            for peer in [*peers]:
                commands = peer.give_back(store, commands)
                self._forget(broker, peer)
        return [command for command in commands if command.origin not in served]

    def end_hand_over(self, store: str) -> None:
        """Let other processes leave the store, if it was handed over, or go on with it."""
        self._handing_over.pop(store).set()

    async def _hand_over_ended(self, store: str) -> None:
        under_way = self._handing_over.get(store)
        if under_way is not None:
            await under_way.wait()

    def _forget(self, broker: str, peer: PeerServer) -> None:
        if peer.is_lost and not peer.stranded and peer in self._served.get(broker, ()):
            self._served[broker].remove(peer)
