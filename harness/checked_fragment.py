"""A fragment of the store in memory that checks each commit for what a real store relies on.

Numbers are put once and in rising order, edits and deletes find their message, and the counters of the head are those of the
messages that are really there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from busbar.fragment.changes import OVERHEAD, Changes, Head, MessageEdit, state_size
from busbar.fragment.reads import Read, ReadIds, ReadWritten
from busbar.model.message import ACTIVE, KEPT, KEPT_DEAD, MAX_HOPS, OUTBOX, SCHEDULED, Record, overlay_size
from harness.memory_fragment import MemoryFragment


@dataclass
class CheckedFragment(MemoryFragment):
    """Finds each message that is edited, kept or deleted, and each edit as it should be."""

    buried: dict[int, int] = field(default_factory=dict)
    """By Record.dead_letter_number the number: all that ever were (a real store forgets)."""
    _ever_put: set[int] = field(default_factory=set)
    writes_ahead: ClassVar[bool] = False
    """Of express entities: the last number of the head is above those that were given."""

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

    def read(self, read: Read) -> None:
        if isinstance(read, ReadIds):
            assert read.segments and read.ids, "nothing is asked for nothing"
        elif isinstance(read, ReadWritten):
            assert read.ids, "nothing is asked for nothing"
        super().read(read)

    def perform(self, changes: Changes) -> None:
        assert changes.head is not None
        if changes.weight or self.writes_ahead:
            self._check_messages(changes, changes.head)
            self._check_sessions(changes, changes.head)
            self._check_taps(changes, changes.head)
            self._check_writers(changes)
        else:
            self._check_creation(changes)
        super().perform(changes)
        self._check_counters()
        self._check_session_counts()
        self._check_outbox()

    def _check_creation(self, changes: Changes) -> None:
        """Only what creates a fragment touches no message."""
        assert self.head.last == 0 and not any(lane.order for lane in self.lanes)
        assert not (changes.puts or changes.edits or changes.deletes or changes.events or changes.ids)

    def _check_messages(self, changes: Changes, head: Head) -> None:
        for lane, records in changes.puts.items():
            numbers = [record.n for record in records]
            assert numbers == sorted(set(numbers)), "numbers rise"
            for record in records:
                # A number that was reserved is lower than others that were given since.
                assert lane == SCHEDULED or self.head.last < record.n or self.writes_ahead
                assert record.n <= head.last and record.n not in self._ever_put, "a number is given once"
                self._ever_put.add(record.n)
                assert record.content is not None
                assert (record.kind != 0) == (record.target != 0) == (lane == OUTBOX)
                assert 0 <= record.hops <= MAX_HOPS
        assert all(OUTBOX not in (edit.lane, edit.to) for edit in changes.edits)
        assert all(edit.dead <= head.last_dead for edit in changes.edits)
        assert all(keep.to in (KEPT, KEPT_DEAD) for keep in changes.keeps)
        assert all(len(id) == 16 for _, id, _, _ in changes.ids)

    def _check_sessions(self, changes: Changes, head: Head) -> None:
        assert self.head.turn <= head.turn
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
        known = {(writer, id) for writer, ids in self.written.items() for id in ids}
        for writer, _, id in changes.written:
            assert len(id) == 16 and (writer, id) not in known, "an id is remembered once"
            known.add((writer, id))
        for writer, committed in changes.writers.items():
            if committed is None:
                assert writer in self.writers
            else:
                assert self.writers.get(writer, (-1, 0))[0] <= committed[0]

    def _check_counters(self) -> None:
        head, lanes = self.head, [lane.records for lane in self.lanes]
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
        assert {writer for writer, ids in self.written.items() if ids} <= set(self.writers)

    def _check_outbox(self) -> None:
        waiting = Counter(record.target for record in self.lanes[OUTBOX].records.values())
        assert {target: count for target, (_, count) in self.outbox.items()} == waiting
        assert all(path for path, _ in self.outbox.values())

    def _check_session_counts(self) -> None:
        counted: dict[str, int] = {}
        for record in self.lanes[ACTIVE].records.values():
            if record.session_id is not None:
                counted[record.session_id] = counted.get(record.session_id, 0) + 1
        assert {id: active for id, (_, active) in self.sessions.items()} == counted
        turns = [turn for turn, _ in self.sessions.values()]
        assert len(set(turns)) == len(turns) and all(turns), "a turn is given once"
