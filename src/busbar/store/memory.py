"""A store in memory, for tests and simulations. What it promises it keeps, except that the process must live.

A `MemoryStore` is a handle on a `Disk`. Several handles may be made on one disk, as several processes may open one
file; the last to claim owns it and the others are fenced. `crash()` is what a power cut does: the handle is gone, and
a new one on the same disk finds exactly what was committed.

Faults are asked for in advance and happen at the next commit, once each, in the order they were asked for:

    FULL        certainly not made           -> StoreFull, and the store goes on
    LOST        not made, but nobody knows   -> OutcomeUnknown, and the handle is broken
    UNHEARD     made, but nobody knows       -> OutcomeUnknown, and the handle is broken
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from busbar.fragment.changes import Changes, Head, Lock, empty_head
from busbar.fragment.reads import (
    Read,
    ReadDue,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadLine,
    ReadMany,
    ReadPage,
    ReadSession,
    ReadSessionIds,
)
from busbar.model.message import ACTIVE, LANES, SCHEDULED, Record
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull


class Fault(Enum):
    FULL = auto()
    LOST = auto()
    UNHEARD = auto()


class _Lane:
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


@dataclass(slots=True)
class _Fragment:
    head: Head
    lanes: list[_Lane] = field(default_factory=lambda: [_Lane() for _ in range(LANES)])
    due: list[tuple[int, int]] = field(default_factory=list)
    locks: list[tuple[int, int, int, int]] = field(default_factory=list)  # lane, n, nonce, until
    ids: dict[tuple[int, bytes], tuple[int, int]] = field(default_factory=dict)  # shelf, id: time, n
    id_order: list[tuple[int, bytes]] = field(default_factory=list)
    sessions: dict[str, tuple[int, int]] = field(default_factory=dict)  # turn, active messages
    states: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # when it was set

    def put(self, lane: int, record: Record) -> None:
        self.lanes[lane].put(record)
        if lane == SCHEDULED:
            insort(self.due, (record.due, record.n))

    def take(self, lane: int, n: int) -> Record | None:
        record = self.lanes[lane].take(n)
        if record is not None and lane == SCHEDULED:
            del self.due[bisect_left(self.due, (record.due, n))]
        return record

    def remember(self, shelf: int, id: bytes, at: int, n: int) -> None:
        if (shelf, id) not in self.ids:
            insort(self.id_order, (shelf, id))
        self.ids[shelf, id] = (at, n)

    def forget_first_ids(self, count: int) -> None:
        for key in self.id_order[:count]:
            del self.ids[key]
        del self.id_order[:count]


@dataclass(slots=True)
class Disk:
    """What is durable."""

    fragments: dict[int, _Fragment] = field(default_factory=dict)
    catalogue: dict[str, bytes] = field(default_factory=dict)
    epoch: int = 0
    commits: int = 0


class MemoryStore:
    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = Disk() if disk is None else disk
        self._epoch = 0
        self._faults: deque[Fault] = deque()
        self._broken = False

    # Faults

    def fail_next_commit(self, fault: Fault) -> None:
        self._faults.append(fault)

    def crash(self) -> MemoryStore:
        """The power goes: this handle is dead, the new one knows what was committed and nothing else."""
        self._broken = True
        return MemoryStore(self.disk)

    # Ownership

    def claim(self) -> int:
        if self._broken:
            raise OutcomeUnknown("the store is closed: open it again")
        self.disk.epoch += 1
        self._epoch = self.disk.epoch
        return self._epoch

    def release(self) -> None:
        self._epoch = 0

    def close(self) -> None:
        self._broken = True

    def _owned(self) -> Disk:
        if self._broken:
            raise OutcomeUnknown("the store is closed: open it again")
        if not self._epoch:
            raise StoreError("the store is not claimed")
        if self._epoch != self.disk.epoch:
            raise Fenced(f"epoch {self._epoch} has passed: the store is at {self.disk.epoch}")
        return self.disk

    # Messages

    def commit(self, batches: Sequence[Changes]) -> None:
        disk = self._owned()
        fault = self._faults.popleft() if self._faults else None
        if fault is Fault.FULL:
            raise StoreFull("no space is left in the store (injected)")
        twice = _given_twice(disk, batches)
        if twice is not None:
            self._broken = True
            raise OutcomeUnknown(f"the number {twice} was given twice")
        if fault is not Fault.LOST:
            for changes in batches:
                _perform(disk, changes)
            disk.commits += 1
        if fault is not None:
            self._broken = True
            raise OutcomeUnknown("the store failed during a commit (injected)")

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        here = self._owned().fragments
        asked = here if only is None else here.keys() & set(only)
        return [here[key].head.copy() for key in sorted(asked)]

    def create(self, fragment: int) -> None:
        self._owned().fragments.setdefault(fragment, _Fragment(empty_head(fragment)))

    def drop(self, fragment: int, limit: int) -> bool:
        disk = self._owned()
        here = disk.fragments.get(fragment)
        if here is None:
            return True
        for lane in range(LANES):
            for n in here.lanes[lane].order[:limit]:
                record = here.take(lane, n)
                assert record is not None
                here.head.counts[lane] -= 1
                here.head.size -= record.size
                limit -= 1
        if any(lane.order for lane in here.lanes):
            return False
        forgotten = min(limit, len(here.ids))
        here.forget_first_ids(forgotten)
        here.head.ids = max(0, here.head.ids - forgotten)
        if here.ids:
            return False
        for id in sorted(here.states)[: limit - forgotten]:
            here.head.size -= len(here.states.pop(id)[1])
        for id in sorted(here.sessions)[: limit - forgotten]:
            del here.sessions[id]
        if here.states or here.sessions:
            return False
        del disk.fragments[fragment]
        return True

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        here = self._owned().fragments.get(fragment) or _Fragment(empty_head(fragment))
        for read in reads:
            if isinstance(read, ReadPage):
                lane = here.lanes[read.lane]
                numbers = lane.order[bisect_left(lane.order, read.start) :]
                if read.session is not None:
                    numbers = [n for n in numbers if lane.records[n].session_id == read.session]
                numbers = numbers[: read.limit]
                read.records = _up_to(read.max_bytes, (lane.records[n] for n in numbers))
                read.complete = len(read.records) == len(numbers) < read.limit
            elif isinstance(read, ReadMany):
                lane = here.lanes[read.lane]
                read.records = [lane.records[n] for n in sorted(set(read.numbers)) if n in lane.records]
            elif isinstance(read, ReadDue):
                _read_due(here, read)
            elif isinstance(read, ReadIds):
                read.found = {}
                for shelf in sorted(read.shelves):
                    for id in read.ids:
                        if (shelf, id) in here.ids:
                            read.found[id] = here.ids[shelf, id]
            elif isinstance(read, ReadIdPage):
                keys = here.id_order[bisect_right(here.id_order, (read.shelf, read.after)) :][: read.limit]
                read.rows = [(*key, *here.ids[key]) for key in keys]
            elif isinstance(read, ReadLine | ReadExpiry | ReadSession | ReadSessionIds):
                _read_sessions(here, read)
            else:
                raise StoreError(f"no store knows the read {type(read).__name__}")

    def next_due(self, fragment: int) -> int:
        here = self._owned().fragments.get(fragment)
        return here.due[0][0] if here and here.due else 0

    def shelves(self, fragment: int) -> list[int]:
        here = self._owned().fragments.get(fragment)
        return sorted({shelf for shelf, _ in here.ids}) if here else []

    # Locks over a clean shutdown

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        disk = self._owned()
        self.create(fragment)
        kept = [(int(k.lane), int(k.record.n), int(k.nonce), int(k.until)) for k in locks]
        disk.fragments[fragment].locks = kept

    def take_locks(self, fragment: int) -> list[Lock]:
        here = self._owned().fragments.get(fragment)
        if here is None:
            return []
        kept, here.locks = sorted(here.locks), []
        return [
            Lock(record.without_content(), lane, nonce, until)
            for lane, n, nonce, until in kept
            if (record := here.lanes[lane].records.get(n)) is not None
        ]

    # Catalogue

    def catalogue(self) -> dict[str, bytes]:
        return dict(self._owned().catalogue)

    def write_catalogue(self, entries: dict[str, bytes | None]) -> None:
        catalogue = self._owned().catalogue
        for name, definition in entries.items():
            if definition is None:
                catalogue.pop(name, None)
            else:
                catalogue[name] = definition


def _given_twice(disk: Disk, batches: Sequence[Changes]) -> int | None:
    for changes in batches:
        here = disk.fragments.get(changes.fragment)
        if here is None:
            continue
        for lane, records in changes.puts.items():
            for record in records:
                if record.n in here.lanes[lane].records:
                    return record.n
    return None


def _perform(disk: Disk, changes: Changes) -> None:
    here = disk.fragments.get(changes.fragment)
    if here is None:
        here = disk.fragments[changes.fragment] = _Fragment(empty_head(changes.fragment))
    for lane, records in changes.puts.items():
        for record in records:
            here.put(lane, record)
    for edit in changes.edits:
        moved = here.take(edit.lane, edit.n)
        if moved is not None:
            here.put(edit.to, moved.changed(edit.deliveries, edit.overlay))
    for lane, numbers in changes.deletes.items():
        for n in numbers:
            here.take(lane, n)
    if changes.ids_upto is not None:
        here.forget_first_ids(bisect_right(here.id_order, changes.ids_upto))
    for row in changes.ids:
        here.remember(*row)
    for id, change in changes.sessions.items():
        turn, active = here.sessions.pop(id, (change.turn, 0))
        if active + change.active > 0:
            here.sessions[id] = (change.turn if change.moved else turn, active + change.active)
    for id, (at, state) in changes.states.items():
        here.states.pop(id, None)
        if state is not None:
            here.states[id] = (at, state)
    if changes.head is not None:
        here.head = changes.head.copy()


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


def _read_due(here: _Fragment, read: ReadDue) -> None:
    records = here.lanes[SCHEDULED].records
    upto = bisect_left(here.due, (read.until + 1, -1))
    read.records = _up_to(read.max_bytes, (records[n] for _, n in here.due[:upto][: read.limit]))
    read.next_due = here.due[len(read.records)][0] if len(read.records) < len(here.due) else 0


def _read_sessions(here: _Fragment, read: ReadLine | ReadExpiry | ReadSession | ReadSessionIds) -> None:
    if isinstance(read, ReadLine):
        line = sorted((turn, id) for id, (turn, _) in here.sessions.items() if turn > read.after)
        read.rows = [
            (id, turn, next(iter(_expiries(here, id)), (0, 0))[0]) for turn, id in line[: read.limit]
        ]
    elif isinstance(read, ReadExpiry):
        read.rows = _expiries(here, read.session)[: read.limit]
    elif isinstance(read, ReadSession):
        state = here.states.get(read.session)
        read.size = -1 if state is None else len(state[1])
        read.state = None if state is None or not read.with_state else state[1]
    else:
        after = read.updated_after
        ids = {id for id, (at, _) in here.states.items() if at > after}
        ids |= set() if after else here.sessions.keys()
        read.ids = sorted(ids)[read.skip :][: read.top]


def _expiries(here: _Fragment, session: str) -> list[tuple[int, int]]:
    active = here.lanes[ACTIVE].records.values()
    return sorted((r.enqueued + r.ttl, r.n) for r in active if r.session_id == session and r.ttl > 0)
