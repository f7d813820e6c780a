"""A fragment of the memory store: its content, how a commit changes it, and how reads find it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from busbar.fragment.changes import Changes, Head, MessageEdit, OutboxRow, TapRow, state_size
from busbar.fragment.reads import (
    Read,
    ReadByNumber,
    ReadDue,
    ReadEvents,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadKept,
    ReadOutbox,
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
from busbar.model.message import ACTIVE, KEPT, KEPT_DEAD, LANES, OUTBOX, SCHEDULED, Record
from busbar.store.contract import StoreError


class Lane:
    """The messages of one lane: by number, and the numbers in order."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.order: list[int] = []

    def put(self, record: Record) -> None:
        self.records[record.n] = record
        insort(self.order, record.n)

    def take(self, n: int) -> Record | None:
        record = self.records.pop(n, None)
        if record is not None:
            del self.order[bisect_left(self.order, n)]
        return record

    def between(self, after: int, upto: int) -> list[Record]:
        first, last = bisect_right(self.order, after), bisect_right(self.order, upto)
        return [self.records[n] for n in self.order[first:last]]


@dataclass(slots=True)
class MemoryFragment:
    head: Head
    lanes: list[Lane] = field(default_factory=lambda: [Lane() for _ in range(LANES)])
    due: list[tuple[int, int]] = field(default_factory=list)
    locks: list[tuple[int, int, int, int]] = field(default_factory=list)  # lane, n, nonce, until
    ids: dict[tuple[int, bytes], tuple[int, int]] = field(default_factory=dict)  # segment, id: time, n
    id_order: list[tuple[int, bytes]] = field(default_factory=list)
    sessions: dict[str, tuple[int, int]] = field(default_factory=dict)  # turn, active messages
    states: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # when it was set
    holds: dict[str, tuple[str, int]] = field(default_factory=dict)  # by session: holder, until
    outbox: dict[int, OutboxRow] = field(default_factory=dict)  # by target
    taps: dict[int, TapRow] = field(default_factory=dict)
    events: list[MessageEvent] = field(default_factory=list)  # in the order of their positions
    written: dict[str, dict[bytes, int]] = field(default_factory=dict)  # by writer: id, batch
    writers: dict[str, tuple[int, int]] = field(default_factory=dict)  # batch, when it was committed

    # Commits

    def perform(self, changes: Changes) -> None:
        for lane, records in changes.puts.items():
            for record in records:
                self.put(lane, record)
        for edit in changes.edits:
            found = self.take(edit.lane, edit.n)
            if found is not None:
                self.put(edit.to, self.edited(found, edit))
        for keep in changes.keeps:
            for n in keep.numbers:
                found = self.take(keep.lane, n)
                if found is not None:
                    self.put(keep.to, found)
        for lane, numbers in changes.deletes.items():
            for n in numbers:
                self.take(lane, n)
        if changes.ids_upto is not None:
            self.forget_first_ids(bisect_right(self.id_order, changes.ids_upto))
        for row in changes.ids:
            self._remember(*row)
        for id, change in changes.sessions.items():
            turn, active = self.sessions.pop(id, (change.turn, 0))
            if active + change.active > 0:
                self.sessions[id] = (change.turn if change.moved else turn, active + change.active)
        for id, (at, state) in changes.states.items():
            self.states.pop(id, None)
            if state is not None:
                self.states[id] = (at, state)
        for id, hold in changes.holds.items():
            self.holds.pop(id, None)
            if hold is not None:
                self.holds[id] = (hold.holder, hold.until)
        for target, moved in changes.outbox.items():
            self._count_target(target, moved.path, moved.count)
        self._perform_for_taps(changes)
        self._perform_for_writers(changes)
        if changes.head is not None:
            self.head = changes.head.copy()

    def _count_target(self, target: int, path: str, more: int) -> None:
        path, count = self.outbox.pop(target, (path, 0))
        if count + more > 0:
            self.outbox[target] = (path, count + more)

    def _perform_for_taps(self, changes: Changes) -> None:
        for key, row in changes.taps.items():
            if row is None:
                self.taps.pop(key, None)
            else:
                self.taps[key] = row.copy()
        self.events += changes.events
        if changes.events_upto > 0:
            del self.events[: bisect_right(self.events, changes.events_upto, key=_position)]

    def _perform_for_writers(self, changes: Changes) -> None:
        for writer, batch, id in changes.written:
            self.written.setdefault(writer, {})[id] = batch
        for writer, committed in changes.writers.items():
            if committed is None:
                self.writers.pop(writer, None)
                self.written.pop(writer, None)
            else:
                self.writers[writer] = committed
                ids = self.written.pop(writer, {})
                left = {id: batch for id, batch in ids.items() if batch >= committed[0]}
                if left:
                    self.written[writer] = left

    def put(self, lane: int, record: Record) -> None:
        self.lanes[lane].put(record)
        if lane == SCHEDULED:
            insort(self.due, (record.due, record.n))

    def take(self, lane: int, n: int) -> Record | None:
        record = self.lanes[lane].take(n)
        if record is not None and lane == SCHEDULED:
            del self.due[bisect_left(self.due, (record.due, n))]
        return record

    def edited(self, record: Record, edit: MessageEdit) -> Record:
        return edit.edited(record)

    def _remember(self, segment: int, id: bytes, at: int, n: int) -> None:
        if (segment, id) not in self.ids:
            insort(self.id_order, (segment, id))
        self.ids[segment, id] = (at, n)

    def forget_first_ids(self, count: int) -> None:
        for key in self.id_order[:count]:
            del self.ids[key]
        del self.id_order[:count]

    def drop(self, limit: int) -> bool:
        """Delete a slice; the counters stay correct. True when nothing is left."""
        for lane in range(LANES):
            for n in self.lanes[lane].order[:limit]:
                record = self.take(lane, n)
                assert record is not None
                self.head.counts[lane] -= 1
                if lane == OUTBOX:
                    self._count_target(record.target, "", -1)
                if lane in (KEPT, KEPT_DEAD):
                    self.head.kept_size -= record.size
                    self.head.kept_dead_size -= record.size if lane == KEPT_DEAD else 0
                else:
                    self.head.size -= record.size
                limit -= 1
        if any(lane.order for lane in self.lanes):
            return False
        forgotten = min(limit, len(self.ids))
        self.forget_first_ids(forgotten)
        self.head.ids = max(0, self.head.ids - forgotten)
        limit -= forgotten
        if self.ids:
            return False
        for id in sorted(self.states)[:limit]:
            self.head.size -= state_size(id, self.states.pop(id)[1])
        for id in sorted(self.sessions)[:limit]:
            del self.sessions[id]
        if self.states or self.sessions:
            return False
        events = min(limit, len(self.events))
        del self.events[:events]
        self.head.events = max(0, self.head.events - events)
        written = [(writer, id) for writer, ids in self.written.items() for id in ids]
        for writer, known in written[:limit]:
            del self.written[writer][known]
        return not self.events and not any(self.written.values())

    # Reads

    def read(self, read: Read) -> None:
        if isinstance(read, ReadPage):
            lane = self.lanes[read.lane]
            numbers = lane.order[bisect_left(lane.order, read.start) :]
            if read.session is not None:
                numbers = [n for n in numbers if lane.records[n].session_id == read.session]
            numbers = numbers[: read.limit]
            read.records = _up_to(read.max_bytes, (lane.records[n] for n in numbers))
            read.complete = len(read.records) == len(numbers) < read.limit
        elif isinstance(read, ReadByNumber):
            lane = self.lanes[read.lane]
            read.records = [lane.records[n] for n in sorted(set(read.numbers)) if n in lane.records]
        elif isinstance(read, ReadDue):
            self._read_due(read)
        elif isinstance(read, ReadIds):
            read.found = {}
            for segment in sorted(read.segments):
                for id in read.ids:
                    if (segment, id) in self.ids:
                        read.found[id] = self.ids[segment, id]
        elif isinstance(read, ReadIdPage):
            keys = self.id_order[bisect_right(self.id_order, (read.segment, read.after)) :][: read.limit]
            read.rows = [(*key, *self.ids[key]) for key in keys]
        elif isinstance(read, ReadWaitingSessions | ReadExpiry | ReadSession | ReadSessionIds):
            self._read_sessions(read)
        elif isinstance(read, ReadSpan | ReadTapPage | ReadKept | ReadEvents | ReadTime):
            self._read_for_taps(read)
        elif isinstance(read, ReadOutbox):
            waiting = [r for r in self.lanes[OUTBOX].between(read.after, 1 << 62) if r.target == read.target]
            read.records = _up_to(read.max_bytes, waiting[: read.limit])
        elif isinstance(read, ReadWritten):
            known = self.written.get(read.writer, {})
            read.found = {id for id in read.ids if id in known}
        else:
            raise StoreError(f"no store knows the read {type(read).__name__}")

    def _read_due(self, read: ReadDue) -> None:
        records = self.lanes[SCHEDULED].records
        upto = bisect_left(self.due, (read.until + 1, -1))
        read.records = _up_to(read.max_bytes, (records[n] for _, n in self.due[:upto][: read.limit]))
        read.next_due = self.due[len(read.records)][0] if len(read.records) < len(self.due) else 0

    def _read_sessions(self, read: ReadWaitingSessions | ReadExpiry | ReadSession | ReadSessionIds) -> None:
        if isinstance(read, ReadWaitingSessions):
            line = sorted((turn, id) for id, (turn, _) in self.sessions.items() if turn > read.after)
            read.rows = [
                (id, turn, next(iter(self._expiries(id)), (0, 0))[0]) for turn, id in line[: read.limit]
            ]
        elif isinstance(read, ReadExpiry):
            read.rows = self._expiries(read.session)[: read.limit]
        elif isinstance(read, ReadSession):
            state = self.states.get(read.session)
            read.size = -1 if state is None else state_size(read.session, state[1])
            read.state = None if state is None or not read.with_state else state[1]
        else:
            since, after = read.updated_after, read.after
            ids = {id for id, (at, _) in self.states.items() if at > since}
            ids |= set() if since else self.sessions.keys()
            read.ids = sorted(id for id in ids if after is None or id > after)[: read.top]

    def _expiries(self, session: str) -> list[tuple[int, int]]:
        active = self.lanes[ACTIVE].records.values()
        return sorted((r.enqueued + r.ttl, r.n) for r in active if r.session_id == session and r.ttl > 0)

    def _read_for_taps(self, read: ReadSpan | ReadTapPage | ReadKept | ReadEvents | ReadTime) -> None:
        if isinstance(read, ReadSpan):
            span = self._span(read.lanes, read.by_dead, read.after, read.upto)
            read.records = _up_to(read.max_bytes, (record for record, _ in span[: read.limit]))
            read.complete = len(read.records) == len(span)
        elif isinstance(read, ReadTapPage):
            packed = self._span(read.lanes, read.by_dead, read.after, read.upto)
            read.complete = all(read.packing.add(record, lane) for record, lane in packed)
        elif isinstance(read, ReadKept):
            kept = self._span([read.lane], read.lane == KEPT_DEAD, 0, read.upto)[: read.limit]
            read.rows = [(r.n, r.dead_letter_number, r.size, r.enqueued) for r, _ in kept]
        elif isinstance(read, ReadEvents):
            first = bisect_right(self.events, read.after, key=_position)
            last = bisect_right(self.events, read.upto, key=_position)
            read.events = self.events[first:last][: read.limit]
        else:
            before = [
                (record.dead_letter_number if read.by_dead else record.n)
                for lane in read.lanes
                for record in self.lanes[lane].records.values()
                if record.enqueued < read.before
            ]
            read.position = max(before, default=0)

    def _span(self, lanes: list[int], by_dead: bool, after: int, upto: int) -> list[tuple[Record, int]]:
        """Messages in the order of positions, with the lane of each."""
        if not by_dead:
            span = [(record, lane) for lane in lanes for record in self.lanes[lane].between(after, upto)]
            return sorted(span, key=_number)
        dead = [(record, lane) for lane in lanes for record in self.lanes[lane].records.values()]
        return sorted(
            ((r, lane) for r, lane in dead if r.dead_letter_number and after < r.dead_letter_number <= upto),
            key=_dead,
        )


def _position(event: MessageEvent) -> int:
    return event.at


def _number(pair: tuple[Record, int]) -> int:
    return pair[0].n


def _dead(pair: tuple[Record, int]) -> int:
    return pair[0].dead_letter_number


def _up_to(max_bytes: int, records: Iterable[Record]) -> list[Record]:
    """The first records that fit, but at least one."""
    page: list[Record] = []
    total = 0
    for record in records:
        total += record.size
        if page and total > max_bytes:
            break
        page.append(record)
    return page
