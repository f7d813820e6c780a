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
5. A client of another process can outlive this one. So the sessions that it accepts here have the name of the holder, and
   their locks are durable (fragment/session_holds.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
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
from busbar.model.commands import AcceptSession, Leave, Probe, Settle, Transact
from busbar.model.effects import Delivered, Effect
from busbar.model.hold_commands import ResumeSession


def state_of(host: StoreHost) -> protocol.StoreStatus:
    loss = host.loss
    lost = None if loss is None else (loss.at, loss.messages, loss.size)
    return protocol.StoreStatus(host.name, host.state.value, host.reason, lost)


class ServedStore(StoreHost, Protocol):
    """A store of this process, as other processes use it."""

    def release_holds(self, gateway: str) -> None: ...


def holder_name(gateway: str, origin: int, consumer: int) -> str:
    """The name of a consumer at a gateway, by which it resumes its session."""
    return f"{gateway} {origin} {consumer}"


class PeerServer(Channel):
    """A protocol.PeerApi."""

    def __init__(
        self,
        exchange: EffectDispatcher,
        hosts: Callable[[], Collection[StoreHost]],
        ended: Callable[[PeerServer], None],
        gateway: str = "",
        resumed: Callable[[PeerServer, str], None] = lambda peer, store: None,
    ) -> None:
        """`gateway` is the name of the gateway of the other process. `resumed` is called when its clients rely on nothing
        from earlier channels in a store."""
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
                if isinstance(command, Probe | Transact):
                    for part in command.parts:
                        part.origin = command.origin  # identifies the holder of a message session
            taken.append(command)
        self._exchange.submit(taken)

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return protocol.PEER, self

    def sessions_resumed(self, store: str) -> None:
        self._resumed(self, store)

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
            ours = by_store[store] = self._exchange.connect_served(self._sink(theirs, store), self.abort)
        return ours

    def _sink(self, theirs: int, store: str) -> EffectSink:
        def sink(effects: list[Effect]) -> None:
            for effect in effects:
                if not isinstance(effect, Delivered):
                    self._sessions.heard(effect)
                effect.origin = theirs  # ours alone once they were handed to us
            self.write(protocol.EffectsFrame(store, msgspec.Raw(effects_codec.encode(effects))))

        return sink


class PeerServers:
    """The channels over which other broker processes use the stores of this one, by broker process."""

    def __init__(self, dispatcher: EffectDispatcher) -> None:
        self._dispatcher = dispatcher
        self._served: dict[str, list[PeerServer]] = {}
        """Those that are there, and those that have ended and left holders of sessions behind."""

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

        served = PeerServer(self._dispatcher, hosts, ended, gateway, resumed)
        self._served.setdefault(broker, []).append(served)
        return served

    def settle(self, broker: str, gateway: str) -> None:
        """End all channels to a broker process that has ended, with the gateway of that name."""
        for peer in [peer for peer in self._served.get(broker, ()) if peer.gateway == gateway]:
            peer.settle()
            if peer in self._served[broker]:
                self._served[broker].remove(peer)

    def _forget(self, broker: str, peer: PeerServer) -> None:
        if peer.is_lost and not peer.stranded and peer in self._served.get(broker, ()):
            self._served[broker].remove(peer)
