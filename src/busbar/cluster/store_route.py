"""Where a broker process sends the commands for one store: to its own host, or over a channel to the owner of the store.

Rules, beside those of remote_store.py:
1. The controller reports the owner of a store, and every change of it. Every store has one route in each broker process,
   which stays the same when the owner changes.
2. When the owner has ended, its channel ends, and all that it wrote before is read first. Only then clients of this gateway
   use another owner. Until then their commands are written to the channel, as if the end of the owner were not known.
3. While this process claims the store, commands are answered as for an unavailable store, and what consumers ask for is
   kept. When the store is open, its host gets the sessions that consumers here resume, what was kept, and then every
   command. Other processes and the broker itself use the host without waiting for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from busbar.cluster import protocol
from busbar.cluster.peer_server import holder_name
from busbar.cluster.remote_store import RemoteStore
from busbar.model.commands import AcceptSession, Command


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

    @property
    def epoch(self) -> int:
        """The epoch of the store if this process owns it, else 0."""
        return self._own.epoch if self._own is not None else 0

    def use_own(self, own: OwnedSink, broker: str, gateway: str) -> None:
        """Use the host of the store, which this process owns or claims now. `broker` is the name of this process, and
        `gateway` that of its gateway."""
        self.broker = broker
        self._own = own
        self._gateway = gateway
        self.own_opened()

    def leave_own(self) -> None:
        """Use the host of this process no longer: it has never opened the store, which another process has."""
        self._own = None

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
            own.submit(self._parking.replay())
        if self.on_open is not None:
            self.on_open()

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
