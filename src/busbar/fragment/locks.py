"""The locks of a fragment: which messages are locked, and when each lock ends.

Rules
- A message has at most one lock. `held` finds it by number; it is valid while its time is still to come.
- Ends are kept in a heap with one entry for all locks taken at once: (until, numbers). Entries are never searched for. A
  number counts only while its lock is held and has that very end; otherwise it is a leftover.
- When more than half of the numbers are leftovers, the heap is rebuilt. So settled locks do not pile up until their time.
- While there is room, a lock keeps its message's bytes, so that an abandoned message needs no read.
- If a consumer holds a session, the lock of a message of it ends with the session and not by itself. Its end is FOREVER
  here, so that renewing a session does not touch the locks of its messages.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.changes import Lock
from busbar.model.message import LANES, Record

FOREVER: Final = 1 << 62
SLACK: Final = 1_000
"""Leftovers that are never worth a rebuild."""


@final
class LockTable:
    def __init__(self, locks: list[Lock]) -> None:
        self.held: dict[int, Lock] = {}
        self.counts: list[int] = [0] * LANES  # locks by the lane of their message
        self.bytes: i64 = 0  # of the messages whose content is kept here
        self._ends: list[tuple[int, list[int]]] = []
        self._numbers: i64 = 0  # in _ends
        self._latest: list[int] = []  # the newest entry of _ends, to which locks with the same end are added
        self._latest_until: i64 = -1
        self.restore(locks)

    def restore(self, locks: list[Lock]) -> None:
        """Replace all locks by these."""
        self.held = {}
        self.counts = [0] * LANES
        self.bytes = 0
        for lock in locks:
            self.held[lock.record.n] = lock
            self.counts[lock.lane] += 1
            if lock.record.content is not None:
                self.bytes += lock.record.size
        self._rebuild()

    def take(self, records: list[Record], lane: i64, nonce: i64, until: i64, room: i64) -> None:
        """Lock messages that are not locked; keep their bytes as far as `room` goes."""
        held = self.held
        numbers: list[int] = [] if until == FOREVER else self._entry(until)
        kept: i64 = 0
        for record in records:
            size = record.size
            if kept + size > room:
                record = record.without_content()
            else:
                kept += size
            number: int = record.n
            held[number] = Lock(record, lane, nonce, until)
            numbers.append(number)
        self.bytes += kept
        count = len(records)
        self.counts[lane] += count
        if until != FOREVER:
            self._numbers += count

    def renew(self, locks: list[Lock], until: i64) -> None:
        numbers = self._entry(until)
        for lock in locks:
            lock.until = until
            numbers.append(lock.record.n)
        self._numbers += len(locks)
        self._tidy()

    def released(self, locks: list[Lock]) -> None:
        """Count locks that the caller has taken out of `held`."""
        counts = self.counts
        active: i64 = 0
        freed: i64 = 0
        for lock in locks:
            lane = lock.lane
            if lane == 0:
                active += 1
            else:
                counts[lane] -= 1
            record = lock.record
            if record.content is not None:
                freed += record.size
        counts[0] -= active
        self.bytes -= freed
        self._tidy()

    def expire(self, now: i64, limit: i64) -> list[Lock]:
        """Take out up to `limit` locks whose time has come."""
        expired: list[Lock] = []
        held = self.held
        ends = self._ends
        while ends and len(expired) < limit:
            until, numbers = ends[0]
            if until > now:
                break
            while numbers and len(expired) < limit:
                n = numbers.pop()
                self._numbers -= 1
                lock = held.get(n)
                if lock is not None and lock.until <= now:
                    del held[n]
                    expired.append(lock)
            if not numbers:
                self._drop_first()
        if expired:
            self.released(expired)
        return expired

    def earliest(self) -> i64:
        """The end of the lock that ends first; 0 without locks."""
        held = self.held
        ends = self._ends
        while ends:
            until, numbers = ends[0]
            while numbers:
                lock = held.get(numbers[-1])
                if lock is not None and lock.until == until:
                    return until
                numbers.pop()
                self._numbers -= 1
            self._drop_first()
        return 0

    def _entry(self, until: i64) -> list[int]:
        if until != self._latest_until:
            self._latest = []
            self._latest_until = until
            heappush(self._ends, (until, self._latest))
        return self._latest

    def _drop_first(self) -> None:
        numbers = heappop(self._ends)[1]
        if numbers is self._latest:
            self._latest = []
            self._latest_until = -1

    def _tidy(self) -> None:
        if self._numbers > 2 * len(self.held) + SLACK:
            self._rebuild()

    def _rebuild(self) -> None:
        by_end: dict[int, list[int]] = {}
        count: i64 = 0
        for n, lock in self.held.items():
            if lock.until == FOREVER:
                continue
            count += 1
            until: int = lock.until
            numbers = by_end.get(until)
            if numbers is None:
                by_end[until] = [n]
            else:
                numbers.append(n)
        self._ends = list(by_end.items())
        heapify(self._ends)
        self._numbers = count
        self._latest = []
        self._latest_until = -1
