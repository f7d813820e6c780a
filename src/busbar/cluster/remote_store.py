"""A store that another process has, for commands to its fragments.

Rules:
1. Commands are passed on in their order. The state of the store is what the other process reported last.
2. When the channel to the other process ends, its stores are unavailable, like those with any other fault. The outcome of
   commands without an answer is unknown; later commands are refused at once and certainly did nothing. What consumers
   asked for is kept (outstanding.py, offline_buffer.py). Most often the other process has ended, and a third one claims
   the store; if not, another channel is made.
3. When the store is open again, the sessions that consumers hold are resumed first. Then the owner gets the report that all
   others of this gateway are left, and consumers' credit is asked for again.
4. If the store goes to another process by plan, commands wait from the first report of that on (move_queue.py). The last
   owner gives back what it has of the clients here, and commands that it did not apply. The next owner gets them first.
5. If the other process does not answer pings, what is under way waits, and later commands are refused: they certainly did
   nothing, so messages without a key go elsewhere. After a longer time the channel is ended (peer_ping.py).
6. A channel that ended proves nothing. The holder of a session keeps it until the owner reports its loss, or its time is
   over. Locks of messages without a session are memory of the process that ended: their holders find that they are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from busbar.broker.dispatcher import BROKER_ORIGIN
from busbar.broker.host_api import StoreState
from busbar.broker.offline_buffer import OfflineBuffer
from busbar.broker.refusals import STORE_FAILED, STORE_UNAVAILABLE
from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel
from busbar.cluster.codec import WireError, commands_codec, effects_codec
from busbar.cluster.move_queue import MoveQueue
from busbar.cluster.outstanding import Asked, OutstandingRequests
from busbar.cluster.peer_ping import PeerPing
from busbar.model.commands import Command, Leave, Settle, Tick
from busbar.model.effects import Effect, Refused
from busbar.model.errors import ServerBusy
from busbar.model.hold_commands import ResumeSession
from busbar.store.location import StoreLoss

ENDED = "its broker process ended"
MOVES = "it goes to another broker process"
OUT_OF_REACH = "its broker process ended, or the channel to it"


class RemoteStore:
    """A dispatcher.CommandSink."""

    def __init__(
        self,
        name: str,
        broker: str,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        emit: Callable[[list[Effect]], None],
    ) -> None:
        self.name = name
        self.broker = broker
        self.state = StoreState.CLOSED
        self.since = 0
        self.reason = ""
        self.loss: StoreLoss | None = None
        self.on_open: Callable[[], None] | None = None
        """Called when the other process reports that the store is open."""
        self.clock = clock
        self.detached = True
        """There was no channel yet, or it ended, and the store is not open since."""
        self._loop = loop
        self._emit = emit
        self._channel: Channel | None = None
        self._standing = OutstandingRequests()
        self._parking = OfflineBuffer()
        self._queue = MoveQueue(loop, self._late)
        self.is_connected: Callable[[int], bool] = lambda origin: True
        """Whether the connection of an origin is there."""

    # ---- the other process ----

    def connected(self, channel: Channel) -> None:
        """Use a channel to the other process."""
        if self._channel is not None:  # another one in its place, before the end of the first is known
            self.disconnected(OUT_OF_REACH)
        self._channel = channel

    def channel_closed(self, channel: Channel) -> None:
        """Note that a channel to the other process ended. It may have been replaced before."""
        if self.is_reached_over(channel):
            self.disconnected(OUT_OF_REACH)

    @property
    def has_channel(self) -> bool:
        return self._channel is not None

    def is_reached_over(self, channel: Channel) -> bool:
        return channel is self._channel

    def disconnected(self, reason: str) -> None:
        """Make the store unavailable, since the channel has ended. The outcome of commands that wait is unknown."""
        self._channel = None
        self.detached = True
        self._enter(StoreState.UNAVAILABLE, reason)
        asked, drained, demands = self._standing.fail_all()
        answers: list[Effect] = [self._unknown(one) for one in asked]
        answers += drained
        for fragment, waiting in demands.items():
            self._parking.reset(fragment, waiting)
        self._emit(answers)

    def status_changed(self, frame: protocol.StoreStatus) -> None:
        """Take over the state that the store has in the other process."""
        loss = frame.loss
        self.loss = None if loss is None else StoreLoss(*loss)
        self._enter(StoreState(frame.state), frame.reason)
        if self.detached and self.state is StoreState.OPEN:
            self.detached = False
            waiting = self._queue.end()
            self.submit(self._standing.resumptions())
            self._all_resumed()
            self.submit(self._of_connected([*self._parking.replay(), *waiting]))
        if self.state is StoreState.OPEN and self.on_open is not None:
            self.on_open()

    def _all_resumed(self) -> None:
        """Report to the owner that all sessions are resumed that consumers here hold."""

    def effects_received(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._standing.answered(effect)
        self._emit(effects)

    # ---- another owner, by plan (rule 4) ----

    def handed_over(self, commands: list[Command]) -> None:
        """Take back what the last owner gives back: it has answered everything else. The next owner gets it first."""
        self._channel = None
        self.detached = True
        given_back: set[Asked] = {(command.origin, command.request) for command in commands}
        asked, _, _ = self._standing.fail_all()
        missing = [one for one in asked if one not in given_back]
        self._emit([self._unknown(one) for one in missing])
        self._standing = OutstandingRequests()
        connected = self._of_connected(commands)
        for command in connected:
            if isinstance(command, ResumeSession):
                self._standing.resume_later(command)
        self._queue.add_first([one for one in connected if not isinstance(one, ResumeSession)])
        if self._queue.is_late:
            self._late()

    def kept(self) -> None:
        """Go on: the store stays with its owner."""
        self.submit(self._of_connected(self._queue.end()))

    def _late(self) -> None:
        """Refuse what has waited for long enough. While the last owner may have something for clients here, what has no
        answer waits on."""
        waiting = self._queue.take()
        if self.detached:
            self._queue.end()
            self._enter(StoreState.UNAVAILABLE, self.reason or MOVES)
            self._emit(self._answers_while_unavailable(self._of_connected(waiting)))
        else:
            self._queue.add([command for command in waiting if command.request == 0])
            self._emit(self._refusals(waiting))

    def _refusals(self, commands: list[Command]) -> list[Effect]:
        return [
            self._busy(command.origin, command.request, self._unavailable_text, certain=True)
            for command in commands
            if command.request > 0
        ]

    def _of_connected(self, commands: list[Command]) -> list[Command]:
        """Commands without those of connections that have ended, except for those that return messages."""
        left: list[Command] = []
        for command in commands:
            if not self.is_connected(command.origin):
                if not isinstance(command, Settle) or command.request > 0:
                    continue
                command.origin = BROKER_ORIGIN
            left.append(command)
        return left

    def _enter(self, state: StoreState, reason: str) -> None:
        if state is not self.state:
            self.since = self.clock()
        self.state, self.reason = state, reason

    # ---- commands ----

    def submit(self, commands: Iterable[Command]) -> None:
        commands = list(commands)
        if self._queue.is_waiting:
            self._queue.add(commands)
            if self._queue.is_late:
                self._loop.call_soon(self._late)
            return
        if self._channel is None or self.detached:
            self._loop.call_soon(self._emit, self._answers_while_unavailable(commands))
            return
        if self._channel.is_silent:
            self._loop.call_soon(self._emit, self._refusals(commands))
            commands = [command for command in commands if command.request == 0]
        said = self._standing.sent
        for command in commands:
            said(command)
        if commands:
            self._channel.write(
                protocol.CommandsFrame(self.name, msgspec.Raw(commands_codec.encode(commands)))
            )

    def _answers_while_unavailable(self, commands: list[Command]) -> list[Effect]:
        answers: list[Effect] = []
        for command in commands:
            if command.request > 0:
                answers.append(
                    self._busy(command.origin, command.request, self._unavailable_text, certain=True)
                )
            elif not isinstance(command, Tick):
                if isinstance(command, Leave):
                    self._standing.left(command)
                drained = self._parking.add(command)
                if drained is not None:
                    answers.append(drained)
        return answers

    def gone(self, origin: int) -> None:
        """Drop a client that has left, and its consumers with it."""
        self._standing.gone(origin)

    def drop_fragment(self, fragment: int) -> None:
        """Drop a fragment that is deleted."""
        self._parking.drop(fragment)
        self._standing.drop_fragment(fragment)

    @property
    def _unavailable_text(self) -> str:
        return f"{STORE_UNAVAILABLE} ({self.name} is unavailable.)"

    def _unknown(self, asked: Asked) -> Refused:
        return self._busy(*asked, STORE_FAILED, certain=False)

    def _busy(self, origin: int, request: int, text: str, *, certain: bool) -> Refused:
        return Refused(origin, request, ServerBusy.condition, text, certain)


class PeerClient(Channel):
    """The channel to the stores of another broker process.

    The other process reports the state of each of its stores when it has claimed it. The controller's report that the store
    is there may come later. So the last state of every store is kept here until the store is attached."""

    def __init__(self, broker: str, stores: Mapping[str, RemoteStore], ended: Callable[[], None]) -> None:
        """`stores` are all of the namespace; those of this broker process are used over the channel."""
        super().__init__()
        self.broker = broker
        self.connected: asyncio.Event = asyncio.Event()
        """Set when the state of all its stores is known, or the channel has ended."""
        self._stores = stores
        self._ended = ended
        self._unseen = {store.name for store in stores.values() if store.broker == broker}
        self._statuses: dict[str, protocol.StoreStatus] = {}
        self._ping = PeerPing(protocol.PEER.remote(self).ping, self.abort)

    @property
    def is_silent(self) -> bool:
        return self._ping.is_silent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.is_aborted:  # another one has taken its place before it began
            return
        for store in self._stores.values():
            if store.broker == self.broker:
                self.attach(store)
        self._note_seen()
        self._ping.start()

    def attach(self, store: RemoteStore) -> None:
        """Use a store of the other process over this channel."""
        store.connected(self)
        status = self._statuses.get(store.name)
        if status is not None:
            store.status_changed(status)

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        store = self._stores.get(frame.store)
        if store is None:
            raise WireError(f"A broker process spoke of the store {frame.store}.")
        if isinstance(frame, protocol.EffectsFrame):
            store.effects_received(effects_codec.decode(frame.effects))
        elif isinstance(frame, protocol.StoreStatus):
            self._statuses[frame.store] = frame
            if (
                frame.state == StoreState.MOVING.value
            ):  # what follows comes from the controller, or with another status
                del self._statuses[frame.store]
            if store.is_reached_over(self):
                store.status_changed(frame)
            self._unseen.discard(frame.store)
            self._note_seen()
        else:
            raise WireError("Commands came where effects should.")

    def _note_seen(self) -> None:
        if not self._unseen:
            self.connected.set()

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        raise WireError("A gateway was called by a broker process that it uses.")

    def closed(self) -> None:
        self._ping.stop()
        self.connected.set()
        for store in self._stores.values():
            store.channel_closed(self)
        self._ended()
