"""Limits of connections hold for all nodes of a cluster, also after another node has become the controller."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest

from harness.amqp_driver import ConnectionOver, LoadConnection, connect
from harness.postgresql import own_database
from harness.serving import Busbar, config_text
from harness.waiting import eventually
from tests.durability.test_nodes import Cluster, holder_of_catalogue
from tests.durability.test_store_outage import Operator

CONNECTIONS = 5
LIMITS = {"store_lease": 1_500, "max_connections": CONNECTIONS}

pytestmark = pytest.mark.timeout(120)


class LimitedCluster(Cluster):
    """Two nodes, with few connections for both together."""

    def start(self, *names: str) -> None:
        for name in names:
            stores = () if self.nodes else ("--stores", *self.urls[:2])
            arguments = ("--node", name, "--catalogue", self.catalogue, *stores)
            self.nodes[name] = Busbar(
                self._directory / name, config_text({"q": {}}, LIMITS), arguments=arguments
            ).start()


def has_both(server: Busbar) -> bool:
    """Whether both nodes are shown, each with an address and a channel to the other."""
    nodes = Operator(server).ask("GET", "nodes")
    assert [node["name"] for node in nodes] == ["a.0", "b.0"]
    return all(node["state"] == "up" and node["address"] and len(node["channels"]) == 1 for node in nodes)


async def crowd(server: Busbar, most: int) -> list[LoadConnection]:
    """As many connections as a node admits, and not more than `most` attempts."""
    admitted = []
    for _ in range(most):
        with contextlib.suppress(ConnectionOver):
            admitted.append(await connect(server.port))
    return admitted


@pytest.mark.req("B12")
async def test_nodes_share_the_limit_and_a_new_controller_learns_who_has_what(tmp_path: Path) -> None:
    with own_database() as database:
        cluster = LimitedCluster(tmp_path, [database])
        try:
            await asyncio.to_thread(cluster.start, "a", "b")
            first = await asyncio.to_thread(holder_of_catalogue, cluster)
            other = next(name for name in cluster.nodes if name != first)
            controller, survivor = cluster.nodes[first], cluster.nodes[other]
            await asyncio.to_thread(eventually, lambda: has_both(survivor) or None, seconds=20)

            kept = await crowd(survivor, 4)
            assert len(kept) == 4
            assert len(await crowd(controller, 3)) == 1, "one is left for the other node"
            assert await crowd(survivor, 2) == []

            cluster.signal(first, signal.SIGKILL)
            cluster.nodes.pop(first).kill()
            await asyncio.to_thread(
                eventually, lambda: holder_of_catalogue(cluster) == other or None, seconds=30
            )
            # The new controller has its report of four. So there is room for one, and not for more than the limit.
            async with asyncio.timeout(45):
                while not (more := await crowd(survivor, 1)):
                    await asyncio.sleep(0.1)
            assert await crowd(survivor, 3) == []
            for connection in [*kept, *more]:
                await connection.close()
        finally:
            await asyncio.to_thread(cluster.stop)
