"""Reads at any point over a journal, against the same reads over the store in memory; and which of them need no move."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from busbar.fragment.changes import Changes, Head, Keep, MessageEdit, TapRow
from busbar.fragment.reads import (
    Read,
    ReadByNumber,
    ReadDue,
    ReadEvents,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadKept,
    ReadPage,
    ReadSession,
    ReadSpan,
    ReadTapPage,
    ReadTime,
)
from busbar.model.effects import MessageEvent
from busbar.model.message import ACTIVE, DEAD, DEFERRED, KEPT, KEPT_DEAD, LANES, SCHEDULED, Record
from busbar.store.journal import moving
from busbar.store.journal.store import JournalStore
from harness.memory_store import MemoryStore
from tests.pages import shown
from tests.unit.store.journal.examples import plain

MANY = 1 << 40
DEEP = os.environ.get("BUSBAR_DEEP") == "1"
LANES_USED = [ACTIVE, ACTIVE, ACTIVE, DEAD, DEFERRED, SCHEDULED, KEPT, KEPT_DEAD]
IDS = [bytes([65 + number]) * 16 for number in range(4)]
CHANGES = (
    *["put"] * 3,
    *["delete"] * 2,
    *("low put", "edit", "keep", "id", "forget ids", "event", "forget events", "tap", "state"),
)
RARE = ("id page", "due", "time")
"""They need a move, which ends what is pending."""
READS = ("page", "page", "numbers", "ids", "span", "tap page", "kept", "events", "expiry", "session", *RARE)


class Pair:
    """A journal and the store in memory, which get the same commits."""

    def __init__(self, journal: JournalStore, fragment: int = 1) -> None:
        self.journal, self.memory = journal, MemoryStore()
        self.fragment = fragment
        self.memory.claim()
        self.last = self.event = self.dead = self.segment = self.time = 0
        self.skipped: list[int] = []

    def commit(self, steps: list[tuple[str, int, int]]) -> None:
        changes = Changes(self.fragment)
        for what, a, b in steps:
            self.time += 1
            self._add(changes, what, a, b)
        counts = [len(lane.order) for lane in self.memory.disk.fragment(self.fragment).lanes]
        changes.head = Head(self.fragment, self.last, counts, self.time)
        self.journal.commit([changes])
        self.memory.commit([changes])

    def _add(self, changes: Changes, what: str, a: int, b: int) -> None:
        lane, n = LANES_USED[b % len(LANES_USED)], a
        if what == "put":
            if a % 4 == 0:  # a number that is written later, as those of express entities may be
                self.last += 1
                self.skipped.append(self.last)
            self.last += 1
            changes.puts.setdefault(lane, []).append(self._record(self.last, a))
        elif what == "low put" and self.skipped:
            changes.puts.setdefault(lane, []).append(self._record(self.skipped.pop(a % len(self.skipped)), a))
        elif what == "edit":
            self.dead += 1
            before = LANES_USED[a % len(LANES_USED)]
            changes.edits.append(MessageEdit(before, n, lane, b, {"x": b"y"} if b % 2 else None, self.dead))
        elif what == "keep":
            changes.keeps.append(Keep(ACTIVE if b % 3 else DEAD, KEPT if b % 2 else KEPT_DEAD, [n, n + 1]))
        elif what == "delete":
            changes.deletes.setdefault(lane, []).extend([n, n + 1])
        elif what == "id":
            self.segment += a % 3 == 0
            changes.ids.append((self.segment, IDS[b % len(IDS)], self.time, self.last))
        elif what == "forget ids":
            changes.ids_upto = (self.segment - a % 3, IDS[b % len(IDS)])
        elif what == "event":
            self.event += 1
            changes.events.append(MessageEvent(self.event, a, 0, self.time, 0, 0, "r"))
        elif what == "forget events":
            changes.events_upto = max(0, self.event - a % 4)
        elif what == "tap":
            changes.taps[a % 3] = None if b % 4 == 0 else TapRow(a % 3, b)
        elif what == "state":
            changes.states["s" * (1 + a % 2)] = (self.time, None if b % 4 == 0 else b"x" * b)

    def _record(self, n: int, a: int) -> Record:
        self.dead += 1
        dead = self.dead if a % 2 else 0
        session = "s" if a % 3 == 0 else None
        return Record(n, n * 10, a % 2 * 100, a, 0, 10 + a, b"c" * a, None, session, dead)

    def compare(self, read: tuple[str, int, int, int]) -> None:
        answers = []
        for store in (self.journal, self.memory):
            made = _read(*read)
            store.read(self.fragment, [made])
            answers.append(_answer(made))
            if isinstance(made, ReadPage) and made.session is None and made.complete:
                behind = made.records[-1].n + 1 if made.records else made.start
                rest = ReadPage(made.lane, behind, 1, MANY)
                self.memory.read(self.fragment, [rest])
                assert rest.records == []
        assert answers[0] == answers[1]

    def compare_others(self) -> None:
        journal, memory, fragment = self.journal, self.memory, self.fragment
        assert plain(journal.heads([fragment])) == plain(memory.heads([fragment]))
        assert plain(journal.taps(fragment)) == plain(sorted(memory.taps(fragment), key=lambda row: row.id))
        assert journal.next_due(fragment) == memory.next_due(fragment)
        assert journal.id_segments(fragment) == memory.id_segments(fragment)


def _read(what: str, a: int, b: int, limit: int) -> Read:
    lane, max_bytes = LANES_USED[b % len(LANES_USED)], MANY if a % 3 else 4 * b
    lanes = list(range(LANES)) if b % 2 else sorted({ACTIVE, lane})
    upto = MANY if b % 3 else a + b
    if what == "page":
        return ReadPage(lane, a, limit, max_bytes, "s" if a % 4 == 0 else None)
    if what == "numbers":
        return ReadByNumber(lane, [a, b, a + 1, a])
    if what == "ids":
        return ReadIds(IDS[: 1 + b % len(IDS)], [*range(a % 3, 12)])
    if what == "id page":
        return ReadIdPage(a % 3, IDS[b % len(IDS)], limit)
    if what == "due":
        return ReadDue(a, limit, max_bytes)
    if what == "span":
        return ReadSpan(lanes, a % 4 == 0, a, upto, limit, max_bytes)
    if what == "tap page":
        return ReadTapPage(lanes, a % 4 == 0, a, upto, limit, max_bytes)
    if what == "kept":
        return ReadKept(KEPT if b % 2 else KEPT_DEAD, upto, limit)
    if what == "events":
        return ReadEvents(a, upto, limit)
    if what == "expiry":
        return ReadExpiry("s", limit)
    if what == "session":
        return ReadSession("s" * (1 + a % 2), b % 2 == 0)
    return ReadTime(lanes, a % 4 == 0, a * 10)


def _answer(read: Read) -> object:
    if isinstance(read, ReadPage):
        return plain(read.records), read.complete if read.session is not None else None
    if isinstance(read, ReadSpan):
        return plain(read.records), read.complete
    if isinstance(read, ReadTapPage):
        return [(each.n, each.lane, each.dead, each.content) for each in shown(read.packing)], read.complete
    if isinstance(read, ReadIds):
        return read.found
    if isinstance(read, ReadSession):
        return read.size, read.state
    if isinstance(read, ReadIdPage | ReadKept | ReadExpiry):
        return read.rows
    if isinstance(read, ReadEvents):
        return plain(read.events)
    if isinstance(read, ReadTime):
        return read.position
    return plain(read.records), read.next_due if isinstance(read, ReadDue) else 0


def claimed(path: Path) -> JournalStore:
    store = JournalStore(path, segment_size=1 << 16)
    store.claim()
    return store


class Life:
    """Commits, reads and moves of one fragment from a seed. Each life leans towards some of them."""

    def __init__(self, store: JournalStore, seed: int) -> None:
        self.random = r = Random(seed)
        self.pair = Pair(store, seed + 1)
        self.changes = [r.choice([0, 0.3, 1, 1, 3]) for _ in CHANGES]
        self.changes[0] = 3
        self.reads = [0.0 if read in RARE and r.random() < 0.8 else 1.0 for read in READS]
        self.steps = [r.choice([1, 3]), r.choice([1, 3]), r.choice([0, 0.1, 0.5]), r.choice([0, 0.1])]
        self.width = r.choice([1, 4])

    def near(self) -> int:
        """A number of a message, mostly."""
        return self.random.randint(0, self.pair.last + 1)

    def step(self) -> None:
        r, pair = self.random, self.pair
        what = r.choices(["commit", "read", "move", "others"], self.steps)[0]
        if what == "commit":
            changes = r.choices(CHANGES, self.changes, k=r.randint(1, self.width))
            pair.commit([(change, self.near(), r.randint(0, 30)) for change in changes])
        elif what == "read":
            pair.compare((r.choices(READS, self.reads)[0], self.near(), r.randint(0, 30), r.randint(1, 6)))
        elif what == "move" and r.random() < 0.1:
            pair.journal._moved()
        elif what == "move":
            pair.journal.maintain()  # a generation more, or a slice
        else:
            pair.compare_others()


def test_reads_at_any_point_are_those_of_the_store_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "SLICE", 3)
    store = claimed(tmp_path / "store.db")
    for seed in range(5_000 if DEEP else 60):
        life = Life(store, seed)
        try:
            for _ in range(80):
                life.step()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    store.close()


# ---- what needs no move ----


@contextmanager
def journal(tmp_path: Path, generations: int = 0) -> Iterator[JournalStore]:
    """Ten messages in SQLite, of which the first is deleted since, and ten more that are pending, in an older generation if
    there are `generations` more."""
    pair = Pair(claimed(tmp_path / "store.db"))
    pair.commit([("put", 1, 0)] * 8 + [("event", 1, 0), ("id", 1, 0), ("put", 1, 6), ("put", 1, 6)])
    pair.journal._moved()
    pair.commit([("put", 1, 0)] * 8 + [("event", 1, 0), ("id", 1, 1), ("put", 1, 6), ("put", 1, 6)])
    for _ in range(generations):
        pair.journal.maintain()
    deleted = Changes(1)
    deleted.deletes[ACTIVE] = [1]
    pair.journal.commit([deleted])
    yield pair.journal
    pair.journal.close()


ANSWERED: dict[str, tuple[Callable[[], Read], object]] = {
    "page": (lambda: ReadPage(ACTIVE, 1, 100, MANY), [*range(2, 9), *range(11, 19)]),
    "page over both": (lambda: ReadPage(ACTIVE, 7, 4, MANY), [7, 8, 11, 12]),
    "page of pending": (lambda: ReadPage(ACTIVE, 12, 3, MANY), [12, 13, 14]),
    "numbers": (lambda: ReadByNumber(ACTIVE, [1, 2, 11, 99]), [2, 11]),
    "span": (lambda: ReadSpan([ACTIVE, KEPT], False, 8, MANY, 4, MANY), [9, 10, 11, 12]),
    "tap page": (lambda: ReadTapPage([ACTIVE, KEPT], False, 15, MANY, 100, MANY), [16, 17, 18, 19, 20]),
    "kept": (lambda: ReadKept(KEPT, MANY, 3), [9, 10, 19]),
    "events": (lambda: ReadEvents(0, MANY, 10), [1, 2]),
    "ids": (lambda: ReadIds(IDS, [0]), {IDS[0], IDS[1]}),
}


@pytest.mark.parametrize("generations", [0, 1, 2])
@pytest.mark.parametrize("what", ANSWERED)
def test_what_is_read_again_and_again_needs_no_move(what: str, generations: int, tmp_path: Path) -> None:
    make_read, expected = ANSWERED[what]
    read = make_read()
    with journal(tmp_path, generations) as store:
        applied = store._applied
        store.read(1, [read])
        assert store._applied == applied
    found: object
    if isinstance(read, ReadTapPage):
        found = [each.n for each in shown(read.packing)]
    elif isinstance(read, ReadKept):
        found = [row[0] for row in read.rows]
    elif isinstance(read, ReadEvents):
        found = [event.at for event in read.events]
    elif isinstance(read, ReadIds):
        found = set(read.found)
    else:
        found = [record.n for record in read.records]
    assert found == expected


def test_heads_and_other_fragments_need_no_move(tmp_path: Path) -> None:
    with journal(tmp_path) as store:
        applied = store._applied
        assert [head.last for head in store.heads()] == [20]
        assert store.next_due(2) == 0 and store.taps(2) == []
        store.read(2, [ReadDue(MANY, 10, MANY)])
        assert store._applied == applied
        store.read(1, [ReadDue(MANY, 10, MANY)])
        assert store._applied > applied, "a rare read moves"


def test_a_page_that_would_pass_over_many_deleted_messages_moves(tmp_path: Path) -> None:
    pair = Pair(claimed(tmp_path / "store.db"))
    pair.commit([("put", 1, 0)] * 20)
    pair.journal._moved()
    applied = pair.journal._applied
    deleted = Changes(1)
    deleted.deletes[ACTIVE] = [*range(1, 16)]
    pair.journal.commit([deleted])
    page = ReadPage(ACTIVE, 1, 3, MANY)
    pair.journal.read(1, [page])
    assert [record.n for record in page.records] == [16, 17, 18]
    assert pair.journal._applied > applied
    pair.journal.close()


def test_kept_messages_behind_those_that_are_deleted_are_found(tmp_path: Path) -> None:
    pair = Pair(claimed(tmp_path / "store.db"))
    pair.commit([("put", 1, 6)] * 6)
    pair.journal._moved()
    pair.commit([("put", 1, 6), ("delete", 1, 6)])
    pair.compare(("kept", 1, 1, 3))
    pair.journal.close()


def test_ids_of_segments_that_are_forgotten_are_not_found(tmp_path: Path) -> None:
    pair = Pair(claimed(tmp_path / "store.db"))
    pair.commit([("id", 1, 3)])  # the highest id on the first segment
    pair.journal._moved()
    pair.commit([("id", 3, 0), ("forget ids", 3, 0)])
    pair.compare(("ids", 0, 3, 1))
    pair.journal.close()


@pytest.mark.parametrize("limit", [3, 9])
def test_deleted_messages_of_a_session_do_not_expire(limit: int, tmp_path: Path) -> None:
    pair = Pair(claimed(tmp_path / "store.db"))
    pair.commit([("put", 3, 0)] * 6)
    pair.journal._moved()
    pair.commit([("put", 3, 0), ("delete", 1, 0)])
    pair.compare(("expiry", 0, 0, limit))
    pair.journal.close()
