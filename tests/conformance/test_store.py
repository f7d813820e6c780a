"""What every messaging store must do. A new store adds its place to PLACES and passes this suite before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.fragment.changes import Changes, Edit, Head, IdRow, Lock, SessionChange
from busbar.fragment.reads import (
    Read,
    ReadDue,
    ReadExpiry,
    ReadIdPage,
    ReadIds,
    ReadLine,
    ReadMany,
    ReadPage,
    ReadSession,
    ReadSessionIds,
)
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, LANES, SCHEDULED, Overlay, Record
from busbar.store.contract import OutcomeUnknown, Store, StoreError
from busbar.store.memory import Disk, MemoryStore
from busbar.store.sqlite import SqliteStore

MANY = 1 << 40
Open = Callable[[], Store]
"""A place where a store is: each call gives a new handle on it, as a new process would have."""


def memory_place(_: Path) -> Open:
    disk = Disk()
    return lambda: MemoryStore(disk)


def sqlite_place(directory: Path) -> Open:
    return lambda: SqliteStore(directory / "store.db")


PLACES = {"memory": memory_place, "sqlite": sqlite_place}


@pytest.fixture(params=PLACES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return PLACES[request.param](tmp_path)


@pytest.fixture
def store(open_store: Open) -> Iterator[Store]:
    store = open_store()
    store.claim()
    yield store
    store.close()


# The words of the tests


def remember(store: Store, fragment: int, *rows: IdRow, upto: tuple[int, bytes] | None = None) -> None:
    changes = Changes(fragment)
    changes.ids = list(rows)
    changes.ids_upto = upto
    store.commit([changes])


def found(store: Store, fragment: int, ids: list[bytes], shelves: list[int]) -> dict[bytes, tuple[int, int]]:
    read = ReadIds(ids, shelves)
    store.read(fragment, [read])
    return read.found


def id_page(
    store: Store, fragment: int, shelf: int = 0, after: bytes = b"", limit: int = 1000
) -> list[IdRow]:
    read = ReadIdPage(shelf, after, limit)
    store.read(fragment, [read])
    return read.rows


def record(
    n: int,
    content: bytes = b"content",
    *,
    enqueued: int = 1_700_000_000_000,
    ttl: int = 0,
    due: int = 0,
    deliveries: int = 0,
    size: int | None = None,
    overlay: Overlay | None = None,
) -> Record:
    return Record(n, enqueued, ttl, due, deliveries, len(content) if size is None else size, content, overlay)


def values(record: Record) -> tuple[object, ...]:
    return (
        record.n,
        record.enqueued,
        record.ttl,
        record.due,
        record.deliveries,
        record.size,
        record.content,
        record.overlay,
    )


def head_values(head: Head) -> tuple[int, int, tuple[int, ...], int]:
    return head.fragment, head.last, tuple(head.counts), head.size


def put(store: Store, fragment: int, lane: int, *records: Record) -> None:
    changes = Changes(fragment)
    changes.puts[lane] = list(records)
    store.commit([changes])


def edit(store: Store, fragment: int, *edits: Edit) -> None:
    changes = Changes(fragment)
    changes.edits = list(edits)
    store.commit([changes])


def delete(store: Store, fragment: int, lane: int, *numbers: int) -> None:
    changes = Changes(fragment)
    changes.deletes[lane] = list(numbers)
    store.commit([changes])


def page(
    store: Store, fragment: int, lane: int, start: int = 0, limit: int = 1000, max_bytes: int = MANY
) -> list[Record]:
    read = ReadPage(lane, start, limit, max_bytes)
    store.read(fragment, [read])
    return read.records


def numbers(records: list[Record]) -> list[int]:
    return [record.n for record in records]


def lanes(store: Store, fragment: int) -> dict[int, list[int]]:
    found = {lane: numbers(page(store, fragment, lane)) for lane in range(LANES)}
    return {lane: found for lane, found in found.items() if found}


# Puts and pages


def test_a_message_comes_back_as_it_was_put(store: Store) -> None:
    sent = record(
        7,
        b"\x00\xffbytes",
        enqueued=1,
        ttl=2,
        due=3,
        deliveries=4,
        size=99,
        overlay={"a": b"", "é": b"\x00\xa1"},
    )
    put(store, 1, ACTIVE, sent)
    assert [values(r) for r in page(store, 1, ACTIVE)] == [values(sent)]


def test_an_empty_overlay_is_not_no_overlay(store: Store) -> None:
    put(store, 1, ACTIVE, record(1, overlay={}), record(2, overlay=None))
    assert [r.overlay for r in page(store, 1, ACTIVE)] == [{}, None]


@pytest.mark.parametrize("size", [0, 1, 255, 8_000, 8_192, 70_000, 1_000_000])
def test_content_of_any_size(store: Store, size: int) -> None:
    content = bytes(i * 31 & 0xFF for i in range(size))
    put(store, 1, ACTIVE, record(1, content))
    assert page(store, 1, ACTIVE)[0].content == content


def test_a_page_is_in_the_order_of_numbers_whatever_the_order_of_puts(store: Store) -> None:
    put(store, 1, ACTIVE, record(5), record(2), record(9))
    put(store, 1, ACTIVE, record(3))
    assert numbers(page(store, 1, ACTIVE)) == [2, 3, 5, 9]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1023, 1024, 1025, 2500])
def test_a_commit_of_any_number_of_messages(store: Store, count: int) -> None:
    put(store, 1, ACTIVE, *(record(n, b"%d" % n) for n in range(1, count + 1)))
    found = page(store, 1, ACTIVE, limit=count + 1)
    assert [(r.n, r.content) for r in found] == [(n, b"%d" % n) for n in range(1, count + 1)]


def test_a_page_starts_at_its_number_and_ends_at_its_limit(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n) for n in range(10, 100, 10)))
    assert numbers(page(store, 1, ACTIVE, start=30, limit=2)) == [30, 40]
    assert numbers(page(store, 1, ACTIVE, start=31, limit=2)) == [40, 50]
    assert numbers(page(store, 1, ACTIVE, start=91)) == []


def test_a_page_ends_before_the_message_that_would_exceed_its_bytes(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n, size=100) for n in range(1, 9)))
    assert numbers(page(store, 1, ACTIVE, max_bytes=300)) == [1, 2, 3]
    assert numbers(page(store, 1, ACTIVE, max_bytes=399)) == [1, 2, 3]


@pytest.mark.parametrize("max_bytes", [0, 1, 99])
def test_a_page_has_at_least_one_message(store: Store, max_bytes: int) -> None:
    put(store, 1, ACTIVE, record(1, size=100), record(2, size=100))
    assert numbers(page(store, 1, ACTIVE, max_bytes=max_bytes)) == [1]


def test_heads_of_some_fragments(store: Store) -> None:
    for fragment in (7, 3, 5):
        store.create(fragment)
    assert {3, 5, 7} <= {head.fragment for head in store.heads()}
    assert [head.fragment for head in store.heads([7, 99, 3])] == [3, 7]
    assert store.heads([]) == []


def test_a_page_says_whether_it_reached_the_end_of_its_lane(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n, size=100) for n in range(1, 6)))
    for limit, max_bytes, complete in [(9, 10_000, True), (3, 10_000, False), (9, 250, False)]:
        read = ReadPage(ACTIVE, 1, limit, max_bytes)
        store.read(1, [read])
        assert read.complete is complete, (limit, max_bytes)


def test_a_long_page_keeps_its_order_and_its_caps(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n, b"%d" % n, size=10) for n in range(1, 1001)))
    assert numbers(page(store, 1, ACTIVE, start=101, limit=300)) == list(range(101, 401))
    found = page(store, 1, ACTIVE, start=101, limit=300, max_bytes=2_000)
    assert [(r.n, r.content) for r in found] == [(n, b"%d" % n) for n in range(101, 301)]


def test_fragments_and_lanes_do_not_mix(store: Store) -> None:
    first, second = Changes(1), Changes(2)
    first.puts = {ACTIVE: [record(1)], DEAD: [record(2)]}
    second.puts = {ACTIVE: [record(1), record(3)], DEFERRED: [record(2)]}
    store.commit([first, second])
    assert lanes(store, 1) == {ACTIVE: [1], DEAD: [2]}
    assert lanes(store, 2) == {ACTIVE: [1, 3], DEFERRED: [2]}
    assert lanes(store, 3) == {}


def test_large_fragment_ids_and_numbers(store: Store) -> None:
    fragment, n = 2**48 + 5, 2**48 - 1
    put(store, fragment, ACTIVE, record(n))
    assert lanes(store, fragment) == {ACTIVE: [n]}


def test_a_number_given_twice_is_refused_whole(open_store: Open) -> None:
    store = open_store()
    store.claim()
    put(store, 1, ACTIVE, record(2, b"first"))
    with pytest.raises(OutcomeUnknown):
        put(store, 1, ACTIVE, record(1), record(2, b"second"))
    store.close()
    again = open_store()
    again.claim()
    assert [(r.n, r.content) for r in page(again, 1, ACTIVE)] == [(2, b"first")]
    again.close()


# Reads by number


def test_reading_many_leaves_out_what_is_not_there(store: Store) -> None:
    put(store, 1, DEFERRED, *(record(n) for n in (1, 2, 3, 500)))
    put(store, 1, ACTIVE, record(4))
    read = ReadMany(DEFERRED, [500, 3, 4, 1, 3, 77])
    store.read(1, [read])
    assert numbers(read.records) == [1, 3, 500]


def test_several_reads_at_once(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2))
    put(store, 1, SCHEDULED, record(3, due=30))
    reads: list[Read] = [
        ReadPage(ACTIVE, 2, 10, MANY),
        ReadMany(ACTIVE, [1]),
        ReadDue(40, 10, MANY),
        ReadMany(DEAD, []),
    ]
    store.read(1, reads)
    assert [numbers(read.records) for read in reads] == [[2], [1], [3], []]


# Scheduled messages


def test_due_messages_come_by_due_time_then_number(store: Store) -> None:
    put(store, 1, SCHEDULED, record(1, due=50), record(2, due=20), record(3, due=20), record(4, due=60))
    read = ReadDue(50, 10, MANY)
    store.read(1, [read])
    assert numbers(read.records) == [2, 3, 1]
    assert read.next_due == 60


def test_what_a_capped_read_leaves_is_the_next_due(store: Store) -> None:
    put(store, 1, SCHEDULED, *(record(n, due=n * 10, size=100) for n in range(1, 6)))
    by_count, by_bytes, last = ReadDue(40, 2, MANY), ReadDue(40, 10, 250), ReadDue(1000, 10, MANY)
    none = ReadDue(9, 10, MANY)
    store.read(1, [by_count, by_bytes, last, none])
    assert (numbers(by_count.records), by_count.next_due) == ([1, 2], 30)
    assert (numbers(by_bytes.records), by_bytes.next_due) == ([1, 2], 30)
    assert (numbers(last.records), last.next_due) == ([1, 2, 3, 4, 5], 0)
    assert (numbers(none.records), none.next_due) == ([], 10)


def test_the_next_due_knows_only_scheduled_messages_of_the_fragment(store: Store) -> None:
    assert store.next_due(1) == 0
    put(store, 1, SCHEDULED, record(1, due=50), record(2, due=40))
    put(store, 1, ACTIVE, record(3, due=5))
    put(store, 2, SCHEDULED, record(1, due=1))
    assert store.next_due(1) == 40
    edit(store, 1, Edit(SCHEDULED, 2, ACTIVE, 0, None))
    assert store.next_due(1) == 50
    delete(store, 1, SCHEDULED, 1)
    assert store.next_due(1) == 0


# Edits


def test_an_edit_moves_a_message_with_its_bytes(store: Store) -> None:
    put(store, 1, ACTIVE, record(1, b"x" * 20_000, ttl=5), record(2))
    edit(store, 1, Edit(ACTIVE, 1, DEAD, 3, {"why": b"\xa1\x01x"}))
    assert lanes(store, 1) == {ACTIVE: [2], DEAD: [1]}
    moved = record(1, b"x" * 20_000, ttl=5, deliveries=3, overlay={"why": b"\xa1\x01x"})
    assert values(page(store, 1, DEAD)[0]) == values(moved)


def test_an_edit_in_place_sets_count_and_overlay(store: Store) -> None:
    put(store, 1, ACTIVE, record(1, overlay={"a": b"1"}))
    edit(store, 1, Edit(ACTIVE, 1, ACTIVE, 9, None))
    assert values(page(store, 1, ACTIVE)[0]) == values(record(1, deliveries=9))


def test_edits_of_one_message_are_made_in_their_order(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2))
    edit(
        store,
        1,
        Edit(ACTIVE, 1, ACTIVE, 1, {"a": b"1"}),
        Edit(ACTIVE, 1, DEAD, 2, {"a": b"2"}),
        Edit(ACTIVE, 2, DEFERRED, 0, None),
        Edit(DEAD, 1, DEAD_DEFERRED, 3, {"a": b"3"}),
        Edit(DEFERRED, 2, ACTIVE, 7, None),
    )
    assert lanes(store, 1) == {ACTIVE: [2], DEAD_DEFERRED: [1]}
    assert values(page(store, 1, DEAD_DEFERRED)[0]) == values(record(1, deliveries=3, overlay={"a": b"3"}))
    assert page(store, 1, ACTIVE)[0].deliveries == 7


def test_an_edit_of_what_is_not_there_does_nothing(store: Store) -> None:
    put(store, 1, ACTIVE, record(1))
    edit(store, 1, Edit(ACTIVE, 2, DEAD, 1, None), Edit(DEAD, 1, ACTIVE, 5, None))
    assert [values(r) for r in page(store, 1, ACTIVE)] == [values(record(1))]
    assert lanes(store, 1) == {ACTIVE: [1]}


def test_an_edit_of_what_has_moved_away_does_nothing(store: Store) -> None:
    put(store, 1, DEAD, record(1))
    edit(store, 1, Edit(DEAD, 1, ACTIVE, 3, None), Edit(DEAD, 1, ACTIVE, 4, None))
    assert [r.deliveries for r in page(store, 1, ACTIVE)] == [3]
    edit(store, 1, Edit(DEAD, 1, ACTIVE, 5, None), Edit(ACTIVE, 1, DEFERRED, 6, None))
    assert lanes(store, 1) == {DEFERRED: [1]}
    assert page(store, 1, DEFERRED)[0].deliveries == 6


def test_many_edits(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n) for n in range(1, 1201)))
    edit(store, 1, *(Edit(ACTIVE, n, DEAD, n, {"n": b"%d" % n}) for n in range(1, 1201, 2)))
    assert numbers(page(store, 1, ACTIVE)) == list(range(2, 1201, 2))
    found = page(store, 1, DEAD)
    assert [(r.n, r.deliveries, r.overlay) for r in found] == [
        (n, n, {"n": b"%d" % n}) for n in range(1, 1201, 2)
    ]


# Deletes


def test_deletes_in_runs_and_alone(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n) for n in range(1, 101)))
    delete(store, 1, ACTIVE, *range(100, 60, -1), 1, 3, 4, 5, 20, 3)
    assert numbers(page(store, 1, ACTIVE)) == [n for n in range(1, 61) if n not in (1, 3, 4, 5, 20)]


def test_a_delete_touches_only_its_numbers_lane_and_fragment(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2), record(3))
    put(store, 1, DEAD, record(4))
    put(store, 2, ACTIVE, record(1))
    delete(store, 1, ACTIVE, 1, 3, 4, 99)
    delete(store, 1, DEAD)
    delete(store, 7, ACTIVE, 1)
    assert lanes(store, 1) == {ACTIVE: [2], DEAD: [4]}
    assert lanes(store, 2) == {ACTIVE: [1]}


def test_one_commit_puts_then_edits_then_deletes(store: Store) -> None:
    changes = Changes(1)
    changes.deletes = {DEAD: [1], ACTIVE: [2]}
    changes.edits = [Edit(ACTIVE, 1, DEAD, 1, None), Edit(ACTIVE, 3, DEAD, 1, None)]
    changes.puts = {ACTIVE: [record(1), record(2), record(3), record(4)]}
    store.commit([changes])
    assert lanes(store, 1) == {ACTIVE: [4], DEAD: [3]}


def test_an_empty_commit(store: Store) -> None:
    store.commit([])
    store.commit([Changes(1)])
    assert lanes(store, 1) == {}


# Heads, creation and dropping


def test_heads_are_written_with_the_commit(store: Store) -> None:
    store.create(3)
    changes = Changes(5)
    changes.puts[ACTIVE] = [record(1)]
    changes.head = Head(5, 17, [1, 2, 3, 4, 5], 600)
    store.commit([changes])
    expected = [(3, 0, (0, 0, 0, 0, 0), 0), (5, 17, (1, 2, 3, 4, 5), 600)]
    assert [head_values(head) for head in store.heads()] == expected


def test_a_commit_without_a_head_leaves_the_head(store: Store) -> None:
    changes = Changes(5)
    changes.head = Head(5, 17, [1, 0, 0, 0, 0], 600)
    store.commit([changes])
    put(store, 5, ACTIVE, record(18))
    assert [head_values(head) for head in store.heads()] == [(5, 17, (1, 0, 0, 0, 0), 600)]


def test_creating_again_changes_nothing(store: Store) -> None:
    changes = Changes(5)
    changes.head = Head(5, 17, [1, 0, 0, 0, 0], 600)
    store.commit([changes])
    store.create(5)
    assert [head_values(head) for head in store.heads()] == [(5, 17, (1, 0, 0, 0, 0), 600)]


def test_a_head_given_out_or_in_is_not_shared(store: Store) -> None:
    changes = Changes(5)
    changes.head = Head(5, 1, [1, 0, 0, 0, 0], 6)
    store.commit([changes])
    changes.head.counts[0] = 99
    store.heads()[0].counts[0] = 98
    assert store.heads()[0].counts == [1, 0, 0, 0, 0]


def test_a_fragment_is_dropped_in_slices(store: Store) -> None:
    changes = Changes(1)
    changes.puts = {
        ACTIVE: [record(n, size=10) for n in range(1, 8)],
        DEAD: [record(n, size=100) for n in range(8, 11)],
        SCHEDULED: [record(11, due=5, size=1000)],
    }
    changes.head = Head(1, 11, [7, 3, 0, 1, 0], 1370)
    store.commit([changes])
    put(store, 2, ACTIVE, record(1))
    store.create(2)
    assert not store.drop(1, 8)
    assert head_values(store.heads()[0]) == (1, 11, (0, 2, 0, 1, 0), 1200)
    assert store.drop(1, 3)
    assert [head.fragment for head in store.heads()] == [2]
    assert lanes(store, 1) == {}
    assert store.next_due(1) == 0
    assert lanes(store, 2) == {ACTIVE: [1]}


def test_dropping_what_is_empty_or_not_there(store: Store) -> None:
    store.create(1)
    assert store.drop(1, 10)
    assert store.drop(2, 10)
    assert store.heads() == []


def test_dropping_forgets_ids_in_slices(store: Store) -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [record(n) for n in range(1, 4)]
    changes.ids = [(n % 3, bytes([n]) * 16, n, n) for n in range(1, 11)]
    changes.head = Head(1, 3, [3, 0, 0, 0, 0], 21, 10, 4)
    store.commit([changes])
    remember(store, 2, (1, b"x", 1, 1))
    assert not store.drop(1, 5)
    assert len(id_page(store, 1)) == 8
    (head,) = (head for head in store.heads() if head.fragment == 1)
    assert (head.counts, head.size, head.ids, head.dropped) == ([0] * LANES, 0, 8, 4)
    assert not store.drop(1, 5)
    assert store.drop(1, 5)
    assert store.shelves(1) == [] and id_page(store, 1) == []
    assert store.shelves(2) == [1]


def test_dropping_forgets_kept_locks(store: Store) -> None:
    put(store, 1, ACTIVE, record(1))
    store.save_locks(1, [Lock(record(1), ACTIVE, 5, 6)])
    assert store.drop(1, 10)
    put(store, 1, ACTIVE, record(1))
    assert store.take_locks(1) == []


# Kept locks


def test_ids_are_found_on_the_shelves_that_are_named(store: Store) -> None:
    a, b, d = b"a" * 16, b"b" * 16, b"d" * 16
    remember(store, 1, (10, a, 100, 1), (10, b, 101, 2), (20, a, 200, 3))
    remember(store, 2, (10, d, 5, 9))
    assert found(store, 1, [a, b, d], [10, 20]) == {a: (200, 3), b: (101, 2)}
    assert found(store, 1, [a, b], [10]) == {a: (100, 1), b: (101, 2)}
    assert found(store, 1, [a, b], [20]) == {a: (200, 3)}
    assert found(store, 1, [a], [11, 19]) == {}
    assert found(store, 1, [], [10]) == found(store, 1, [a], []) == {}
    assert found(store, 3, [a], [10]) == {}


def test_an_id_put_again_on_its_shelf_has_the_new_time_and_number(store: Store) -> None:
    remember(store, 1, (10, b"a", 100, 1))
    remember(store, 1, (10, b"a", 300, 7))
    assert id_page(store, 1) == [(10, b"a", 300, 7)]


def test_ids_come_in_the_order_of_shelf_and_id(store: Store) -> None:
    rows = [(shelf, bytes([i]), 1000 + i, i) for shelf in (5, 6, 1 << 45) for i in (0, 1, 200, 255)]
    remember(store, 1, *reversed(rows))
    assert id_page(store, 1) == rows
    assert id_page(store, 1, limit=5) == rows[:5]
    assert id_page(store, 1, 5, bytes([1]), 4) == rows[2:6]
    assert id_page(store, 1, 6, b"", 1) == rows[4:5]
    assert id_page(store, 1, 1 << 45, b"\xff") == id_page(store, 2) == []
    assert store.shelves(1) == [5, 6, 1 << 45]
    assert store.shelves(2) == []


def test_the_lowest_ids_are_forgotten(store: Store) -> None:
    rows = [(shelf, bytes([i]), i, i) for shelf in (5, 6, 7) for i in range(4)]
    remember(store, 1, *rows)
    remember(store, 2, *rows)
    remember(store, 1, (8, b"new", 1, 1), upto=(6, bytes([1])))
    assert id_page(store, 1) == [*rows[6:], (8, b"new", 1, 1)]
    remember(store, 1, upto=(6, b"\xff"))
    assert store.shelves(1) == [7, 8]
    remember(store, 1, (3, b"low", 1, 1), upto=(9, b""))
    assert store.shelves(1) == [3], "first forgotten, then remembered"
    assert id_page(store, 2) == rows


@pytest.mark.parametrize("count", [1, 2, 3, 1023, 2500])
def test_any_number_of_ids(store: Store, count: int) -> None:
    ids = [i.to_bytes(16, "big") for i in range(count)]
    remember(store, 1, *((i % 3, id, i, i) for i, id in enumerate(ids)))
    assert len(found(store, 1, [*ids, b"?"], [0, 1, 2])) == count


def test_ids_and_their_counters_survive(open_store: Open) -> None:
    store = open_store()
    store.claim()
    changes = Changes(1)
    changes.ids = [(10, b"a" * 16, 100, 1)]
    changes.head = Head(1, 1, [0] * LANES, 0, 1, 5)
    store.commit([changes])
    store.close()
    store = open_store()
    store.claim()
    assert id_page(store, 1) == [(10, b"a" * 16, 100, 1)]
    (head,) = store.heads()
    assert (head.ids, head.dropped) == (1, 5)
    store.close()


def test_locks_are_kept_once(open_store: Open) -> None:
    store = open_store()
    store.claim()
    put(store, 1, ACTIVE, record(1, b"bytes", deliveries=3, overlay={"a": b"1"}), record(2))
    put(store, 1, DEAD, record(3))
    put(store, 2, ACTIVE, record(1))
    kept = [Lock(record(3), DEAD, -(2**63), 90), Lock(record(1), ACTIVE, 2**63 - 1, 80)]
    store.save_locks(1, [Lock(record(2), ACTIVE, 1, 70)])
    store.save_locks(1, kept)  # the later word counts
    store.save_locks(2, [Lock(record(1), ACTIVE, 4, 60)])
    store.release()
    store.close()

    again = open_store()
    again.claim()
    locks = again.take_locks(1)
    assert [(k.record.n, k.lane, k.nonce, k.until) for k in locks] == [
        (1, 0, 2**63 - 1, 80),
        (3, 1, -(2**63), 90),
    ]
    first = locks[0].record
    assert (first.content, first.size, first.deliveries, first.overlay) == (None, 5, 3, {"a": b"1"})
    assert again.take_locks(1) == []
    again.close()

    third = open_store()
    third.claim()
    assert third.take_locks(1) == []
    assert [k.record.n for k in third.take_locks(2)] == [1]
    third.close()


def test_a_kept_lock_of_a_message_that_is_gone_is_forgotten(store: Store) -> None:
    put(store, 1, ACTIVE, record(1))
    store.save_locks(1, [Lock(record(1), ACTIVE, 1, 2), Lock(record(9), ACTIVE, 1, 2)])
    assert [k.record.n for k in store.take_locks(1)] == [1]


# Catalogue


def test_the_catalogue(open_store: Open) -> None:
    store = open_store()
    store.claim()
    assert store.catalogue() == {}
    store.write_catalogue({"queue/a": b"1", "queue/É": b"\x00\xff", "gone": b"3"})
    store.write_catalogue({"queue/a": b"2", "gone": None, "never": None})
    store.close()
    again = open_store()
    again.claim()
    assert again.catalogue() == {"queue/a": b"2", "queue/É": b"\x00\xff"}
    again.close()


# Ownership


def test_each_claim_raises_the_epoch(open_store: Open) -> None:
    epochs = []
    for clean in (True, False, True):
        store = open_store()
        epochs.append(store.claim())
        if clean:
            store.release()
        store.close()
        store.close()
        store.release()
    assert epochs == sorted(set(epochs))


def test_a_released_store_may_be_claimed_again(store: Store) -> None:
    put(store, 1, ACTIVE, record(1))
    store.release()
    store.release()
    with pytest.raises(StoreError):
        store.heads()
    store.claim()
    assert lanes(store, 1) == {ACTIVE: [1]}


def test_what_is_not_claimed_or_closed_does_nothing(open_store: Open) -> None:
    store = open_store()
    for _ in range(2):
        for forbidden in (
            lambda: store.commit([Changes(1)]),
            lambda: store.read(1, [ReadMany(ACTIVE, [1])]),
            store.heads,
            store.catalogue,
            lambda: store.create(1),
            lambda: store.drop(1, 1),
            lambda: store.next_due(1),
            lambda: store.take_locks(1),
        ):
            with pytest.raises(StoreError):
                forbidden()
        store.close()
    with pytest.raises(OutcomeUnknown):
        store.claim()


# Anything at all, against a model


class Model:
    """What a store holds, as plainly as it can be said."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int, int], Record] = {}
        self.last: dict[int, int] = {}

    def perform(self, changes: Changes) -> None:
        f = changes.fragment
        for lane, records in changes.puts.items():
            for r in records:
                self.rows[f, lane, r.n] = r
        for e in changes.edits:
            if found := self.rows.pop((f, e.lane, e.n), None):
                self.rows[f, e.to, e.n] = found.changed(e.deliveries, e.overlay)
        for lane, gone in changes.deletes.items():
            for n in gone:
                self.rows.pop((f, lane, n), None)
        head = self.head(f)
        changes.head = Head(f, head[1], list(head[2]), head[3])

    def head(self, fragment: int) -> tuple[int, int, tuple[int, ...], int]:
        mine = [(lane, r) for (f, lane, _), r in self.rows.items() if f == fragment]
        counts = tuple(sum(1 for at, _ in mine if at == lane) for lane in range(LANES))
        return fragment, self.last.get(fragment, 0), counts, sum(r.size for _, r in mine)

    def page(self, fragment: int, lane: int) -> list[Record]:
        return [self.rows[key] for key in sorted(self.rows) if key[:2] == (fragment, lane)]


