"""A store in a few lines, to drive the machine in tests: what it says is true by being obvious.

It checks what a real store relies on: numbers are put once and in rising order, edits and deletes find their
message, and the counters of the head are those of the messages that are really there.
"""

from __future__ import annotations

import copy

from busbar.fragment.changes import OVERHEAD, Changes, Head, Lock, TapRow, empty_head, state_size
from busbar.fragment.reads import (
    Read,
    ReadByNumber,
    ReadDue,
    ReadEvents,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadKept,
    ReadPage,
    ReadSession,
    ReadSessionIds,
    ReadSpan,
    ReadTapPage,
    ReadTime,
    ReadWaitingSessions,
    ReadWritten,
)
from busbar.model.effects import MessageEvent
from busbar.model.message import ACTIVE, KEPT, KEPT_DEAD, LANES, SCHEDULED, Record, overlay_size


class ReferenceStore:
    def __init__(self, fragment: int = 1) -> None:
        self.lanes: list[dict[int, Record]] = [{} for _ in range(LANES)]
        self.head: Head = empty_head(fragment)
        self.ids: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.sessions: dict[str, tuple[int, int]] = {}  # turn, active messages
        self.states: dict[str, tuple[int, bytes]] = {}
        self.taps: dict[int, TapRow] = {}
        self.events: dict[int, MessageEvent] = {}  # by position
        self.written: dict[tuple[str, bytes], int] = {}  # writer and id: batch
        self.writers: dict[str, tuple[int, int]] = {}
        self.buried: dict[
            int, int
        ] = {}  # by Record.dead the number: all that ever were (a real store forgets)

    def snapshot(self) -> ReferenceStore:
        other = ReferenceStore(self.head.fragment)
        other.lanes = [copy.copy(lane) for lane in self.lanes]
        other.head = self.head.copy()
        other.ids = dict(self.ids)
        other.sessions = dict(self.sessions)
        other.states = dict(self.states)
        other.taps = dict(self.taps)
        other.events = dict(self.events)
        other.written = dict(self.written)
        other.writers = dict(self.writers)
        other.buried = dict(self.buried)
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
            if edit.dead and not old.dead_letter_number:
                self.buried[edit.dead] = edit.n
            assert edit.dead == old.dead_letter_number or (
                old.dead_letter_number == 0 < edit.dead <= changes.head.last_dead
            )
            edited = old.changed(edit.deliveries, edit.overlay)
            edited.dead_letter_number = edit.dead
            assert (
                edit.size
                == edited.size
                == OVERHEAD + len(edited.content or b"") + overlay_size(edited.overlay)
            )
            self.lanes[edit.to][edit.n] = edited
        for keep in changes.keeps:
            assert keep.to in (KEPT, KEPT_DEAD)
            for n in keep.numbers:
                self.lanes[keep.to][n] = self.lanes[keep.lane].pop(n)
        for lane, gone in changes.deletes.items():
            for n in gone:
                del self.lanes[lane][n]
        if changes.ids_upto is not None:
            for key in [key for key in self.ids if key <= changes.ids_upto]:
                del self.ids[key]
        for shelf, id, at, n in changes.ids:
            assert len(id) == 16
            self.ids[shelf, id] = (at, n)
        self._commit_sessions(changes)
        self._commit_taps(changes)
        self._commit_writers(changes)
        assert self.head.turn <= changes.head.turn
        self.head = changes.head.copy()
        assert self.head.ids == len(self.ids)
        assert self.head.counts == [len(lane) for lane in self.lanes]
        states = sum(state_size(id, state) for id, (_, state) in self.states.items())
        sizes = [sum(record.size for record in lane.values()) for lane in self.lanes]
        assert self.head.kept_dead_size == sizes[KEPT_DEAD]
        assert self.head.kept_size == sizes[KEPT] + sizes[KEPT_DEAD]
        assert self.head.size == states + sum(sizes) - self.head.kept_size
        dead = [
            record.dead_letter_number
            for lane in self.lanes
            for record in lane.values()
            if record.dead_letter_number
        ]
        assert len(set(dead)) == len(dead), "a number is given to one dead letter"
        assert self.head.events == len(self.events)

    def _commit_taps(self, changes: Changes) -> None:
        assert changes.head is not None
        assert self.head.last_dead <= changes.head.last_dead
        assert self.head.last_event <= changes.head.last_event
        for event in changes.events:
            assert self.head.last_event < event.at <= changes.head.last_event
            assert event.at > changes.events_upto, "nothing is written that goes at once"
            assert event.at not in self.events
            self.events[event.at] = event
        for at in [at for at in self.events if at <= changes.events_upto]:
            del self.events[at]
        for id, row in changes.taps.items():
            if row is None:
                self.taps.pop(id, None)  # it may have come and gone in one group
            else:
                old = self.taps.get(id)
                if old is not None:
                    assert old.position <= row.position and old.lost <= row.lost
                    assert old.event_position <= row.event_position and old.event_lost <= row.event_lost
                self.taps[id] = row

    def _commit_writers(self, changes: Changes) -> None:
        for writer, batch, id in changes.written:
            assert len(id) == 16 and (writer, id) not in self.written, "an id is remembered once"
            self.written[writer, id] = batch
        for writer, committed in changes.writers.items():
            if committed is None:
                del self.writers[writer]
            else:
                assert self.writers.get(writer, (-1, 0))[0] <= committed[0]
                self.writers[writer] = committed
            upto = 1 << 62 if committed is None else committed[0]
            for key in [key for key, b in self.written.items() if key[0] == writer and b < upto]:
                del self.written[key]
        assert {writer for writer, _ in self.written} <= set(self.writers)

    def _commit_sessions(self, changes: Changes) -> None:
        for id, change in changes.sessions.items():
            turn, active = self.sessions.pop(id, (change.turn, 0))
            if active + change.active:
                self.sessions[id] = (change.turn if change.moved else turn, active + change.active)
        for id, (at, state) in changes.states.items():
            self.states.pop(id, None)
            if state is not None:
                self.states[id] = (at, state)
        counted: dict[str, int] = {}
        for record in self.lanes[ACTIVE].values():
            if record.session_id is not None:
                counted[record.session_id] = counted.get(record.session_id, 0) + 1
        assert {id: active for id, (_, active) in self.sessions.items()} == counted
        turns = [turn for turn, _ in self.sessions.values()]
        assert len(set(turns)) == len(turns) and all(turns), "a turn is given once"

    def _read_session(self, read: Read) -> None:
        if isinstance(read, ReadWaitingSessions):
            line = sorted((turn, id) for id, (turn, _) in self.sessions.items() if turn > read.after)
            read.rows = [
                (id, turn, min(self.expiries(id), default=(0, 0))[0]) for turn, id in line[: read.limit]
            ]
        elif isinstance(read, ReadExpiry):
            read.rows = sorted(self.expiries(read.session))[: read.limit]
        elif isinstance(read, ReadSession):
            at_state = self.states.get(read.session)
            read.size = -1 if at_state is None else state_size(read.session, at_state[1])
            read.state = at_state[1] if at_state is not None and read.with_state else None
        else:
            assert isinstance(read, ReadSessionIds)
            ids = {id for id, (at, _) in self.states.items() if at > read.updated_after}
            if not read.updated_after:
                ids |= set(self.sessions)
            read.ids = sorted(id for id in ids if read.after is None or id > read.after)[: read.top]

    def expiries(self, session: str) -> list[tuple[int, int]]:
        records = self.lanes[ACTIVE].values()
        return [(r.enqueued + r.ttl, r.n) for r in records if r.session_id == session and r.ttl]

    def read(self, reads: list[Read]) -> None:
        for read in reads:
            if isinstance(read, ReadPage):
                lane = self.lanes[read.lane]
                there = [lane[n] for n in sorted(lane) if n >= read.start]
                if read.session is not None:
                    there = [record for record in there if record.session_id == read.session]
                read.records = self._cut(there, read)
                read.complete = read.session is not None and len(read.records) == len(there) < read.limit
            elif isinstance(read, ReadByNumber):
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
            elif isinstance(read, ReadWaitingSessions | ReadExpiry | ReadSession | ReadSessionIds):
                self._read_session(read)
            elif isinstance(read, ReadSpan | ReadTapPage | ReadKept | ReadTime | ReadEvents | ReadWritten):
                self._read_for_taps(read)
            else:
                assert isinstance(read, ReadDue)
                scheduled = sorted(self.lanes[SCHEDULED].values(), key=lambda record: (record.due, record.n))
                read.records = self._cut([record for record in scheduled if record.due <= read.until], read)
                rest = scheduled[len(read.records) :]
                read.next_due = rest[0].due if rest else 0

    def _read_for_taps(
        self, read: ReadSpan | ReadTapPage | ReadKept | ReadTime | ReadEvents | ReadWritten
    ) -> None:
        if isinstance(read, ReadSpan | ReadTapPage):
            there = [
                (record.dead_letter_number if read.by_dead else n, lane, record)
                for lane in read.lanes
                for n, record in self.lanes[lane].items()
                if read.after < (record.dead_letter_number if read.by_dead else n) <= read.upto
            ]
            there.sort(key=lambda entry: entry[0])
            if isinstance(read, ReadTapPage):
                read.complete = all(read.packing.add(record, lane) for _, lane, record in there)
                return
            read.records = self._cut([record for _, _, record in there], read)
            read.complete = len(read.records) == len(there)
        elif isinstance(read, ReadKept):
            by_dead = read.lane == KEPT_DEAD
            kept = sorted(
                self.lanes[read.lane].values(), key=lambda r: r.dead_letter_number if by_dead else r.n
            )
            rows = [(r.n, r.dead_letter_number, r.size, r.enqueued) for r in kept]
            read.rows = [row for row in rows if (row[1] if by_dead else row[0]) <= read.upto][: read.limit]
        elif isinstance(read, ReadTime):
            read.position = max(
                (
                    record.dead_letter_number if read.by_dead else n
                    for lane in read.lanes
                    for n, record in self.lanes[lane].items()
                    if record.enqueued < read.before
                ),
                default=0,
            )
        elif isinstance(read, ReadEvents):
            span = [at for at in sorted(self.events) if read.after < at <= read.upto]
            read.events = [self.events[at] for at in span[: read.limit]]
        else:
            assert read.ids
            read.found = {id for id in read.ids if (read.writer, id) in self.written}

    def tap_rows(self) -> list[TapRow]:
        return [row.copy() for row in self.taps.values()]

    @staticmethod
    def _cut(records: list[Record], read: ReadPage | ReadDue | ReadSpan) -> list[Record]:
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
