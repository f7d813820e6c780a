"""The event loop of the blocking client: one daemon thread of the process serves all factories.

A forked process has no such thread: its first call starts a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """The event loop of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="busbar-client", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        if self.pid != os.getpid():
            call.close()
            raise RuntimeError("this factory was made before a fork; connect again in the new process")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield what an asynchronous generator yields. It is asked for each item when the caller needs it."""
        try:
            while (item := self.run(_next(items))) is not None:
                yield item
        finally:
            if not sys.is_finalizing():  # then this thread alone still runs, and would wait for ever
                self.run(items.aclose())


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)


_current: LoopThread | None = None
_lock = threading.Lock()


def loop_thread() -> LoopThread:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = LoopThread()
        return _current


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
