"""Asks several broker processes the same, and leaves out those that do not answer soon."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from busbar.cluster.protocol import NodeApi
from busbar.model.figures import ProcessFigures

PATIENCE = 2.0


async def figures_of(brokers: Sequence[NodeApi]) -> list[ProcessFigures]:
    """What each of these has done."""
    asked = [asyncio.wait_for(broker.figures(), PATIENCE) for broker in brokers]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, ProcessFigures)]
