"""Commits to a store without end and says after each commit that it is durable.

    python store_writer.py STORE [--log-limit PAGES] [--careless]

Commit k is a function of k, and so is what the store must hold after it: `state_after`. When an outcome is unknown it
opens the store again and goes on from what it finds. `--careless` turns syncs off.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from busbar.fragment.changes import Changes, Head, MessageEdit
from busbar.fragment.reads import ReadIdPage, ReadPage
from busbar.model.message import ACTIVE, DEAD, LANES, SCHEDULED, Record
from busbar.store.contract import Store, StoreError
from busbar.store.journal import moving
from busbar.store.journal import store as journal_store
from busbar.store.journal.store import JournalStore
from busbar.store.sqlite import file
from busbar.store.sqlite.store import SqliteStore

SEGMENT = 1 << 14
FRAGMENTS = (1, 2)
EACH = 12  # messages that a commit adds to each fragment

Kept = dict[tuple[int, int], int]
"""Lane and number of each message, and its delivery count."""
Ids = dict[tuple[int, bytes], tuple[int, int]]
"""Segment and id, and the time and number of its message."""


def content_of(fragment: int, n: int) -> bytes:
    size = 20_000 if n % 17 == 0 else 300 + n % 700
    return (b"%d:%d " % (fragment, n) * (size // 6 + 1))[:size]


@dataclass
class Expected:
    kept: dict[int, Kept] = field(default_factory=lambda: {fragment: {} for fragment in FRAGMENTS})
    ids: dict[int, Ids] = field(default_factory=lambda: {fragment: {} for fragment in FRAGMENTS})

    def head(self, fragment: int, last: int) -> Head:
        kept = self.kept[fragment]
        counts = [sum(1 for lane, _ in kept if lane == each) for each in range(LANES)]
        size = sum(len(content_of(fragment, n)) for _, n in kept)
        return Head(fragment, last, counts, size, len(self.ids[fragment]), last // 3)


def id_of(fragment: int, n: int) -> bytes:
    return blake2b(b"%d:%d" % (fragment, n), digest_size=16).digest()


def changes_of(k: int, fragment: int, expected: Expected) -> Changes:
    """Commit k of a fragment, and what it does to the expectation: add, dead-letter some, complete most.

    Ids are remembered for some twenty commits, on segments of three.
    """
    kept = expected.kept[fragment]
    changes = Changes(fragment)
    first = (k - 1) * EACH + 1
    for n in range(first, first + EACH):
        lane = SCHEDULED if n % 11 == 0 else ACTIVE
        content = content_of(fragment, n)
        changes.puts.setdefault(lane, []).append(Record(n, k, 0, n, 0, len(content), content, None))
        kept[lane, n] = 0
    _remember(k, first, changes, expected.ids[fragment])
    for n in range(first - EACH, first):
        if n % 7 == 0 and (ACTIVE, n) in kept:
            changes.edits.append(MessageEdit(ACTIVE, n, DEAD, k, {"k": b"%d" % k}))
            del kept[ACTIVE, n]
            kept[DEAD, n] = k
    for n in range(first - 6 * EACH, first - 4 * EACH):
        for lane in (ACTIVE, DEAD if n % 2 else SCHEDULED):
            if kept.pop((lane, n), None) is not None:
                changes.deletes.setdefault(lane, []).append(n)
    changes.head = expected.head(fragment, first + EACH - 1)
    return changes


def _remember(k: int, first: int, changes: Changes, ids: Ids) -> None:
    if k % 5 == 0:
        lowest = sorted(key for key in ids if key[0] <= k // 3 - 6)[: 4 * EACH]
        if lowest:
            changes.ids_upto = lowest[-1]
        for key in lowest:
            del ids[key]
    for n in range(first, first + EACH):
        id = id_of(changes.fragment, n)
        changes.ids.append((k // 3, id, k, n))
        ids[k // 3, id] = (k, n)


def state_after(k: int) -> Expected:
    expected = Expected()
    for step in range(1, k + 1):
        for fragment in FRAGMENTS:
            changes_of(step, fragment, expected)
    return expected


def commits_in(store: Store) -> int:
    """How many commits the store holds; every fragment must hold as many, whole."""
    heads = {head.fragment: head for head in store.heads()}
    if not heads:
        return 0
    found = {heads[fragment].last // EACH for fragment in FRAGMENTS}
    assert len(found) == 1, f"a commit is there in one fragment and not in the other: {found}"
    k = found.pop()
    expected = state_after(k)
    for fragment in FRAGMENTS:
        there: Kept = {}
        for lane in range(LANES):
            page = ReadPage(lane, 0, 1 << 30, 1 << 40)
            store.read(fragment, [page])
            for record in page.records:
                assert record.content == content_of(fragment, record.n), f"message {record.n} is damaged"
                there[lane, record.n] = record.deliveries
        assert there == expected.kept[fragment], f"fragment {fragment} is not as commit {k} left it"
        ids = ReadIdPage(0, b"", 1 << 30)
        store.read(fragment, [ids])
        remembered = {(segment, id): (at, n) for segment, id, at, n in ids.rows}
        assert remembered == expected.ids[fragment], f"fragment {fragment} does not remember what it should"
        head, right = heads[fragment], expected.head(fragment, heads[fragment].last)
        assert (head.counts, head.size, head.ids, head.dropped) == (
            right.counts,
            right.size,
            right.ids,
            right.dropped,
        )
    return k


def opened(path: Path, has_journal: bool) -> SqliteStore | JournalStore:
    """A store whose journal is moved often, so that every part of a move is interrupted."""
    if not has_journal:
        return SqliteStore(path)
    journal_store.MAX_PENDING, journal_store.GENERATIONS, moving.SLICE = 40_000, 5, 8
    return JournalStore(path, SEGMENT)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("path", type=Path)
    arguments.add_argument("--log-limit", type=int, default=file.LOG_LIMIT)
    arguments.add_argument("--careless", action="store_true")
    arguments.add_argument("--journal", action="store_true")
    given = arguments.parse_args()
    file.LOG_LIMIT = given.log_limit
    while True:
        store = opened(given.path, given.journal)
        try:
            store.claim()
            if given.careless:
                os.fdatasync = lambda fd: None  # of the journal
                sqlite = store._sqlite if isinstance(store, JournalStore) else store
                sqlite._file.connection().execute("PRAGMA synchronous = OFF")
            write_on(store)
        except StoreError:
            store.close()


def write_on(store: Store) -> None:
    k = commits_in(store)
    expected = state_after(k)
    os.write(1, b"found %d\n" % k)
    while True:
        k += 1
        if k % 3 == 0:
            store.maintain()  # begins a move, or goes on with one
        store.commit([changes_of(k, fragment, expected) for fragment in FRAGMENTS])
        os.write(1, b"acked %d\n" % k)


if __name__ == "__main__":
    main()
