"""What the home of a catalogue does: one place with all entries, and one writer. Called from one thread at a time.

- It has one exclusive owner. A claim raises its epoch; a write of an owner with an old epoch is Fenced. Before a claim and
  after a release every other method raises StoreError.
- Writes are numbered, each with the number after the last one. When `write` returns, the change is durable. It is made as a
  whole or not at all.
- After OutcomeUnknown only `close` may be called on a handle. Open another one, claim it, and look with `changes_since`
  whether the change was made.
- The last changes are kept, so that an owner or a replica that has an earlier version can catch up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

KEPT_CHANGES = 1_000
"""So many changes are kept at least."""


@dataclass(frozen=True, slots=True)
class VersionedEntry:
    """An entry of the catalogue, with the number of the change that wrote it. None: that change deleted it."""

    version: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class CatalogueContent:
    """All entries of a catalogue, and the number of its last change."""

    namespace: str
    """The id of the namespace."""
    version: int = 0
    entries: Mapping[str, VersionedEntry] = field(default_factory=dict)


Changes = Mapping[str, bytes | None]
"""New values of entries by name; None deletes one."""


class CatalogueStore(Protocol):
    def claim(self) -> int:
        """Become the one writer; returns the new epoch. Raises StoreInUse, or StoreError if this is no catalogue."""

    def read_all(self) -> CatalogueContent: ...

    def write(self, version: int, changes: Changes) -> None:
        """Make the change with this number. Raises StoreFull, OutcomeUnknown, Fenced.

        A number that is not the next one is a fault of the caller: OutcomeUnknown, and nothing is written."""

    def changes_since(self, version: int) -> dict[int, dict[str, bytes | None]] | None:
        """The changes after that version, by number, in their order. None: not all of them are kept any more."""

    def beat(self) -> None:
        """Show other processes that the owner works. Raises Fenced, OutcomeUnknown."""

    def release(self) -> None:
        """Release it cleanly (idempotent). It may be claimed again."""

    def close(self) -> None:
        """Close files; nothing more is written, and nothing is lost (idempotent). The handle cannot be claimed again."""


@dataclass(frozen=True, slots=True)
class CatalogueLocation:
    """The place of a catalogue, for people, and the operations there."""

    name: str
    exists: Callable[[], bool]
    open: Callable[[], CatalogueStore]
    """A handle on the catalogue that is there, not claimed yet."""
    create: Callable[[CatalogueContent], None]
    """Makes a catalogue where none is, as a whole or not at all."""
    set_aside: Callable[[], str]
    """Gives the catalogue that is there another name, and returns that."""
    beat_seconds: float = 0.0
    """How often the owner has to beat (0: never)."""
