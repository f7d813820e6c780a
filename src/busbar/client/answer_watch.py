"""Limits how long the calls of one link wait for the broker's answers, with one timer for all of them.

1. A call expires if it has no answer `timeout` seconds after it began. The class of the call defines what that means.
2. If calls wait and nothing at all is answered for `timeout` seconds, the broker is silent. That is reported once: the
   connection is given up then.
3. A call that is answered costs no timer. The timer of the first call stays, and is set again when it is due.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class WatchedCall:
    """A call that waits for answers."""

    __slots__ = ("deadline",)

    deadline: float

    def expire(self) -> None:
        """No answer has come in time."""


class AnswerWatch:
    """The calls of one link that wait: those that expire in their order, and those that may take any time."""

    __slots__ = ("_calls", "_last_answer", "_loop", "_on_silence", "_patient", "_timeout", "_timer")

    def __init__(self, timeout: float, on_silence: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._calls: dict[WatchedCall, None] = {}
        self._patient: set[WatchedCall] = set()
        self._last_answer = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call: WatchedCall, *, expires: bool = True) -> None:
        """A call begins to wait. One that does not expire may take any time, while the broker is not silent."""
        now = self._loop.time()
        if not self._calls and not self._patient:
            self._last_answer = now
        if expires:
            call.deadline = now + self._timeout
            self._calls[call] = None
        else:
            self._patient.add(call)
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._timeout, self._check)

    def end(self, call: WatchedCall) -> None:
        """A call does not wait any more."""
        self._calls.pop(call, None)
        self._patient.discard(call)

    def answered(self) -> None:
        """Some answer has come on the link."""
        self._last_answer = self._loop.time()

    def _check(self) -> None:
        now = self._loop.time()
        silent_at = self._last_answer + self._timeout
        is_silent = bool(self._calls or self._patient) and silent_at <= now
        while self._calls and (first := next(iter(self._calls))).deadline <= now:
            del self._calls[first]
            first.expire()
        due = next(iter(self._calls)).deadline if self._calls else math.inf
        if not is_silent and (self._calls or self._patient):
            due = min(due, silent_at)
        self._timer = self._loop.call_at(due, self._check) if due < math.inf else None
        if is_silent:
            self._on_silence()

    def stop(self) -> None:
        """The link has ended: its calls end with it."""
        self._calls.clear()
        self._patient.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
