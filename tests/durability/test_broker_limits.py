"""Limits of connections with several brokers: they are the namespace's, and divided among the gateways."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from busbar.cluster.node_settings import SHARED, share_of
from busbar.model.limits import Limits
from harness.amqp_driver import ConnectionOver, LinkRefused, LoadConnection, connect
from harness.processes import brokers_of
from harness.serving import Busbar, config_text
from tests.durability.test_brokers import process_of

BROKERS = 3
CONNECTIONS, ENTITY_CONNECTIONS = 12, 7


@pytest.mark.parametrize("limit", (1, 2, 3, 7, 1_000, 5_000))
def test_the_shares_are_the_limit_or_one_each(limit: int) -> None:
    whole = Limits(**dict.fromkeys(SHARED, limit))
    shares = [share_of(whole, number, BROKERS) for number in range(BROKERS)]
    for name in SHARED:
        each = [getattr(share, name) for share in shares]
        assert sum(each) == max(limit, BROKERS)
        assert max(each) - min(each) <= 1 and min(each) >= 1
    for share in shares:
        assert {k: v for k, v in asdict(share).items() if k not in SHARED} == {
            k: v for k, v in asdict(whole).items() if k not in SHARED
        }


@pytest.mark.req("B12")
def test_three_brokers_have_no_more_connections_than_the_namespace_may(tmp_path: Path) -> None:
    limits = {"max_connections": CONNECTIONS, "max_entity_connections": ENTITY_CONNECTIONS}
    server = Busbar(
        tmp_path / "data", config_text({"q": {}}, limits), arguments=("--brokers", str(BROKERS))
    ).start()
    try:
        asyncio.run(crowd(server))
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


async def crowd(server: Busbar) -> None:
    connections: list[LoadConnection] = []
    refused = 0
    while refused < 10:
        try:
            connections.append(await connect(server.port))
        except (ConnectionOver, ConnectionError):
            refused += 1
            await asyncio.sleep(0.05)  # who has how many is told from time to time
        assert len(connections) <= CONNECTIONS
    at = Counter(process_of(server, connection) for connection in connections)
    assert sorted(at) == sorted(brokers_of(server).values()) and max(at.values()) <= CONNECTIONS // BROKERS
    assert len(connections) == CONNECTIONS, "all shares can be had"

    attached: Counter[int] = Counter()
    for connection in connections:
        try:
            await connection.receiver("q", credit=1)
            attached[process_of(server, connection)] += 1
        except LinkRefused as error:
            assert "resource-limit-exceeded" in str(error)
    assert sorted(attached.values()) == [2, 2, 3]
    for connection in connections:
        await connection.close()
