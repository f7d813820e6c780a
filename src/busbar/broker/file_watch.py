"""Finds out that the file of a store was removed or replaced while the store is idle. A commit finds out by itself. Pure.

The store does its own work at the same times, a slice at each look. If it has more, the next look comes soon.
"""

from __future__ import annotations

from busbar.broker.store_operations import LookAtFile, Looked

WATCH_INTERVAL = 1_000
"""Between looks at the place of a store, in ms."""
SOON = 10
"""In ms: between slices of the store's own work, so that commits need not wait for several of them."""


class FileWatch:
    """Compares the file that each look finds with the one that the first look found after the store was opened."""

    def __init__(self) -> None:
        self.next_look = 0
        """When the next look is due (0: the store is not watched)."""
        self._look: LookAtFile | None = None
        self._first: LookAtFile | None = None
        self._fingerprint: object = None

    def start(self, now: int) -> LookAtFile:
        """Begin to watch a store that is open. Returns the first look."""
        self.next_look = now + WATCH_INTERVAL
        self._look = self._first = LookAtFile()
        return self._look

    def stop(self) -> None:
        self.next_look = 0
        self._look = None

    def take_due(self, now: int, *, is_busy: bool) -> LookAtFile | None:
        """The look that is due now, if any. While the store is busy, none is needed."""
        if not self.next_look or self.next_look > now:
            return None
        self.next_look = now + WATCH_INTERVAL
        if self._look is not None or is_busy:
            return None
        self._look = LookAtFile()
        return self._look

    def is_current(self, look: LookAtFile) -> bool:
        """Whether a look was asked for since the store was opened."""
        return look is self._look

    def has_changed(self, look: LookAtFile, found: Looked, now: int) -> bool:
        """Whether a look has found another file, or none."""
        if look is not self._look:
            return False
        self._look = None
        if found.has_more:
            self.next_look = now + SOON
        if look is self._first:
            self._fingerprint = found.fingerprint
        return found.fingerprint != self._fingerprint
