"""Where a messaging store is, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from busbar.store.contract import Store, StoreError


class StoreMissing(StoreError):
    """There is no store in the place where one was, or should be."""


class StoreTakenOffline(Exception):
    """Not a failure: an operator wants the store to be left alone."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a store is, for people, and how to deal with it there."""

    url: str
    create: Callable[[], Store]
    """A new store, not claimed yet; whatever is in its place is renamed."""
    size: Callable[[], int]
    """Bytes on the disk."""
    fingerprint: Callable[[], object]
    """Another value when something else, or nothing, has taken the store's place."""


@dataclass(frozen=True, slots=True)
class StoreLoss:
    """What was in a store that vanished, at most: what was under way counts too."""

    at: int
    messages: int
    """-1: nobody knows."""
    size: int
