"""The catalogue in a process that does not write it: all entries, with the number of the last change.

Rules:
1. It begins with all entries and the number of the change that was last in force. From then on it gets every change, in
   their order.
2. Numbers rise. There may be gaps: changes that concern no entity are not sent. A number that does not rise is a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from busbar.catalogue.change import EntityChange
from busbar.catalogue.reading import CatalogueReader
from busbar.model.api import EntityView


class ReplicaFault(Exception):
    """A change came that is not newer than what is there."""


class CatalogueReplica(CatalogueReader):
    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.is_loaded = False

    def load(self, version: int, entries: Iterable[EntityView]) -> None:
        """Take over entries that are in force."""
        self.version = version
        self.is_loaded = True
        for view in entries:
            self._entries.put(view)

    def get(self, path: str) -> EntityView | None:
        return self._entries.get(path)

    def apply(self, version: int, changes: Sequence[EntityChange]) -> list[EntityView]:
        """Put a change in force. Returns the entries that it removed. `tell` notifies what watches."""
        if version <= self.version:
            raise ReplicaFault(f"the change {version} came after {self.version}")
        self.version = version
        gone = []
        for path, view in changes:
            if view is not None:
                self._entries.put(view)
            elif (before := self._entries.get(path)) is not None:
                self._entries.remove(path)
                gone.append(before)
        return gone

    def tell(self, changes: Sequence[EntityChange]) -> None:
        for path, view in changes:
            self._watchers.tell(path, view)
