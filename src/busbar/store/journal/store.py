"""A store with a journal in front of SQLite: a commit is durable when its record is synced.

The journal has every commit since `applied`, a sequence that SQLite holds. What those commits add up to is pending, in
memory. A *move* writes it to SQLite with the new `applied`, in one transaction that is not synced: the journal has it. When
SQLite has checkpointed the move, segments of the journal are free.

Rules:
1. Whatever writes to SQLite directly moves first. So does what reads of a fragment that has something pending, unless the
   read is answered from both (pending_reads.py). So answers are as if there were no journal.
2. A claim reads the journal after `applied` and moves it: the state is that after the last complete record.
3. A journal is begun by the first commit. A clean release ends it and leaves one file.
4. **No space.** What is pending is acknowledged, so its move may use all reserves of SQLite, which hold MAX_PENDING. If a
   move has used one, or there is no space for another segment, the journal is ended. Until the reserves are filled again,
   commits go to SQLite directly, and its rules for a full disk hold (sqlite/file.py).
5. A number that is put twice is OutcomeUnknown, and nothing of that commit is in the journal.
6. Before a commit returns, the paths must still name the segment and SQLite's files. Otherwise the next start would open
   other files: OutcomeUnknown.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow
from busbar.fragment.reads import Read
from busbar.store.contract import OutcomeUnknown, StoreError, StoreFull
from busbar.store.journal.changes_decoder import decode_changes
from busbar.store.journal.changes_encoder import encode_changes
from busbar.store.journal.journal import SEGMENT_SIZE, SegmentedJournal
from busbar.store.journal.pending import ANY_NUMBER, Pending
from busbar.store.journal.pending_reads import answer
from busbar.store.journal.segment_names import segments_of
from busbar.store.sqlite.file import Need
from busbar.store.sqlite.store import SqliteStore

MAX_PENDING = 8 * 1024 * 1024
"""Bytes: more are moved before the next commit."""
BEYOND_CONTENTS = 1024 * 1024
"""Bytes: what the record of a few messages has at most beside their contents, and far more."""
MAX_JOURNAL = 8 * SEGMENT_SIZE
"""Bytes: a longer journal is moved and checkpointed, so that recovery is bounded."""
TRY_AGAIN = 64
"""Commits that go to SQLite directly before a journal is tried again."""


class JournalStore:
    """A store in the file `path`, with a journal beside it. Nothing is opened before `claim`."""

    def __init__(self, path: Path, segment_size: int = SEGMENT_SIZE) -> None:
        self._path = path
        self._segment_size = segment_size
        self._sqlite = SqliteStore(path)
        self._journal: SegmentedJournal | None = None
        self._pending = Pending()
        self._applied = 0
        self._last: dict[int, int] = {}  # the highest number of each fragment; what is not here is not known
        self._checkpoints = 0
        self._direct = 0  # commits that go to SQLite directly
        self._closed = ""

    # Ownership

    def claim(self) -> int:
        if self._journal is not None:
            return self._sqlite.claim()
        if not self._path.exists() and (left := segments_of(self._path)):
            raise StoreError(
                f"{self._path} is missing, but its journal {left[0].name} is there: put it back, or move the journal away"
            )
        epoch = self._sqlite.claim()
        journal = SegmentedJournal(self._path, self._segment_size)
        try:
            self._recover(journal, epoch)
        except BaseException:
            journal.close()
            self._sqlite.close()
            raise
        return epoch

    def _recover(self, journal: SegmentedJournal, epoch: int) -> None:
        state = self._sqlite.journal_state()
        self._pending.clear()
        self._applied = state.applied
        self._checkpoints = self._sqlite.checkpoints
        for record in journal.recover(state, epoch):
            self._pending.add(decode_changes(record.body), self._last)
            if self._pending.bytes() > MAX_PENDING:
                self._apply(record.sequence)
        self._journal = journal
        try:
            self._move()
            self._last = {head.fragment: head.last for head in self._sqlite.heads()}
        except BaseException:
            self._journal = None
            raise

    def release(self) -> None:
        journal = self._journal
        if journal is not None:
            try:
                self._end_journal()
            except StoreError:
                self.close()  # nothing is lost: the journal has it
                return
            self._journal = None
            journal.close()
        self._sqlite.release()

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            self._closed = f"{self._path} is closed: open it again"
        self._sqlite.close()

    def _owned(self) -> SegmentedJournal:
        if self._journal is None:
            if self._closed:
                raise OutcomeUnknown(self._closed)
            self._sqlite.heads([])  # raises the reason
            raise StoreError(f"{self._path} is not claimed")
        return self._journal

    # Commits

    def commit(self, batches: Sequence[Changes]) -> None:
        journal = self._owned()
        self._check_numbers(batches)
        if self._direct or not self._append(journal, batches):
            self._commit_directly(batches)
        for changes in batches:
            fragment, head = int(changes.fragment), changes.head
            if head is None and fragment not in self._last:
                continue
            last = max(self._last.get(fragment, 0), 0 if head is None else int(head.last))
            for records in changes.puts.values():
                if records:
                    last = max(last, max([int(record.n) for record in records]))
            self._last[fragment] = last

    def _append(self, journal: SegmentedJournal, batches: Sequence[Changes]) -> bool:
        """Commit to the journal. False if there is no space for it: then there is no journal any more."""
        if self._pending.bytes() > MAX_PENDING or journal.size > MAX_JOURNAL:
            self._make_room()
            if self._direct:
                return False
        try:
            if not journal.is_begun:
                self._begin_journal(journal)
            journal.append(encode_changes(batches))
            self._sqlite.check_in_place()
        except StoreFull:
            self._end_journal()
            self._direct = TRY_AGAIN
            return False
        except OutcomeUnknown as failure:
            self._break(failure)
            raise
        self._pending.add(batches, self._last)
        return True

    def _begin_journal(self, journal: SegmentedJournal) -> None:
        drawn = secrets.token_bytes(16)
        journal.begin(drawn)
        self._sqlite.begin_journal(drawn)

    def _commit_directly(self, batches: Sequence[Changes]) -> None:
        self._sqlite.commit(batches)
        if self._direct > 1 or not self._sqlite.is_short_of_space:
            self._direct -= 1

    def _end_journal(self) -> None:
        """Have everything in SQLite, durably, and no journal."""
        journal = self._owned()
        self._move()
        if journal.is_begun:
            self._sqlite.end_journal()
            journal.end()

    def commits_at_once(self, batches: Sequence[Changes]) -> bool:
        journal = self._journal
        if journal is None or self._direct:
            return False
        if self._pending.bytes() > MAX_PENDING or journal.size > MAX_JOURNAL:
            return False  # it would be moved first
        size = min(BEYOND_CONTENTS, self._segment_size // 4)
        for changes in batches:
            size += int(changes.bytes)
            last = self._last.get(int(changes.fragment), ANY_NUMBER)
            for records in changes.puts.values():
                for record in records:
                    if record.n <= last:
                        return False  # SQLite would be asked for it
        return journal.has_room(size)

    def _check_numbers(self, batches: Sequence[Changes]) -> None:
        for changes in batches:
            last = self._last.get(int(changes.fragment), ANY_NUMBER)
            for lane, records in changes.puts.items():
                for record in records:
                    if record.n <= last and self._is_there(int(changes.fragment), lane, int(record.n)):
                        self.close()
                        raise OutcomeUnknown(f"{self._path}: the number {record.n} was given twice")

    def _is_there(self, fragment: int, lane: int, n: int) -> bool:
        return self._pending.contains(fragment, lane, n) or self._sqlite.contains(fragment, lane, n)

    def _break(self, failure: OutcomeUnknown) -> None:
        """Use nothing of this handle any more."""
        self.close()
        self._closed = str(failure)

    # Moves

    def _make_room(self) -> None:
        self._move()
        if self._owned().size > MAX_JOURNAL:
            with contextlib.suppress(StoreFull):  # of SQLite's file: the journal goes on
                self._sqlite.checkpoint()
                self._free()

    def _move(self) -> None:
        """Write what is pending to SQLite."""
        journal = self._owned()
        if self._pending.is_empty():
            return
        self._apply(journal.last)
        if self._sqlite.is_short_of_space:
            self._sqlite.end_journal()
            journal.end()
            self._direct = TRY_AGAIN
        else:
            journal.prepare()

    def _apply(self, sequence: int) -> None:
        groups = self._pending.groups()
        try:
            self._sqlite.apply(groups, sequence, Need.ADDS)
        except StoreFull:
            if self._journal is not None:
                self._journal.drop_spares()
            self._sqlite.apply(groups, sequence, Need.FREES)
        self._pending.clear()
        if self._journal is not None:
            self._free()  # up to the move before: a checkpoint comes before the transaction
        self._applied = sequence

    def _free(self) -> None:
        """Give segments back whose records a checkpoint has made durable in SQLite."""
        if self._sqlite.checkpoints != self._checkpoints:
            self._checkpoints = self._sqlite.checkpoints
            self._owned().free(self._applied)

    def _moved(self) -> SqliteStore:
        """SQLite, with everything in it."""
        self._owned()
        self._move()
        return self._sqlite

    def _settled(self, fragment: int) -> SqliteStore:
        """SQLite, with everything of a fragment in it."""
        self._owned()
        if self._pending.has(fragment):
            self._move()
        return self._sqlite

    # What SQLite answers and writes

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        self._owned()
        heads = {int(head.fragment): head for head in self._sqlite.heads(only)}
        for fragment, head in self._pending.heads().items():
            if only is None or fragment in only:
                heads[fragment] = head
        return [heads[fragment] for fragment in sorted(heads)]

    def create(self, fragment: int) -> None:
        self._moved().create(fragment)

    def drop(self, fragment: int, limit: int) -> bool:
        return self._moved().drop(fragment, limit)

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        self.read_all([(fragment, reads)])

    def read_all(self, jobs: Sequence[tuple[int, Sequence[Read]]]) -> None:
        self._owned()
        for fragment, reads in jobs:
            left = self._unanswered(fragment, reads)
            if left:
                self._settled(fragment).read(fragment, left)

    def _unanswered(self, fragment: int, reads: Sequence[Read]) -> Sequence[Read]:
        """Answer what can be answered without a move. Returns the other reads."""
        net = self._pending.net(fragment)
        if net is None:
            return reads
        return [read for read in reads if not answer(net, self._sqlite.read, read)]

    def next_due(self, fragment: int) -> int:
        return self._settled(fragment).next_due(fragment)

    def id_segments(self, fragment: int) -> list[int]:
        return self._settled(fragment).id_segments(fragment)

    def taps(self, fragment: int) -> list[TapRow]:
        return self._settled(fragment).taps(fragment)

    def writers(self, fragment: int) -> dict[str, tuple[int, int]]:
        return self._settled(fragment).writers(fragment)

    def outbox(self, fragment: int) -> dict[int, OutboxRow]:
        return self._settled(fragment).outbox(fragment)

    def holds(self, fragment: int) -> list[SessionHold]:
        return self._settled(fragment).holds(fragment)

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        self._moved().save_locks(fragment, locks)

    def take_locks(self, fragment: int) -> list[Lock]:
        return self._moved().take_locks(fragment)

    def definitions(self) -> dict[str, bytes]:
        self._owned()
        return self._sqlite.definitions()

    def write_definitions(self, rows: dict[str, bytes | None]) -> None:
        self._moved().write_definitions(rows)
