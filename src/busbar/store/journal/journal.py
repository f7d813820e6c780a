"""The journal of a store: records with rising sequences, in segments that are used again.

Rules:
1. A journal has an id, which all its segments have and the store's file has too (sqlite/journal_state.py). `begin` makes the
   first segment before the file gets the id. So a segment without records may belong to no journal: it is deleted.
2. When `append` returns, the record is synced. Records are written one after another.
3. `recover` checks all records, and returns those after one that the store has applied, in their order, without a gap. If it
   cannot, it raises JournalDamaged: a journal is never cut silently. It has one segment in memory at a time.
4. The first record after `recover` begins a new segment. Its header states the first sequence of it. So an incomplete record
   at the end of the segment before can never become complete later.
5. `free` gives segments back whose records all are applied. They are used again; files beyond SPARE are deleted.
6. After a failed sync, nothing more is written: OutcomeUnknown. If there is no space for a new segment, the record is
   certainly not there: StoreFull. A new segment leaves FREE_FACTOR times its size free, since the store's file grows too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from busbar.store.contract import OutcomeUnknown, StoreError, StoreFull
from busbar.store.disk_space import free_bytes
from busbar.store.durable_names import sync_directory
from busbar.store.journal.changes_decoder import JournalDamaged
from busbar.store.journal.segment import (
    HEADER_SIZE,
    RECORD_SIZE,
    JournalRecord,
    NewSegment,
    Segment,
    SegmentHeader,
)
from busbar.store.journal.segment_names import number_of, segment_name, segments_of
from busbar.store.sqlite.journal_state import JournalState

SEGMENT_SIZE = 16 * 1024 * 1024
FIRST_SIZE = 1024 * 1024
"""Bytes of the first segment of a journal: most stores of a small namespace need no other."""
SPARE = 1
"""Free segments that are kept for later records."""
FREE_FACTOR = 4


class SegmentedJournal:
    """The journal of the store in the file `path`."""

    def __init__(self, path: Path, segment_size: int = SEGMENT_SIZE) -> None:
        self._path = path
        self._journal = bytes(16)
        self._segment_size = segment_size
        self._used: list[Segment] = []  # the last one is written to
        self._free: list[Segment] = []
        self._new: NewSegment | None = None
        self._epoch = 0
        self._next = 1
        self._names = 0
        self._broken = ""
        self._has_segment = False  # that was begun since `recover`
        self.is_begun = False
        """Whether records can be appended: there is a journal."""

    @property
    def last(self) -> int:
        """The sequence of the last record."""
        return self._next - 1

    @property
    def size(self) -> int:
        """The bytes of all segments that have records to keep."""
        return sum(segment.size for segment in self._used)

    @property
    def is_long(self) -> bool:
        """Whether some segments can be free when all records are applied."""
        return len(self._used) > 1

    # ---- recovery --------------------------------------------------------------------------------

    def recover(self, state: JournalState, epoch: int) -> Iterator[JournalRecord]:
        """The records that the store's file lacks. Further ones are written with this epoch. Raises StoreError, before it
        returns the first one."""
        self._epoch = epoch
        self._journal = state.journal
        self._next = state.applied + 1
        try:
            self._find_segments(state)
            if state.is_closed:
                return iter(())
            if not self._used:
                raise JournalDamaged(
                    f"{self._path} was not closed cleanly, and its journal is missing: put the files "
                    f"{segment_name(self._path, '*')} back that were beside it"
                )
            self._next = max(self._next, self._check(state.applied) + 1)
        except OSError as problem:
            raise StoreError(f"the journal of {self._path} cannot be read: {problem}") from problem
        self.is_begun = True
        self.free(state.applied)
        return self._read(list(self._used), state.applied)

    def _find_segments(self, state: JournalState) -> None:
        """Find the segments of this journal. Those that are not needed any more are deleted."""
        for path in segments_of(self._path):
            self._names = max(self._names, number_of(path))
            segment = Segment.open(path)
            self._used.append(segment)  # so that `close` closes it
            header = segment.header
            if header is not None and header.journal != state.journal and segment.has_records():
                raise JournalDamaged(
                    f"{path} belongs to another file than {self._path.name}, and has commits of that one: put the "
                    "two back together, or move it away"
                )
        found, self._used = self._used, []
        for segment in found:
            if state.is_closed or segment.header is None or segment.header.journal != state.journal:
                segment.delete()
            else:
                self._used.append(segment)
        self._used.sort(key=lambda each: 0 if each.header is None else each.header.number)

    def _check(self, applied: int) -> int:
        """Check that no record after an applied one is missing or damaged; returns the sequence of the last one."""
        last = 0
        for segment, following in zip(self._used, [*self._used[1:], None], strict=True):
            first, end = _bounds(segment, following)
            if last > applied and first != last + 1:
                raise JournalDamaged(
                    f"{segment.path} begins with record {first}; {last + 1} is missing before it."
                )
            if last <= applied < first - 1:
                raise JournalDamaged(
                    f"the journal of {self._path} begins with record {first}; {applied + 1} is missing before it."
                )
            last = first - 1
            newest: JournalRecord | None = None
            for record in segment.read():
                if record.sequence < end:
                    last, newest = record.sequence, record
            if following is not None and last + 1 < end and end > applied + 1:
                raise JournalDamaged(f"{segment.path} ends before record {end - 1}.")
            if newest is not None and following is None:
                self._write_again(segment, newest)
        return last

    def _read(self, segments: list[Segment], applied: int) -> Iterator[JournalRecord]:
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            _, end = _bounds(segment, following)
            for record in segment.read():
                if applied < record.sequence < end:
                    yield record

    def _write_again(self, segment: Segment, record: JournalRecord) -> None:
        try:
            segment.write_again(record)
        except OSError as problem:
            raise self._break("synced", problem) from problem

    # ---- writing ---------------------------------------------------------------------------------

    def begin(self, journal: bytes) -> None:
        """Begin a journal with this id. Raises StoreFull, OutcomeUnknown."""
        self._journal = journal
        self._begin_segment(0)
        self.is_begun = True

    def has_room(self, length: int) -> bool:
        """Whether a record of this length goes into the segment that is written to."""
        return self._has_segment and not self._broken and self._used[-1].has_room(length)

    def append(self, body: bytes) -> int:
        """Write a record; returns its sequence when it is durable. Raises StoreFull, OutcomeUnknown."""
        if self._broken:
            raise OutcomeUnknown(self._broken)
        if self.has_room(len(body)):
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

    @property
    def needs_segment(self) -> bool:
        """Whether the next segment is needed soon."""
        return self._has_segment and self._used[-1].is_half_full and not self._free and not self._broken

    def prepare(self) -> None:
        """Write a piece of the next segment, if it is needed soon. So no commit waits for all of it. Never raises."""
        if self.needs_segment:
            with contextlib.suppress(OSError):  # the commit that needs it tries again, and reports it
                self._create_piece(self._usual_size())

    def _begin_segment(self, length: int) -> Segment:
        """Begin a segment that has room for a record of this length."""
        needed = HEADER_SIZE + RECORD_SIZE + length
        fitting = [segment for segment in self._free if segment.size >= needed]
        try:
            segment = fitting[0] if fitting else self._create(max(self._usual_size(), needed))
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"no space is left for the journal of {self._path}") from problem
            raise self._break("extended", problem) from problem
        before = self._used[-1].header.number if self._used and self._used[-1].header is not None else 0
        try:
            segment.begin(SegmentHeader(self._journal, before + 1, self._next, self._epoch))
        except OSError as problem:
            raise self._break("written", problem) from problem
        if segment in self._free:
            self._free.remove(segment)
        self._used.append(segment)
        self._has_segment = True
        return segment

    def _usual_size(self) -> int:
        """The size of the next segment: twice that of the last one, within bounds."""
        return min(2 * self._used[-1].size if self._used else FIRST_SIZE, self._segment_size)

    def _create(self, size: int) -> Segment:
        """Create a file for a segment of at least this size. Raises OSError."""
        if self._new is not None and self._new.size < size:
            self._new.delete()
            self._new = None
        while not self._create_piece(size):
            pass
        return self._free.pop()

    def _create_piece(self, size: int) -> bool:
        """Go on with the file for the next segment. True if it is free now. Raises OSError."""
        new = self._new
        if new is None:
            if free_bytes(self._path.parent) < FREE_FACTOR * size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._names += 1
            name = segment_name(self._path, f"{self._names:08d}")
            new = NewSegment(self._path.with_name(name), size)
        self._new = None  # if the piece cannot be written, there is no file
        segment = new.write_piece()
        if segment is None:
            self._new = new
            return False
        try:
            sync_directory(self._path.parent)  # a record in a file without a durable name would be lost
        except OSError:
            segment.delete()
            raise
        self._free.append(segment)
        return True

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
                segment.delete()

    # ---- the end ---------------------------------------------------------------------------------

    def end(self) -> None:
        """Delete the journal: the store's file has all of it, durably, and is closed."""
        self._free += self._used
        self._used = []
        self._has_segment = self.is_begun = False
        self.drop_spares()

    def drop_spares(self) -> None:
        """Delete the free segments."""
        if self._new is not None:
            self._new.delete()
            self._new = None
        for segment in self._free:
            segment.delete()
        self._free = []

    def close(self) -> None:
        """Close the files; nothing is written."""
        for segment in (*self._used, *self._free):
            segment.close()
        if self._new is not None:
            self._new.close()
            self._new = None
        self._used, self._free = [], []
        self._broken = self._broken or f"the journal of {self._path} is closed: open it again"

    def _break(self, could_not_be: str, problem: BaseException | str) -> OutcomeUnknown:
        self._broken = f"the journal of {self._path} cannot be {could_not_be}: {problem}"
        return OutcomeUnknown(self._broken)


def _bounds(segment: Segment, following: Segment | None) -> tuple[int, int]:
    """The sequence of the first record of a segment, and that behind its last one. What is there besides was torn."""
    assert segment.header is not None
    if following is None:
        return segment.header.first, sys.maxsize
    assert following.header is not None
    return segment.header.first, following.header.first
