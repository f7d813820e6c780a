"""Calls in the background: their results and errors come back, and one that hangs does not keep a program from ending."""

from __future__ import annotations

import asyncio
import threading

import pytest

from busbar.console.background import in_background


def test_a_result_and_an_error_come_back() -> None:
    async def run() -> None:
        assert await in_background(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await in_background(lambda: 1 // 0)

    asyncio.run(run())


def test_a_call_that_hangs_is_left_behind() -> None:
    free = threading.Event()

    async def run() -> None:
        task = asyncio.create_task(in_background(free.wait))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())  # it returns, although the thread waits
    assert not free.is_set()
    free.set()
