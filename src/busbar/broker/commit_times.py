"""How long the last commits of a store took, and how many messages each changed."""

from __future__ import annotations

from collections import deque

KEPT = 256


class CommitTimes:
    def __init__(self) -> None:
        self.count = 0
        self._last: deque[tuple[float, int]] = deque(maxlen=KEPT)

    def add(self, seconds: float, messages: int) -> None:
        self.count += 1
        self._last.append((seconds, messages))

    def quantile(self, part: float) -> int:
        """The time in microseconds that this part of the commits did not exceed; 0 without commits."""
        times = sorted(seconds for seconds, _ in self._last)
        return round(1e6 * times[min(len(times) - 1, int(part * len(times)))]) if times else 0

    @property
    def group(self) -> int:
        """The messages of a commit, on average."""
        return round(sum(messages for _, messages in self._last) / len(self._last)) if self._last else 0
