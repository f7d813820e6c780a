"""Large replies of one connection, one after the other.

Rules:
1. At most PAGES replies of this kind are being made at a time, whatever the number of requests and links.
2. None is begun while the client does not take what it has asked for: its socket is full, a reply waits for credit, or the
   window of an AMQP session is closed.
So what a client can make the broker hold is a few pages.

Before the first one the C library is shown a large block of memory. It keeps freed memory for its next use up to twice the
largest block that it has seen; of less it would give the pages of every reply back to the system, and have them cleared
again for the next one, which costs more than to make the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TypeVar

from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.model.effects import Effect

PAGES = 2
LARGE_BLOCK = 8 * 1024 * 1024

T = TypeVar("T")


class LargeReplyLimiter:
    def __init__(self, peer: LinkConnection) -> None:
        self._peer = peer
        self._turns = asyncio.Semaphore(PAGES)
        self._waiting: list[asyncio.Future[None]] = []

    async def take(self, read: Callable[[], Awaitable[T]]) -> T:
        _prime_allocator()
        async with self._turns:
            while not self._peer.writable or self._peer.replies_wait():
                await self._change()
            return await read()

    async def _change(self) -> None:
        """The client has said something, or read something."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._peer.retry(self)
        number = self._peer.consumer(self)
        try:
            await future
        finally:
            self._peer.forget_consumer(number)

    # A consumer that wants nothing but to hear when there is room

    def replenish(self, now: int) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def delivered(self, effect: Effect, now: int) -> None:
        raise AssertionError("nobody delivers to this one")

    def drained(self, now: int) -> None:
        raise AssertionError("nobody drains this one")


@cache
def _prime_allocator() -> None:
    bytes(LARGE_BLOCK)  # never touched, so it is memory by name alone
