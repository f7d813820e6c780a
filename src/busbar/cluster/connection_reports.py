"""Asks broker processes for the connections of their clients. One that does not answer soon, or is of
an earlier release, is left out, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from busbar.cluster.calls import NotAtThisLevel
from busbar.cluster.channel import ChannelClosed
from busbar.cluster.protocol import NodeApi
from busbar.model.connection_views import ConnectionQuery, ConnectionReport, merged

REPORT_SECONDS = 3.0


async def connections_of(brokers: Sequence[NodeApi], query: ConnectionQuery) -> ConnectionReport:
    """A page of the connections of all these processes."""
    answers = await asyncio.gather(*[_report(broker, query) for broker in brokers])
    reports = [answer for answer in answers if answer is not None]
    return merged(reports, query, len(answers) - len(reports))


async def close_connection_of(brokers: Sequence[NodeApi], id: str) -> bool:
    """Close a connection of one of these processes; whether one of them has it."""
    return any(await asyncio.gather(*[_close(broker, id) for broker in brokers]))


async def _report(broker: NodeApi, query: ConnectionQuery) -> ConnectionReport | None:
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            return await broker.connection_report(query)
    except (ChannelClosed, NotAtThisLevel, TimeoutError):
        return None


async def _close(broker: NodeApi, id: str) -> bool:
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            return await broker.close_connection(id)
    except (ChannelClosed, NotAtThisLevel, TimeoutError):
        return False