FRAGMENTS = st.integers(1, 2)
LANE = st.integers(0, LANES - 1)
OVERLAYS = st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=2)
PUTS = st.lists(st.tuples(LANE, st.binary(max_size=9), st.integers(1, 50), OVERLAYS), max_size=6)
EDITS = st.lists(st.tuples(st.integers(0, 30), LANE, st.booleans(), st.integers(0, 9), OVERLAYS), max_size=5)
DELETES = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8)
STEPS = st.lists(
    st.lists(st.tuples(FRAGMENTS, PUTS, EDITS, DELETES), max_size=2, unique_by=lambda part: part[0])
    | st.sampled_from(["crash", "restart"]),
    max_size=7,
)


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_any_changes_leave_what_a_dictionary_would_hold(place: str, steps: list) -> None:
    with TemporaryDirectory() as directory:
        open_store = PLACES[place](Path(directory))
        model = Model()
        store = open_store()
        store.claim()
        for step in [*steps, "crash"]:
            if isinstance(step, str):
                if step == "restart":
                    store.release()
                store.close()
                store = open_store()
                store.claim()
            else:
                batches = [_changes(model, *part) for part in step]
                store.commit(batches)
            _compare(store, model)
        store.close()


def _changes(model: Model, fragment: int, puts: list, edits: list, deletes: list) -> Changes:
    """Changes as a machine may make them: new numbers, and edits and deletes that mostly name what is there."""
    changes = Changes(fragment)
    here = {n: lane for f, lane, n in model.rows if f == fragment}
    for lane, content, due, overlay in puts:
        n = model.last[fragment] = model.last.get(fragment, 0) + 1
        changes.puts.setdefault(lane, []).append(record(n, content, due=due, overlay=overlay))
        here[n] = lane
    for n, to, right, deliveries, overlay in edits:
        lane = here.get(n, 0) if right else (here.get(n, 0) + 1) % LANES
        changes.edits.append(Edit(lane, n, to, deliveries, overlay))
        if here.get(n) == lane:
            here[n] = to
    for n, right in deletes:
        lane = here.get(n, 0) if right else (here.get(n, 0) + 1) % LANES
        changes.deletes.setdefault(lane, []).append(n)
    model.perform(changes)
    return changes


