"""What every messaging store does. All methods are called from one thread at a time: the store's own.

Rules
    * A store has one exclusive owner. Claiming it raises its epoch; a commit of an owner whose epoch has passed is Fenced.
      Before a claim and after a release every other method raises StoreError.
    * Whatever changes the store is durable, all or none, when the method returns, and may raise what `commit` raises.
    * After OutcomeUnknown a handle is good for nothing but `close`: make another one, claim it and read what is there.
    * A number is given once in a fragment, so a commit that puts one again is a fault of its caller: OutcomeUnknown.
      Edits and deletes of messages that are not there do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, TapRow
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
        """Become the owner; the new epoch. Raises StoreInUse, or StoreError for a place that holds no store of ours."""

    def release(self) -> None:
        """Give the store up cleanly (idempotent). It may be claimed again."""

    def commit(self, batches: Sequence[Changes]) -> None:
        """Make the changes durable, all or none: puts, edits in their order, keeps in theirs, deletes; ids forgotten, ids;
        sessions; rows of the outbox; taps, events, events forgotten; what writers wrote, what they committed; heads.

        An id that is in its segment already gets the new time and number.

        A fragment that is not there is created by its head. Raises StoreFull, OutcomeUnknown, Fenced.
        """

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        """The counters of every fragment (or of these, as far as they are there), in the order of their ids."""

    def create(self, fragment: int) -> None:
        """Add an empty fragment (idempotent)."""

    def drop(self, fragment: int, limit: int) -> bool:
        """Delete up to `limit` messages, ids, sessions, events and written ids of a fragment, and it (with its taps and
        writers) with the last; True when it is gone.

        Its counters, and those of its outbox, stay true between slices.
        """

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        """Fill in each read's records, or what else it asks for. Bytes are counted by Record.size."""

    def next_due(self, fragment: int) -> int:
        """The earliest due time of a scheduled message (0: none)."""

    def taps(self, fragment: int) -> list[TapRow]:
        """Where the taps of a fragment stand."""

    def writers(self, fragment: int) -> dict[str, tuple[int, int]]:
        """The batch that each writer has committed, and when it said so."""

    def outbox(self, fragment: int) -> dict[int, OutboxRow]:
        """The targets for which the outbox has messages."""

    def id_segments(self, fragment: int) -> list[int]:
        """The segments that have ids, rising. Costs a step for each segment, not for each id."""

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        """Keep the locks over a clean shutdown (before release: durable), instead of those kept before."""

    def take_locks(self, fragment: int) -> list[Lock]:
        """The locks that the last clean shutdown kept, with their records (content None), and forget them durably."""

    def catalogue(self) -> dict[str, bytes]:
        """Every catalogue entry: name to encoded definition."""

    def write_catalogue(self, entries: dict[str, bytes | None]) -> None:
        """Set (or with None remove) catalogue entries, all or none, durably."""

    def close(self) -> None:
        """Close files; nothing more is written, nor lost (idempotent). The handle cannot be claimed again."""
