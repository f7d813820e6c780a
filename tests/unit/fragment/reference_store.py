"""A store in a few lines, to drive the machine in tests: what it says is true by being obvious.

It checks what a real store relies on: numbers are put once and in rising order, edits and deletes find their
message, and the counters of the head are those of the messages that are really there.
"""

from __future__ import annotations

import copy

from busbar.fragment.changes import Changes, Head, Lock, empty_head
from busbar.fragment.reads import Read, ReadDue, ReadIdPage, ReadIds, ReadMany, ReadPage
from busbar.model.message import LANES, SCHEDULED, Record


class ReferenceStore:
    def __init__(self, fragment: int = 1) -> None:
        self.lanes: list[dict[int, Record]] = [{} for _ in range(LANES)]
        self.head: Head = empty_head(fragment)
        self.ids: dict[tuple[int, bytes], tuple[int, int]] = {}

    def snapshot(self) -> ReferenceStore:
        other = ReferenceStore(self.head.fragment)
        other.lanes = [copy.copy(lane) for lane in self.lanes]
        other.head = self.head.copy()
        other.ids = dict(self.ids)
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
        if changes.ids_upto is not None:
            for key in [key for key in self.ids if key <= changes.ids_upto]:
                del self.ids[key]
        for shelf, id, at, n in changes.ids:
            assert len(id) == 16
            self.ids[shelf, id] = (at, n)
        self.head = changes.head.copy()
        assert self.head.ids == len(self.ids)
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
            elif isinstance(read, ReadIds):
                assert read.shelves and read.ids, "nothing is asked for nothing"
                read.found = {
                    id: self.ids[shelf, id]
                    for shelf in sorted(read.shelves)
                    for id in read.ids
                    if (shelf, id) in self.ids
                }
            elif isinstance(read, ReadIdPage):
                after = sorted(key for key in self.ids if key > (read.shelf, read.after))
                read.rows = [(*key, *self.ids[key]) for key in after[: read.limit]]
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

    def shelves(self) -> list[int]:
        return sorted({shelf for shelf, _ in self.ids})

    def stubs(self, locks: list[Lock]) -> list[Lock]:
        """Locks as a clean shutdown keeps them and the next start finds them."""
        return [
            Lock(self.lanes[lock.lane][lock.record.n].without_content(), lock.lane, lock.nonce, lock.until)
            for lock in locks
        ]
