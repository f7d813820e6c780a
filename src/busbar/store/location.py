"""Where a messaging store is, and how it was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from busbar.store.contract import Store, StoreError


class StoreMissing(StoreError):
    """There is no store in its place."""


class StoreTakenOffline(Exception):
    """An operator has taken the store offline. This is not a failure."""


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """What happened to the connection of a store, since its process began. StoreFigures describes the fields."""

    reclaims: int = 0
    made: int = 0
    repeated: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class OwnerSilence:
    """For how long nothing was seen of the owner of a store."""

    seconds: float
    """Infinite if the store has no owner. -1: the store cannot be reached from here."""
    sign: str = ""
    """The last sign of life that was seen."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The place of a store, for people, and the operations there."""

    url: str
    create: Callable[[], Store]
    """Creates a new store, not claimed yet; an existing file is renamed."""
    size: Callable[[], int]
    """Bytes on the disk."""
    fingerprint: Callable[[], object]
    """Changes when another file, or none, is in the store's place. Called on the store's thread while the store is idle."""
    status: Callable[[], str] = lambda: ""
    """What an operator should know of the place."""
    counters: Callable[[], StoreCounters] = StoreCounters
    may_speak: Callable[[], bool] = lambda: True
    """Whether the owner has shown lately that it works. If it has not, another process may have claimed the store."""
    silence: Callable[[], OwnerSilence] = lambda: OwnerSilence(inf)
    """What this process has seen of the owner."""
    note_silence: Callable[[OwnerSilence], None] = lambda seen: None
    """Lets the next claim begin with what another process has seen of the owner."""
    free: Callable[[], int] = lambda: -1
    """Bytes that are free on the disk; -1: not known."""


@dataclass(frozen=True, slots=True)
class StoreLoss:
    """The content of a store that disappeared, at most: unfinished operations count too."""

    at: int
    messages: int
    """-1: unknown."""
    size: int
