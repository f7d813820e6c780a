"""The operations that the store's lifecycle asks for, and how they are done on the store's thread.

The lifecycle (store_lifecycle.py) decides; `StoreAccess` does. It has the open store and is used by one thread at a time.
The simulation uses it with stores that fail.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from busbar.broker.fragment_loading import DurableState, lost_locks, open_store, reload
from busbar.broker.job import Job
from busbar.fragment.changes import Lock
from busbar.store.contract import Store, StoreError
from busbar.store.location import StoreLocation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reload:
    """Read what is durable of fragments whose group was refused. Result: DurableState by fragment."""

    fragments: list[int]


@dataclass(frozen=True, slots=True)
class Release:
    """Release the store cleanly if that is possible, and close it."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """Close what is left of the store, open and claim it, and read what is durable of fragments. Result: StoreOpened."""

    fragments: list[int]


@dataclass(frozen=True, slots=True)
class Recreate:
    """Close what is left of the store, and create an empty one in its place. Result: StoreOpened."""


@dataclass(frozen=True, slots=True)
class CheckLocks:
    """Find the locks of messages that the store does not have. Result: numbers by fragment."""

    held: dict[int, list[Lock]]


@dataclass(frozen=True, slots=True)
class LookAtFile:
    """Look at the place of the store, and let the store do a slice of its own work. Result: Looked."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Let the catalogue check a store that was just opened, or re-created, before it serves."""

    recreated: bool


@dataclass(frozen=True, slots=True)
class Looked:
    fingerprint: object
    has_more: bool
    """The store has more work of its own."""


class Phase(enum.Enum):
    """The operation on the store's handle that is under way."""

    STEADY = enum.auto()  # nothing: it is open, or closed for good
    ROLLING_BACK = enum.auto()  # Reload
    RELEASING = enum.auto()  # Release
    WAITING = enum.auto()  # nothing: for the next attempt, or for an operator
    REOPENING = enum.auto()  # Reopen
    ADMITTING = enum.auto()  # Admit
    CHECKING_LOCKS = enum.auto()  # CheckLocks
    RECREATING = enum.auto()  # Recreate
    ADMITTING_EMPTY = enum.auto()  # Admit of a store that was re-created


StoreOperation = Reload | Release | Reopen | Recreate | CheckLocks | LookAtFile | Admit


@dataclass(frozen=True, slots=True)
class StoreOpened:
    epoch: int
    claims: int
    """How often this process has claimed the store so far."""
    durable: dict[int, DurableState]


class StoreAccess:
    """The store of one place as its thread uses it: the open handle, and how to get another."""

    def __init__(self, factory: Callable[[], Store], place: StoreLocation | None) -> None:
        self.store: Store | None = None
        self._factory = factory
        self._place = place
        self._claims = 0

    def open(self) -> StoreOpened:
        """Open and claim the store. Raises what the store raises."""
        return self._open(self._factory, [])

    def create(self) -> StoreOpened:
        """Create and claim a store in a place where none should be."""
        assert self._place is not None, "a store without a place is made by its factory"
        return self._open(self._place.create, [])

    def _open(self, factory: Callable[[], Store], fragments: list[int]) -> StoreOpened:
        self.close()
        store, epoch = open_store(factory)
        self._claims += 1
        try:
            durable = reload(store, fragments) if fragments else {}
        except BaseException:
            store.close()
            raise
        self.store = store
        return StoreOpened(epoch, self._claims, durable)

    def close(self) -> None:
        """Close the store and drop its handle, also if it is broken."""
        store, self.store = self.store, None
        if store is not None:
            with contextlib.suppress(Exception):
                store.close()

    def use(self, work: Callable[[Store], T]) -> T:
        """Do something with the open store."""
        if self.store is None:
            raise StoreError("the store is closed")
        return work(self.store)

    def commit(self, job: Job) -> None:
        self.use(job.run)

    def commits_at_once(self, job: Job) -> bool:
        """Whether the commit of a job that reads nothing is a matter of one short write."""
        return self.store is not None and self.store.commits_at_once(job.batches)

    def perform(self, operation: StoreOperation) -> object:
        """Do what the lifecycle asks for; the result is described at each operation."""
        if isinstance(operation, Reload):
            fragments = operation.fragments
            return self.use(lambda store: reload(store, fragments))
        if isinstance(operation, Release):
            try:
                self.use(lambda store: store.release())
            finally:
                self.close()
            return None
        if isinstance(operation, Reopen):
            return self._open(self._factory, operation.fragments)
        if isinstance(operation, Recreate):
            return self.create()
        if isinstance(operation, CheckLocks):
            held = operation.held
            return self.use(lambda store: lost_locks(store, held))
        assert isinstance(operation, LookAtFile) and self._place is not None, operation
        fingerprint = self._place.fingerprint()
        return Looked(fingerprint, self.store is not None and self.store.maintain())
