"""Client-side batching: asynchronous sends and completions of one client wait for each other, and go as one batch.

1. A batch goes after `interval` seconds (the factory's `batch_flush_interval`) at the latest.
2. An item that would make the batch too large sends the batch at once, and is the first of the next one.
3. A batch goes earlier if no more is coming: a turn of the event loop has added nothing, and no batch of this client is
   without its answer. So a program that sends one message after the other never waits. While an answer is under way, the
   next batch grows, since the callers that wait for that answer may send again.
4. A call that is cancelled before its batch goes leaves the batch.
5. Batches are never made across clients: each sender and each receiver has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

Results = list[BaseException | None]
"""For each item of a batch its error, or None."""


class Batching(Generic[Item]):
    """The open batch of one client."""

    def __init__(
        self,
        interval: float,
        max_bytes: Callable[[], int],
        max_items: int,
        transmit: Callable[[list[Item]], Awaitable[Results]],
    ) -> None:
        """`transmit` sends a batch and returns the results of its items. `max_bytes` is called once a batch."""
        self._interval = interval
        self._max_bytes = max_bytes
        self._max_items = max_items
        self._transmit = transmit
        self._loop = asyncio.get_running_loop()
        self._items: list[Item] = []
        self._futures: list[asyncio.Future[None]] = []
        self._bytes = 0
        self._limit = 0
        self._counted = 0
        self._checking = False
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def add(self, item: Item, size: int = 0) -> asyncio.Future[None]:
        """Add an item of so many bytes. The future ends when the broker has answered for it."""
        items = self._items
        if items and (len(items) >= self._max_items or self._bytes + size > self._limit):
            self.flush()
            items = self._items
        future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        if not items:
            self._limit = self._max_bytes()
            self._timer = self._loop.call_later(self._interval, self.flush)
            self._check_soon()
        items.append(item)
        self._futures.append(future)
        self._bytes += size
        return future

    def _check_soon(self) -> None:
        if not self._checking and not self._under_way:
            self._checking = True
            self._counted = 0
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """Send the batch if the last turn of the event loop has added nothing."""
        self._checking = False
        if not self._items or self._under_way:
            return
        if len(self._items) > self._counted:
            self._checking = True
            self._counted = len(self._items)
            self._loop.call_soon(self._check)
        else:
            self.flush()

    def flush(self) -> None:
        """Send the batch now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items, futures = self._items, self._futures
        self._items, self._futures, self._bytes = [], [], 0
        if any(future.done() for future in futures):  # cancelled
            alive = [place for place, future in enumerate(futures) if not future.done()]
            items, futures = [items[place] for place in alive], [futures[place] for place in alive]
        if items:
            task = self._loop.create_task(self._run(items, futures))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    async def _run(self, items: list[Item], futures: list[asyncio.Future[None]]) -> None:
        try:
            results = await self._transmit(items)
        except BaseException as error:
            results = [error] * len(items)
            if isinstance(error, asyncio.CancelledError):
                for future in futures:
                    future.cancel()
                raise
        for future, result in zip(futures, results, strict=True):
            if future.done():
                continue
            if result is None:
                future.set_result(None)
            else:
                future.set_exception(result)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._items:
            self._check_soon()

    async def finish(self) -> None:
        """Send what is there, and wait until all batches are answered."""
        self.flush()
        while self._under_way:
            await asyncio.wait(list(self._under_way))
