"""What a group of changes does to messages, with at most one action for each message.

All parts of the statement of a commit see the store as it was before. So a message that the group puts and then edits is put
as it ended. One that it puts and deletes is not written at all. One that it edits, keeps and deletes is deleted.

The lane of a stored message is not known here, and an action that names another lane does nothing. So one message may come
with several lanes, of which at most one is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from busbar.fragment.changes import Changes, MessageEdit
from busbar.model.message import Record
from busbar.store.number_runs import number_runs
from busbar.store.overlay_codec import encode_overlay
from busbar.store.postgresql.journal import to_bytes

_GONE: Final = -1  # in place of a lane

Way = tuple[int, MessageEdit | None]
"""Where a message ends that begins in a lane, and what was set on its way."""


class MessageWrites:
    """The columns of the statement's arrays."""

    def __init__(self) -> None:
        self.puts: tuple[list[Any], ...] = tuple([] for _ in range(7))
        self.full_puts: tuple[list[Any], ...] = tuple([] for _ in range(15))
        self.edits: tuple[list[Any], ...] = tuple([] for _ in range(8))
        self.keeps: tuple[list[Any], ...] = tuple([] for _ in range(5))
        self.deletes: tuple[list[Any], ...] = tuple([] for _ in range(4))
        self.bytes = 0

    # ---- puts ----

    def put(self, fragment: int, lane: int, records: Iterable[Record]) -> None:
        fragments, lanes, numbers, enqueued, ttls, sizes, contents = self.puts
        for r in records:
            content = r.content
            assert content is not None
            self.bytes += len(content)
            if (
                r.overlay is not None
                or r.session_id is not None
                or r.due
                or r.deliveries
                or r.dead_letter_number
                or r.hops
                or r.kind
                or r.target
            ):
                self._put_full(fragment, lane, r, content)
                continue
            fragments.append(fragment)
            lanes.append(lane)
            numbers.append(r.n)
            enqueued.append(r.enqueued)
            ttls.append(r.ttl)
            sizes.append(r.size)
            contents.append(content)

    def _put_full(self, fragment: int, lane: int, r: Record, content: bytes) -> None:
        session = None if r.session_id is None else to_bytes(r.session_id)
        row = (
            fragment,
            lane,
            r.n,
            r.enqueued,
            r.ttl,
            r.size,
            content,
            r.due,
            r.deliveries,
            r.dead_letter_number,
            session,
            encode_overlay(r.overlay),
            r.hops,
            r.target,
            r.kind,
        )
        for column, value in zip(self.full_puts, row, strict=True):
            column.append(value)

    # ---- stored messages ----

    def edit(self, fragment: int, lane: int, edit: MessageEdit, to: int) -> None:
        row = (
            fragment,
            lane,
            edit.n,
            to,
            edit.deliveries,
            encode_overlay(edit.overlay),
            edit.dead,
            edit.size,
        )
        for column, value in zip(self.edits, row, strict=True):
            column.append(value)

    def keep(self, fragment: int, lane: int, to: int, numbers: Sequence[int]) -> None:
        fragments, lanes, firsts, lasts, targets = self.keeps
        for first, last in number_runs(numbers):
            fragments.append(fragment)
            lanes.append(lane)
            firsts.append(first)
            lasts.append(last)
            targets.append(to)

    def delete(self, fragment: int, lane: int, numbers: Sequence[int]) -> None:
        fragments, lanes, firsts, lasts = self.deletes
        for first, last in number_runs(numbers):
            fragments.append(fragment)
            lanes.append(lane)
            firsts.append(first)
            lasts.append(last)

    # ---- a fragment's changes ----

    def add(self, changes: Changes) -> None:
        if changes.edits or changes.keeps or _meets_itself(changes):
            self._fold(changes)
            return
        for lane, records in changes.puts.items():
            self.put(changes.fragment, lane, records)
        for lane, numbers in changes.deletes.items():
            self.delete(changes.fragment, lane, numbers)

    def _fold(self, changes: Changes) -> None:
        fresh = {r.n: (lane, r) for lane, records in changes.puts.items() for r in records}
        ways: dict[int, dict[int, Way]] = {}
        for edit in changes.edits:
            _move(fresh, ways, edit.n, edit.lane, edit.to, edit)
        for keep in changes.keeps:
            for n in keep.numbers:
                _move(fresh, ways, n, keep.lane, keep.to, None)
        fragment = changes.fragment
        for lane, numbers in changes.deletes.items():
            plain = []
            for n in numbers:
                if n in fresh or n in ways:
                    _move(fresh, ways, n, lane, _GONE, None)
                else:
                    plain.append(n)
            self.delete(fragment, lane, plain)
        for lane, record in fresh.values():
            if lane != _GONE:
                self.put(fragment, lane, (record,))
        self._end_ways(fragment, ways)

    def _end_ways(self, fragment: int, ways: dict[int, dict[int, Way]]) -> None:
        kept: dict[tuple[int, int], list[int]] = {}
        deleted: dict[int, list[int]] = {}
        for n, way in ways.items():
            for start, (end, edit) in way.items():
                if end == _GONE:
                    deleted.setdefault(start, []).append(n)
                elif edit is not None:
                    self.edit(fragment, start, edit, end)
                else:
                    kept.setdefault((start, end), []).append(n)
        for (start, end), numbers in kept.items():
            self.keep(fragment, start, end, numbers)
        for start, numbers in deleted.items():
            self.delete(fragment, start, numbers)


def fold(batches: Iterable[Changes]) -> MessageWrites:
    """What the changes do to messages."""
    writes = MessageWrites()
    for changes in batches:
        writes.add(changes)
    return writes


def _meets_itself(changes: Changes) -> bool:
    """Whether the changes may delete a message that they put. Numbers rise, so a comparison of two mostly decides."""
    if not changes.deletes or not changes.puts:
        return False
    first = min((r.n for records in changes.puts.values() for r in records), default=0)
    return any(numbers and max(numbers) >= first for numbers in changes.deletes.values())


def _move(
    fresh: dict[int, tuple[int, Record]],
    ways: dict[int, dict[int, Way]],
    n: int,
    lane: int,
    to: int,
    edit: MessageEdit | None,
) -> None:
    if n in fresh:
        now, record = fresh[n]
        if now == lane:
            fresh[n] = (to, record if edit is None else edit.edited(record))
        return
    way = ways.setdefault(n, {})
    for start, (now, before) in way.items():
        if now == lane:
            way[start] = (to, before if edit is None else edit)
    if lane not in way:
        way[lane] = (to, edit)
