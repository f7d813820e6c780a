"""Freezes all files of a namespace as they are at one moment, for a backup that is made while it serves.

The stores and the home of the catalogue are frozen together (broker/store_freezing.py). If one of them was too late for the
moment, all are thawed, and the next attempt gives them more time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from busbar.model.errors import ServerBusy

ATTEMPTS = 6
FIRST_LEAD = 0.1
TOO_LATE = "The stores could not be stopped at one moment, since the machine is too busy. Retry later."


class FreezingStore(Protocol):
    async def freeze(self, at: float, seconds: float) -> bool: ...

    async def thaw(self) -> bool: ...


async def freeze_together(stores: Sequence[FreezingStore], seconds: float) -> None:
    """Freeze them at one moment, for so many seconds at most. Raises BusbarError; then none is frozen."""
    for attempt in range(ATTEMPTS):
        at = time.monotonic() + FIRST_LEAD * 2**attempt
        outcomes = await asyncio.gather(
            *[store.freeze(at, seconds) for store in stores], return_exceptions=True
        )
        if all(outcome is True for outcome in outcomes):
            return
        await asyncio.gather(*[store.thaw() for store in stores], return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
    raise ServerBusy(TOO_LATE)


async def thaw_all(stores: Sequence[FreezingStore]) -> bool:
    """Let all files change again; whether all of them stayed as they were."""
    outcomes = await asyncio.gather(*[store.thaw() for store in stores], return_exceptions=True)
    return all(outcome is True for outcome in outcomes)
