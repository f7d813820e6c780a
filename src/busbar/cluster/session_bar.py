"""Refuses message sessions of a broker process that was restarted after it died, until their last lock has ended.

These locks were memory of the process that died (docs/adr/0012-session-locks-that-outlive-a-broker.md). Their holders are
connected to other broker processes, and may rely on a lock for as long as it was granted.

Rules:
1. While a fragment is barred, no consumer gets a session of it. A named one is refused as if another client held it, which
   may be so. The next available one is refused, too. Consumers that await a session wait here.
2. A consumer that awaits no more, or has left, is removed, also while the store is not open. When the time has come, all
   consumers that still wait are handed to the fragment.
3. Everything else passes: messages come in, and sessions are listed. No client reads a state, since it would have to hold
   the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from busbar.model.commands import AcceptSession, AwaitSession, CancelAwait, Command, Leave
from busbar.model.effects import Effect, Refused
from busbar.model.errors import OperationTimeout, SessionCannotBeLocked

HELD = (
    "The broker of the session '{}' was started again, and the session may still be held by another receiver. "
    "Accept it again when a lock of it would have ended."
)
NONE_NOW = "Sessions may still be held by receivers that accepted them before their broker was started again."


class Barred(Protocol):
    """The host of a store."""

    name: str

    @property
    def is_open(self) -> bool: ...

    @property
    def epoch(self) -> int: ...

    def submit(self, commands: Iterable[Command]) -> None: ...


class SessionBar:
    """A dispatcher.CommandSink in front of the host of a store."""

    def __init__(
        self,
        host: Barred,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        emit: Callable[[list[Effect]], None],
    ) -> None:
        self.name = host.name
        self._host = host
        self._loop = loop
        self._clock = clock
        self._emit = emit
        self._until: dict[int, int] = {}
        """By fragment, in ms."""
        self._awaits: dict[tuple[int, int], AwaitSession] = {}
        """By origin and request."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def epoch(self) -> int:
        return self._host.epoch

    @property
    def is_open(self) -> bool:
        return self._host.is_open

    def bar(self, until: Mapping[int, int]) -> None:
        """Let no client accept sessions of these fragments before their times."""
        self._until.update(until)
        self._arm()

    def submit(self, commands: Iterable[Command]) -> None:
        if self._until:
            if self._timer is not None and self._clock() >= min(self._until.values()):
                self._lift()
            commands = [command for command in commands if self._passes(command)]
        self._host.submit(commands)

    def _passes(self, command: Command) -> bool:
        """Whether a command goes to the host; if not, it is handled here (rule 1)."""
        if command.fragment not in self._until:
            return True
        if isinstance(command, CancelAwait):
            return self._awaits.pop((command.origin, command.awaited), None) is None
        if isinstance(command, Leave):
            if command.consumer == 0:
                self._forget(command.fragment, command.origin)
            return True
        if not self._host.is_open:
            return True  # it refuses what has an answer
        if isinstance(command, AcceptSession):
            if command.session is None:
                self._refuse(command, OperationTimeout.condition, NONE_NOW)
            else:
                self._refuse(command, SessionCannotBeLocked.condition, HELD.format(command.session))
            return False
        if isinstance(command, AwaitSession):
            self._awaits[command.origin, command.request] = command
            return False
        return True

    def _refuse(self, command: Command, condition: str, text: str) -> None:
        refused: list[Effect] = [Refused(command.origin, command.request, condition, text)]
        self._loop.call_soon(self._emit, refused)

    def _forget(self, fragment: int, origin: int) -> None:
        for key, kept in list(self._awaits.items()):
            if key[0] == origin and kept.fragment == fragment:
                del self._awaits[key]

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._until:
            wait = max(0.001, (min(self._until.values()) - self._clock()) / 1000)
            self._timer = self._loop.call_later(wait, self._lift)

    def _lift(self) -> None:
        """Hand all consumers that still wait to the fragment: the last lock has ended."""
        now = self._clock()
        self._until = {fragment: until for fragment, until in self._until.items() if until > now}
        waiting = [kept for kept in self._awaits.values() if kept.fragment not in self._until]
        for kept in waiting:
            del self._awaits[kept.origin, kept.request]
        self._arm()
        if waiting:
            self._host.submit(waiting)
