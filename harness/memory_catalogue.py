"""The home of a catalogue in memory, for tests. It keeps the contract while the process lives, and fails on request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from busbar.store.catalogue_contract import (
    KEPT_CHANGES,
    CatalogueContent,
    CatalogueLocation,
    Changes,
    VersionedEntry,
)
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull
from harness.memory_store import Fault


@dataclass(slots=True)
class CatalogueDisk:
    """The durable state; `content` is None as long as there is no catalogue."""

    content: CatalogueContent | None = None
    changes: dict[int, dict[str, bytes | None]] = field(default_factory=dict)
    epoch: int = 0
    refusal: StoreError | None = None
    """Why it cannot be opened now."""
    faults: deque[Fault] = field(default_factory=deque)
    """What happens to the next writes, once each."""
    hangs: Callable[[str], None] = lambda method: None
    """Called at the beginning of each write, on the thread of the catalogue."""
    written: Callable[[], None] = lambda: None
    """Called when a write is durable, on that thread."""

    @property
    def location(self) -> CatalogueLocation:
        return CatalogueLocation(
            "the catalogue in memory",
            lambda: self.content is not None,
            lambda: MemoryCatalogue(self),
            self._create,
            lambda: "",
        )

    def _create(self, content: CatalogueContent) -> None:
        self.content = content
        self.written()

    def value(self, name: str) -> bytes | None:
        entry = None if self.content is None else self.content.entries.get(name)
        return None if entry is None else entry.value


class MemoryCatalogue:
    def __init__(self, disk: CatalogueDisk) -> None:
        self._disk = disk
        self._epoch = 0
        self._broken = False

    def claim(self) -> int:
        if self._broken:
            raise OutcomeUnknown("the catalogue is closed")
        if self._disk.refusal is not None:
            raise self._disk.refusal
        self._disk.epoch += 1
        self._epoch = self._disk.epoch
        return self._epoch

    def _owned(self) -> CatalogueContent:
        if self._broken:
            raise OutcomeUnknown("the catalogue is closed")
        if not self._epoch or self._disk.content is None:
            raise StoreError("the catalogue is not claimed")
        return self._disk.content

    def read_all(self) -> CatalogueContent:
        content = self._owned()
        return CatalogueContent(content.namespace, content.version, dict(content.entries))

    def write(self, version: int, changes: Changes) -> None:
        content = self._owned()
        if self._epoch != self._disk.epoch:
            raise Fenced("the catalogue has another owner")
        self._disk.hangs("write_catalogue")
        fault = self._disk.faults.popleft() if self._disk.faults else None
        if fault is Fault.FULL:
            raise StoreFull("no space is left for the catalogue")
        if version != content.version + 1:
            self._broken = True
            raise OutcomeUnknown(f"{version} is not the number of the next change")
        if fault is not Fault.LOST:
            entries = dict(content.entries)
            for name, value in changes.items():
                if value is None:
                    entries.pop(name, None)
                else:
                    entries[name] = VersionedEntry(version, value)
            self._disk.content = CatalogueContent(content.namespace, version, entries)
            self._disk.changes[version] = dict(changes)
            self._disk.changes.pop(version - KEPT_CHANGES, None)
            self._disk.written()
        if fault is not None:
            self._broken = True
            raise OutcomeUnknown("the catalogue could not be written (injected)")

    def changes_since(self, version: int) -> dict[int, dict[str, bytes | None]] | None:
        last = self._owned().version
        found = {number: rows for number, rows in self._disk.changes.items() if number > version}
        return found if len(found) == max(0, last - version) else None

    def beat(self) -> None:
        self._owned()

    def release(self) -> None:
        self._epoch = 0

    def close(self) -> None:
        self._broken = True
