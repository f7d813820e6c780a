"""Event loops in virtual time, for simulations of several processes: one loop for each, one clock and one scheduler for all.

Rules:
1. Nothing waits and nothing is read from outside: no sockets, no threads, no signals. Time passes when no loop has anything
   to do, and then at once.
2. A turn runs what a loop has to do now; what comes of it is for a later turn. Which of several loops has the next turn is
   drawn at random, since no order of processes is promised.
3. Callbacks of one loop that are due at the same time run in the order in which they were asked for. So the same seed
   always gives the same run.
4. A loop that was killed runs nothing any more: it is what is left of a process that died. Nothing of it is cleaned up.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")


class VirtualClock:
    """Seconds since the simulation began."""

    def __init__(self) -> None:
        self.now = 0.0


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, clock: VirtualClock, on_error: Callable[[str], None]) -> None:
        """`on_error` gets exceptions that were not caught."""
        super().__init__()
        self.is_killed = False
        self.frozen_until = 0.0
        """Before this time nothing of the process runs, as if it were stopped or starved."""
        self._virtual = clock
        self._soon: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._on_error = on_error
        self.set_exception_handler(self._uncaught)

    def kill(self) -> None:
        """Run nothing of this process any more."""
        self.is_killed = True
        self._soon.clear()
        self._timers.clear()

    @property
    def is_frozen(self) -> bool:
        return self._virtual.now < self.frozen_until

    # ---- what asyncio asks of a loop ----

    def time(self) -> float:
        return self._virtual.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_killed:
            self._soon.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_killed:
            self._timers_made += 1
            heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.is_killed:
            error = context.get("exception")
            self._on_error(f"{context.get('message')}: {error!r}")

    # ---- what the scheduler asks of it ----

    @property
    def due(self) -> float | None:
        """When this loop has something to do next; None: never."""
        if self._soon:
            return max(self._virtual.now, self.frozen_until)
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        return max(timers[0][0], self.frozen_until) if timers else None

    def turn(self) -> None:
        """Run what is due now."""
        timers, now = self._timers, self._virtual.now
        while timers and timers[0][0] <= now:
            timer = heappop(timers)[2]
            if not timer.cancelled():
                self._soon.append(timer)
        with self.running():
            for _ in range(len(self._soon)):
                if not self._soon:  # it was killed by what ran
                    break
                handle = self._soon.popleft()
                if not handle.cancelled():
                    handle._run()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Code in this context is code of this process."""
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            yield
        finally:
            _set_running_loop(before)


class VirtualScheduler:
    """Gives turns to the loops of all processes, and lets time pass."""

    def __init__(self, random: Random, on_error: Callable[[str], None]) -> None:
        self.clock = VirtualClock()
        self._random = random
        self._on_error = on_error
        self._loops: list[VirtualLoop] = []

    def make_loop(self) -> VirtualLoop:
        loop = VirtualLoop(self.clock, self._on_error)
        self._loops.append(loop)
        return loop

    def run(self, seconds: float) -> None:
        """Do all that is due in the next seconds; then it is so much later."""
        end = self.clock.now + seconds
        while (due := self._next_due()) is not None and due <= end:
            self.clock.now = max(self.clock.now, due)
            self._turn()
        self.clock.now = end

    def kill_all(self) -> None:
        for loop in self._loops:
            loop.kill()

    def _next_due(self) -> float | None:
        self._loops = [loop for loop in self._loops if not loop.is_killed]
        return min([due for loop in self._loops if (due := loop.due) is not None], default=None)

    def _turn(self) -> None:
        now = self.clock.now
        ready = [loop for loop in self._loops if (due := loop.due) is not None and due <= now]
        (ready[0] if len(ready) == 1 else self._random.choice(ready)).turn()
