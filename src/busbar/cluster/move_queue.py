"""Commands that wait while their store goes from one broker process to another.

Rules:
1. They wait for MOVE_SECONDS at most. How many there are is bounded by the connections they come from, which read no more
   while too much of theirs is not durable.
2. What the last owner gives back comes before what came later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from busbar.model.commands import Command

MOVE_SECONDS = 2.0


class MoveQueue:
    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]) -> None:
        """`on_late` is called when the time is over and the queue has not ended."""
        self.is_waiting = False
        self.is_late = False
        """The time is over."""
        self._loop = loop
        self._on_late = on_late
        self._commands: list[Command] = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            self._timer = self._loop.call_later(MOVE_SECONDS, self._late)

    def add(self, commands: list[Command]) -> None:
        self._commands += commands

    def add_first(self, commands: list[Command]) -> None:
        """Put what the last owner gave back before all others (rule 2)."""
        self._commands = commands + self._commands

    def take(self) -> list[Command]:
        """Take all that waits; further commands wait on."""
        commands, self._commands = self._commands, []
        return commands

    def end(self) -> list[Command]:
        """Take all that waits; nothing waits any more."""
        self.is_waiting = self.is_late = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self.take()

    def _late(self) -> None:
        self._timer = None
        self.is_late = True
        self._on_late()
