"""The place of a store in memory: what a path is to a file. It can be empty, or refuse to be opened."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from busbar.store.contract import Store, StoreError
from busbar.store.location import StoreLocation, StoreMissing
from harness.memory_store import Disk, MemoryStore


class MemoryPlace:
    """The place of a store in memory: what a path is to a file."""

    def __init__(self, new_disk: Callable[[], Disk]) -> None:
        self._new_disk = new_disk
        self._serials = count(1)
        self.refusal: StoreError | None = None
        """Why the store cannot be opened now."""
        self.breaks_after = -1
        """The next handle fails after so many calls."""
        self.disk: Disk | None = None
        self.serial = 0
        self.lost: Disk | None = None
        """What was there until the file was removed."""
        self.create_disk()

    def create_disk(self) -> Disk:
        self.disk, self.serial = self._new_disk(), next(self._serials)
        return self.disk

    def remove(self) -> None:
        if self.disk is not None:
            self.disk, self.lost = None, self.disk

    def put_back(self) -> None:
        if self.disk is None:
            self.disk, self.lost = self.lost, None

    def open(self) -> Store:
        if self.refusal is not None:
            raise self.refusal
        if self.disk is None:
            raise StoreMissing("the store is missing")
        store = self.handle(self.disk)
        store.break_after(self.breaks_after)
        self.breaks_after = -1
        return store

    def handle(self, disk: Disk) -> PlacedStore:
        return PlacedStore(self, disk)

    def location(self) -> StoreLocation:
        return StoreLocation("memory:", self._recreate, lambda: 0, lambda: self.disk and self.serial)

    def _recreate(self) -> Store:
        if self.refusal is not None:
            raise self.refusal
        self.create_disk()
        return self.open()


class PlacedStore(MemoryStore):
    """Finds out that its disk is not in its place any more."""

    def __init__(self, place: MemoryPlace, disk: Disk) -> None:
        super().__init__(disk)
        self._place = place

    def _owned(self) -> Disk:
        if self._place.disk is not self.disk:
            raise StoreMissing("its file was removed or replaced while in use")
        return super()._owned()
