"""The line of sessions that wait to be accepted: which one is next, and which of them are in memory.

Rules
- A session waits while it has active messages and no consumer holds it. Turns are given in rising order and never again; the
  lowest is next. A session that is given up with messages left gets a new turn. It goes to the end, so that none starves
  while others are busy.
- `cursor` divides the line. A waiting session with a turn up to it is in memory, one behind it is only in the store. If
  `complete`, there is none behind it. Then a session that begins to wait is taken into memory, if there is room. Otherwise
  it stays in the store and comes in with a page.
- A page is read when none is in memory. So a million waiting sessions cost the memory of one page.
- `expires` is a time before which none of the session's messages expires (0: never). If `exact`, one expires then.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.reads import Read, ReadExpiry, ReadWaitingSessions


@final
class WaitingSession:
    def __init__(self, id: str, expires: i64, exact: bool) -> None:
        self.id = id
        self.expires = expires
        self.exact = exact

    def overdue(self, now: i64) -> bool:
        return 0 < self.expires <= now


@final
class WaitingSessions:
    def __init__(self, bounds: Bounds, empty: bool) -> None:
        self._bounds = bounds
        self._waiting: OrderedDict[str, WaitingSession] = OrderedDict()
        self.cursor: i64 = -1
        self.complete = empty
        self._page: ReadWaitingSessions | None = None  # asked for

    def __len__(self) -> int:
        return len(self._waiting)

    def first(self) -> WaitingSession | None:
        for waiting in self._waiting.values():
            return waiting
        return None

    def find(self, id: str) -> WaitingSession | None:
        return self._waiting.get(id)

    def remove(self, id: str) -> None:
        self._waiting.pop(id, None)

    def join(self, id: str, turn: i64, expires: i64, exact: bool) -> None:
        """Add a session that begins to wait, with a turn that was just given."""
        if self.complete and len(self._waiting) < self._bounds.line_sessions:
            self._waiting[id] = WaitingSession(id, expires, exact)
            self.cursor = turn
        else:
            self.complete = False

    def forget(self) -> None:
        """Keep nothing; read from the start."""
        self._waiting = OrderedDict()
        self.cursor = -1
        self.complete = False
        self._page = None

    # ---- reading ----

    def reads(self, now: i64) -> list[Read]:
        """The reads that decide which session is next."""
        first = self.first()
        if first is None:
            if self.complete:
                return []
            page = ReadWaitingSessions(self.cursor, self._bounds.line_page)
            self._page = page
            return [page]
        if first.overdue(now) and not first.exact:
            return [ReadExpiry(first.id, 1)]
        return []

    def absorb(self, page: ReadWaitingSessions, held: set[str], last: i64) -> bool:
        """Take in a page if it was asked for here; `held` are those that do not wait, `last` is the last turn given."""
        if page is not self._page:
            return False
        self._page = None
        for id, turn, expires in page.rows:
            self.cursor = turn
            if id not in held:
                self._waiting[id] = WaitingSession(id, expires, True)
        if len(page.rows) < page.limit:
            self.complete = True
            self.cursor = last
        return True

    def absorb_expiry(self, read: ReadExpiry) -> bool:
        waiting = self._waiting.get(read.session)
        if waiting is None:
            return False
        rows = read.rows
        waiting.expires = rows[0][0] if rows else 0
        waiting.exact = True
        return True
