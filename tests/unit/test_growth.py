"""The arithmetic of docs/growth.md."""

from __future__ import annotations

import pytest

from harness.growth import BUSY, Figures, capacity, need, node_cost

FIGURES = Figures(node_us=30.0, hop_us=10.0, server_us=20.0, wal_bytes=1_300.0, store_rate=30_000.0)


def test_one_node_has_no_hops_and_many_have_nearly_all() -> None:
    assert node_cost(FIGURES, 1) == 30.0
    assert node_cost(FIGURES, 100) == pytest.approx(39.9)


def test_the_scarcer_of_nodes_and_stores_is_the_limit() -> None:
    assert capacity(FIGURES, 1, 100) == int(BUSY * 1e6 / 30)
    assert capacity(FIGURES, 100, 1) == int(BUSY * 30_000)


@pytest.mark.parametrize("rate", (1, 10_000, 1_000_000))
def test_what_is_needed_is_enough_and_one_less_is_not(rate: int) -> None:
    found = need(FIGURES, rate)
    assert capacity(FIGURES, found.nodes, found.stores) >= rate
    for nodes, stores in ((found.nodes - 1, found.stores), (found.nodes, found.stores - 1)):
        assert nodes == 0 or stores == 0 or capacity(FIGURES, nodes, stores) < rate
    assert found.server_cores * 1e6 * BUSY >= rate * FIGURES.server_us
    assert found.channels == found.nodes * (found.nodes - 1)
