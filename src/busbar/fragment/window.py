"""The window of a lane: which of its available messages are in memory, and in which order all of them are served.

Rules
- Available is what stands in the lane and is not locked. It is served by rising number.
- `cursor` divides the lane. An available message below it is in memory: in `ready` (read in order, or just
  sent) or in `returned` (it came back: unlocked, abandoned, or dead-lettered). One at or above it is only
  in the store: unread.
- How many are unread follows from the counters (see State.unread); no message above the cursor is kept.
- A new message enters `ready` directly if nothing is unread, so that it is next in order, and there is
  room. Otherwise it stays in the store and comes in with a page.
- A page is read when nothing is in memory; those of its messages that are locked are skipped. So ten
  million messages cost the memory of one page.
- `returned` may hold messages without their bytes (stubs). When a stub is first in line, the bytes of those
  in front are read. When too many have returned, the window is rewound: all is forgotten, and read again
  from the lowest number.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Lock
from busbar.fragment.consumers import Consumer
from busbar.fragment.reads import ReadByNumber, ReadPage
from busbar.model.message import Record

PASSED_RECORDS: Final = 256
"""Served slots of `ready` that are kept before the list is cut: cutting one by one would move it all each time."""


@final
class Window:
    def __init__(self, lane: i64, bounds: Bounds, session: str | None = None) -> None:
        self.lane = lane
        self.session = session  # of a message session: only its messages count
        self.bounds = bounds
        self.cursor: i64 = 1
        self.ready: list[Record] = []  # from `at` on; ascending
        self.at: i64 = 0
        self.bytes: i64 = 0  # of what is ready
        self.taken_bytes: i64 = 0  # of what was taken last
        self.returned: dict[int, Record] = {}
        self.returned_bytes: i64 = 0  # of those that have their content
        self._order: list[int] = []  # a heap of the numbers in `returned`
        self.waiting: deque[Consumer] = deque()  # consumers with credit, in the order of their turns
        self.draining: list[Consumer] = []
        self._page: ReadPage | None = None  # asked for
        self._stubs: ReadByNumber | None = None

    # ---- what is there ----

    def available(self) -> i64:
        """How many available messages are in memory."""
        return len(self.ready) - self.at + len(self.returned)

    def has_room(self) -> bool:
        bounds = self.bounds
        return self.bytes < bounds.ready_bytes and len(self.ready) - self.at < bounds.ready_records

    def blocked(self) -> bool:
        """Whether the first in line is a stub."""
        if not self._order:
            return False
        n = self._order[0]
        return self.returned[n].content is None and (self.at >= len(self.ready) or n < self.ready[self.at].n)

    # ---- messages come ----

    def arrive(self, record: Record, unread: i64) -> None:
        """Add a message that has come into the lane; `unread` is how many were unread before."""
        if record.n < self.cursor:
            self.give_back(record)
        elif unread == 0 and record.content is not None and self.has_room():
            self.ready.append(record)
            self.bytes += record.size
            self.cursor = record.n + 1

    def append(self, records: list[Record], size: i64) -> None:
        """Add new messages of the lane, ascending, as many as there is room for. Nothing of the lane is unread."""
        if not records:
            return
        bounds = self.bounds
        count: i64 = len(self.ready) - self.at + len(records)
        if self.bytes + size < bounds.ready_bytes and count <= bounds.ready_records:
            self.ready.extend(records)
            self.bytes += size
            self.cursor = records[-1].n + 1
            return
        for record in records:
            if not self.has_room():
                break
            self.ready.append(record)
            self.bytes += record.size
            self.cursor = record.n + 1

    def give_back(self, record: Record) -> None:
        """Take back a message of the lane that is available again."""
        n: int = record.n
        if n >= self.cursor:
            return  # it is unread
        self.returned[n] = record
        heappush(self._order, n)
        if record.content is not None:
            self.returned_bytes += record.size
        if len(self._order) > self.bounds.returned_records:
            self.rewind()

    def rewind(self) -> None:
        """Forget the available messages in memory, so that they are read again from the store."""
        start = self.cursor
        if self._order and self._order[0] < start:
            start = self._order[0]
        if self.at < len(self.ready) and self.ready[self.at].n < start:
            start = self.ready[self.at].n
        self.forget(start)

    def forget(self, start: i64) -> None:
        """Keep nothing; read from `start` on."""
        self.cursor = start
        self.ready = []
        self.at = 0
        self.bytes = 0
        self.returned = {}
        self.returned_bytes = 0
        self._order = []
        self._page = None
        self._stubs = None

    # ---- messages go ----

    def take(self, limit: i64, max_bytes: i64, now: i64) -> list[Record]:
        """The first messages in order, up to a count and (but at least one) a size; stops before one that has expired
        and before a stub."""
        if self._order:
            return self._take_both(limit, max_bytes, now)
        ready = self.ready
        at = self.at
        end = at + limit
        if end > len(ready):
            end = len(ready)
        size: i64 = 0
        i = at
        while i < end:
            record = ready[i]
            ttl = record.ttl
            if ttl > 0 and record.enqueued + ttl <= now:
                break
            if size + record.size > max_bytes and i > at:
                break
            size += record.size
            i += 1
        taken = ready[at:i]
        self.bytes -= size
        self.taken_bytes = size
        self._pass_to(i)
        return taken

    def _take_both(self, limit: i64, max_bytes: i64, now: i64) -> list[Record]:
        taken: list[Record] = []
        size: i64 = 0
        while len(taken) < limit:
            record = self.first()
            if record is None or record.content is None or record.expired(now):
                break
            if size + record.size > max_bytes and taken:
                break
            size += record.size
            self.drop_first()
            taken.append(record)
        self.taken_bytes = size
        return taken

    def first(self) -> Record | None:
        """The available message with the lowest number, if it is in memory."""
        front = self.ready[self.at] if self.at < len(self.ready) else None
        if self._order:
            n = self._order[0]
            if front is None or n < front.n:
                return self.returned[n]
        return front

    def drop_first(self) -> None:
        """Take out what first() returned."""
        if self._order:
            n = self._order[0]
            if self.at >= len(self.ready) or n < self.ready[self.at].n:
                heappop(self._order)
                record = self.returned.pop(n)
                if record.content is not None:
                    self.returned_bytes -= record.size
                return
        self.bytes -= self.ready[self.at].size
        self._pass_to(self.at + 1)

    def _pass_to(self, at: i64) -> None:
        if at == len(self.ready):
            self.ready = []
            at = 0
        elif at >= PASSED_RECORDS:
            del self.ready[:at]
            at = 0
        self.at = at

    # ---- reading ----

    def ask_page(self, limit: i64, max_bytes: i64) -> ReadPage:
        page = ReadPage(self.lane, self.cursor, limit, max_bytes, self.session)
        self._page = page
        return page

    def absorb_page(self, page: ReadPage, held: dict[int, Lock], last: i64) -> bool:
        """Take in a page if it was asked for here. `last` is the last number given."""
        if page is not self._page:
            return False
        self._page = None
        records = page.records
        for record in records:
            if record.n not in held:
                self.ready.append(record)
                self.bytes += record.size
        # If the page is empty, there is nothing from here on, even if the counters differ.
        self.cursor = records[-1].n + 1 if records else last + 1
        return True

    def ask_stubs(self) -> ReadByNumber:
        """The bytes of the stubs among the first in line."""
        numbers: list[int] = []
        size: i64 = 0
        for n in nsmallest(self.bounds.page_records, self._order):
            record = self.returned[n]
            if record.content is None:
                size += record.size
                if size > self.bounds.page_bytes and numbers:
                    break
                numbers.append(n)
        many = ReadByNumber(self.lane, numbers)
        self._stubs = many
        return many

    def absorb_stubs(self, many: ReadByNumber) -> bool:
        if many is not self._stubs:
            return False
        self._stubs = None
        returned = self.returned
        for record in many.records:
            n: int = record.n
            stub = returned.get(n)
            if stub is not None and stub.content is None:
                returned[n] = record
                self.returned_bytes += record.size
        missing = [n for n in many.numbers if n in returned and returned[n].content is None]
        if missing:  # the store has lost them: do not wait for them
            for n in missing:
                del returned[n]
            self._order = list(returned)
            heapify(self._order)
        return True