def _compare(store: Store, model: Model) -> None:
    heads = {head.fragment: head_values(head) for head in store.heads()}
    for fragment in (1, 2):
        assert heads.get(fragment, model.head(fragment)) == model.head(fragment)
        for lane in range(LANES):
            assert [values(r) for r in page(store, fragment, lane)] == [
                values(r) for r in model.page(fragment, lane)
            ]
        due = ReadDue(25, 100, MANY)
        store.read(fragment, [due])
        scheduled = sorted((r.due, r.n) for r in model.page(fragment, SCHEDULED))
        assert [(r.due, r.n) for r in due.records] == [key for key in scheduled if key[0] <= 25]
        assert due.next_due == next((key[0] for key in scheduled if key[0] > 25), 0)
        assert store.next_due(fragment) == (scheduled[0][0] if scheduled else 0)


# Message sessions


def session_changes(fragment: int, **by: tuple[int, int, bool]) -> Changes:
    changes = Changes(fragment)
    for id, (active, turn, moved) in by.items():
        change = SessionChange()
        change.active, change.turn, change.moved = active, turn, moved
        changes.sessions[id] = change
    return changes


def line(store: Store, fragment: int, after: int = -1, limit: int = 100) -> list[tuple[str, int, int]]:
    read = ReadLine(after, limit)
    store.read(fragment, [read])
    return read.rows


