"""The thread of a store in virtual time, and what can happen to the store of a simulated broker.

Work is done as by the real one: in its order, and given up when it hangs. Only that it takes virtual time, part of it
before the work is done and part of it until that is reported. If the process dies in between, the work is done and its
result is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from random import Random

from busbar.broker.store_thread import PostedWork, StoreThread
from busbar.store.contract import StoreError
from harness.memory_store import Disk, Fault, MemoryStore


@dataclass(slots=True)
class SimulatedDisk:
    """What is durable of one store, and how its disk behaves."""

    random: Random
    latency: float
    """At most so many seconds pass before work is done, and as many until it is reported."""
    disk: Disk = field(default_factory=Disk)
    hang: float = 0.0
    """The next work takes so many seconds more."""
    refuses: int = 0
    """So many times it cannot be opened."""
    store: MemoryStore | None = None
    """The handle of its owner."""

    def open(self) -> MemoryStore:
        if self.refuses:
            self.refuses -= 1
            raise StoreError("the store cannot be opened (injected)")
        self.store = MemoryStore(self.disk)
        return self.store

    def fail_next_commit(self, fault: Fault) -> None:
        if self.store is not None:
            self.store.fail_next_commit(fault)

    def fail_after(self, calls: int) -> None:
        """Let the handle of its owner break after so many calls."""
        if self.store is not None:
            self.store.break_after(calls)

    def heal(self) -> None:
        """Fail no more."""
        self.hang, self.refuses = 0.0, 0
        if self.store is not None:
            self.store.forget_faults()

    def take_delays(self) -> tuple[float, float]:
        """Before the next work is done, and after it. A disk that hangs does so before or after."""
        hang, self.hang = self.hang, 0.0
        before, after = self.random.random() * self.latency, self.random.random() * self.latency
        return (before + hang, after) if self.random.random() < 0.5 else (before, after + hang)


class SimulatedStoreThread(StoreThread):
    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, patience: float, disk: SimulatedDisk
    ) -> None:
        self._disk = disk
        self._given: deque[PostedWork | None] = deque()
        self._is_working = False
        super().__init__(name, loop, patience)

    def _start(self, name: str) -> None:
        """There is no thread."""

    async def stop(self) -> bool:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        return not self._waiting

    def _give(self, job: PostedWork | None) -> None:
        self._given.append(job)
        if not self._is_working:
            self._begin()

    def _take_back(self) -> list[PostedWork | None]:
        taken_back, self._given = [*self._given], deque()
        return taken_back

    def _begin(self) -> None:
        job = self._given.popleft() if self._given else None
        self._is_working = job is not None
        if job is not None:
            before, after = self._disk.take_delays()
            self._loop.call_later(before, self._do, job, after)

    def _do(self, job: PostedWork, after: float) -> None:
        result: object = None
        error: BaseException | None = None
        try:
            result = job.work()
        except Exception as raised:
            error = raised
        self._loop.call_later(after, self._report, job, result, error)

    def _report(self, job: PostedWork, result: object, error: BaseException | None) -> None:
        self._begin()
        self._finished(job, result, error)
