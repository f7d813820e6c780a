"""What every messaging store does. All methods are called from one thread at a time: the store's own.

- A store has one exclusive owner. A claim raises its epoch; a commit of an owner with an old epoch is Fenced. Before a claim
  and after a release every other method raises StoreError.
- When a method that changes the store returns, the change is durable, as a whole or not at all. It may raise what `commit`
  raises.
- After OutcomeUnknown only `close` may be called on a handle. Create another one, claim it and read its content.
- A number is assigned once in a fragment, so a commit that puts one again is a fault of its caller: OutcomeUnknown. Edits
  and deletes of missing messages do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from busbar.fragment.changes import Changes, Head, Lock, OutboxRow, SessionHold, TapRow
from busbar.fragment.reads import Read


class StoreError(Exception):
    """A store could not perform an operation."""


class StoreFull(StoreError):
    """The commit was certainly not made: no space. The store is as before it."""


class OutcomeUnknown(StoreError):
    """The commit may or may not have been made, or the store is broken: drop the state in memory, reopen and reload."""


class Fenced(StoreError):
    """Another owner has claimed the store: this one must stop."""


class NewerSchema(StoreError):
    """The store was written by a newer version, which has another schema."""


class StoreInUse(StoreError):
    """Another process owns the store and is alive."""


@runtime_checkable
class FrozenFile(Protocol):
    """A store or a catalogue in one file, which can be copied while it is in use."""

    def freeze(self) -> None:
        """Have everything in the file, as after a clean stop, and leave the file as it is until `thaw`. Writes go on beside
        it. Raises StoreError."""

    def thaw(self) -> bool:
        """Let the file change again; whether it stayed as it was since `freeze`."""


class Store(Protocol):
    def claim(self) -> int:
        """Become the owner; returns the new epoch. Raises StoreInUse, or StoreError if this is not a store of Busbar."""

    def release(self) -> None:
        """Release the store cleanly (idempotent). It may be claimed again."""

    def commit(self, batches: Sequence[Changes]) -> None:
        """Make the changes durable, all or none.

        The order is: puts, edits in their order, keeps in theirs, deletes; ids forgotten, ids; sessions and their locks.
        Then: rows of the outbox; taps, events, events forgotten; ids of writers, committed batches of writers; heads.

        If an id is in its segment already, it gets the new time and number.

        A missing fragment is created by its head. Raises StoreFull, OutcomeUnknown, Fenced.
        """

    def commits_at_once(self, batches: Sequence[Changes]) -> bool:
        """Whether `commit` of these would only append a little to a file that is open, and sync it. False if it may do more.
        This looks at no file."""

    def maintain(self) -> bool:
        """Do a slice of what the store has to do by itself, while it has nothing else to do. True if there is more."""

    def heads(self, only: Sequence[int] | None = None) -> list[Head]:
        """The counters of every fragment (or of these, if they exist), in the order of their ids."""

    def create(self, fragment: int) -> None:
        """Add an empty fragment (idempotent)."""

    def drop(self, fragment: int, limit: int) -> bool:
        """Delete up to `limit` messages, ids, sessions, events and written ids of a fragment. With the last of them the
        fragment is deleted, with its taps, writers and session locks. Returns True when it is gone.

        Its counters, and those of its outbox, stay correct between slices.
        """

    def read(self, fragment: int, reads: Sequence[Read]) -> None:
        """Fill in each read's records, or what else it requests. Bytes are counted by Record.size."""

    def read_all(self, jobs: Sequence[tuple[int, Sequence[Read]]]) -> None:
        """Do what `read` does for several fragments. A store may do it in fewer steps."""

    def next_due(self, fragment: int) -> int:
        """The earliest due time of a scheduled message (0: none)."""

    def taps(self, fragment: int) -> list[TapRow]:
        """The positions of the taps of a fragment."""

    def writers(self, fragment: int) -> dict[str, tuple[int, int]]:
        """The batch that each writer has committed, and when."""

    def outbox(self, fragment: int) -> dict[int, OutboxRow]:
        """The targets for which the outbox has messages."""

    def holds(self, fragment: int) -> list[SessionHold]:
        """The durable session locks of a fragment, in the order of the sessions' ids."""

    def id_segments(self, fragment: int) -> list[int]:
        """The segments that have ids, rising. Costs a step for each segment, not for each id."""

    def save_locks(self, fragment: int, locks: Sequence[Lock]) -> None:
        """Store the locks for a clean shutdown (before release: durable), in place of earlier ones."""

    def take_locks(self, fragment: int) -> list[Lock]:
        """Return the locks of the last clean shutdown, with their records (content None), and delete them durably."""

    def definitions(self) -> dict[str, bytes]:
        """The identity of the store, and the definitions of the entities that its fragments are of, by name."""

    def write_definitions(self, rows: dict[str, bytes | None]) -> None:
        """Set (or with None remove) rows of `definitions`, all or none, durably."""

    def close(self) -> None:
        """Close files; nothing more is written, and nothing is lost (idempotent). The handle cannot be claimed again."""
