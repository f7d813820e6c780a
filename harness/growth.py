"""Computes what a cluster of many nodes and stores carries, from what one message costs one node and one store.

The arithmetic is linear: CPU times add up, and nodes share nothing but the catalogue, which messages do not use. It leaves
out what it cannot know: networks, and disks that are slower than the measured one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BUSY = 0.7
"""The part of a core or a store that is planned for. The rest is for bursts, takeovers and vacuum."""
STORES_OF_AN_ENTITY = 16
"""A partitioned entity has so many fragments, each in one store."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one message of a cycle: sent, received, completed."""

    node_us: float
    """CPU-µs of the process that has both the client and the fragment."""
    hop_us: float
    """CPU-µs of both processes, more than that, if the fragment is in another one."""
    server_us: float
    """CPU-µs of the database server."""
    wal_bytes: float
    store_rate: float
    """Messages a second that one store commits, in large groups."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a load takes."""

    rate: int
    nodes: int
    """Processes, each with a core of its own."""
    stores: int
    server_cores: int
    wal_megabytes: float
    """A second, over all servers."""
    channels: int
    """Between processes: one for each ordered pair."""
    entities: int
    """Partitioned entities, if each fragment has a store to itself."""


def node_cost(figures: Figures, nodes: int) -> float:
    """CPU-µs of a message in a cluster of so many nodes: a fragment is elsewhere with a probability of 1 - 1 / nodes."""
    return figures.node_us + figures.hop_us * (1 - 1 / nodes)


def capacity(figures: Figures, nodes: int, stores: int) -> int:
    """Messages a second that so many nodes and stores carry."""
    by_nodes = BUSY * nodes * 1e6 / node_cost(figures, nodes)
    by_stores = BUSY * stores * figures.store_rate
    return int(min(by_nodes, by_stores))


def need(figures: Figures, rate: int) -> Need:
    """The fewest nodes and stores that carry a load."""
    nodes = 1
    while BUSY * nodes * 1e6 / node_cost(figures, nodes) < rate:
        nodes += 1
    stores = math.ceil(rate / (BUSY * figures.store_rate))
    return Need(
        rate,
        nodes,
        stores,
        math.ceil(rate * figures.server_us / 1e6 / BUSY),
        rate * figures.wal_bytes / 1e6,
        nodes * (nodes - 1),
        math.ceil(stores / STORES_OF_AN_ENTITY),
    )
