"""Encodes a group commit as the body of a journal record. changes_format.py describes the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

from busbar.fragment.changes import OVERHEAD, Changes, Head, MessageEdit
from busbar.model.message import Overlay, Record
from busbar.store.journal.changes_format import (
    DEAD_NUMBER,
    DELETES,
    DELIVERIES,
    DUE,
    EDITS,
    EVENTS,
    EVENTS_UPTO,
    HEAD,
    HOLDS,
    IDS,
    IDS_UPTO,
    KEEPS,
    MAX_CONTENT,
    MOVED,
    NO_CONTENT,
    OUTBOX_ROWS,
    OVERLAY,
    PUTS,
    SESSION,
    SESSIONS,
    SIZE,
    STATES,
    TAPS,
    TTL,
    WRITERS,
    WRITTEN,
)
from busbar.store.number_runs import number_runs

SHARED_FROM: Final = (
    64  # bytes: for a shorter content, remembering its place costs more than writing it again
)


KEPT_SIZE: Final = 2 * 1024 * 1024
"""Bytes: an encoder keeps no larger buffer for the next record."""


def encode_changes(batches: Sequence[Changes]) -> bytes:
    """The body of the record for a group commit."""
    return ChangesEncoder().encode(batches)


@final
class ChangesEncoder:
    """Encodes one record after another, in a buffer that need not grow again for each."""

    def __init__(self) -> None:
        self.out = BytesWriter()
        self._places: dict[int, int] = {}  # of contents, by their identity: the batches keep them alive
        self._shares_contents = False
        self._last: list[Record] = []
        self._again = b""  # what the last records are when they come again; empty: they have not

    def encode(self, batches: Sequence[Changes]) -> bytes:
        """The body of the record for a group commit."""
        self._forget()
        self._expect(batches)
        self.out.truncate(0)
        write_i32_be(self.out, i32(len(batches)))
        for changes in batches:
            self._changes(changes)
        body = self.out.getvalue()
        self._forget()
        if len(body) > KEPT_SIZE:
            self.out = BytesWriter()
        return body

    def _forget(self) -> None:
        """Keep nothing of a record: places are those of one, also if it could not be encoded."""
        self._places.clear()
        self._last = []
        self._again = b""

    def _expect(self, batches: Sequence[Changes]) -> None:
        """Remember the places of contents only if several fragments put copies of a topic's messages."""
        putting: i64 = 0
        for changes in batches:
            if changes.has_copies:
                putting += 1
        self._shares_contents = putting > 1

    def _changes(self, changes: Changes) -> None:
        out = self.out
        write_i64_be(out, changes.fragment)
        write_i32_be(out, i32(_sections(changes)))
        if changes.puts:
            self._count(len(changes.puts))
            for lane, records in changes.puts.items():
                out.append(lane)
                self._count(len(records))
                self._records(records)
        if changes.edits:
            self._count(len(changes.edits))
            for edit in changes.edits:
                self._edit(edit)
        if changes.keeps:
            self._count(len(changes.keeps))
            for keep in changes.keeps:
                out.append(int(keep.lane))
                out.append(int(keep.to))
                self._numbers(keep.numbers)
        if changes.deletes:
            self._count(len(changes.deletes))
            for lane, numbers in changes.deletes.items():
                out.append(lane)
                self._numbers(numbers)
        self._ids_and_sessions(changes)
        self._taps_and_writers(changes)
        head = changes.head
        if head is not None:
            self._head(head)

    # ---- messages --------------------------------------------------------------------------------

    def _records(self, records: list[Record]) -> None:
        """Encode records. Fragments of subscriptions may have the same ones, one fragment after the other. The second time
        no content is among them any more, and from then on the bytes are the same."""
        if records != self._last:
            self._last, self._again = records, b""
            for record in records:
                self._record(record)
            return
        if not self._again:
            out, self.out = self.out, BytesWriter()
            for record in records:
                self._record(record)
            self._again = self.out.getvalue()
            self.out = out
        self.out.write(self._again)

    def _record(self, record: Record) -> None:
        out = self.out
        content = record.content
        overlay, session = record.overlay, record.session_id
        flags: i64 = 0
        usual: i64 = OVERHEAD
        if content is None:
            flags |= NO_CONTENT
        else:
            usual += len(content)
        if record.ttl != 0:
            flags |= TTL
        if record.due != 0:
            flags |= DUE
        if record.deliveries != 0:
            flags |= DELIVERIES
        if record.size != usual:
            flags |= SIZE
        if session is not None:
            flags |= SESSION
        if overlay is not None:
            flags |= OVERLAY
        if record.dead_letter_number != 0:
            flags |= DEAD_NUMBER
        if record.hops != 0 or record.target != 0 or record.kind != 0:
            flags |= MOVED
        write_i16_be(out, i16(flags))
        write_i64_be(out, record.n)
        write_i64_be(out, record.enqueued)
        if flags & ~NO_CONTENT != 0:
            if flags & TTL:
                write_i64_be(out, record.ttl)
            if flags & DUE:
                write_i64_be(out, record.due)
            if flags & DELIVERIES:
                write_i64_be(out, record.deliveries)
            if flags & SIZE:
                write_i64_be(out, record.size)
            if session is not None:
                self._text(session)
            if overlay is not None:
                self._overlay(overlay)
            if flags & DEAD_NUMBER:
                write_i64_be(out, record.dead_letter_number)
            if flags & MOVED:
                write_i64_be(out, record.hops)
                write_i64_be(out, record.target)
                write_i64_be(out, record.kind)
        if content is not None:
            self._content(content)

    def _content(self, content: bytes) -> None:
        out = self.out
        size: i64 = len(content)
        if size > MAX_CONTENT:
            raise ValueError(f"a content of {size} bytes is too large for a journal")
        if self._shares_contents and size >= SHARED_FROM:
            key = id(content)
            known = self._places.get(key)
            if known is not None:
                write_i32_be(out, i32(size - MAX_CONTENT - 1))  # with the highest bit set
                write_i32_be(out, i32(known))
                return
            self._places[key] = len(out) + 4
        write_i32_be(out, i32(size))
        out.write(content)

    def _edit(self, edit: MessageEdit) -> None:
        out = self.out
        out.append(int(edit.lane))
        out.append(int(edit.to))
        write_i64_be(out, edit.n)
        write_i64_be(out, edit.deliveries)
        write_i64_be(out, edit.dead)
        write_i64_be(out, edit.size)
        overlay = edit.overlay
        out.append(0 if overlay is None else 1)
        if overlay is not None:
            self._overlay(overlay)

    def _numbers(self, numbers: list[int]) -> None:
        """Numbers as runs: the first, and how many follow it."""
        out = self.out
        count: i64 = len(numbers)
        if count > 0:
            first: i64 = numbers[0]
            last: i64 = numbers[count - 1]
            if last - first == count - 1 and _rise_by_one(numbers):  # nearly always
                self._count(1)
                write_i64_be(out, first)
                write_i32_be(out, i32(last - first))
                return
        runs = list(number_runs(numbers))
        self._count(len(runs))
        for begin, end in runs:
            write_i64_be(out, begin)
            write_i32_be(out, i32(end - begin))

    # ---- the rest --------------------------------------------------------------------------------

    def _ids_and_sessions(self, changes: Changes) -> None:
        out = self.out
        upto = changes.ids_upto
        if upto is not None:
            write_i64_be(out, upto[0])
            self._bytes(upto[1])
        if changes.ids:
            self._count(len(changes.ids))
            for segment, id, at, n in changes.ids:
                write_i64_be(out, segment)
                self._bytes(id)
                write_i64_be(out, at)
                write_i64_be(out, n)
        if changes.sessions:
            self._count(len(changes.sessions))
            for session, change in changes.sessions.items():
                self._text(session)
                write_i64_be(out, change.active)
                write_i64_be(out, change.turn)
                out.append(1 if change.moved else 0)
        if changes.states:
            self._count(len(changes.states))
            for session, (at, state) in changes.states.items():
                self._text(session)
                write_i64_be(out, at)
                out.append(0 if state is None else 1)
                if state is not None:
                    self._bytes(state)
        if changes.holds:
            self._count(len(changes.holds))
            for session, hold in changes.holds.items():
                self._text(session)
                out.append(0 if hold is None else 1)
                if hold is not None:
                    self._text(hold.holder)
                    write_i64_be(out, hold.until)
        if changes.outbox:
            self._count(len(changes.outbox))
            for target, row in changes.outbox.items():
                write_i64_be(out, target)
                self._text(row.path)
                write_i64_be(out, row.count)

    def _taps_and_writers(self, changes: Changes) -> None:
        out = self.out
        if changes.taps:
            self._count(len(changes.taps))
            for tap, position in changes.taps.items():
                write_i64_be(out, tap)
                out.append(0 if position is None else 1)
                if position is not None:
                    write_i64_be(out, position.position)
                    write_i64_be(out, position.lost)
                    write_i64_be(out, position.event_position)
                    write_i64_be(out, position.event_lost)
                    out.append(1 if position.truncated else 0)
        if changes.events:
            self._count(len(changes.events))
            for event in changes.events:
                write_i64_be(out, event.at)
                write_i64_be(out, event.n)
                write_i64_be(out, event.outcome)
                write_i64_be(out, event.time)
                write_i64_be(out, event.enqueued)
                write_i64_be(out, event.deliveries)
                self._text(event.reason)
        if changes.events_upto > 0:
            write_i64_be(out, changes.events_upto)
        if changes.written:
            self._count(len(changes.written))
            for writer, batch, id in changes.written:
                self._text(writer)
                write_i64_be(out, batch)
                self._bytes(id)
        if changes.writers:
            self._count(len(changes.writers))
            for writer, committed in changes.writers.items():
                self._text(writer)
                out.append(0 if committed is None else 1)
                if committed is not None:
                    write_i64_be(out, committed[0])
                    write_i64_be(out, committed[1])

    def _head(self, head: Head) -> None:
        out = self.out
        write_i64_be(out, head.fragment)
        write_i64_be(out, head.last)
        self._count(len(head.counts))
        for count in head.counts:
            write_i64_be(out, count)
        write_i64_be(out, head.size)
        write_i64_be(out, head.ids)
        write_i64_be(out, head.dropped)
        write_i64_be(out, head.turn)
        write_i64_be(out, head.last_dead)
        write_i64_be(out, head.last_event)
        write_i64_be(out, head.events)
        write_i64_be(out, head.kept_size)
        write_i64_be(out, head.kept_dead_size)

    # ---- values ----------------------------------------------------------------------------------

    def _count(self, count: int) -> None:
        write_i32_be(self.out, i32(count))

    def _bytes(self, value: bytes) -> None:
        write_i32_be(self.out, i32(len(value)))
        self.out.write(value)

    def _text(self, text: str) -> None:
        self._bytes(text.encode("utf-8", "surrogatepass"))

    def _overlay(self, overlay: Overlay) -> None:
        self._count(len(overlay))
        for name, value in overlay.items():
            self._text(name)
            self._bytes(value)


def _rise_by_one(numbers: list[int]) -> bool:
    expected: i64 = numbers[0]
    for number in numbers:
        if number != expected:
            return False
        expected += 1
    return True


def _sections(changes: Changes) -> i64:
    sections: i64 = 0
    if changes.puts:
        sections |= PUTS
    if changes.edits:
        sections |= EDITS
    if changes.keeps:
        sections |= KEEPS
    if changes.deletes:
        sections |= DELETES
    if changes.ids_upto is not None:
        sections |= IDS_UPTO
    if changes.ids:
        sections |= IDS
    if changes.sessions:
        sections |= SESSIONS
    if changes.states:
        sections |= STATES
    if changes.outbox:
        sections |= OUTBOX_ROWS
    if changes.taps:
        sections |= TAPS
    if changes.events:
        sections |= EVENTS
    if changes.events_upto > 0:
        sections |= EVENTS_UPTO
    if changes.written:
        sections |= WRITTEN
    if changes.writers:
        sections |= WRITERS
    if changes.head is not None:
        sections |= HEAD
    if changes.holds:
        sections |= HOLDS
    return sections
