"""A store with a journal in front of SQLite: a commit is durable when its record is synced.

The journal has every commit since `applied`, a sequence that SQLite holds. What those commits add up to is pending, in
memory. A *move* writes it to SQLite with the new `applied`, in one transaction that is not synced: the journal has it. When
SQLite has checkpointed the move, segments of the journal are free.

Rules:
1. Whatever writes to SQLite directly moves first. So does what reads of a fragment that has something pending, unless the
   read is answered from both (pending_reads.py). So answers are as if there were no journal.
2. A claim reads the journal after `applied` and moves it: the state is that after the last complete record.
3. A clean release leaves one file, without a journal.
4. If SQLite cannot take a move for lack of space, commits that only free go on; others are StoreFull.
5. A number that is put twice is OutcomeUnknown, and nothing of that commit is in the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow
from busbar.fragment.reads import Read
from busbar.store.contract import OutcomeUnknown, StoreError, StoreFull
from busbar.store.journal.changes_decoder import decode_changes
from busbar.store.journal.changes_encoder import encode_changes
from busbar.store.journal.journal import SEGMENT_SIZE, SegmentedJournal
from busbar.store.journal.pending import Pending
from busbar.store.journal.pending_reads import answer
from busbar.store.sqlite.store import SqliteStore

MAX_PENDING = 16 * 1024 * 1024
"""Bytes: more are moved before the next commit."""
BEYOND_CONTENTS = 1024 * 1024
"""Bytes: what the record of a few messages has at most beside their contents, and far more."""
MAX_JOURNAL = 8 * SEGMENT_SIZE
"""Bytes: a longer journal is moved and checkpointed, so that recovery is bounded."""


class JournalStore:
    """A store in the file `path`, with a journal beside it. Nothing is opened before `claim`."""

    def __init__(self, path: Path, segment_size: int = SEGMENT_SIZE) -> None:
        self._path = path
        self._segment_size = segment_size
        self._sqlite = SqliteStore(path)
        self._journal: SegmentedJournal | None = None
        self._pending = Pending()
        self._applied = 0
        self._last: dict[int, int] = {}  # the highest number of each fragment
        self._checkpoints = 0

    # Ownership

    def claim(self) -> int:
        if self._journal is not None:
            return self._sqlite.claim()
        epoch = self._sqlite.claim()
        try:
            store, self._applied = self._sqlite.journal_state()
            journal = SegmentedJournal(self._path, store, self._segment_size)
            self._checkpoints = self._sqlite.checkpoints
            for record in journal.open(epoch, self._applied):
                self._pending.add(decode_changes(record.body), self._last)
                if self._pending.bytes() > MAX_PENDING:
                    self._apply(record.sequence)
            self._journal = journal
            self._move()
            self._last = {head.fragment: head.last for head in self._sqlite.heads()}
        except BaseException:
            self._sqlite.close()
            raise
        return epoch

    def release(self) -> None:
        journal = self._journal
        if journal is None:
            self._sqlite.release()
            return
        try:
            self._move()
            self._sqlite.checkpoint()
        except StoreError:
            self.close()  # nothing is lost: the journal has it
            return
        self._journal = None
        self._sqlite.release()
        journal.remove()

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._sqlite.close()

    def _owned(self) -> SegmentedJournal:
        if self._journal is None:
            self._sqlite.heads([])  # raises the reason
            raise StoreError(f"{self._path} is not claimed")
        return self._journal

    # Commits

    def commit(self, batches: Sequence[Changes]) -> None:
        journal = self._owned()
        self._check_numbers(batches)
        if self._pending.bytes() > MAX_PENDING or journal.size > MAX_JOURNAL:
            self._make_room(batches)
        journal.append(encode_changes(batches))
        self._pending.add(batches, self._last)
        for changes in batches:
            fragment, head = int(changes.fragment), changes.head
            last = self._last.get(fragment, 0) if head is None else int(head.last)
            for records in changes.puts.values():
                if records:
                    last = max(last, max([int(record.n) for record in records]))
            self._last[fragment] = last

    def commits_at_once(self, batches: Sequence[Changes]) -> bool:
        journal = self._journal
        if journal is None or self._pending.bytes() > MAX_PENDING or journal.size > MAX_JOURNAL:
            return False  # it would be moved first
        size = min(BEYOND_CONTENTS, self._segment_size // 4)
        for changes in batches:
            size += int(changes.bytes)
            last = self._last.get(int(changes.fragment), 0)
            for records in changes.puts.values():
                for record in records:
                    if record.n <= last:
                        return False  # SQLite would be asked for it
        return journal.has_room(size)

    def _check_numbers(self, batches: Sequence[Changes]) -> None:
        for changes in batches:
            last = self._last.get(int(changes.fragment), 0)
            for lane, records in changes.puts.items():
                for record in records:
                    if record.n <= last and self._is_there(int(changes.fragment), lane, int(record.n)):
                        self.close()
                        raise OutcomeUnknown(f"{self._path}: the number {record.n} was given twice")

    def _is_there(self, fragment: int, lane: int, n: int) -> bool:
        return self._pending.contains(fragment, lane, n) or self._sqlite.contains(fragment, lane, n)

    def _make_room(self, batches: Sequence[Changes]) -> None:
        try:
            self._move()
            if self._owned().size > MAX_JOURNAL:
                self._sqlite.checkpoint()
                self._free()
        except StoreFull:
            if any(changes.puts or changes.states for changes in batches):
                raise

    def _move(self) -> None:
        """Write what is pending to SQLite."""
        journal = self._owned()
        if not self._pending.is_empty():
            self._apply(journal.last)
            journal.prepare()

    def _apply(self, sequence: int) -> None:
        self._sqlite.apply(self._pending.groups(), sequence)
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
