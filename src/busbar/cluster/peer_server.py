"""The fragments of this broker process, served to the gateway of another one.

Rules:
1. The other process has its own numbers for its connections. Each of them is another origin here for each store that it has
   to do with, so that effects go back by the store they are of.
2. Who is there hears the state of every store, now and whenever it changes.
3. When the other process ends, its connections have ended. But a channel can also break between two that live: then it is
   not certain that the gateway there has closed the links of those who hold sessions here. Such consumers stay until it says
   so over the next channel (Met), or the controller says that it has ended, or the locks end by time.
4. Nothing is kept of a connection that is gone: only what has an answer, or is remembered by a fragment, makes an origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine

import msgspec

from busbar.broker.dispatcher import BROKER_ORIGIN, REGISTERING, EffectDispatcher
from busbar.broker.host_api import StoreHost
from busbar.cluster import protocol
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
    def __init__(
        self,
        exchange: EffectDispatcher,
        hosts: Callable[[], Collection[StoreHost]],
        ended: Callable[[PeerServer], None],
        met: Callable[[PeerServer], None] = lambda peer: None,
    ) -> None:
        """`met` hears that the other process believes in nothing that was said over earlier channels."""
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
        """Of ours, those that may believe that they hold sessions after the end of the channel."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        for host in self._hosts():  # rule 2
            self.write(state_of(host))

    def handle_frame(
        self, frame: protocol.CommandsFrame | protocol.EffectsFrame | protocol.StoreStatus
    ) -> None:
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
                        continue  # nobody is here who could leave
                if isinstance(command, AcceptSession | Leave):
                    self._sessions.said(command)
                if isinstance(command, Probe | Transact):
                    for part in command.parts:
                        part.origin = command.origin  # by which a fragment tells who holds a message session
            taken.append(command)
        self._exchange.submit(taken)

    def handle_call(self, store: str, operation: protocol.Operation) -> Coroutine[None, None, object] | None:
        if isinstance(operation, protocol.Met):
            self._met(self)
            return None
        if not isinstance(operation, protocol.OriginClosed):
            raise WireError(f"A broker process was asked for {type(operation).__name__} by another one.")
        for ours in self._origins.pop(operation.origin, {}).values():
            self._sessions.gone(ours)
            self._exchange.disconnect(ours)
        return None

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
        """Nobody at the other end believes in anything that was said here."""
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
