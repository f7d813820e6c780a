"""The journal of a store: records with rising sequences, in segments that are used again.

Rules:
1. When `append` returns, the record is synced. Records are written one after another.
2. `open` returns the records after one that the store has applied, in their order, without a gap. If it cannot, it raises
   JournalDamaged: a journal is never cut silently.
3. The first record after `open` begins a new segment. Its header states the first sequence of it. So an incomplete record at
   the end of the segment before can never become complete later.
4. `free` gives segments back whose records all are applied. They are used again; files beyond SPARE are deleted.
5. After a failed sync, nothing more is written: OutcomeUnknown. If there is no space for a new segment, or a write is
   refused before its sync, the record is certainly not there: StoreFull.
"""

from __future__ import annotations

import errno
from pathlib import Path

from busbar.store.contract import OutcomeUnknown, StoreFull
from busbar.store.durable_names import sync_directory
from busbar.store.journal.changes_decoder import JournalDamaged
from busbar.store.journal.segment import HEADER_SIZE, RECORD_SIZE, JournalRecord, Segment, SegmentHeader

SEGMENT_SIZE = 16 * 1024 * 1024
SPARE = 1
"""Free segments that are kept for later records."""
_SUFFIX = ".segment"


def segments_of(path: Path) -> list[Path]:
    """The files of the journal of the store `path`, which stand beside it."""
    return sorted(path.parent.glob(f"{path.name}.*{_SUFFIX}"))


class SegmentedJournal:
    """The journal of the store in the file `path`, whose id is `store`."""

    def __init__(self, path: Path, store: bytes, segment_size: int = SEGMENT_SIZE) -> None:
        self._path = path
        self._store = store
        self._segment_size = segment_size
        self._used: list[Segment] = []  # the last one is written to
        self._free: list[Segment] = []
        self._epoch = 0
        self._next = 1
        self._names = 0
        self._broken = ""
        self._is_begun = False  # a segment, since the journal was opened

    @property
    def last(self) -> int:
        """The sequence of the last record."""
        return self._next - 1

    @property
    def size(self) -> int:
        """The bytes of all segments that have records to keep."""
        return sum(segment.size for segment in self._used)

    # ---- opening ---------------------------------------------------------------------------------

    def open(self, epoch: int, applied: int) -> list[JournalRecord]:
        """The records after `applied`. Further ones are written with this epoch."""
        self._epoch = epoch
        found: list[Segment] = []
        for path in segments_of(self._path):
            self._names = max(self._names, int(path.name.removesuffix(_SUFFIX).rpartition(".")[2]))
            segment = Segment.open(path)
            if segment.header is None:
                self._free.append(segment)
            elif segment.header.store != self._store:
                raise JournalDamaged(f"{path} belongs to another store.")
            else:
                found.append(segment)
        found.sort(key=lambda each: 0 if each.header is None else each.header.number)
        records = self._read(found, applied)
        self._next = max([applied, *(record.sequence for record in records[-1:])]) + 1
        self.free(applied)
        return records

    def _read(self, found: list[Segment], applied: int) -> list[JournalRecord]:
        kept: list[JournalRecord] = []
        expected = 0
        for place, segment in enumerate(found):
            header = segment.header
            assert header is not None
            if kept and header.first != expected:
                raise JournalDamaged(
                    f"{segment.path} begins with record {header.first}; {expected} is missing before it."
                )
            following = found[place + 1].header if place + 1 < len(found) else None
            records = [
                each for each in segment.read() if following is None or each.sequence < following.first
            ]
            last = records[-1].sequence if records else header.first - 1
            if following is not None and last + 1 < following.first and following.first > applied + 1:
                raise JournalDamaged(f"{segment.path} ends before record {following.first - 1}.")
            if records and following is None:
                self._write_again(segment, records[-1])
            kept += [each for each in records if each.sequence > applied]
            expected = last + 1
            self._used.append(segment)
        if kept and kept[0].sequence != applied + 1:
            raise JournalDamaged(
                f"the journal of {self._path} begins with record {kept[0].sequence}; {applied + 1} is missing before it."
            )
        return kept

    def _write_again(self, segment: Segment, record: JournalRecord) -> None:
        try:
            segment.write_again(record)
        except OSError as problem:
            raise self._break("synced", problem) from problem

    # ---- writing ---------------------------------------------------------------------------------

    def has_room(self, length: int) -> bool:
        """Whether a record of this length goes into the segment that is written to."""
        return self._is_begun and not self._broken and self._used[-1].has_room(length)

    def append(self, body: bytes) -> int:
        """Write a record; returns its sequence when it is durable. Raises StoreFull, OutcomeUnknown."""
        if self._broken:
            raise OutcomeUnknown(self._broken)
        if self._is_begun and self._used[-1].has_room(len(body)):
            segment = self._used[-1]
        else:
            segment = self._begin_segment(len(body))
        sequence = self._next
        try:
            segment.append(sequence, self._epoch, body)
            if not segment.is_in_place():
                raise self._break("trusted any more", "a segment was replaced while in use")
        except OSError as problem:
            raise self._break("written", problem) from problem
        self._next += 1
        return sequence

    def prepare(self) -> None:
        """Create the segment for later, if there is none: a commit then does not wait for it. Never raises."""
        if not self._free and not self._broken:
            try:
                self._free.append(self._create(self._segment_size))
            except OSError:
                pass  # the commit that needs it tries again, and reports it

    def _begin_segment(self, length: int) -> Segment:
        """Begin a segment that has room for a record of this length."""
        needed = HEADER_SIZE + RECORD_SIZE + length
        fitting = [segment for segment in self._free if segment.size >= needed]
        try:
            segment = fitting[0] if fitting else self._create(max(self._segment_size, needed))
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"no space is left for the journal of {self._path}") from problem
            raise self._break("extended", problem) from problem
        before = self._used[-1].header.number if self._used and self._used[-1].header is not None else 0
        try:
            segment.begin(SegmentHeader(self._store, before + 1, self._next, self._epoch))
        except OSError as problem:
            raise self._break("written", problem) from problem
        if segment in self._free:
            self._free.remove(segment)
        self._used.append(segment)
        self._is_begun = True
        return segment

    def _create(self, size: int) -> Segment:
        self._names += 1
        name = f"{self._path.name}.{self._names:08d}{_SUFFIX}"
        segment = Segment.create(self._path.with_name(name), size)
        sync_directory(self._path.parent)
        return segment

    def free(self, applied: int) -> None:
        """Give back the segments whose records are all applied, durably. The one that is written to stays."""
        while len(self._used) > 1:
            following = self._used[1].header
            assert following is not None
            if following.first > applied + 1:
                break
            segment = self._used.pop(0)
            if len(self._free) < SPARE and segment.size == self._segment_size:
                self._free.append(segment)
            else:
                segment.close()
                segment.path.unlink(missing_ok=True)

    # ---- the end ---------------------------------------------------------------------------------

    def remove(self) -> None:
        """Delete the journal: everything in it is applied, durably."""
        self.close()
        for path in segments_of(self._path):
            path.unlink()
        sync_directory(self._path.parent)

    def close(self) -> None:
        """Close the files; nothing is written."""
        for segment in (*self._used, *self._free):
            segment.close()
        self._used, self._free = [], []
        self._broken = self._broken or f"the journal of {self._path} is closed: open it again"

    def _break(self, could_not_be: str, problem: BaseException | str) -> OutcomeUnknown:
        self._broken = f"the journal of {self._path} cannot be {could_not_be}: {problem}"
        return OutcomeUnknown(self._broken)
