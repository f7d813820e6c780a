"""Coroutines that wait for conditions, which are checked whenever something happens: no polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Conditions:
    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        if condition():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, future))
        await future

    def wake(self) -> None:
        """Check the conditions: something happened."""
        if not self._waiters:
            return
        for condition, future in self._waiters:
            if not future.done() and condition():
                future.set_result(None)
        self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]

    def fail(self, problem: Exception) -> None:
        """End all waits with this."""
        for _condition, future in self._waiters:
            if not future.done():
                future.set_exception(problem)
        self._waiters.clear()
