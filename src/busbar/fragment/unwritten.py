"""Messages of an express fragment that only memory has: acknowledged, and not yet given to the store.

Rules
- A message comes in with its lane, moves between lanes, and goes, without a trace in the changes for the store. When the
  changes are taken, what is left is put where it stands then.
- Acknowledged is what clients may rely on. After each command the commit loop decides: it performs the effects at once, and
  all so far is acknowledged; or the effects wait for a commit.
- If that commit fails, the commands that waited are undone. `acknowledged` is what was there before them. It comes back.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from busbar.model.message import Record


@final
class Unwritten:
    def __init__(self, last: i64) -> None:
        self.records: dict[int, tuple[int, Record]] = {}  # lane and message, by number
        self.bytes: i64 = 0
        self._last = last  # numbers up to here are acknowledged
        self._before: list[
            tuple[int, tuple[int, Record]]
        ] = []  # acknowledged messages as they were, changed since

    def put(self, lane: i64, records: list[Record]) -> None:
        at: int = lane
        for record in records:
            self.records[record.n] = (at, record)
            self.bytes += record.size

    def _take(self, n: int) -> tuple[int, Record]:
        found = self.records.pop(n)
        self.bytes -= found[1].size
        if n <= self._last:
            self._before.append((n, found))
        return found

    def drop(self, numbers: list[int]) -> list[int]:
        """Remove messages. Returns the numbers that are not here."""
        records = self.records
        others: list[int] = []
        for n in numbers:
            if n in records:
                self._take(n)
            else:
                others.append(n)
        return others

    def move(self, to: i64, numbers: list[int]) -> list[int]:
        """Move messages to another lane. Returns the numbers that are not here."""
        records = self.records
        others: list[int] = []
        for n in numbers:
            if n in records:
                self._replace(n, to, records[n][1])
            else:
                others.append(n)
        return others

    def edit(self, n: int, to: i64, changed: Record) -> None:
        """Put a message into a lane, with other properties. It keeps its content if the other one has none."""
        content = self.records[n][1].content
        if changed.content is None:
            changed.content = content
        self._replace(n, to, changed)

    def _replace(self, n: int, to: i64, record: Record) -> None:
        lane: int = to
        if n <= self._last:
            self._before.append((n, self.records[n]))
        self.bytes += record.size - self.records[n][1].size
        self.records[n] = (lane, record)  # in its place: the order is that of the numbers

    def is_empty(self) -> bool:
        """Whether nothing is here, and nothing was when all was acknowledged last."""
        return not self.records and not self._before

    def acknowledge(self, last: i64) -> None:
        """Note that clients may rely on all that is here. `last` is the last number given."""
        self._last = last
        if self._before:
            self._before = []

    def oldest(self) -> i64:
        """When the oldest of the messages came; 0 without one."""
        for _, record in self.records.values():
            return record.enqueued
        return 0

    def acknowledged(self) -> list[tuple[int, Record]]:
        """What was here when all was acknowledged last."""
        last: int = self._last
        found = {n: one for n, one in self.records.items() if n <= last}
        for n, one in reversed(self._before):
            found[n] = one
        return [found[n] for n in sorted(found)]
