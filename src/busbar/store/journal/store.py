"""A store with a journal in front of SQLite: a commit is durable when its record is synced.

The journal has every commit since `applied`, a sequence that SQLite holds. What those commits add up to is pending, in
memory, in two generations (generations.py). A *move* writes the older one to SQLite, in slices, with the new `applied` in
the last one (moving.py). Its transactions are not synced: the journal has everything. When SQLite has checkpointed the
move, segments of the journal are free.

Rules:
1. Whatever writes to SQLite directly moves first. So does what reads of a fragment that has something pending, unless the
   read is answered from both (pending_reads.py). So answers are as if there were no journal.
2. A claim reads the journal after `applied` and moves it: the state is that after the last complete record.
3. A journal is begun by the first commit. A clean release ends it and leaves one file.
4. **When moves are made.** When the young generation is complete: between commits, as many rows at least as they add. And
   by `maintain`, while the store has nothing else to do. So a commit waits for a slice, and for more only if moves do not
   keep up.
5. **No space.** What is pending is acknowledged, so its move may use all reserves of SQLite, which hold MIN_PENDING. More is
   pending only while the disk has AMPLE_SPACE. If a move has used a reserve, or there is no space for another segment, the
   journal is ended. Until the reserves are filled again, commits go to SQLite directly, and its rules for a full disk hold
   (sqlite/file.py). If other programs have filled the disk so fast that the reserves do not hold what is pending, it waits
   in the journal for space. Commits that make room are still taken there.
6. A number that is put twice is OutcomeUnknown, and nothing of that commit is in the journal.
7. Before a commit returns, the paths must still name the segment and SQLite's files. Otherwise the next start would open
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
from busbar.store.disk_space import free_bytes
from busbar.store.journal.changes_decoder import decode_changes
from busbar.store.journal.changes_encoder import ChangesEncoder
from busbar.store.journal.changes_numbers import put_numbers
from busbar.store.journal.generations import Generations
from busbar.store.journal.journal import SEGMENT_SIZE, SegmentedJournal
from busbar.store.journal.moving import SLICE, GenerationMove
from busbar.store.journal.pending import ANY_NUMBER
from busbar.store.journal.pending_reads import answer
from busbar.store.journal.segment_names import segments_of
from busbar.store.sqlite.file import Need
from busbar.store.sqlite.store import SqliteStore, need_of

MAX_PENDING = 64 * 1024 * 1024
"""Bytes: more are moved before the next commit."""
MIN_PENDING = 8 * 1024 * 1024
"""Bytes: the same if the disk has little space."""
AMPLE_SPACE = 4 * MAX_PENDING
"""Bytes that a disk has free which is not short of space."""
BEYOND_CONTENTS = 1024 * 1024
"""Bytes: what the record of a few messages has at most beside their contents, and far more."""
GENERATIONS = 3
"""Young, aging, and being moved."""
GENERATION_JOURNAL = 2 * SEGMENT_SIZE
"""Bytes of its records. So a journal whose messages are all completed becomes free, too."""
IDLE_LOG = 128
"""Pages: an idle store checkpoints a longer log."""
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
        self._encoder = ChangesEncoder()
        self._pending = Generations()
        self._generation_journal = 0  # bytes of the records of the young generation
        self._applied = 0
        self._last: dict[int, int] = {}  # the highest number of each fragment; what is not here is not known
        self._checkpoints = 0
        self._direct = 0  # commits that go to SQLite directly
        self._max_pending = MIN_PENDING
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
        if state.is_moving:
            self._sqlite.undo_slices()
        self._pending = Generations()
        self._look_for_space()
        self._applied = state.applied
        self._checkpoints = self._sqlite.checkpoints
        records = journal.recover(state, epoch)
        self._journal = journal
        try:
            for record in records:
                self._pending.add(decode_changes(record.body), self._last)
                if self._pending.bytes() > self._max_pending:
                    self._move_all(record.sequence)
            self._moved()
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
            self._last[fragment] = max(last, put_numbers(changes)[1])

    def _append(self, journal: SegmentedJournal, batches: Sequence[Changes]) -> bool:
        """Commit to the journal. False if there is no space for it: then there is no journal any more."""
        try:
            self._keep_up(journal, batches)
        except StoreFull:
            if need_of(batches) is Need.ADDS:
                raise
        if self._direct:
            return False
        body = self._encoder.encode(batches)
        try:
            if not journal.is_begun:
                self._begin_journal(journal)
            journal.append(body)
            self._sqlite.check_in_place()
        except StoreFull:
            self._end_journal()
            self._direct = TRY_AGAIN
            return False
        except OutcomeUnknown as failure:
            self._break(failure)
            raise
        self._pending.add(batches, self._last)
        self._generation_journal += len(body)
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
        self._move_all(journal.last)
        if journal.is_begun:
            self._sqlite.end_journal()
            journal.end()

    def commits_at_once(self, batches: Sequence[Changes]) -> bool:
        journal = self._journal
        if journal is None or self._direct or self._pending.move is not None or self._has_grown(journal):
            return False  # there is something to be moved first
        if journal.needs_segment:
            return False
        size = min(BEYOND_CONTENTS, self._segment_size // 4)
        for changes in batches:
            size += int(changes.bytes)
            last = self._last.get(int(changes.fragment), ANY_NUMBER)
            if changes.puts and put_numbers(changes)[0] <= last:
                return False  # SQLite would be asked for it
        return journal.has_room(size)

    def _check_numbers(self, batches: Sequence[Changes]) -> None:
        for changes in batches:
            last = self._last.get(int(changes.fragment), ANY_NUMBER)
            if put_numbers(changes)[0] > last:
                continue
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

    def maintain(self) -> bool:
        journal, pending = self._owned(), self._pending
        with contextlib.suppress(StoreFull):  # a commit reports it
            if pending.move is not None:
                self._step(pending.move)
            elif not pending.is_empty():
                self._rotate(journal.last)
            elif journal.is_long or self._sqlite.log_reaches(IDLE_LOG):
                self._checkpoint()
            if pending.move is None:
                journal.prepare()
            self._end_if_short()
        return pending.move is not None

    def _keep_up(self, journal: SegmentedJournal, batches: Sequence[Changes]) -> None:
        """Move what has to be moved before another commit."""
        pending = self._pending
        if pending.move is not None:
            for _ in range(1 + sum(_rows(changes) for changes in batches) // SLICE):
                if pending.move is not None:
                    self._step(pending.move)
        if self._has_grown(journal):
            self._finish()
            self._rotate(journal.last)
        journal.prepare()
        if pending.bytes() > self._max_pending or journal.size > MAX_JOURNAL:
            self._move_all(journal.last)
            if journal.size > MAX_JOURNAL:
                with contextlib.suppress(StoreFull):  # of SQLite's file: the journal goes on
                    self._checkpoint()
        self._end_if_short()

    def _has_grown(self, journal: SegmentedJournal) -> bool:
        """Whether the young generation is complete."""
        return (
            self._pending.young.bytes() > self._max_pending // GENERATIONS
            or self._generation_journal > GENERATION_JOURNAL
            or journal.size > MAX_JOURNAL
        )

    def _end_if_short(self) -> None:
        """End the journal if a move has used a reserve."""
        if self._sqlite.is_short_of_space and not self._direct:
            self._end_journal()
            self._direct = TRY_AGAIN

    def _rotate(self, sequence: int) -> None:
        self._pending.rotate(sequence)
        self._generation_journal = 0
        self._look_for_space()

    def _look_for_space(self) -> None:
        is_ample = free_bytes(self._path.parent) >= AMPLE_SPACE
        self._max_pending = MAX_PENDING if is_ample else MIN_PENDING

    def _move_all(self, sequence: int) -> None:
        """Write everything that is pending, up to the record with this sequence, to SQLite."""
        self._finish()
        while not self._pending.is_empty():
            self._rotate(sequence)
            self._finish()

    def _finish(self) -> None:
        """Finish the move that is under way."""
        while self._pending.move is not None:
            self._step(self._pending.move)

    def _step(self, move: GenerationMove) -> None:
        try:
            is_last = move.step(self._sqlite, Need.ADDS)
        except StoreFull:
            self._owned().drop_spares()
            is_last = move.step(self._sqlite, Need.FREES)
        self._free()  # up to the move before: a checkpoint comes before the transaction
        if is_last:
            self._applied = move.sequence
            self._pending.move = None

    def _free(self) -> None:
        """Give segments back whose records a checkpoint has made durable in SQLite."""
        if self._sqlite.checkpoints != self._checkpoints:
            self._checkpoints = self._sqlite.checkpoints
            self._owned().free(self._applied)

    def _checkpoint(self) -> None:
        self._sqlite.checkpoint()
        self._free()

    def _moved(self) -> SqliteStore:
        """SQLite, with everything in it."""
        journal = self._owned()
        if not self._pending.is_empty():
            self._move_all(journal.last)
            self._end_if_short()
        return self._sqlite

    def _settled(self, fragment: int) -> SqliteStore:
        """SQLite, with everything of a fragment in it."""
        self._owned()
        return self._moved() if self._pending.has(fragment) else self._sqlite

    # Backups

    def freeze(self) -> None:
        """Have everything in SQLite's file, as after a clean stop, and leave that file as it is until `thaw`. Commits go on:
        they are in another journal."""
        self._end_journal()
        self._sqlite.freeze()
        self._checkpoints = self._sqlite.checkpoints

    def thaw(self) -> bool:
        """Let the file change again; whether it stayed as it was."""
        return self._sqlite.thaw()

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
        nets = self._pending.nets(fragment)
        if not nets:
            return reads
        return [read for read in reads if not answer(nets, self._sqlite.read, read)]

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


def _rows(changes: Changes) -> int:
    """About how many rows of SQLite a commit concerns."""
    rows = len(changes.edits) + len(changes.ids)
    for records in changes.puts.values():
        rows += len(records)
    for numbers in changes.deletes.values():
        rows += len(numbers)
    return rows
