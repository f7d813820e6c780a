"""The fragments of this broker process, served to the gateway of another one.

Rules:
1. The other process has its own numbers for its connections. Each of them is another origin here for each store that it
   uses, so that effects go back with the store they are of.
2. The other process gets the state of every store when it connects, and whenever the state changes.
3. When the other process ends, its connections have ended. But a channel can also break between two processes that live.
   Then it is not certain that the gateway there has closed the links of consumers that hold sessions here. Such consumers
   stay until the gateway reports it over the next channel (`met`), the controller reports the end of the process, or the
   locks end.
4. Nothing is kept of a connection that has ended. Only a command that has an answer, or that a fragment remembers, makes an
   origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

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
from busbar.model.effects import Effect


def state_of(host: StoreHost) -> protocol.StoreStatus:
    loss = host.loss
    lost = None if loss is None else (loss.at, loss.messages, loss.size)
    return protocol.StoreStatus(host.name, host.state.value, host.reason, lost)


class PeerServer(Channel):
    """A protocol.PeerApi."""

    def __init__(
        self,
        exchange: EffectDispatcher,
        hosts: Callable[[], Collection[StoreHost]],
        ended: Callable[[PeerServer], None],
        met: Callable[[PeerServer], None] = lambda peer: None,
    ) -> None:
        """`met` is called when the clients of the other process rely on nothing from earlier channels."""
        super().__init__()
        self._exchange = exchange
        self._hosts = hosts
        self._ended = ended
        self._origins: dict[int, dict[str, int]] = {}
        """By theirs, by store: ours."""
        self._met = met
        self._sessions = HeldSessions()
        self._is_settled = False
        self.stranded: list[int] = []
        """Of our origins, those whose clients may rely on sessions after the end of the channel."""

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
                if command.request > 0 or isinstance(command, REGISTERING):
                    command.origin = self._ours(command.origin, frame.store)
                else:
                    command.origin = self._known(command.origin, frame.store)
                    if command.origin == BROKER_ORIGIN and not isinstance(command, Settle):
                        continue  # there is no consumer here that could leave
                if isinstance(command, AcceptSession | Leave):
                    self._sessions.said(command)
                if isinstance(command, Probe | Transact):
                    for part in command.parts:
                        part.origin = command.origin  # identifies the holder of a message session
            taken.append(command)
        self._exchange.submit(taken)

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return protocol.PEER, self

    def met(self) -> None:
        self._met(self)

    def origin_closed(self, origin: int) -> None:
        for ours in self._origins.pop(origin, {}).values():
            self._sessions.gone(ours)
            self._exchange.disconnect(ours)

    def closed(self) -> None:
        """Forget the connections of the other broker, except those that hold sessions here."""
        origins, self._origins = self._origins, {}
        for by_store in origins.values():
            for ours in by_store.values():
                holding = self._sessions.of(ours)
                if holding and not self._is_settled:
                    self._exchange.strand(ours, holding)
                    self.stranded.append(ours)
                else:
                    self._exchange.disconnect(ours)
        self._ended(self)

    def settle(self) -> None:
        """End the channel and its origins: no client at the other end relies on them."""
        self._is_settled = True
        self.abort()
        stranded, self.stranded = self.stranded, []
        for ours in stranded:
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
            ours = by_store[store] = self._exchange.connect(self._sink(theirs, store), self.abort)
        return ours

    def _sink(self, theirs: int, store: str) -> EffectSink:
        def sink(effects: list[Effect]) -> None:
            for effect in effects:
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
        hosts: Callable[[], Collection[StoreHost]],
        on_end: Callable[[PeerServer], None],
    ) -> PeerServer:
        """A channel for another broker process, to be connected."""

        def ended(peer: PeerServer) -> None:
            on_end(peer)
            if not peer.stranded and peer in self._served.get(broker, ()):
                self._served[broker].remove(peer)

        served = PeerServer(self._dispatcher, hosts, ended, lambda peer: self.settle(broker, peer))
        self._served.setdefault(broker, []).append(served)
        return served

    def settle(self, broker: str, last: PeerServer | None) -> None:
        """End all channels to that broker process but the last one: no client relies on them any more."""
        peers = self._served.pop(broker, [])
        if last is not None:
            self._served[broker] = [last]
        for peer in peers:
            if peer is not last:
                peer.settle()
