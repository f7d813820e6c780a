"""Waits for events in another process or task: polls a condition, and fails the test when it takes too long.

The limits only end tests that hang; no test depends on how long something takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    check: Callable[[], T | None], what: str = "", *, seconds: float = 30, pause: float = 0.02
) -> T:
    """Poll until the check is true; returns its result."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, failure(what, seconds)
        time.sleep(pause)
    return found


async def until(
    check: Callable[[], object],
    what: Callable[[], object] = str,
    *,
    seconds: float = 10,
    pause: float = 0.002,
) -> None:
    """Poll in an event loop, which keeps running. If it takes too long, `what` describes the current state."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, failure(what(), seconds)
        await asyncio.sleep(pause)


def failure(what: object, seconds: float) -> str:
    return f"it did not happen in {seconds:g} s" + (f": {what}" if what else "")
