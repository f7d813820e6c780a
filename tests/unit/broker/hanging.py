"""A store in memory whose disk hangs on request, and a host with little patience on it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from busbar.fragment.changes import Changes, Lock
from busbar.fragment.reads import Read
from harness.memory_store import Disk
from tests.unit.broker.hosting import PLAIN, GatedStore, Hosting

PATIENCE = 0.15


class Hangs:
    """What of a disk hangs: names of a store's methods. Nobody else may touch the disk meanwhile."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        """Somebody waits for the disk."""
        self.faults: list[str] = []
        self._what: set[str] = set()
        self._free = threading.Event()
        self._inside = 0

    def begin(self, *what: str) -> None:
        self.reached.clear()
        self._free.clear()
        self._what = {*what}

    def end(self) -> None:
        self._what = set()
        self._free.set()

    def __call__(self, method: str) -> None:
        if self._inside:
            self.faults.append(f"{method} while another call hangs")
        if method in self._what:
            self._inside += 1
            self.reached.set()
            assert self._free.wait(30)
            self._inside -= 1


class HangingStore(GatedStore):
    def __init__(self, disk: Disk, gate: threading.Event, hangs: Hangs) -> None:
        super().__init__(disk, gate)
        self._hangs = hangs
        self.closed = False

    def claim(self) -> int:
        self._hangs("claim")
        return super().claim()

    def release(self) -> None:
        self._hangs("release")
        super().release()

    def close(self) -> None:
        self._hangs("close")
        self.closed = True
        super().close()

    def commit(self, batches: Sequence[Changes]) -> None:
        self._hangs("commit")
        super().commit(batches)
        self._hangs("sync")  # it is made, and nobody knows

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        self._hangs("read")
        super().read(fragment, reads)

    def drop(self, fragment: int, limit: int) -> bool:
        self._hangs("drop")
        return super().drop(fragment, limit)

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        self._hangs("save_locks")
        super().save_locks(fragment, locks)

    def write_definitions(self, entries: dict[str, bytes | None]) -> None:
        self._hangs("write_definitions")
        super().write_definitions(entries)


class HangingHost(Hosting):
    def __init__(self) -> None:
        super().__init__(patience=PATIENCE)
        self.hangs = Hangs()
        self.opened: list[HangingStore] = []

    def _open(self) -> HangingStore:
        self.opened.append(HangingStore(self.disk, self.gate, self.hangs))
        self.stores.append(self.opened[-1])
        return self.opened[-1]


@asynccontextmanager
async def hanging(fragments: tuple[int, ...] = (1, 2)) -> AsyncIterator[HangingHost]:
    here = HangingHost()
    await here.host.open()
    await here.host.add_fragments(dict.fromkeys(fragments, PLAIN))
    try:
        yield here
    finally:
        here.hangs.end()
        await here.host.close()
    assert here.hangs.faults == []
