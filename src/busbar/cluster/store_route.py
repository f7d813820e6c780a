"""Where a broker process sends the commands for one store: to its own host, or over a channel to the owner of the store.

Rules, beside those of remote_store.py:
1. The controller reports the owner of a store, and every change of it. Every store has one route in each broker process,
   which stays the same when the owner changes.
2. When the owner has ended, its channel ends, and all that it wrote before is read first. Only then clients of this gateway
   use another owner. Until then their commands are written to the channel, as if the end of the owner were not known.
3. If the owner hands the store over, it reports that first (`moving`). From then on commands wait here, and the route leaves
   the owner: its reply comes behind all its effects, with what it gives back. So the channel need not end.
4. While this process claims the store, commands are answered as for an unavailable store, and what consumers ask for is
   kept. When the store is open, its host gets the sessions that consumers here resume, what was kept, and then every
   command. Other processes and the broker itself use the host without waiting for that.
5. When this process hands its store over, clients here get back what the host had of them, as those of others do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from busbar.broker.host_api import StoreState
from busbar.cluster import protocol
from busbar.cluster.channel import Channel, ChannelClosed
from busbar.cluster.remote_store import MOVES, RemoteStore
from busbar.model.commands import AcceptSession, Command
from busbar.model.hold_commands import holder_name


class OwnedSink(Protocol):
    """A store that this process owns."""

    name: str

    @property
    def is_open(self) -> bool: ...

    @property
    def epoch(self) -> int: ...

    def submit(self, commands: Iterable[Command]) -> None: ...

    def release_holds(self, gateway: str) -> None:
        """Release the sessions of a gateway that were loaded and not resumed."""


class StoreRoute(RemoteStore):
    """A dispatcher.CommandSink."""

    _own: OwnedSink | None = None
    """The host of the store, if this process owns it."""
    serves: Callable[[int], bool] = staticmethod(lambda origin: False)
    """Whether an origin stands for a connection of another process."""
    _gateway = ""
    """The name of the gateway of this process."""
    names_holders = False
    """Whether sessions of clients here get durable locks also if this process owns the store. Its clients can outlive its
    ownership if others claim the stores of a frozen node."""
    on_left: Callable[[], None] = staticmethod(lambda: None)
    """Called when the store is with neither its last owner nor the next one."""
    _leaving: asyncio.Task[None] | None = None
    _left: Channel | None = None
    """The channel to the owner that is being left."""
    _moves = 0
    """How often an owner has reported that the store moves."""

    @property
    def epoch(self) -> int:
        """The epoch of the store if this process owns it, else 0."""
        return self._own.epoch if self._own is not None else 0

    @property
    def is_own(self) -> bool:
        """Whether this process has the store open, and clients here use its host."""
        return self._own is not None and self._own.is_open and not self.detached

    @property
    def is_available(self) -> bool:
        """Whether the store is open, and can be reached from here."""
        return not self.detached and (
            self._own.is_open if self._own is not None else self.state is StoreState.OPEN
        )

    def use_own(self, own: OwnedSink, broker: str, gateway: str) -> None:
        """Use the host of the store, which this process owns or claims now. `broker` is the name of this process, and
        `gateway` that of its gateway."""
        self.owner_changed(broker)
        self._own = own
        self._gateway = gateway
        self.own_opened()

    def leave_own(self) -> None:
        """Use the host of this process no longer: it has never opened the store, which another process has."""
        self._own = None

    def owner_changed(self, broker: str) -> None:
        """Note the broker process that owns the store from now on."""
        self.broker = broker
        if self.detached:  # nothing was written to the last one that could still be answered
            self._channel = None

    def own_opened(self) -> None:
        """Note that the store of this process may be open."""
        own = self._own
        if own is None or not own.is_open or self._channel is not None:  # rule 2
            return
        if self.detached:
            self.detached = False
            resumed = self._standing.resumptions()
            for command in resumed:
                command.holder = holder_name(self._gateway, command.origin, command.consumer)
            own.submit(resumed)
            own.release_holds(self._gateway)
            own.submit(self._of_connected([*self._parking.replay(), *self._queue.end()]))
        if self.on_open is not None:
            self.on_open()

    # ---- rules 3 and 5 ----

    def status_changed(self, frame: protocol.StoreStatus) -> None:
        if frame.state == StoreState.MOVING.value and self._channel is not None:
            self._queue.begin()
            self._enter(StoreState.MOVING, "")
            self._moves += 1
            if self._left is not self._channel:
                self._left = self._channel
                self._leaving = self._loop.create_task(self._leave(self._channel))
        else:
            super().status_changed(frame)

    async def _leave(self, channel: Channel) -> None:
        moves, given_back = -1, None
        while given_back is None and moves != self._moves:  # else another one has begun before the reply came
            moves = self._moves
            try:
                given_back = await protocol.PEER.remote(channel).leave_store(self.name)
            except ChannelClosed:
                return
            if channel is not self._channel:
                return
        self._left = None
        if given_back is None:
            self.kept()
            return
        self.handed_over(given_back)
        self.own_opened()
        self.on_left()

    @property
    def can_be_handed_over(self) -> bool:
        """Whether all clients here use the host of the store."""
        return self._own is not None and self._channel is None and not self.detached

    def hand_over(self, commands: list[Command]) -> None:
        """Note that this process has released the store. The commands are those of clients here, as the host gave them
        back."""
        self._own = None
        self._queue.begin()
        self._enter(StoreState.MOVING, MOVES)
        self.handed_over(commands)

    def _all_resumed(self) -> None:
        if self._channel is not None:
            protocol.PEER.remote(self._channel).sessions_resumed(self.name)

    def disconnected(self, reason: str) -> None:
        super().disconnected(reason)
        self.own_opened()

    def submit(self, commands: Iterable[Command]) -> None:
        if self._own is not None and self._channel is None and not self.detached:
            self._own.submit(self._with_holders(commands) if self.names_holders else commands)
            return
        if self._own is not None:
            commands = list(commands)
            ours = [command for command in commands if command.origin > 0 and not self.serves(command.origin)]
            if len(ours) < len(commands):
                self._own.submit([command for command in commands if command not in ours])
            commands = ours
        super().submit(commands)

    def _with_holders(self, commands: Iterable[Command]) -> list[Command]:
        """Commands in which clients here that accept sessions are named as holders."""
        named = list(commands)
        for command in named:
            if isinstance(command, AcceptSession) and command.origin > 0 and not self.serves(command.origin):
                command.holder = holder_name(self._gateway, command.origin, command.consumer)
        return named