def session_ids(
    store: Store, fragment: int, updated_after: int = 0, skip: int = 0, top: int = 100
) -> list[str]:
    read = ReadSessionIds(updated_after, skip, top)
    store.read(fragment, [read])
    return read.ids


def state_of(store: Store, fragment: int, session: str, with_state: bool = True) -> tuple[int, bytes | None]:
    read = ReadSession(session, with_state)
    store.read(fragment, [read])
    return read.size, read.state


def set_state(store: Store, fragment: int, at: int, **states: bytes | None) -> None:
    changes = Changes(fragment)
    changes.states = {id: (at, state) for id, state in states.items()}
    store.commit([changes])


def of(n: int, session: str | None, ttl: int = 0, enqueued: int = 1_000) -> Record:
    return Record(n, enqueued, ttl, 0, 0, 7, b"content", None, session)


def test_the_messages_of_a_session_are_a_page_of_their_own(store: Store) -> None:
    put(store, 1, ACTIVE, of(1, "a"), of(2, "b"), of(3, "a"), of(4, None), of(5, "a"))
    put(store, 1, DEFERRED, of(6, "a"))
    put(store, 2, ACTIVE, of(1, "a"))
    for start, limit, found, complete in ((1, 2, [1, 3], False), (2, 9, [3, 5], True), (6, 9, [], True)):
        read = ReadPage(ACTIVE, start, limit, MANY, "a")
        store.read(1, [read])
        assert (numbers(read.records), read.complete) == (found, complete)
        assert all(record.session_id == "a" for record in read.records)
    assert [record.session_id for record in page(store, 1, ACTIVE)] == ["a", "b", "a", None, "a"]
    edit(store, 1, Edit(ACTIVE, 1, DEAD, 1, None))
    delete(store, 1, ACTIVE, 3)
    read = ReadPage(ACTIVE, 1, 9, MANY, "a")
    store.read(1, [read])
    assert numbers(read.records) == [5]
    (dead,) = page(store, 1, DEAD)
    assert (dead.n, dead.session_id) == (1, "a")


