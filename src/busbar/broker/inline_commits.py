"""Decides when the event loop commits a group itself instead of its store's thread. No clock, no I/O.

The way to the thread and back costs about as much as a small commit to a journal. But a sync that hangs on the event loop
stops everything in the process, and nothing announces it (ADR 27). So an operator has to allow it.

Rules:
1. A group is small if it has at most `max_messages` messages and MAX_BYTES bytes, and nothing is to be read with it.
2. Small groups are committed on the loop after FAST_IN_A_ROW of them took the thread at most FAST_BY_THREAD each. What the
   thread takes is an upper bound: it may have waited for the interpreter.
3. If a commit on the loop takes LONGEST, or the moving average reaches SLOW_AVERAGE, the thread commits for PAUSE. Then
   rule 2 holds again.
"""

from __future__ import annotations

from typing import final

from busbar.broker.job import Job

MAX_BYTES = 64 * 1024
FAST_IN_A_ROW = 8
FAST_BY_THREAD = 0.003
"""Seconds. The thread has to win the interpreter back from the event loop, which keeps it for 0.5 ms at a time."""
SLOW_AVERAGE = 0.001
LONGEST = 0.020
PAUSE = 10_000
"""In ms."""
_WEIGHT = 1 / 8
"""Of the newest commit in the moving average."""


@final
class InlineCommits:
    """What is known of the small commits of one store."""

    def __init__(self, max_messages: int) -> None:
        """With 0 messages no group is small."""
        self._max_messages = max_messages
        self._fast_in_a_row = 0
        self._average = 0.0
        self._not_before = 0

    def is_small(self, job: Job) -> bool:
        if not self._max_messages or job.reads:
            return False
        messages = size = 0
        for changes in job.batches:
            messages += changes.weight
            size += changes.bytes
        return messages <= self._max_messages and size <= MAX_BYTES

    def is_allowed(self, now: int) -> bool:
        """Whether a small group may be committed on the loop. `now` is in ms, of a clock that never goes back."""
        return self._fast_in_a_row >= FAST_IN_A_ROW and now >= self._not_before

    def took_thread(self, seconds: float) -> None:
        """Note how long the thread took for a small group."""
        self._fast_in_a_row = self._fast_in_a_row + 1 if seconds <= FAST_BY_THREAD else 0

    def took_loop(self, seconds: float, now: int) -> None:
        """Note how long the loop took for a small group."""
        self._average += (seconds - self._average) * _WEIGHT
        if seconds >= LONGEST or self._average >= SLOW_AVERAGE:
            self.pause(now)

    def pause(self, now: int) -> None:
        """Leave commits to the thread for a while."""
        self._fast_in_a_row, self._average = 0, 0.0
        self._not_before = now + PAUSE
