"""A fragment's counters, and the changes gathered since the host last took them.

Rules
- Every kept message counts in exactly one lane; `head` is what the store will hold once all changes are
  made.
- Numbers are given in rising order and never again. The numbers given since the changes were opened start
  at `_first`, so a message with such a number was put by the very changes that are open.
- A message put and deleted by the same changes is written by neither: it leaves no trace but the last
  number. One that is put and kept for taps by the same changes is put where it is kept.
- Kept messages are not in `size`, which is what a quota is held against, but in `kept_size`.
- Of an express entity, new messages gather in `unwritten` (unwritten.py), where what becomes of them is done at once. Every
  other change sets `must_write`: it is durable before its effects. Numbers up to `_limit` are not given again after a crash,
  because a commit has written a higher last number than was given (NUMBERS_AHEAD). A number beyond it must be written, too.
- Ended locks are noted in the changes that end them, so that an undo can restore them. An end that changes nothing durable
  (a release) is noted only if changes are open. If it is undone without a note, it stays a release, which is harmless.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.changes import (
    Changes,
    Head,
    IdRow,
    Keep,
    Lock,
    MessageEdit,
    OutboxChange,
    SessionChange,
    SessionHold,
    TapRow,
)
from busbar.fragment.unwritten import Unwritten
from busbar.model.effects import MessageEvent
from busbar.model.message import ACTIVE, DEAD, KEPT, KEPT_DEAD, Overlay, Record

NUMBERS_AHEAD: Final = 1 << 20
"""So many numbers an express fragment gives between two commits. After a crash, those that were not given are skipped."""


@final
class Ledger:
    def __init__(self, head: Head) -> None:
        self.head = head.copy()
        self._changes: Changes | None = None
        self._first: i64 = 0
        self._cancelled: set[int] = set()
        self._kept: dict[
            int, tuple[int, int]
        ] = {}  # put by the open changes and kept: from which lane to which
        self.is_express = False
        self.unwritten = Unwritten(head.last)
        self._must_write = False
        self._limit = head.last

    def _open(self) -> Changes:
        changes = self._changes
        if changes is None:
            changes = Changes(self.head.fragment)
            self._changes = changes
            self._first = self.head.last + 1
        return changes

    def note_copies(self) -> None:
        """Note that contents of the open changes may be those of other fragments, too: they are written once then."""
        changes = self._changes
        if changes is not None:
            changes.has_copies = True

    def put(self, lane: i64, records: list[Record], size: i64) -> None:
        """Add messages with new numbers, ascending; `given` must be called with the last one afterwards."""
        if not records:
            return
        changes = self._open()
        count = len(records)
        if self.is_express and lane in (ACTIVE, DEAD):
            self.unwritten.put(lane, records)
        else:
            self._must_write = True
            present = changes.puts.get(lane)
            if present is None:
                changes.puts[lane] = records
            else:
                present.extend(records)
            changes.bytes += size
        changes.weight += count
        head = self.head
        head.counts[lane] += count
        head.size += size

    def given(self, last: i64) -> None:
        """Numbers up to `last` are taken."""
        self.head.last = last

    def passed_on(self, count: i64) -> None:
        """Numbers were given to messages that are kept elsewhere, or will come later."""
        self._open().weight += count

    def edit(
        self, lane: i64, record: Record, to: i64, deliveries: i64, overlay: Overlay | None, dead: i64
    ) -> None:
        """Edit a message. The difference that its new properties make counts in the size of the entity."""
        changes = self._open()
        size = record.size_with(overlay)
        n: int = record.n
        changes.weight += 1
        if n in self.unwritten.records:
            changed = record.changed(deliveries, overlay)
            changed.dead_letter_number = dead
            self.unwritten.edit(n, to, changed)
        else:
            self._must_write = True
            changes.edits.append(MessageEdit(lane, n, to, deliveries, overlay, dead, size))
        if size != record.size:
            self.head.size += size - record.size
            if size > record.size:
                changes.bytes += size - record.size
        if lane != to:
            counts = self.head.counts
            counts[lane] -= 1
            counts[to] += 1

    def delete(self, lane: i64, numbers: list[int], size: i64) -> None:
        """Remove messages of a lane that have `size` bytes in all."""
        if not numbers:
            return
        changes = self._open()
        head = self.head
        gone = numbers
        if self.unwritten.records:
            gone = self.unwritten.drop(numbers)
        if gone:
            self._must_write = True
        if gone and head.last >= self._first:
            first: int = self._first
            written, gone = gone, []
            for n in written:
                if n >= first:
                    self._cancelled.add(n)
                else:
                    gone.append(n)
        present = changes.deletes.get(lane)
        if present is None:
            changes.deletes[lane] = list(gone)
        else:
            present.extend(gone)
        count = len(numbers)
        changes.weight += count
        head.counts[lane] -= count
        if lane == KEPT:
            head.kept_size -= size
        elif lane == KEPT_DEAD:
            head.kept_size -= size
            head.kept_dead_size -= size
        else:
            head.size -= size

    # ---- taps ----

    def keep(self, lane: i64, to: i64, numbers: list[int], size: i64) -> None:
        """Move messages of a lane that have `size` bytes in all to KEPT or KEPT_DEAD."""
        if not numbers:
            return
        changes = self._open()
        head = self.head
        stored = numbers
        if self.unwritten.records:
            stored = self.unwritten.move(to, numbers)
        if stored:
            self._must_write = True
        if stored and head.last >= self._first:
            first: int = self._first
            written, stored = stored, []
            for n in written:
                if n >= first:
                    self._kept[n] = (lane, to)
                else:
                    stored.append(n)
        if stored:
            _add(changes.keeps, lane, to, stored)
        count = len(numbers)
        changes.weight += count
        head.counts[lane] -= count
        head.counts[to] += count
        if lane != KEPT:
            head.size -= size
            head.kept_size += size
        if to == KEPT_DEAD:
            head.kept_dead_size += size

    def next_dead(self) -> i64:
        """The number of the next dead letter. The edit that buries it must follow."""
        self.head.last_dead += 1
        return self.head.last_dead

    def set_tap(self, row: TapRow) -> None:
        """Write the row as it is when the changes are taken."""
        self._must_write = True
        changes = self._open()
        changes.taps[row.id] = row
        changes.weight += 1

    def drop_tap(self, id: i64) -> None:
        self._must_write = True
        changes = self._open()
        changes.taps[id] = None
        changes.weight += 1

    def record(self, n: i64, outcome: i64, now: i64, enqueued: i64, deliveries: i64, reason: str) -> None:
        """Add an event, with the next position."""
        self._must_write = True
        changes = self._open()
        head = self.head
        head.last_event += 1
        head.events += 1
        changes.events.append(MessageEvent(head.last_event, n, outcome, now, enqueued, deliveries, reason))
        changes.weight += 1

    def skip_event(self) -> i64:
        """Give a position to an event that is not written."""
        self._must_write = True
        self._open().weight += 1
        self.head.last_event += 1
        return self.head.last_event

    def forget_events(self, upto: i64, count: i64) -> None:
        """Forget the first events, `count` of them, up to this position."""
        self._must_write = True
        changes = self._open()
        changes.events_upto = upto
        changes.weight += count
        self.head.events -= count

    # ---- ids ----

    def written(self, writer: str, batch: i64, ids: list[bytes]) -> None:
        """Add ids that a writer has sent."""
        self._must_write = True
        changes = self._open()
        number: int = batch
        for id in ids:
            changes.written.append((writer, number, id))
        changes.weight += len(ids)

    def set_writer(self, writer: str, batch: i64, at: i64) -> None:
        self._must_write = True
        changes = self._open()
        changes.writers[writer] = (batch, at)
        changes.weight += 1

    def drop_writer(self, writer: str) -> None:
        self._must_write = True
        changes = self._open()
        changes.writers[writer] = None
        changes.weight += 1

    def remember(self, ids: list[IdRow]) -> None:
        """Add ids of messages that the open changes put."""
        if ids:
            self._must_write = True
            self._open().ids += ids
            self.head.ids += len(ids)

    def forget_ids(self, upto: tuple[int, bytes], count: i64) -> None:
        """Forget the lowest ids, `count` of them, up to this segment and id."""
        self._must_write = True
        changes = self._open()
        changes.ids_upto = upto
        changes.weight += count
        self.head.ids -= count
        if self.head.ids < 0:
            self.head.ids = 0

    # ---- sessions ----

    def _session(self, id: str) -> SessionChange:
        sessions = self._open().sessions
        change = sessions.get(id)
        if change is None:
            change = SessionChange()
            sessions[id] = change
        return change

    def into_session(self, id: str, waits: bool) -> i64:
        """Count one more active message of a session. Returns the turn that the session gets if it had none.

        `waits`: no consumer holds it, and it is not known to be in the line. If the same changes deleted messages of it, the
        store may still have its row. Then the row is moved to the new turn.
        """
        change = self._session(id)
        if waits and change.active < 0:
            change.moved = True
        change.active += 1
        if waits or change.turn == 0:
            self.head.turn += 1
            change.turn = self.head.turn
        return change.turn

    def out_of_session(self, id: str) -> None:
        """Count one active message of a session less."""
        self._session(id).active -= 1

    def move_session(self, id: str) -> i64:
        """Move a session to the end of the line, if it has active messages. Returns its turn."""
        change = self._session(id)
        self.head.turn += 1
        change.turn = self.head.turn
        change.moved = True
        self._open().weight += 1
        return change.turn

    def set_state(self, id: str, at: i64, state: bytes | None, more: i64) -> None:
        """Set a session's state; `more` is how many bytes more than before are kept."""
        self._must_write = True
        changes = self._open()
        changes.states[id] = (at, state)
        changes.weight += 1
        if state is not None:
            changes.bytes += len(state)
        self.head.size += more

    def set_hold(self, session: str, holder: str, until: i64) -> None:
        """Write the lock of a session."""
        self._must_write = True
        changes = self._open()
        changes.holds[session] = SessionHold(session, holder, until)
        changes.weight += 1

    def drop_hold(self, session: str) -> None:
        self._must_write = True
        changes = self._open()
        changes.holds[session] = None
        changes.weight += 1

    # ---- the outbox ----

    def count_outbox(self, target: i64, path: str, more: i64) -> None:
        """Count so many records more, or fewer, for a target."""
        self._must_write = True
        outbox = self._open().outbox
        change = outbox.get(target)
        if change is None:
            change = OutboxChange(path)
            outbox[target] = change
        change.count += more

    # ---- ended locks, and taking the changes ----

    def note_unlocked(self, locks: list[Lock]) -> None:
        changes = self._changes
        if changes is not None:
            changes.unlocked.append(locks)

    def change_count(self) -> i64:
        changes = self._changes
        return 0 if changes is None else changes.weight

    # ---- express entities ----

    def must_write(self) -> bool:
        """Whether the open changes must be durable before the effects that follow from them."""
        return self._must_write or not self.is_express or self.head.last > self._limit

    def require_write(self) -> None:
        self._must_write = True

    def acknowledge(self) -> None:
        """Note that effects are performed before the open changes are durable. They are not undone any more."""
        self.unwritten.acknowledge(self.head.last)
        changes = self._changes
        if changes is not None:
            changes.unlocked = []
            changes.bytes = 0
            changes.weight = len(self.unwritten.records) + len(changes.sessions)

    def is_written(self, changes: Changes) -> None:
        """Note that changes which were taken before are durable."""
        if changes.head is not None and changes.head.last > self._limit:
            self._limit = changes.head.last

    def restore(self, messages: list[tuple[int, Record]]) -> None:
        """Take back acknowledged messages whose commit has failed. All rows of the store are without them."""
        changes = self._open()
        head = self.head
        for lane, record in messages:
            self.unwritten.put(lane, [record])
            head.counts[lane] += 1
            if lane in (KEPT, KEPT_DEAD):
                head.kept_size += record.size
                if lane == KEPT_DEAD:
                    head.kept_dead_size += record.size
            else:
                head.size += record.size
            if lane == ACTIVE and record.session_id is not None:
                self.into_session(record.session_id, True)
            if record.dead_letter_number > head.last_dead:
                head.last_dead = record.dead_letter_number
        changes.weight += len(messages)

    def _put_unwritten(self, changes: Changes) -> None:
        """Put what only memory has."""
        changes.acknowledged = self.unwritten.acknowledged()
        mixed = set(changes.puts)
        for lane, record in self.unwritten.records.values():
            changes.puts.setdefault(lane, []).append(record)
        for lane in mixed:
            changes.puts[lane].sort(key=_number_of)
        self.unwritten = Unwritten(self.head.last)

    def take(self) -> Changes | None:
        changes = self._changes
        if changes is None:
            return None
        if self.is_express or not self.unwritten.is_empty():
            self._put_unwritten(changes)
        self._must_write = False
        cancelled = self._cancelled
        if cancelled:
            for lane in list(changes.puts):
                changes.puts[lane] = [r for r in changes.puts[lane] if r.n not in cancelled]
            changes.edits = [edit for edit in changes.edits if edit.n not in cancelled]
            self._cancelled = set()
        if self._kept:
            _put_where_kept(changes, self._kept)
            self._kept = {}
        if changes.taps:
            for id, row in list(changes.taps.items()):
                if row is not None:
                    changes.taps[id] = row.copy()
        if changes.events_upto > 0 and changes.events:
            changes.events = [event for event in changes.events if event.at > changes.events_upto]
        changes.head = self.head.copy()
        if self.is_express or changes.acknowledged:
            changes.head.last += NUMBERS_AHEAD
        elif changes.head.last < self._limit:
            self._limit = changes.head.last  # the entity is not express any more, and may be again
        self._changes = None
        return changes


def _number_of(record: Record) -> int:
    return record.n


def _add(keeps: list[Keep], lane: i64, to: i64, numbers: list[int]) -> None:
    if keeps and keeps[-1].lane == lane and keeps[-1].to == to:
        keeps[-1].numbers += numbers
    else:
        keeps.append(Keep(lane, to, list(numbers)))


def _put_where_kept(changes: Changes, kept: dict[int, tuple[int, int]]) -> None:
    """Put messages that the same changes keep where they are kept. One that was edited in between is moved by the store."""
    edited: set[int] = set()
    for edit in changes.edits:
        n: int = edit.n
        if n in kept and n not in edited:
            edited.add(n)
            lane, to = kept[n]
            _add(changes.keeps, lane, to, [n])
    for put_in in list(changes.puts):
        stay: list[Record] = []
        for record in changes.puts[put_in]:
            number: int = record.n
            if number in kept and number not in edited:
                changes.puts.setdefault(kept[number][1], []).append(record)
            else:
                stay.append(record)
        changes.puts[put_in] = stay
