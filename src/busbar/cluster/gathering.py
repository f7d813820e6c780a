"""Asks several broker processes the same, and leaves out those that do not answer soon or are of an earlier release."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from busbar.cluster.calls import NotAtThisLevel
from busbar.cluster.channel import ChannelClosed
from busbar.cluster.protocol import NodeApi
from busbar.model.errors import BusbarError
from busbar.model.figures import ProcessFigures

PATIENCE = 3.0

T = TypeVar("T")


async def answers_of(asked: Sequence[Awaitable[T]]) -> list[T | None]:
    """What each of them answers; None for one that does not."""
    return [*await asyncio.gather(*[_answer(one) for one in asked])]


async def figures_of(brokers: Sequence[NodeApi]) -> list[ProcessFigures]:
    """What each of these has done."""
    answers = await answers_of([broker.figures() for broker in brokers])
    return [answer for answer in answers if answer is not None]


async def _answer(asked: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(PATIENCE):
            return await asked
    except (BusbarError, ChannelClosed, NotAtThisLevel, TimeoutError):
        return None