def test_sessions_are_counted_by_difference_and_stand_in_the_order_of_their_turns(open_store: Open) -> None:
    store = open_store()
    store.claim()
    store.commit([session_changes(1, a=(2, 1, False), b=(1, 2, False)), session_changes(2, a=(1, 1, False))])
    store.commit([session_changes(1, a=(1, 3, False), c=(1, 4, False))])  # a row that is there keeps its turn
    assert line(store, 1) == [("a", 1, 0), ("b", 2, 0), ("c", 4, 0)]
    store.commit([session_changes(1, a=(-2, 0, False), b=(-1, 0, False), d=(0, 5, False))])
    assert line(store, 1) == [("a", 1, 0), ("c", 4, 0)]
    store.commit([session_changes(1, a=(0, 6, True), b=(0, 7, True))])  # to the end, if it is there
    assert line(store, 1) == [("c", 4, 0), ("a", 6, 0)]
    assert line(store, 1, after=4) == [("a", 6, 0)]
    assert line(store, 1, limit=1) == [("c", 4, 0)]
    store.close()
    again = open_store()
    again.claim()
    assert (line(again, 1), line(again, 2)) == ([("c", 4, 0), ("a", 6, 0)], [("a", 1, 0)])
    again.close()


def test_when_the_active_messages_of_a_session_expire(store: Store) -> None:
    put(store, 1, ACTIVE, of(1, "a"), of(2, "a", 50), of(3, "a", 20), of(4, "b", 5), of(5, None, 1))
    put(store, 1, DEFERRED, of(6, "a", 1))
    store.commit([session_changes(1, a=(3, 1, False), b=(1, 2, False), c=(1, 3, False))])
    assert line(store, 1) == [("a", 1, 1020), ("b", 2, 1005), ("c", 3, 0)]
    read = ReadExpiry("a", 9)
    store.read(1, [read])
    assert read.rows == [(1020, 3), (1050, 2)]
    edit(store, 1, Edit(ACTIVE, 3, DEFERRED, 0, None))
    read = ReadExpiry("a", 1)
    store.read(1, [read])
    assert read.rows == [(1050, 2)]


