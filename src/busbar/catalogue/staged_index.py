"""The entries of the catalogue as they will be after a change that is being planned.

Nothing of it is seen by readers of the catalogue. The index below stays as it is.
"""

from __future__ import annotations

from typing import Protocol

from busbar.catalogue.index import EntityIndex
from busbar.model.api import EntityView
from busbar.model.entities import EntityKind, kind_of
from busbar.model.names import key_of


class EntityEntries(Protocol):
    """Entries by path and by parent: those in force, or those of a planned change."""

    @property
    def partitioned(self) -> int:
        """How many queues and topics are partitioned."""

    def get(self, path: str) -> EntityView | None: ...

    def count(self, kind: EntityKind, parent: str = "") -> int: ...

    def children(self, kind: EntityKind, parent: str) -> list[EntityView]: ...

    def sources(self, target: str) -> list[EntityView]:
        """The entities that forward to a path."""


class StagedIndex:
    """An EntityEntries over the index that is in force."""

    def __init__(self, in_force: EntityIndex) -> None:
        self._in_force = in_force
        self.before = EntityIndex()
        """Entries in force that are replaced or removed."""
        self.after = EntityIndex()
        """Entries that are new or take the place of others."""

    @property
    def partitioned(self) -> int:
        return self._in_force.partitioned - self.before.partitioned + self.after.partitioned

    def get(self, path: str) -> EntityView | None:
        staged = self.after.get(path)
        if staged is not None or self.before.get(path) is not None:
            return staged
        return self._in_force.get(path)

    def count(self, kind: EntityKind, parent: str = "") -> int:
        counts = [index.count(kind, parent) for index in (self._in_force, self.before, self.after)]
        return counts[0] - counts[1] + counts[2]

    def children(self, kind: EntityKind, parent: str) -> list[EntityView]:
        found = self._in_force.children(kind, parent)
        if self.before.count(kind, parent) or self.after.count(kind, parent):
            kept = [view for view in found if self.before.get(view.path) is None]
            found = sorted(kept + self.after.children(kind, parent), key=lambda view: key_of(view.path))
        return found

    def sources(self, target: str) -> list[EntityView]:
        kept = [view for view in self._in_force.sources(target) if self.before.get(view.path) is None]
        return kept + self.after.sources(target)

    def put(self, view: EntityView) -> None:
        """Add an entry, or set another in its place."""
        self._replace(view.path)
        self.after.put(view)

    def remove(self, path: str) -> None:
        """Remove an entry."""
        if self.after.get(path) is not None:
            self.after.remove(path)
        self._replace(path)

    def _replace(self, path: str) -> None:
        there = self._in_force.get(path)
        if there is not None:
            self.before.put(there)


def with_children(entries: EntityEntries, view: EntityView) -> list[EntityView]:
    """The entry, and all entries that are deleted with it."""
    below = {EntityKind.TOPIC: EntityKind.SUBSCRIPTION, EntityKind.SUBSCRIPTION: EntityKind.RULE}
    found = [view]
    kind = below.get(kind_of(view.description))
    if kind is not None:
        for child in entries.children(kind, view.path):
            found += with_children(entries, child)
    return found
