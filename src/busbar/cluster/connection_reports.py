"""Asks broker processes for the connections of their clients. Those that do not answer are counted."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.cluster.gathering import answers_of
from busbar.cluster.protocol import NodeApi
from busbar.model.connection_views import ConnectionQuery, ConnectionReport, merged


async def connections_of(brokers: Sequence[NodeApi], query: ConnectionQuery) -> ConnectionReport:
    """A page of the connections of all these processes."""
    answers = await answers_of([broker.connection_report(query) for broker in brokers])
    reports = [answer for answer in answers if answer is not None]
    return merged(reports, query, len(answers) - len(reports))


async def close_connection_of(brokers: Sequence[NodeApi], id: str) -> bool:
    """Close a connection of one of these processes; whether one of them has it."""
    return any(await answers_of([broker.close_connection(id) for broker in brokers]))