def test_states_are_set_replaced_and_cleared(open_store: Open) -> None:
    store = open_store()
    store.claim()
    set_state(store, 1, 10, a=b"first", b=b"")
    set_state(store, 1, 20, a=b"\x00second", c=b"gone")
    set_state(store, 1, 30, c=None, d=None)
    store.close()
    store = open_store()
    store.claim()
    assert state_of(store, 1, "a") == (7, b"\x00second")
    assert state_of(store, 1, "a", with_state=False) == (7, None)
    assert state_of(store, 1, "b") == (0, b"")
    assert [state_of(store, where, id) for where, id in ((1, "c"), (1, "d"), (2, "a"))] == [(-1, None)] * 3
    store.commit([session_changes(1, a=(1, 1, False), z=(1, 2, False))])
    assert session_ids(store, 1) == ["a", "b", "z"]
    assert session_ids(store, 1, skip=1, top=1) == ["b"]
    assert session_ids(store, 1, updated_after=10) == ["a"]
    store.close()


@pytest.mark.parametrize("count", [1, 3, 1000, 1500])
def test_any_number_of_sessions(store: Store, count: int) -> None:
    store.commit([session_changes(1, **{f"s{i}": (1, i + 1, False) for i in range(count)})])
    assert line(store, 1, limit=5000) == [(f"s{i}", i + 1, 0) for i in range(count)]
    store.commit([session_changes(1, **{f"s{i}": (-1, 0, False) for i in range(1, count)})])
    assert line(store, 1) == [("s0", 1, 0)]


def test_dropping_takes_sessions_and_states_along(store: Store) -> None:
    changes = session_changes(1, **{f"s{i}": (1, i + 1, False) for i in range(5)})
    changes.puts[ACTIVE] = [of(i + 1, f"s{i}") for i in range(5)]
    changes.states = {f"t{i}": (1, b"state") for i in range(5)}
    changes.head = Head(1, 5, [5, 0, 0, 0, 0], 5 * 7 + 25, 0, 0, 5)
    store.commit([changes])
    (head,) = store.heads()
    assert head.turn == 5
    slices = 0
    while not store.drop(1, 2):
        slices += 1
        (head,) = store.heads()
        assert head.size == 7 * head.counts[ACTIVE] + 5 * sum(
            state_of(store, 1, f"t{i}")[0] > 0 for i in range(5)
        )
    assert slices >= 4
    assert (store.heads(), line(store, 1), session_ids(store, 1)) == ([], [], [])
