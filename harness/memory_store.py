"""A store in memory, for tests and simulations. It keeps the contract of a store while the process lives.

A `MemoryStore` is a handle on a `Disk`. Several handles may be created on one disk, as several processes may open one file.
The last to claim owns it and the others are fenced. `crash()` simulates a power cut: the handle is unusable, and a new one
on the same disk finds exactly what was committed.

Faults are set in advance and happen at the next commits, once each, in the order in which they were set:

    FULL        certainly not made                -> StoreFull, and the store continues
    LOST        not made, but that is unknown     -> OutcomeUnknown, and the handle is broken
    UNHEARD     made, but that is unknown         -> OutcomeUnknown, and the handle is broken

`break_after(calls)` breaks the handle in one of its next calls, whichever it is, before that call does anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow, empty_head
from busbar.fragment.reads import Read
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull
from harness.memory_fragment import MemoryFragment


class Fault(Enum):
    FULL = auto()
    LOST = auto()
    UNHEARD = auto()


@dataclass(slots=True)
class Disk:
    """The durable state."""

    fragments: dict[int, MemoryFragment] = field(default_factory=dict)
    definitions: dict[str, bytes] = field(default_factory=dict)
    epoch: int = 0
    commits: int = 0
    fragment_class: type[MemoryFragment] = MemoryFragment

    def fragment(self, key: int) -> MemoryFragment:
        """The fragment with this id. A missing one is created."""
        return self.fragments.setdefault(key, self.fragment_class(empty_head(key)))


class MemoryStore:
    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = Disk() if disk is None else disk
        self._epoch = 0
        self._faults: deque[Fault] = deque()
        self._broken = False
        self._calls_left = -1
        self.is_broken_by_fault = False
        self.is_at_once = False
        """What `commits_at_once` returns."""

    # Faults

    def fail_next_commit(self, fault: Fault) -> None:
        self._faults.append(fault)

    def forget_faults(self) -> None:
        """Fail no more."""
        self._faults.clear()
        self._calls_left = -1

    def break_after(self, calls: int) -> None:
        """So many more calls succeed."""
        self._calls_left = calls

    def crash(self) -> MemoryStore:
        """Simulate a power cut: this handle is unusable, and the returned one has only what was committed."""
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
        if self._calls_left == 0:
            self._broken = self.is_broken_by_fault = True
            raise OutcomeUnknown("the store failed (injected)")
        self._calls_left -= 1
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
                disk.fragment(int(changes.fragment)).perform(changes)
            disk.commits += 1
        if fault is not None:
            self._broken = True
            raise OutcomeUnknown("the store failed during a commit (injected)")

    def commits_at_once(self, batches: Sequence[Changes]) -> bool:
        return self.is_at_once

    def maintain(self) -> bool:
        return False

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        here = self._owned().fragments
        asked = here if only is None else here.keys() & set(only)
        return [here[key].head.copy() for key in sorted(asked)]

    def create(self, fragment: int) -> None:
        self._owned().fragment(fragment)

    def drop(self, fragment: int, limit: int) -> bool:
        disk = self._owned()
        here = disk.fragments.get(fragment)
        if here is None:
            return True
        if not here.drop(limit):
            return False
        del disk.fragments[fragment]
        return True

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        here = self._owned().fragments.get(fragment) or MemoryFragment(empty_head(fragment))
        for read in reads:
            here.read(read)

    def read_all(self, jobs: Sequence[tuple[int, Sequence[Read]]]) -> None:
        for fragment, reads in jobs:
            self.read(fragment, reads)

    def next_due(self, fragment: int) -> int:
        here = self._owned().fragments.get(fragment)
        return here.due[0][0] if here and here.due else 0

    def id_segments(self, fragment: int) -> list[int]:
        here = self._owned().fragments.get(fragment)
        return sorted({segment for segment, _ in here.ids}) if here else []

    def taps(self, fragment: int) -> list[TapRow]:
        here = self._owned().fragments.get(fragment)
        return [row.copy() for _, row in sorted(here.taps.items())] if here else []

    def writers(self, fragment: int) -> dict[str, tuple[int, int]]:
        here = self._owned().fragments.get(fragment)
        return dict(here.writers) if here else {}

    def outbox(self, fragment: int) -> dict[int, OutboxRow]:
        here = self._owned().fragments.get(fragment)
        return dict(here.outbox) if here else {}

    def holds(self, fragment: int) -> list[SessionHold]:
        here = self._owned().fragments.get(fragment)
        return [SessionHold(id, *hold) for id, hold in sorted(here.holds.items())] if here else []

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

    # Definitions

    def definitions(self) -> dict[str, bytes]:
        return dict(self._owned().definitions)

    def write_definitions(self, rows: dict[str, bytes | None]) -> None:
        definitions = self._owned().definitions
        for name, value in rows.items():
            if value is None:
                definitions.pop(name, None)
            else:
                definitions[name] = value


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
