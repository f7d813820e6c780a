"""One thread for each messaging store: it alone touches the store, and it does its work strictly in order.

Rules:
1. Work is done first in, first out; a piece of work sees all that earlier pieces did.
2. The outcome of a piece comes back to the event loop by exactly one `call_soon_threadsafe`, in the same order.
3. Whatever a piece of work raises is an outcome, never the end of the thread.
4. A piece that does not return within the patience hangs: the disk does not answer. It is abandoned: its outcome is
   StoreHung, once, also if it returns later. Work that was posted behind it is taken back and certainly never done.
   Patience is counted in looks of a running event loop: after a process was stopped for a while, nothing counts as hanging.
5. While an abandoned piece has not returned, the thread hangs. No other thread may touch the store in its place. Work is
   refused at once, unless it may wait HOWEVER_LONG that takes. `returned` is called when the thread no longer hangs.
6. A thread that hangs keeps no process from ending: it is a daemon, and what it was doing is then as after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from busbar.broker.refusals import StoreHung

PATIENCE = 5.0
LOOKS = 4
"""In each patience. One more is needed to be sure, since a piece may have begun just before the first."""
LONG = 4
"""So many patiences for what may take longer on a slow disk: opening a file, with a log to recover."""
HOWEVER_LONG = 0
"""For work on a store that is known to be unavailable, which no client waits for."""
SHORTEST_PATIENCE = 0.05

T = TypeVar("T")

Work = Callable[[], object]
Done = Callable[[object, BaseException | None], None]


class PostedWork:
    """A piece of work that was given to the thread."""

    __slots__ = ("done", "is_abandoned", "looks", "unwanted", "work")

    def __init__(
        self, work: Work, done: Done, looks: int, unwanted: Callable[[Any], object] | None = None
    ) -> None:
        self.work = work
        self.done = done
        self.looks = looks  # after which it hangs; HOWEVER_LONG: never
        self.unwanted = unwanted
        self.is_abandoned = False


class StoreThread:
    """The thread of one store."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, patience: float = PATIENCE) -> None:
        self.returned: Callable[[], None] = lambda: None
        """Called when what hung has returned."""
        self.patience = max(patience, SHORTEST_PATIENCE)
        self._loop = loop
        self._jobs: SimpleQueue[PostedWork | None] = SimpleQueue()
        self._waiting: deque[PostedWork] = deque()  # not returned yet; the first is under way
        self._looks = 0  # at the first, in vain
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self.hung_at = 0.0
        """When the last piece was abandoned, by the time of the loop."""
        self._start(name)

    @property
    def hangs(self) -> bool:
        """Whether the call under way was abandoned and has not returned."""
        return bool(self._waiting) and self._waiting[0].is_abandoned

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @property
    def idle(self) -> bool:
        return not self._waiting

    def post(self, work: Work, done: Done, patiences: int = 1) -> None:
        """Do `work` on the thread; then `done(result, None)` or `done(None, error)` on the loop."""
        self._post(PostedWork(work, done, patiences * LOOKS))

    async def call(
        self,
        work: Callable[[], T],
        patiences: int = 1,
        unwanted: Callable[[T], object] | None = None,
    ) -> T:
        """Do `work` on the thread and wait for its result. If the caller is cancelled, `unwanted` gets the result, on the
        thread."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def done(result: object, error: BaseException | None) -> None:
            if answer.cancelled():
                if error is None:
                    self._discard(job, result)
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # what `work` returned

        job = PostedWork(work, done, patiences * LOOKS, unwanted)
        self._post(job)
        return await answer

    async def stop(self) -> bool:
        """Take no more work, and wait for what was posted. False if the thread does not end, since it hangs."""
        if not self._stopped:
            self._stopped = True
            self._give(None)
        await self._loop.run_in_executor(None, self._thread.join, 0.0 if self.hangs else self.patience)
        if self._timer is not None:
            self._timer.cancel()
        return not self._thread.is_alive()

    # ---- on the loop ----

    def _post(self, job: PostedWork) -> None:
        if self._stopped:
            raise RuntimeError("The store's thread has been stopped; no work can follow.")
        if job.looks and self.hangs:
            self._loop.call_soon(job.done, None, StoreHung(self.patience, began=False))
            return
        self._waiting.append(job)
        self._give(job)
        if self._timer is None:
            self._timer = self._loop.call_later(self.patience / LOOKS, self._look)

    def _look(self) -> None:
        """Look at the work under way. Work that is found too often in a row hangs."""
        self._timer = None
        if not self._waiting:
            return
        self._timer = self._loop.call_later(self.patience / LOOKS, self._look)
        job = self._waiting[0]
        if job.looks and not job.is_abandoned:
            self._looks += 1
            if self._looks > job.looks:
                self._abandon()

    def _abandon(self) -> None:
        taken_back = self._take_back()
        kept = [job for job in taken_back if job is None or not job.looks]
        refused = [job for job in taken_back if job is not None and job.looks]
        # It may be under way by now, if the disk has answered just after the last look.
        under_way = [job for job in self._waiting if job not in taken_back]
        self._waiting = deque([*under_way, *[job for job in kept if job is not None]])
        for job in kept:
            self._give(job)
        self.hung_at = self._loop.time()
        for job in under_way:
            job.is_abandoned = True
        for job in refused:
            job.done(None, StoreHung(self.patience, began=False))
        for job in under_way:
            job.done(None, StoreHung(self.patience, began=True))

    def _finished(self, job: PostedWork, result: object, error: BaseException | None) -> None:
        self._waiting.popleft()
        self._looks = 0
        if not job.is_abandoned:
            job.done(result, error)
            return
        if error is None:
            self._discard(job, result)
        if not self.hangs:
            self.returned()

    def _discard(self, job: PostedWork, result: object) -> None:
        unwanted = job.unwanted
        if unwanted is not None and not self._stopped:
            self.post(lambda: unwanted(result), lambda result, error: None, HOWEVER_LONG)

    # ---- the thread: the simulation of a store does the work in virtual time instead ----

    def _start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)  # rule 6
        self._thread.start()

    def _give(self, job: PostedWork | None) -> None:
        """Put work behind all that was given before; None ends the thread."""
        self._jobs.put(job)

    def _take_back(self) -> list[PostedWork | None]:
        """All work that has not begun, in its order."""
        taken_back = []
        with contextlib.suppress(Empty):
            while True:
                taken_back.append(self._jobs.get_nowait())
        return taken_back

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            result: object = None
            error: BaseException | None = None
            try:
                result = job.work()
            except BaseException as raised:  # rule 3
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._finished, job, result, error)
            except RuntimeError:
                # The loop was closed meanwhile: there is nothing to report to.
                return
            # Do not keep a group's records alive while waiting for the next one.
            del job, result, error
