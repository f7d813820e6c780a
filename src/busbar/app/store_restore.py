"""Puts back a store that `reset` replaced, while Busbar does not run.

Since the reset the namespace has another store in that place, with an id of its own. Entities and taps were created and
deleted since, and numbers were assigned.

1. The current store must be readable and hold no message, neither for receivers nor for a tap, because nothing is
   overwritten. It is renamed in turn.
2. The store that is put back gets the definitions and the identity of the current one: entities are those of now. What they
   lack, it gets from the catalogue at the next start.
3. No number is assigned twice: each fragment continues after the higher one of its two counters. Fragments and taps that
   were created since are taken over with their positions. Fragments of entities that were deleted since are removed.
4. The store is complete before its files are moved. If the process ends in between, `reset` and another restore help.
"""

from __future__ import annotations

from pathlib import Path

from busbar.app.data_directory import DataDirectory
from busbar.broker.fragment_loading import open_store
from busbar.catalogue.membership import read_rows
from busbar.catalogue.store_definitions import served_fragments
from busbar.fragment.changes import Changes, Head, empty_head
from busbar.model.errors import ArgumentError, InvalidOperation
from busbar.model.message import message_count
from busbar.store.contract import Store
from busbar.store.journal.directory import EmbeddedLocation, stores_in
from busbar.store.journal.store import JournalStore

SLICE = 10_000
"""Messages that one transaction deletes."""


def restore_store(data: Path, name: str, aside: str = "") -> tuple[Path, int]:
    """Put back the newest file of a store that a reset replaced, or the one of that name; returns the file and the number of
    its messages. Raises DataDirectoryError, StoreError, OSError, ArgumentError, InvalidOperation."""
    directory = DataDirectory(data)
    try:
        if name not in stores_in(directory.path):
            there = ", ".join(stores_in(directory.path))
            raise ArgumentError(f"There is no store '{name}' in {directory.path}; there are {there}.")
        place = EmbeddedLocation(directory.path, name)
        found = [file for file in place.replaced_files() if not aside or file.name == Path(aside).name]
        if not found:
            known = ", ".join(file.name for file in place.replaced_files()) or "nothing"
            raise ArgumentError(
                f"Of the store '{name}' there is {known} that a reset replaced, and not {aside or 'a file'}."
            )
        messages = _prepare(found[-1], place, name)
        place.rename_current()
        place.put_back(found[-1])
        return found[-1], messages
    finally:
        directory.release()


def _prepare(file: Path, place: EmbeddedLocation, name: str) -> int:
    """Adapt the replaced store to the namespace as it is now; returns the number of its messages."""
    current, _ = open_store(place.open)
    try:
        _check_empty(current, name)
        other, _ = open_store(lambda: JournalStore(file))
        try:
            _check_same(current, other, file)
            _take_over(current, other)
            messages = sum(message_count(head.counts) for head in other.heads())
            other.release()
        finally:
            other.close()
        current.release()
    finally:
        current.close()
    return messages


def _check_empty(current: Store, name: str) -> None:
    """Check that the current store can be read and holds no message."""
    held = sum(sum(head.counts) for head in current.heads())
    if held:
        raise InvalidOperation(
            f"The store '{name}' holds {held} messages (those that are kept for taps count too), which would be out of "
            "reach. Receive them, or delete the taps, first."
        )


def _check_same(current: Store, other: Store, file: Path) -> None:
    ours, theirs = (read_rows((dict(store.definitions()), 0)).identity for store in (current, other))
    if ours is None or theirs is None or (ours.namespace, ours.name) != (theirs.namespace, theirs.name):
        raise InvalidOperation(f"{file} is not a store that was in this place.")


def _take_over(current: Store, other: Store) -> None:
    """Give the store that is put back the definitions, the identity and the higher counters of the current one."""
    known = {head.fragment: head for head in other.heads()}
    changes = []
    for head in current.heads():
        fragment = head.fragment
        change = Changes(fragment)
        change.head = _raise_counters(known.get(fragment) or empty_head(fragment), head)
        taps = {row.id for row in other.taps(fragment)} if fragment in known else set()
        change.taps = {row.id: row for row in current.taps(fragment) if row.id not in taps}
        changes.append(change)
    if changes:
        other.commit(changes)
    ours = current.definitions()
    for fragment in known.keys() - served_fragments(ours):
        while not other.drop(fragment, SLICE):
            pass
    rows: dict[str, bytes | None] = dict.fromkeys(other.definitions())
    rows.update(ours)
    other.write_definitions(rows)


def _raise_counters(head: Head, since: Head) -> Head:
    raised = head.copy()
    raised.last = max(head.last, since.last)
    raised.turn = max(head.turn, since.turn)
    raised.last_dead = max(head.last_dead, since.last_dead)
    raised.last_event = max(head.last_event, since.last_event)
    return raised
