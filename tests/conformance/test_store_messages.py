"""Messages in every store: puts, pages, reads by number, edits, deletes."""

from __future__ import annotations

import pytest

from busbar.fragment.changes import Changes, Keep, MessageEdit
from busbar.fragment.reads import Read, ReadByNumber, ReadDue, ReadPage
from busbar.model.message import ACTIVE, DEAD, DEAD_DEFERRED, DEFERRED, KEPT, KEPT_DEAD, SCHEDULED
from busbar.store.contract import OutcomeUnknown, Store
from tests.conformance.stores import MANY, Open, delete, edit, lanes, numbers, page, put, record, values

# Puts and pages


def test_what_one_commit_does_to_its_own_messages(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2), record(3))
    changes = Changes(1)
    changes.puts = {ACTIVE: [record(4), record(5), record(6)]}
    changes.deletes = {ACTIVE: [2, 4]}
    store.commit([changes])
    assert lanes(store, 1) == {ACTIVE: [1, 3, 5, 6]}
    changes = Changes(1)
    changes.puts = {ACTIVE: [record(7), record(8)]}
    changes.edits = [MessageEdit(ACTIVE, n, DEAD, 1, {"a": b"1"}, n) for n in (1, 7, 8)]
    changes.keeps = [Keep(ACTIVE, KEPT, [3, 5]), Keep(DEAD, KEPT_DEAD, [1, 7])]
    changes.deletes = {KEPT: [3], DEAD: [8], KEPT_DEAD: [9]}
    store.commit([changes])
    assert lanes(store, 1) == {ACTIVE: [6], KEPT: [5], KEPT_DEAD: [1, 7]}
    assert [(r.deliveries, r.overlay) for r in page(store, 1, KEPT_DEAD)] == [(1, {"a": b"1"})] * 2


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
    read = ReadByNumber(DEFERRED, [500, 3, 4, 1, 3, 77])
    store.read(1, [read])
    assert numbers(read.records) == [1, 3, 500]


def test_several_reads_at_once(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2))
    put(store, 1, SCHEDULED, record(3, due=30))
    reads: list[Read] = [
        ReadPage(ACTIVE, 2, 10, MANY),
        ReadByNumber(ACTIVE, [1]),
        ReadDue(40, 10, MANY),
        ReadByNumber(DEAD, []),
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
    edit(store, 1, MessageEdit(SCHEDULED, 2, ACTIVE, 0, None))
    assert store.next_due(1) == 50
    delete(store, 1, SCHEDULED, 1)
    assert store.next_due(1) == 0


# Edits


def test_an_edit_moves_a_message_with_its_bytes(store: Store) -> None:
    put(store, 1, ACTIVE, record(1, b"x" * 20_000, ttl=5), record(2))
    edit(store, 1, MessageEdit(ACTIVE, 1, DEAD, 3, {"why": b"\xa1\x01x"}))
    assert lanes(store, 1) == {ACTIVE: [2], DEAD: [1]}
    moved = record(1, b"x" * 20_000, ttl=5, deliveries=3, overlay={"why": b"\xa1\x01x"})
    assert values(page(store, 1, DEAD)[0]) == values(moved)


def test_an_edit_sets_the_size_that_it_names(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2), record(3))
    before = page(store, 1, ACTIVE)[0].size
    edit(
        store, 1, MessageEdit(ACTIVE, 1, DEAD, 1, {"a": b"1"}, 0, 77), MessageEdit(ACTIVE, 2, ACTIVE, 1, None)
    )
    edit(
        store,
        1,
        MessageEdit(ACTIVE, 3, ACTIVE, 1, {"a": b"1"}, 0, 5),
        MessageEdit(ACTIVE, 3, DEAD, 2, {"a": b"12"}, 0, 6),
    )
    assert [r.size for r in page(store, 1, DEAD)] == [77, 6]
    assert [r.size for r in page(store, 1, ACTIVE)] == [before]


def test_an_edit_in_place_sets_count_and_overlay(store: Store) -> None:
    put(store, 1, ACTIVE, record(1, overlay={"a": b"1"}))
    edit(store, 1, MessageEdit(ACTIVE, 1, ACTIVE, 9, None))
    assert values(page(store, 1, ACTIVE)[0]) == values(record(1, deliveries=9))


def test_edits_of_one_message_are_made_in_their_order(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2))
    edit(
        store,
        1,
        MessageEdit(ACTIVE, 1, ACTIVE, 1, {"a": b"1"}),
        MessageEdit(ACTIVE, 1, DEAD, 2, {"a": b"2"}),
        MessageEdit(ACTIVE, 2, DEFERRED, 0, None),
        MessageEdit(DEAD, 1, DEAD_DEFERRED, 3, {"a": b"3"}),
        MessageEdit(DEFERRED, 2, ACTIVE, 7, None),
    )
    assert lanes(store, 1) == {ACTIVE: [2], DEAD_DEFERRED: [1]}
    assert values(page(store, 1, DEAD_DEFERRED)[0]) == values(record(1, deliveries=3, overlay={"a": b"3"}))
    assert page(store, 1, ACTIVE)[0].deliveries == 7


def test_an_edit_of_what_is_not_there_does_nothing(store: Store) -> None:
    put(store, 1, ACTIVE, record(1))
    edit(store, 1, MessageEdit(ACTIVE, 2, DEAD, 1, None), MessageEdit(DEAD, 1, ACTIVE, 5, None))
    assert [values(r) for r in page(store, 1, ACTIVE)] == [values(record(1))]
    assert lanes(store, 1) == {ACTIVE: [1]}


def test_an_edit_of_what_has_moved_away_does_nothing(store: Store) -> None:
    put(store, 1, DEAD, record(1))
    edit(store, 1, MessageEdit(DEAD, 1, ACTIVE, 3, None), MessageEdit(DEAD, 1, ACTIVE, 4, None))
    assert [r.deliveries for r in page(store, 1, ACTIVE)] == [3]
    edit(store, 1, MessageEdit(DEAD, 1, ACTIVE, 5, None), MessageEdit(ACTIVE, 1, DEFERRED, 6, None))
    assert lanes(store, 1) == {DEFERRED: [1]}
    assert page(store, 1, DEFERRED)[0].deliveries == 6


def test_many_edits(store: Store) -> None:
    put(store, 1, ACTIVE, *(record(n) for n in range(1, 1201)))
    edit(store, 1, *(MessageEdit(ACTIVE, n, DEAD, n, {"n": b"%d" % n}) for n in range(1, 1201, 2)))
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
    changes.edits = [MessageEdit(ACTIVE, 1, DEAD, 1, None), MessageEdit(ACTIVE, 3, DEAD, 1, None)]
    changes.puts = {ACTIVE: [record(1), record(2), record(3), record(4)]}
    store.commit([changes])
    assert lanes(store, 1) == {ACTIVE: [4], DEAD: [3]}


def test_an_empty_commit(store: Store) -> None:
    store.commit([])
    store.commit([Changes(1)])
    assert lanes(store, 1) == {}


def test_of_several_keeps_of_a_message_those_count_that_find_it(store: Store) -> None:
    put(store, 1, ACTIVE, record(1), record(2), record(3))
    changes = Changes(1)
    changes.keeps = [Keep(ACTIVE, KEPT_DEAD, [1, 2]), Keep(ACTIVE, KEPT, [1, 3]), Keep(ACTIVE, KEPT, [2])]
    store.commit([changes])
    assert lanes(store, 1) == {KEPT: [3], KEPT_DEAD: [1, 2]}
