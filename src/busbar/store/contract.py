"""What every messaging store does. All methods are called from one thread at a time: the store's own.

A store has one exclusive owner. Claiming it raises its epoch; a commit of an owner whose epoch has passed is Fenced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from busbar.fragment.changes import Changes, Head, Lock
from busbar.fragment.reads import Read


class StoreError(Exception):
    """A store could not do what was asked."""


class StoreFull(StoreError):
    """The commit was certainly not made: no space. The store is as before it."""


class OutcomeUnknown(StoreError):
    """The commit may or may not have been made, or the store is broken: forget, reopen and reload."""


class Fenced(StoreError):
    """Another owner has claimed the store: this one must stop."""


class StoreInUse(StoreError):
    """Another process owns the store and is alive."""


class Store(Protocol):
    def claim(self) -> int:
        """Become the owner; the new epoch. Raises StoreInUse."""

    def release(self) -> None:
        """Give the store up cleanly (idempotent)."""

    def commit(self, batches: Sequence[Changes]) -> None:
        """Make the changes durable, all or none. Returns only when they are. Raises StoreFull, OutcomeUnknown, Fenced."""

    def heads(self) -> list[Head]:
        """The counters of every fragment."""

    def create(self, fragment: int) -> None:
        """Add an empty fragment (idempotent)."""

    def drop(self, fragment: int, limit: int) -> bool:
        """Delete up to `limit` messages of a fragment, and the fragment with the last one; True when it is gone."""

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        """Fill in each read's records."""

    def next_due(self, fragment: int) -> int:
        """The earliest due time of a scheduled message (0: none)."""

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        """Keep the locks over a clean shutdown (part of release: durable)."""

    def take_locks(self, fragment: int) -> list[Lock]:
        """The locks that the last clean shutdown kept, with their records (content None), and forget them durably."""

    def catalogue(self) -> dict[str, bytes]:
        """Every catalogue entry: name to encoded definition."""

    def write_catalogue(self, entries: dict[str, bytes | None]) -> None:
        """Set (or with None remove) catalogue entries, all or none, durably."""

    def close(self) -> None:
        """Close files; nothing more is written (idempotent)."""
