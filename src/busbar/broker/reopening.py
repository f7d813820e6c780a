"""Decides when an unavailable store is opened again, and when it is re-created empty instead. Pure: times come in, in ms.

Rules:
1. The store is tried at once, then after pauses that double from MIN_BACKOFF to MAX_BACKOFF. A command of an operator, and
   a disk that answers again, end the pause.
2. While an operator has taken the store offline, it is not tried.
3. An operator may reset the store: it is re-created empty. A store that was not taken offline may be whole again. So it is
   opened instead if that succeeds at once.
4. A store that was served and has been missing for MISSING_FILE_GRACE is re-created empty.
"""

from __future__ import annotations

MIN_BACKOFF = 100
MAX_BACKOFF = 5_000
MISSING_FILE_GRACE = 5_000
"""A file that was removed while in use may be put back within this time."""


class ReopenSchedule:
    def __init__(self) -> None:
        self.offline = False
        """An operator has taken the store offline."""
        self.next_attempt = 0
        """When the next attempt is due (0: it is not by itself)."""
        self._replaces = False
        self._resetting = False
        self._tries_first = False
        self._falls_back = False
        self._hurried = False
        self._missing_since = -1
        self._backoff = MIN_BACKOFF

    # ---- what operators ask for ----

    def take_offline(self) -> None:
        self.offline = True
        self.next_attempt = 0

    def bring_online(self) -> None:
        self.offline = False
        self.hurry()

    def reset(self) -> None:
        """Re-create the store (rule 3)."""
        self._resetting = True
        self._tries_first = not self.offline
        self.bring_online()

    def hurry(self) -> None:
        """The outage may be over. If an attempt is under way and fails, the next one follows at once."""
        self._hurried = True
        self._backoff = MIN_BACKOFF

    # ---- attempts ----

    def begin(self, *, replaces: bool) -> None:
        """The store is unavailable from now on. `replaces`: it has been served, so an empty one may replace it (rule 4)."""
        self._replaces = replaces
        self._falls_back = False
        self._missing_since = -1
        self._backoff = MIN_BACKOFF

    def is_due(self, now: int) -> bool:
        return 0 < self.next_attempt <= now

    def recreates(self, now: int) -> bool:
        """Whether the attempt that begins now re-creates the store instead of opening it."""
        self._hurried = False
        if self._resetting:
            self._falls_back = self._tries_first
            self._resetting = self._tries_first = False
            return not self._falls_back
        missing = self._replaces and self._missing_since >= 0
        return missing and now - self._missing_since >= MISSING_FILE_GRACE and not self.offline

    def falls_back(self) -> bool:
        """Whether an attempt to open that has failed is followed by one to re-create (rule 3)."""
        falls_back, self._falls_back = self._falls_back, False
        return falls_back

    def failed(self, now: int, *, missing: bool) -> None:
        """Note that the attempt failed: the store is `missing` from its place, or there is another reason."""
        if not missing:
            self._missing_since = -1
        elif self._missing_since < 0:
            self._missing_since = now
        if self.offline:
            self.next_attempt = 0
            return
        self.next_attempt = now if self._hurried else now + self._backoff
        self._backoff = min(self._backoff * 2, MAX_BACKOFF)

    def succeeded(self) -> None:
        self._resetting = self._tries_first = self._falls_back = False
        self.next_attempt = 0
