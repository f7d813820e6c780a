"""What operators see of the processes of a namespace, and of the work of its stores. Times in ms since 1970."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The work of a store, as one process has seen it. Counters begin at 0 with the process."""

    store: str
    epoch: int = 0
    """How often the store was claimed, since it was made."""
    commits: int = 0
    commit_p50: int = 0
    """Of the last commits, in microseconds."""
    commit_p99: int = 0
    group: int = 0
    """Messages that one of them changed, on average."""
    takeovers: int = 0
    """How often another process claimed the store because its owner had ended."""
    fenced: int = 0
    """How often this process found that another one had claimed the store."""
    reclaims: int = 0
    """How often the owner lost its connection to the store and claimed it again."""
    made: int = 0
    """Commits of unknown outcome that were found to be made."""
    repeated: int = 0
    """Those that were not made, and were made then."""
    lost: int = 0
    """Acknowledged commits that the store does not have any more."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A process of the namespace."""

    name: str
    state: str = "up"
    """`up`, `starting`, or `silent` if it does not answer now; then the other fields are not known."""
    machine: str = ""
    address: str = ""
    """Where processes of other machines reach it."""
    process: int = 0
    version: str = ""
    since: int = 0
    connections: int = 0
    catalogue_version: int = 0
    """The number of the last change of the catalogue that it has."""
    channels: Sequence[str] = ()
    """The other processes whose stores it can reach."""
    stores: Sequence[str] = ()
    """Those that it owns."""
    figures: Sequence[StoreFigures] = ()


def summed(nodes: Iterable[NodeView], store: str) -> StoreFigures:
    """The figures of a store over all processes: those of its owner, and the sums of counters."""
    found = [figures for node in nodes for figures in node.figures if figures.store == store]
    if not found:
        return StoreFigures(store)
    owner = max(found, key=lambda figures: figures.epoch)
    return StoreFigures(
        store,
        owner.epoch,
        owner.commits,
        owner.commit_p50,
        owner.commit_p99,
        owner.group,
        sum(figures.takeovers for figures in found),
        sum(figures.fenced for figures in found),
        sum(figures.reclaims for figures in found),
        sum(figures.made for figures in found),
        sum(figures.repeated for figures in found),
        sum(figures.lost for figures in found),
    )
