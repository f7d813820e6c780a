"""Answers reads from the nets of a fragment (pending.py) and SQLite together, so that they need no move.

Rules:
1. A read that is answered here returns what it would return after a move. If that would take more than a few looks, it is
   not answered, and nothing of it is filled in: the caller moves, and SQLite answers.
2. A pending put takes the place of what SQLite has under its number. Numbers that are deleted in a lane are left out of it.
3. If pending edits or keeps concern a lane, reads of it are not answered. Taps read behind a position. They are answered if
   no number behind it is edited, kept or deleted.
4. Each generation has a net. What the older ones and SQLite have together is to a younger one what SQLite is to the oldest.
   Rows in SQLite of a move that is under way are pending as well, so rule 2 holds for them.
5. Answered are the reads that are frequent while messages come and go. These are pages of a lane or a session, messages by
   number, expiries and states of sessions, ids of duplicate detection, and what taps read and sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import merge

from busbar.fragment.changes import state_size
from busbar.fragment.reads import (
    KeptRow,
    Read,
    ReadByNumber,
    ReadEvents,
    ReadExpiry,
    ReadIds,
    ReadKept,
    ReadPage,
    ReadSession,
    ReadSpan,
    ReadTapPage,
)
from busbar.model.message import ACTIVE, KEPT, Record
from busbar.store.journal.pending import ANY_NUMBER, FragmentNet

LOOKS = 3
"""At SQLite, for one page: more of them would pass over messages that are deleted."""

ReadIndex = Callable[[int, Sequence[Read]], None]
"""Fills in reads of a fragment from SQLite alone (`SqliteStore.read`), or with older nets. Raises NotAnswered."""


class NotAnswered(Exception):
    """An older net does not answer a read."""


def answer(nets: Sequence[FragmentNet], index: ReadIndex, read: Read) -> bool:
    """Fill in a read. False if it is not answered here (rule 1). The youngest net comes first."""
    try:
        return bool(nets) and _answer(nets[0], _below(nets[1:], index), read)
    except NotAnswered:
        return False


def _below(nets: Sequence[FragmentNet], index: ReadIndex) -> ReadIndex:
    """What a younger net takes for SQLite (rule 4)."""
    if not nets:
        return index
    below = _below(nets[1:], index)

    def fill_in(fragment: int, reads: Sequence[Read]) -> None:
        if not all(_answer(nets[0], below, read) for read in reads):
            raise NotAnswered

    return fill_in


def _answer(net: FragmentNet, index: ReadIndex, read: Read) -> bool:
    if isinstance(read, ReadPage):
        return _page(net, index, read)
    if isinstance(read, ReadByNumber):
        return _by_number(net, index, read)
    if isinstance(read, ReadIds):
        return _ids(net, index, read)
    if isinstance(read, ReadTapPage):
        return _tap_page(net, index, read)
    if isinstance(read, ReadSpan):
        return _span(net, index, read)
    if isinstance(read, ReadKept):
        return _kept(net, index, read)
    if isinstance(read, ReadEvents):
        return _events(net, index, read)
    if isinstance(read, ReadExpiry):
        return _expiry(net, index, read)
    if isinstance(read, ReadSession):
        return _session(net, index, read)
    return False


def _page(net: FragmentNet, index: ReadIndex, read: ReadPage) -> bool:
    if read.lane in net.lanes_changed:
        return False
    found = _left_of_page(net, index, read)
    if found is None:
        return False
    rows, upto = found
    if read.session is None:
        pending = [record for _, record in net.between([read.lane], read.start - 1, upto, read.limit)]
    else:
        pending = net.of_session(read.session, read.lane, read.start - 1, upto)
    records = list(merge(rows, pending, key=_number)) if rows else pending
    read.records = _up_to(read.max_bytes, records[: read.limit])
    # A page of pending messages that has reached its limit may not be all of them.
    is_all = upto == ANY_NUMBER and len(read.records) == len(records)
    read.complete = is_all and len(read.records) < read.limit
    return True


def _left_of_page(net: FragmentNet, index: ReadIndex, read: ReadPage) -> tuple[list[Record], int] | None:
    """What is left of SQLite's messages, and the number up to which these are all; None if that takes too long."""
    rows: list[Record] = []
    start, size = read.start, 0
    if start > net.last_before:
        return rows, ANY_NUMBER
    gone = net.deleted_of(read.lane)
    for _ in range(LOOKS):
        page = ReadPage(read.lane, start, read.limit, read.max_bytes, read.session)
        index(net.fragment, [page])
        left = [record for record in page.records if record.n not in gone and record.n not in net.puts]
        rows += left
        size += sum([record.size for record in left])
        if page.complete or not page.records:
            return rows, ANY_NUMBER
        if len(left) == len(page.records) or len(rows) >= read.limit or size > read.max_bytes:
            return rows, page.records[-1].n
        start = page.records[-1].n + 1
    return None


def _by_number(net: FragmentNet, index: ReadIndex, read: ReadByNumber) -> bool:
    if read.lane in net.lanes_changed:
        return False
    gone = net.deleted_of(read.lane)
    records: list[Record] = []
    others: list[int] = []
    for n in set(read.numbers):
        entry = net.puts.get(n)
        if entry is not None:
            if entry[0] == read.lane:
                records.append(entry[1])
        elif n <= net.last_before and n not in gone:
            others.append(n)
    if others:
        rest = ReadByNumber(read.lane, others)
        index(net.fragment, [rest])
        records += rest.records
    read.records = sorted(records, key=_number)
    return True


