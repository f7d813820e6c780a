"""One fragment of the memory store, to drive the machine in tests, which checks what a real store relies on.

Numbers are put once and in rising order, edits and deletes find their message, and the counters of the head are those of the
messages that are really there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from busbar.fragment.changes import OVERHEAD, Changes, Head, Lock, MessageEdit, TapRow, empty_head, state_size
from busbar.fragment.reads import Read, ReadIds, ReadWritten
from busbar.model.effects import MessageEvent
from busbar.model.message import (
    ACTIVE,
    KEPT,
    KEPT_DEAD,
    MAX_HOPS,
    OUTBOX,
    SCHEDULED,
    Record,
    overlay_size,
)
from harness.memory_fragment import MemoryFragment


@dataclass
class CheckedFragment(MemoryFragment):
    """Finds each message that is edited, kept or deleted, and each edit as it should be."""

    buried: dict[int, int] = field(default_factory=dict)
    """By Record.dead_letter_number the number: all that ever were (a real store forgets)."""

    def put(self, lane: int, record: Record) -> None:
        assert record.n not in self.lanes[lane].records
        super().put(lane, record)

    def take(self, lane: int, n: int) -> Record | None:
        taken = super().take(lane, n)
        assert taken is not None, f"there is no message {n} in lane {lane}"
        return taken

    def edited(self, record: Record, edit: MessageEdit) -> Record:
        changed = record.changed(edit.deliveries, edit.overlay)
        size = OVERHEAD + len(changed.content or b"") + overlay_size(changed.overlay)
        assert edit.size == changed.size == size
        if edit.dead and not record.dead_letter_number:
            self.buried[edit.dead] = edit.n
        else:
            assert edit.dead == record.dead_letter_number
        return super().edited(record, edit)


class ReferenceStore:
    def __init__(self, fragment: int = 1) -> None:
        self._fragment = CheckedFragment(empty_head(fragment))
        self._ever_put: set[int] = set()

    # What is there

    @property
    def head(self) -> Head:
        return self._fragment.head

    @property
    def lanes(self) -> list[dict[int, Record]]:
        return [lane.records for lane in self._fragment.lanes]

    @property
    def ids(self) -> dict[tuple[int, bytes], tuple[int, int]]:
        return self._fragment.ids

    @property
    def sessions(self) -> dict[str, tuple[int, int]]:
        """Turn and number of active messages."""
        return self._fragment.sessions

    @property
    def states(self) -> dict[str, tuple[int, bytes]]:
        return self._fragment.states

    @property
    def taps(self) -> dict[int, TapRow]:
        return self._fragment.taps

    @property
    def events(self) -> dict[int, MessageEvent]:
        """By position."""
        return {event.at: event for event in self._fragment.events}

    @property
    def written(self) -> dict[tuple[str, bytes], int]:
        """By writer and id the batch."""
        return {
            (writer, id): batch for writer, ids in self._fragment.written.items() for id, batch in ids.items()
        }

    @property
    def writers(self) -> dict[str, tuple[int, int]]:
        return self._fragment.writers

    @property
    def outbox(self) -> dict[int, tuple[str, int]]:
        """By target: the path and how many records there are."""
        return self._fragment.outbox

    @property
    def buried(self) -> dict[int, int]:
        return self._fragment.buried

    def tap_rows(self) -> list[TapRow]:
        return [row.copy() for row in self.taps.values()]

    def next_due(self) -> int:
        due = self._fragment.due
        return due[0][0] if due else 0

    def id_segments(self) -> list[int]:
        return sorted({segment for segment, _ in self.ids})

    def stubs(self, locks: list[Lock]) -> list[Lock]:
        """Locks as a clean shutdown keeps them and the next start finds them."""
        return [
            Lock(self.lanes[lock.lane][lock.record.n].without_content(), lock.lane, lock.nonce, lock.until)
            for lock in locks
        ]

    def read(self, reads: list[Read]) -> None:
        for read in reads:
            if isinstance(read, ReadIds):
                assert read.segments and read.ids, "nothing is asked for nothing"
            elif isinstance(read, ReadWritten):
                assert read.ids, "nothing is asked for nothing"
            self._fragment.read(read)

    # Commits

    def commit(self, changes: Changes) -> None:
        assert changes.head is not None
        assert changes.weight > 0
        self._check_messages(changes, changes.head)
        self._check_sessions(changes)
        self._check_taps(changes, changes.head)
        self._check_writers(changes)
        self._fragment.perform(changes)
        self._check_counters()
        self._check_session_counts()
        self._check_outbox()

    def _check_messages(self, changes: Changes, head: Head) -> None:
        for lane, records in changes.puts.items():
            numbers = [record.n for record in records]
            assert numbers == sorted(set(numbers)), "numbers rise"
            for record in records:
                # A number that was reserved is lower than others that were given since.
                assert lane == SCHEDULED or self.head.last < record.n
                assert record.n <= head.last and record.n not in self._ever_put, "a number is given once"
                self._ever_put.add(record.n)
                assert record.content is not None
                assert (record.kind != 0) == (record.target != 0) == (lane == OUTBOX)
                assert 0 <= record.hops <= MAX_HOPS
        assert all(OUTBOX not in (edit.lane, edit.to) for edit in changes.edits)
        assert all(edit.dead <= head.last_dead for edit in changes.edits)
        assert all(keep.to in (KEPT, KEPT_DEAD) for keep in changes.keeps)
        assert all(len(id) == 16 for _, id, _, _ in changes.ids)

    def _check_sessions(self, changes: Changes) -> None:
        assert changes.head is not None
        assert self.head.turn <= changes.head.turn
        for id, change in changes.sessions.items():
            assert self.sessions.get(id, (0, 0))[1] + change.active >= 0

    def _check_taps(self, changes: Changes, head: Head) -> None:
        assert self.head.last_dead <= head.last_dead
        assert self.head.last_event <= head.last_event
        positions = [event.at for event in changes.events]
        assert positions == sorted(set(positions)), "a position is given once, and positions rise"
        for at in positions:
            assert self.head.last_event < at <= head.last_event
            assert at > changes.events_upto, "nothing is written that goes at once"
        for id, row in changes.taps.items():
            old = self.taps.get(id)
            if row is not None and old is not None:
                assert old.position <= row.position and old.lost <= row.lost
                assert old.event_position <= row.event_position and old.event_lost <= row.event_lost

    def _check_writers(self, changes: Changes) -> None:
        known = set(self.written)
        for writer, _, id in changes.written:
            assert len(id) == 16 and (writer, id) not in known, "an id is remembered once"
            known.add((writer, id))
        for writer, committed in changes.writers.items():
            if committed is None:
                assert writer in self.writers
            else:
                assert self.writers.get(writer, (-1, 0))[0] <= committed[0]

    def _check_counters(self) -> None:
        head, lanes = self.head, self.lanes
        assert head.ids == len(self.ids)
        assert head.counts == [len(lane) for lane in lanes]
        states = sum(state_size(id, state) for id, (_, state) in self.states.items())
        sizes = [sum(record.size for record in lane.values()) for lane in lanes]
        assert head.kept_dead_size == sizes[KEPT_DEAD]
        assert head.kept_size == sizes[KEPT] + sizes[KEPT_DEAD]
        assert head.size == states + sum(sizes) - head.kept_size
        numbers = [record.dead_letter_number for lane in lanes for record in lane.values()]
        dead = [number for number in numbers if number]
        assert len(set(dead)) == len(dead), "a number is given to one dead letter"
        assert head.events == len(self.events)
        assert {writer for writer, _ in self.written} <= set(self.writers)

    def _check_outbox(self) -> None:
        waiting = Counter(record.target for record in self.lanes[OUTBOX].values())
        assert {target: count for target, (_, count) in self.outbox.items()} == waiting
        assert all(path for path, _ in self.outbox.values())

    def _check_session_counts(self) -> None:
        counted: dict[str, int] = {}
        for record in self.lanes[ACTIVE].values():
            if record.session_id is not None:
                counted[record.session_id] = counted.get(record.session_id, 0) + 1
        assert {id: active for id, (_, active) in self.sessions.items()} == counted
        turns = [turn for turn, _ in self.sessions.values()]
        assert len(set(turns)) == len(turns) and all(turns), "a turn is given once"
