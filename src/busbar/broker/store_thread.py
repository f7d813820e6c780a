"""One thread for each messaging store: it alone touches the store, and it does its work strictly in order.

Rules:
1. Work is done first in, first out; a piece of work sees all that earlier pieces did.
2. The outcome of a piece comes back to the event loop by exactly one `call_soon_threadsafe`, in the same order.
3. Whatever a piece of work raises is an outcome, never the end of the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

Work = Callable[[], object]
Done = Callable[[object, BaseException | None], None]


class StoreThread:
    """The thread of one store. Start it by the first `post`; `stop` waits until all posted work is done."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._stopped = False
        # Not a daemon: a commit under way is finished before the process ends by itself.
        self._thread = threading.Thread(target=self._run, name=name, daemon=False)
        self._thread.start()

    def post(self, work: Work, done: Done) -> None:
        """Do `work` on the thread; then `done(result, None)` or `done(None, error)` on the loop."""
        if self._stopped:
            raise RuntimeError("The store's thread has been stopped; no work can follow.")
        self._jobs.put((work, done))

    async def call(self, work: Callable[[], T]) -> T:
        """Do `work` on the thread and wait for its result."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def done(result: object, error: BaseException | None) -> None:
            if answer.cancelled():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # what `work` returned

        self.post(work, done)
        return await answer

    async def stop(self) -> None:
        """No more work; wait for what was posted."""
        if not self._stopped:
            self._stopped = True
            self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            result: object = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # rule 3
                error = raised
            try:
                self._loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                # The loop was closed while we worked: nobody is left to be told.
                return
            # Do not keep a group's records alive while waiting for the next one.
            del job, work, done, result, error
