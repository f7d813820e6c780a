"""One node of a cluster cannot reach one of its stores, which others can. The store goes to one of them.

The address of the store has no host: each node has the host in its environment, and one of them goes through a proxy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.faults.database_proxy import DatabaseProxy
from harness.postgresql import own_database
from harness.waiting import eventually
from tests.durability.test_nodes import Cluster, begin, check, holder_of_catalogue
from tests.durability.test_store_outage import Operator
from tests.durability.test_takeover import Load

STORE = "store-3"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[tuple[Cluster, DatabaseProxy]]:
    """Two nodes, of which b reaches one store over the proxy."""
    with own_database() as database, DatabaseProxy(database.port) as proxy:
        made = Cluster(tmp_path, [database])
        made.limits["store_timeout"] = 1_500
        made.urls[3] = "postgresql://busbar@/postgres?schema=store_3"
        for name, port in (("a", database.port), ("b", proxy.port)):
            made.environments[name] = {"PGHOST": "127.0.0.1", "PGPORT": str(port)}
        try:
            with made.front:
                yield made, proxy
        finally:
            made.stop()


@pytest.mark.req("P2", "P4", "P14", "P18", "P19", "P25", "S8", "S10", "S15")
def test_a_store_that_one_node_cannot_reach_goes_to_another_node(far: tuple[Cluster, DatabaseProxy]) -> None:
    cluster, proxy = far
    cluster.start("a", "b")
    operator = Operator(cluster.nodes["a"])
    eventually(lambda: cluster.loads("a") == {"a.0": 2, "b.0": 2}, "balance")
    operator.ask("POST", f"stores/{STORE}/move/b.0")
    operator.ask("POST", f"stores/{STORE}/move/any")
    eventually(lambda: cluster.loads("a") == {"a.0": 2, "b.0": 2}, "balance")
    assert cluster.owners("a")[STORE] == ("open", "b.0")
    processes = {name: node.processes() for name, node in cluster.nodes.items()}
    load = Load(cluster.front, retry_backoff_factor=0.05, retry_backoff_max=0.5)
    begin(load)
    parted = time.monotonic()
    proxy.part()
    eventually(lambda: cluster.owners("a")[STORE] == ("open", "a.0"), "the store is moved", seconds=60)
    print(f"the store was open after {time.monotonic() - parted:.2f} s")
    check(load, parted)
    assert cluster.loads("a")["b.0"] >= 1, "the other stores stay"
    assert {name: node.processes() for name, node in cluster.nodes.items()} == processes, "no process ended"
    assert holder_of_catalogue(cluster) in cluster.nodes
    for name, node in cluster.nodes.items():
        assert "Traceback" not in node.error_text, (name, node.error_text)
