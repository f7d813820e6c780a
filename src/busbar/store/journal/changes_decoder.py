"""Decodes the body of a journal record. changes_format.py describes the format.

Bytes that are not such a body raise JournalDamaged, and nothing else. The checksum of the record was right, so a newer
version wrote them, or a fault of Busbar.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from busbar.fragment.changes import (
    OVERHEAD,
    Changes,
    Head,
    Keep,
    MessageEdit,
    OutboxChange,
    SessionChange,
    SessionHold,
    TapRow,
)
from busbar.model.effects import MessageEvent
from busbar.model.message import LANES, Overlay, Record
from busbar.store.contract import StoreError
from busbar.store.journal.changes_format import (
    ALL_FLAGS,
    ALL_SECTIONS,
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

MAX_RUN: Final = 1 << 24
"""Numbers in a run. A commit deletes fewer."""


class JournalDamaged(StoreError):
    """A journal is not what its store has written: nothing of it is used before an operator has decided."""


def decode_changes(body: bytes) -> list[Changes]:
    """The group commit of a record. Raises JournalDamaged."""
    decoder = _Decoder(body)
    try:
        count = decoder.count()
        batches = [decoder.changes() for _ in range(count)]
    except (UnicodeDecodeError, OverflowError) as wrong:
        raise JournalDamaged(f"a record of the journal has a text that cannot be read: {wrong}") from None
    if decoder.at != len(body):
        raise JournalDamaged("a record of the journal has bytes that are not read")
    return batches


@final
class _Decoder:
    def __init__(self, body: bytes) -> None:
        self.at: i64 = 0
        self._body = body
        self._end: i64 = len(body)
        self._contents: dict[int, bytes] = {}  # by their place: copies share one object

    def changes(self) -> Changes:
        changes = Changes(self._long())
        sections = self._int()
        if sections & ~ALL_SECTIONS != 0:
            raise JournalDamaged("a record of the journal has sections of a newer version")
        if sections & PUTS:
            for _ in range(self.count()):
                lane = self._lane()
                changes.puts[lane] = [self._record() for _ in range(self.count())]
        if sections & EDITS:
            changes.edits = [self._edit() for _ in range(self.count())]
        if sections & KEEPS:
            for _ in range(self.count()):
                source, target = self._lane(), self._lane()
                changes.keeps.append(Keep(source, target, self._numbers()))
        if sections & DELETES:
            for _ in range(self.count()):
                lane = self._lane()
                changes.deletes[lane] = self._numbers()
        self._ids_and_sessions(changes, sections)
        self._taps_and_writers(changes, sections)
        if sections & HEAD:
            changes.head = self._head()
        return changes

    # ---- messages --------------------------------------------------------------------------------

    def _record(self) -> Record:
        self._need(18)
        body = self._body
        flags: i64 = i64(read_i16_be(body, self.at))
        if flags & ~ALL_FLAGS != 0:
            raise JournalDamaged("a message in the journal has fields of a newer version")
        n = read_i64_be(body, self.at + 2)
        enqueued = read_i64_be(body, self.at + 10)
        self.at += 18
        ttl: i64 = self._long() if flags & TTL else 0
        due: i64 = self._long() if flags & DUE else 0
        deliveries: i64 = self._long() if flags & DELIVERIES else 0
        size: i64 = self._long() if flags & SIZE else -1
        session = self._text() if flags & SESSION else None
        overlay = self._overlay() if flags & OVERLAY else None
        dead: i64 = self._long() if flags & DEAD_NUMBER else 0
        hops: i64 = 0
        target: i64 = 0
        kind: i64 = 0
        if flags & MOVED:
            hops = self._long()
            target = self._long()
            kind = self._long()
        content = None if flags & NO_CONTENT else self._content()
        if size < 0:
            size = OVERHEAD if content is None else OVERHEAD + len(content)
        return Record(
            n, enqueued, ttl, due, deliveries, size, content, overlay, session, dead, hops, target, kind
        )

    def _content(self) -> bytes:
        size = self._int()
        if size >= 0:
            place = int(self.at)
            content = self._slice(size)
            self._contents[place] = content
            return content
        size += MAX_CONTENT + 1
        found = self._contents.get(int(self._int()))
        if found is None or len(found) != size:
            raise JournalDamaged("a message in the journal shares a content that is not there")
        return found

    def _edit(self) -> MessageEdit:
        lane, to = self._lane(), self._lane()
        n = self._long()
        deliveries = self._long()
        dead = self._long()
        size = self._long()
        overlay = self._overlay() if self._flag() else None
        return MessageEdit(lane, n, to, deliveries, overlay, dead, size)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        for _ in range(self.count()):
            first = self._long()
            more = self._int()
            if more < 0 or more > MAX_RUN:
                raise JournalDamaged(f"a record of the journal has a run of {more} numbers")
            numbers += range(int(first), int(first + more + 1))
        return numbers

    # ---- the rest --------------------------------------------------------------------------------

    def _ids_and_sessions(self, changes: Changes, sections: i64) -> None:
        if sections & IDS_UPTO:
            segment = int(self._long())
            changes.ids_upto = (segment, self._bytes())
        if sections & IDS:
            for _ in range(self.count()):
                segment = int(self._long())
                id = self._bytes()
                at = int(self._long())
                changes.ids.append((segment, id, at, int(self._long())))
        if sections & SESSIONS:
            for _ in range(self.count()):
                session = self._text()
                change = SessionChange()
                change.active = self._long()
                change.turn = self._long()
                change.moved = self._flag()
                changes.sessions[session] = change
        if sections & STATES:
            for _ in range(self.count()):
                session = self._text()
                at = int(self._long())
                changes.states[session] = (at, self._bytes() if self._flag() else None)
        if sections & HOLDS:
            for _ in range(self.count()):
                session = self._text()
                changes.holds[session] = self._hold(session) if self._flag() else None
        if sections & OUTBOX_ROWS:
            for _ in range(self.count()):
                target = int(self._long())
                row = OutboxChange(self._text())
                row.count = self._long()
                changes.outbox[target] = row

    def _taps_and_writers(self, changes: Changes, sections: i64) -> None:
        if sections & TAPS:
            for _ in range(self.count()):
                tap = self._long()
                changes.taps[int(tap)] = self._tap(tap) if self._flag() else None
        if sections & EVENTS:
            changes.events = [self._event() for _ in range(self.count())]
        if sections & EVENTS_UPTO:
            changes.events_upto = self._long()
        if sections & WRITTEN:
            for _ in range(self.count()):
                writer = self._text()
                batch = int(self._long())
                changes.written.append((writer, batch, self._bytes()))
        if sections & WRITERS:
            for _ in range(self.count()):
                writer = self._text()
                if self._flag():
                    batch = int(self._long())
                    changes.writers[writer] = (batch, int(self._long()))
                else:
                    changes.writers[writer] = None

    def _hold(self, session: str) -> SessionHold:
        holder = self._text()
        return SessionHold(session, holder, self._long())

    def _tap(self, tap: i64) -> TapRow:
        position = self._long()
        lost = self._long()
        event_position = self._long()
        event_lost = self._long()
        return TapRow(tap, position, lost, event_position, event_lost, self._flag())

    def _event(self) -> MessageEvent:
        at = self._long()
        n = self._long()
        outcome = self._long()
        time = self._long()
        enqueued = self._long()
        deliveries = self._long()
        return MessageEvent(at, n, outcome, time, enqueued, deliveries, self._text())

    def _head(self) -> Head:
        fragment = self._long()
        last = self._long()
        counts = [int(self._long()) for _ in range(self.count())]
        if len(counts) != LANES:
            raise JournalDamaged(f"a record of the journal counts {len(counts)} lanes")
        rest = [int(self._long()) for _ in range(9)]
        return Head(
            fragment,
            last,
            counts,
            rest[0],
            rest[1],
            rest[2],
            rest[3],
            rest[4],
            rest[5],
            rest[6],
            rest[7],
            rest[8],
        )

    # ---- values ----------------------------------------------------------------------------------

    def _need(self, size: i64) -> None:
        if size < 0 or self.at + size > self._end:
            raise JournalDamaged("a record of the journal ends within a value")

    def _long(self) -> i64:
        self._need(8)
        value = read_i64_be(self._body, self.at)
        self.at += 8
        return value

    def _int(self) -> i64:
        self._need(4)
        value: i64 = i64(read_i32_be(self._body, self.at))
        self.at += 4
        return value

    def count(self) -> int:
        count = self._int()
        if count < 0 or count > self._end - self.at:  # each item has at least one byte
            raise JournalDamaged(f"a record of the journal has a count of {count}")
        return int(count)

    def _flag(self) -> bool:
        self._need(1)
        value = self._body[self.at]
        self.at += 1
        if value > 1:
            raise JournalDamaged(f"a record of the journal has {value} where 0 or 1 stands")
        return value == 1

    def _lane(self) -> int:
        self._need(1)
        lane = self._body[self.at]
        self.at += 1
        if lane >= LANES:
            raise JournalDamaged(f"a record of the journal names the lane {lane}")
        return lane

    def _slice(self, size: i64) -> bytes:
        self._need(size)
        value = self._body[self.at : self.at + size]
        self.at += size
        return value

    def _bytes(self) -> bytes:
        return self._slice(self._int())

    def _text(self) -> str:
        return self._bytes().decode("utf-8", "surrogatepass")

    def _overlay(self) -> Overlay:
        overlay: Overlay = {}
        for _ in range(self.count()):
            name = self._text()
            overlay[name] = self._bytes()
        return overlay
