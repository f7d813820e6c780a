"""A store in a few lines, to drive the machine in tests: what it says is true by being obvious.

It checks what a real store relies on: numbers are put once and in rising order, edits and deletes find their
message, and the counters of the head are those of the messages that are really there.
"""

from __future__ import annotations

import copy

from busbar.fragment.changes import Changes, Head, Lock, empty_head
from busbar.fragment.reads import Read, ReadDue, ReadMany, ReadPage
from busbar.model.message import LANES, SCHEDULED, Record


class ReferenceStore:
    def __init__(self, fragment: int = 1) -> None:
        self.lanes: list[dict[int, Record]] = [{} for _ in range(LANES)]
        self.head: Head = empty_head(fragment)

    def snapshot(self) -> ReferenceStore:
        other = ReferenceStore(self.head.fragment)
        other.lanes = [copy.copy(lane) for lane in self.lanes]
        other.head = self.head.copy()
        return other

    def commit(self, changes: Changes) -> None:
        assert changes.head is not None
        assert changes.weight > 0
        for lane, records in changes.puts.items():
            numbers = [record.n for record in records]
            assert numbers == sorted(set(numbers)), "numbers rise"
            for record in records:
                assert self.head.last < record.n <= changes.head.last, "a number is given once"
                assert record.content is not None
                self.lanes[lane][record.n] = record
        for edit in changes.edits:
            old = self.lanes[edit.lane].pop(edit.n)
            assert edit.n not in self.lanes[edit.to]
            self.lanes[edit.to][edit.n] = old.changed(edit.deliveries, edit.overlay)
        for lane, gone in changes.deletes.items():
            for n in gone:
                del self.lanes[lane][n]
        self.head = changes.head.copy()
        assert self.head.counts == [len(lane) for lane in self.lanes]
        assert self.head.size == sum(record.size for lane in self.lanes for record in lane.values())

    def read(self, reads: list[Read]) -> None:
        for read in reads:
            if isinstance(read, ReadPage):
                lane = self.lanes[read.lane]
                read.records = self._cut([lane[n] for n in sorted(lane) if n >= read.start], read)
            elif isinstance(read, ReadMany):
                lane = self.lanes[read.lane]
                read.records = [lane[n] for n in sorted(read.numbers) if n in lane]
            else:
                assert isinstance(read, ReadDue)
                scheduled = sorted(self.lanes[SCHEDULED].values(), key=lambda record: (record.due, record.n))
                read.records = self._cut([record for record in scheduled if record.due <= read.until], read)
                rest = scheduled[len(read.records) :]
                read.next_due = rest[0].due if rest else 0

    @staticmethod
    def _cut(records: list[Record], read: ReadPage | ReadDue) -> list[Record]:
        size = 0
        for i, record in enumerate(records[: read.limit]):
            size += record.size
            if i and size > read.max_bytes:
                return records[:i]
        return records[: read.limit]

    def next_due(self) -> int:
        return min((record.due for record in self.lanes[SCHEDULED].values()), default=0)

    def stubs(self, locks: list[Lock]) -> list[Lock]:
        """Locks as a clean shutdown keeps them and the next start finds them."""
        return [
            Lock(self.lanes[lock.lane][lock.record.n].without_content(), lock.lane, lock.nonce, lock.until)
            for lock in locks
        ]
