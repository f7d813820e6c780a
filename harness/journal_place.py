"""A place in memory whose commits a real store with a journal makes too, and whose reads that store answers.

The store in memory decides what fails and checks each commit. The real store is moved at random points. When a handle is
abandoned, as by a crash, the real store is closed without a write, and the next claim recovers it. Then both must hold the
same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow
from busbar.fragment.reads import Read, ReadPage
from busbar.model.message import LANES, Record
from busbar.store.contract import StoreError
from busbar.store.journal.store import JournalStore
from harness.memory_place import MemoryPlace, PlacedStore
from harness.memory_store import Disk

SEGMENT_SIZE = 1 << 16
EVERYTHING = 1 << 40


class JournalPlace(MemoryPlace):
    """A place whose stores have files in a directory."""

    def __init__(self, directory: Path, chance: Random, new_disk: Callable[[], Disk]) -> None:
        self._directory = directory
        self._files: list[tuple[Disk, Path]] = []
        self._current: JournalStore | None = None
        self.chance = chance
        super().__init__(new_disk)

    def create_disk(self) -> Disk:
        disk = super().create_disk()
        self._files.append((disk, self._directory / f"store-{len(self._files)}.db"))
        return disk

    def handle(self, disk: Disk) -> PlacedStore:
        return JournalMirror(self, disk)

    def claimed(self, disk: Disk) -> JournalStore:
        """The real store of a disk, claimed. The handle that was there before is left as it is."""
        if self._current is not None:
            self._current.close()
        self._current = JournalStore(next(path for other, path in self._files if other is disk), SEGMENT_SIZE)
        self._current.claim()
        return self._current


class JournalMirror(PlacedStore):
    def __init__(self, place: JournalPlace, disk: Disk) -> None:
        super().__init__(place, disk)
        self._chance = place.chance
        self._claim = place.claimed
        self._journal: JournalStore | None = None

    def claim(self) -> int:
        epoch = super().claim()
        self._journal = self._claim(self.disk)
        self._compare()
        return epoch

    def release(self) -> None:
        super().release()
        self._real().release()

    def close(self) -> None:
        super().close()
        if self._journal is not None:
            self._journal.close()

    def _real(self) -> JournalStore:
        if self._journal is None:
            raise StoreError("the store is not claimed")
        return self._journal

    def commit(self, batches: Sequence[Changes]) -> None:
        before = self.disk.commits
        try:
            super().commit(batches)
        finally:
            if self.disk.commits != before:
                for _ in range(self._chance.randrange(3)):
                    self._real().maintain()
                self._real().commit(batches)

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        self._owned()
        self._real().read(fragment, reads)

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        super().heads(only)
        return self._real().heads(only)

    def create(self, fragment: int) -> None:
        super().create(fragment)
        self._real().create(fragment)

    def drop(self, fragment: int, limit: int) -> bool:
        is_gone = super().drop(fragment, limit)
        while not self._real().drop(fragment, limit) and is_gone:
            pass
        return is_gone

    def next_due(self, fragment: int) -> int:
        super().next_due(fragment)
        return self._real().next_due(fragment)

    def id_segments(self, fragment: int) -> list[int]:
        super().id_segments(fragment)
        return self._real().id_segments(fragment)

    def taps(self, fragment: int) -> list[TapRow]:
        super().taps(fragment)
        return self._real().taps(fragment)

    def writers(self, fragment: int) -> dict[str, tuple[int, int]]:
        super().writers(fragment)
        return self._real().writers(fragment)

    def outbox(self, fragment: int) -> dict[int, OutboxRow]:
        super().outbox(fragment)
        return self._real().outbox(fragment)

    def holds(self, fragment: int) -> list[SessionHold]:
        super().holds(fragment)
        return self._real().holds(fragment)

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        super().save_locks(fragment, locks)
        self._real().save_locks(fragment, locks)

    def take_locks(self, fragment: int) -> list[Lock]:
        super().take_locks(fragment)
        return self._real().take_locks(fragment)

    def _compare(self) -> None:
        """Check that the real store holds what the one in memory holds."""
        real = self._real()
        for fragment, here in self.disk.fragments.items():
            for lane in range(LANES):
                page = ReadPage(lane, 0, EVERYTHING, EVERYTHING)
                real.read(fragment, [page])
                expected = [record for _, record in sorted(here.lanes[lane].records.items())]
                assert [_values(record) for record in page.records] == [
                    _values(record) for record in expected
                ], f"lane {lane} of fragment {fragment} is not what was committed"


def _values(record: Record) -> tuple[object, ...]:
    return (
        record.n,
        record.deliveries,
        record.content,
        record.overlay or None,
        record.session_id,
        record.dead_letter_number,
        record.due,
        record.ttl,
    )
