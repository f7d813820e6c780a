"""Decides when a call is tried again.

Only repeatable calls are:
1. Calls that changed nothing: connecting, attaching a link, and sends of messages that were certainly not sent.
2. Operations that read, or that change nothing when repeated: receives, peeks, renewals of locks, most operations on taps.
3. Sends whose repetitions the broker drops: those of a Writer, and those of a MessageSender with `resend_unanswered`. It is
   for entities that detect duplicates, since a repetition has the id of the first.
Every other call fails at once, and its caller decides.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from busbar.client.errors import BusbarClientError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries for `patience` seconds after the first failure. The first pause is `first` seconds, and each later one twice
    as long, up to `longest`."""

    patience: float = 30.0
    first: float = 0.1
    longest: float = 5.0

    def start(self) -> Attempts:
        return Attempts(self)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        attempts = self.start()
        while True:
            try:
                return await call()
            except BusbarClientError as error:
                if not error.retryable or not await attempts.again():
                    raise


NO_RETRY = Retry(patience=0.0)


class Attempts:
    """The attempts at one call."""

    def __init__(self, policy: Retry) -> None:
        self._policy = policy
        self._delay = policy.first
        self._until: float | None = None

    def progressed(self) -> None:
        """Restart `patience`, because something was achieved."""
        self._until = None
        self._delay = self._policy.first

    async def again(self) -> bool:
        """Wait before the next attempt; returns False at once if there is none."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._policy.patience
        if now + self._delay > self._until:
            return False
        # Clients that lost the same broker should not all connect again in the same moment.
        await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
        self._delay = min(self._delay * 2, self._policy.longest)
        return True
