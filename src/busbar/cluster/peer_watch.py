"""Asks the controller to make missing channels to other broker processes again.

Rules:
1. Every other broker process should be reached by one channel. The controller is asked for a missing one after a pause, and
   again after growing pauses, until there is one. It does not matter whether the channel broke, could not be taken, or was
   never handed over.
2. If the other process has ended, the controller does nothing: it introduces the next one when that is there.
3. After a channel that lasted, the pauses begin again with the shortest one. So they do when a process has joined, which is
   asked for at once: stores may be handed over to it now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
SETTLED_SECONDS = 10.0


class PeerWatch:
    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._pauses: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """When the channel was made."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def is_missing(self, broker: str) -> None:
        """Ask for a channel to a broker after a pause: there is none, or none any more."""
        loop = asyncio.get_running_loop()
        since = self._since.pop(broker, None)
        if since is not None and loop.time() - since > SETTLED_SECONDS:
            self._pauses.pop(broker, None)  # rule 3
        if broker not in self._timers:
            self._wait(broker)

    def has_joined(self, broker: str) -> None:
        """Ask for a channel to a broker now: a process of that name has just come (rule 3)."""
        timer = self._timers.pop(broker, None)
        if timer is not None:
            timer.cancel()
        self._pauses.pop(broker, None)
        self._due(broker)

    def is_there(self, broker: str) -> None:
        self._since[broker] = asyncio.get_running_loop().time()
        timer = self._timers.pop(broker, None)
        if timer is not None:
            timer.cancel()

    def _wait(self, broker: str) -> None:
        pause = self._pauses.get(broker, FIRST_PAUSE)
        self._pauses[broker] = min(2 * pause, LONGEST_PAUSE)
        self._timers[broker] = asyncio.get_running_loop().call_later(pause, self._due, broker)

    def _due(self, broker: str) -> None:
        self._wait(broker)
        self._ask(broker)
