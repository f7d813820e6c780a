"""Moves a generation of what is pending to SQLite, in slices between which commits go on.

Rules:
1. The first slices put messages, further ones forget and remember ids and delete messages. The last one performs all else,
   with the heads and the sequence that the generation reaches.
2. Each slice is a transaction that is not synced. Until the last one, SQLite states from which row on messages are of an
   unfinished move (sqlite/journal_state.py). A claim deletes them. An id or a delete that is there early does no harm, since
   the claim performs the records that have it again. But a delete waits for the edits and keeps of its message, which may
   bring it into the lane from which it is deleted.
3. Between the first slice and the last nothing else is written to SQLite.
4. A generation that is small, or has changes of one message in an unusual order, is moved in one slice.
"""

from __future__ import annotations

from collections.abc import Iterator

from busbar.fragment.changes import Changes
from busbar.store.journal.pending import FragmentNet, Pending
from busbar.store.sqlite.file import Need
from busbar.store.sqlite.store import SqliteStore

SLICE = 256
"""Rows of a slice."""
SLICE_BYTES = 1024 * 1024


class GenerationMove:
    """The move of a generation, which holds the records of the journal up to `sequence` and changes no more."""

    def __init__(self, generation: Pending, sequence: int) -> None:
        self.generation = generation
        self.sequence = sequence
        self._is_sliced = generation.is_plain() and generation.rows() > SLICE
        self._slices = _slices(generation) if self._is_sliced else iter(())
        self._next = next(self._slices, None)

    def step(self, sqlite: SqliteStore, need: Need) -> bool:
        """Write the next slice. True if it was the last one. If it raises StoreFull, the same slice comes again."""
        if self._next is not None:
            sqlite.apply_slice([self._next], need)
            self._next = next(self._slices, None)
            return False
        groups = self.generation.rest() if self._is_sliced else self.generation.groups()
        sqlite.apply(groups, self.sequence, need)
        return True


def _slices(generation: Pending) -> Iterator[Changes]:
    nets = generation.nets()
    for net in nets:
        yield from _puts(net)
    for net in nets:
        yield from _ids(net)
        yield from _deletes(net)


def _puts(net: FragmentNet) -> Iterator[Changes]:
    changes = Changes(net.fragment)
    rows = size = 0
    for n in sorted(net.puts):
        lane, record = net.puts[n]
        if lane not in changes.puts:
            changes.puts[lane] = []
        changes.puts[lane].append(record)
        rows += 1
        size += 0 if record.content is None else len(record.content)
        if rows == SLICE or size >= SLICE_BYTES:
            yield changes
            changes = Changes(net.fragment)
            rows = size = 0
    if rows:
        yield changes


def _ids(net: FragmentNet) -> Iterator[Changes]:
    ids = [(segment, id, at, n) for (segment, id), (at, n) in net.ids.items()]
    upto = net.changes.ids_upto
    for first in range(0, len(ids), SLICE) if ids else range(upto is not None):
        changes = Changes(net.fragment)
        if first == 0:
            changes.ids_upto = upto  # before those that are remembered
        changes.ids = ids[first : first + SLICE]
        yield changes


def _deletes(net: FragmentNet) -> Iterator[Changes]:
    for lane in net.deleted:
        numbers = net.early_deletes(lane)
        for first in range(0, len(numbers), SLICE):
            changes = Changes(net.fragment)
            changes.deletes[lane] = numbers[first : first + SLICE]
            yield changes