def _ids(net: FragmentNet, index: ReadIndex, read: ReadIds) -> bool:
    forgotten, below = net.changes.ids_upto or (-1, b"")
    ids = list(dict.fromkeys(read.ids))
    rest: list[ReadIds] = []
    pending: dict[bytes, list[tuple[int, int]]] = {}
    for segment in read.segments:
        # Of this segment, SQLite answers for the ids that are not pending and not forgotten.
        asked = [] if segment < forgotten else [id for id in ids if segment > forgotten or id > below]
        for id in ids:
            entry = net.ids.get((segment, id))
            if entry is not None:
                pending.setdefault(id, []).append(entry)
                if id in asked:
                    asked.remove(id)
        _add(rest, asked, segment)
    if rest:
        index(net.fragment, rest)
    read.found = {}
    for each in rest:
        for id, entry in each.found.items():
            pending.setdefault(id, []).append(entry)
    for id, entries in pending.items():
        read.found[id] = max(entries)
    return True


def _add(reads: list[ReadIds], ids: list[bytes], segment: int) -> None:
    """Ask for ids on one more segment. Segments on which the same ids are asked for are one read."""
    if not ids:
        return
    if reads and reads[-1].ids == ids:
        reads[-1].segments.append(segment)
    else:
        reads.append(ReadIds(ids, [segment]))


def _is_still(net: FragmentNet, after: int) -> bool:
    """Whether SQLite's messages behind a number are as they were, and all pending ones come behind them."""
    return after >= net.last_changed and not net.has_low_puts


def _span(net: FragmentNet, index: ReadIndex, read: ReadSpan) -> bool:
    if read.by_dead or not _is_still(net, read.after):
        return False
    records: list[Record] = []
    if read.after < net.last_before:
        upto = min(read.upto, net.last_before)
        first = ReadSpan(read.lanes, False, read.after, upto, read.limit, read.max_bytes)
        index(net.fragment, [first])
        if not first.complete:
            read.records, read.complete = first.records, False
            return True
        records = first.records
    behind = max(read.after, net.last_before)
    records = records + [r for _, r in net.between(read.lanes, behind, read.upto, read.limit + 1)]
    read.records = _up_to(read.max_bytes, records[: read.limit])
    read.complete = len(read.records) == len(records)
    return True


def _tap_page(net: FragmentNet, index: ReadIndex, read: ReadTapPage) -> bool:
    if read.by_dead or not _is_still(net, read.after):
        return False
    packing = read.packing
    if read.after < net.last_before:
        upto = min(read.upto, net.last_before)
        first = ReadTapPage(read.lanes, False, read.after, upto, read.limit, read.max_bytes)
        first.packing = packing
        index(net.fragment, [first])
        if not first.complete:
            read.complete = False
            return True
    behind = max(read.after, net.last_before)
    pending = net.between(read.lanes, behind, read.upto, read.limit + 1)
    read.complete = all(packing.add(record, lane) for lane, record in pending)
    return True


def _kept(net: FragmentNet, index: ReadIndex, read: ReadKept) -> bool:
    if read.lane != KEPT or KEPT in net.lanes_changed:
        return False
    gone = net.deleted_of(KEPT)
    first = ReadKept(KEPT, min(read.upto, net.last_before), read.limit)
    index(net.fragment, [first])
    rows = [row for row in first.rows if row[0] not in gone and row[0] not in net.puts]
    upto = read.upto
    if len(first.rows) == read.limit:
        if len(rows) < len(first.rows):
            return False
        upto = first.rows[-1][0]
    pending = [_kept_row(record) for _, record in net.between([KEPT], 0, upto, read.limit)]
    read.rows = sorted(rows + pending)[: read.limit]
    return True


def _events(net: FragmentNet, index: ReadIndex, read: ReadEvents) -> bool:
    after = max(read.after, net.changes.events_upto)
    pending = net.events_between(after, read.upto, read.limit)
    # Positions rise, so what SQLite has comes first.
    first = ReadEvents(after, min(read.upto, pending[0].at - 1) if pending else read.upto, read.limit)
    index(net.fragment, [first])
    read.events = (first.events + pending)[: read.limit]
    return True


def _expiry(net: FragmentNet, index: ReadIndex, read: ReadExpiry) -> bool:
    if ACTIVE in net.lanes_changed:
        return False
    gone = net.deleted_of(ACTIVE)
    first = ReadExpiry(read.session, read.limit)
    index(net.fragment, [first])
    rows = [row for row in first.rows if row[1] not in gone and row[1] not in net.puts]
    if len(rows) < len(first.rows) == read.limit:
        return False
    pending = net.of_session(read.session, ACTIVE, 0, ANY_NUMBER)
    rows += [(record.enqueued + record.ttl, record.n) for record in pending if record.ttl > 0]
    read.rows = sorted(rows)[: read.limit]
    return True


def _session(net: FragmentNet, index: ReadIndex, read: ReadSession) -> bool:
    found = net.changes.states.get(read.session)
    if found is None:
        index(net.fragment, [read])
    else:
        state = found[1]
        read.size = -1 if state is None else state_size(read.session, state)
        read.state = state if read.with_state else None
    return True


def _number(record: Record) -> int:
    return record.n


def _kept_row(record: Record) -> KeptRow:
    return record.n, record.dead_letter_number, record.size, record.enqueued


def _up_to(max_bytes: int, records: list[Record]) -> list[Record]:
    """The first records that fit, but at least one."""
    total = 0
    for place, record in enumerate(records):
        total += record.size
        if place and total > max_bytes:
            return records[:place]
    return records
