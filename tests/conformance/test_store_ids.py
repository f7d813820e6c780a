"""Ids of duplicate detection in every store."""

from __future__ import annotations

import pytest

from busbar.fragment.changes import Changes, Head, IdRow
from busbar.fragment.reads import ReadIdPage, ReadIds
from busbar.model.message import ACTIVE, LANES
from busbar.store.contract import Store
from tests.conformance.stores import Open, record


def remember(store: Store, fragment: int, *rows: IdRow, upto: tuple[int, bytes] | None = None) -> None:
    changes = Changes(fragment)
    changes.ids = list(rows)
    changes.ids_upto = upto
    store.commit([changes])


def found(store: Store, fragment: int, ids: list[bytes], segments: list[int]) -> dict[bytes, tuple[int, int]]:
    read = ReadIds(ids, segments)
    store.read(fragment, [read])
    return read.found


def id_page(
    store: Store, fragment: int, segment: int = 0, after: bytes = b"", limit: int = 1000
) -> list[IdRow]:
    read = ReadIdPage(segment, after, limit)
    store.read(fragment, [read])
    return read.rows


def test_ids_are_found_on_the_segments_that_are_named(store: Store) -> None:
    a, b, d = b"a" * 16, b"b" * 16, b"d" * 16
    remember(store, 1, (10, a, 100, 1), (10, b, 101, 2), (20, a, 200, 3))
    remember(store, 2, (10, d, 5, 9))
    assert found(store, 1, [a, b, d], [10, 20]) == {a: (200, 3), b: (101, 2)}
    assert found(store, 1, [a, b], [10]) == {a: (100, 1), b: (101, 2)}
    assert found(store, 1, [a, b], [20]) == {a: (200, 3)}
    assert found(store, 1, [a], [11, 19]) == {}
    assert found(store, 1, [], [10]) == found(store, 1, [a], []) == {}
    assert found(store, 3, [a], [10]) == {}


def test_an_id_put_again_on_its_segment_has_the_new_time_and_number(store: Store) -> None:
    remember(store, 1, (10, b"a", 100, 1))
    remember(store, 1, (10, b"a", 300, 7))
    assert id_page(store, 1) == [(10, b"a", 300, 7)]


def test_ids_come_in_the_order_of_segment_and_id(store: Store) -> None:
    rows = [(segment, bytes([i]), 1000 + i, i) for segment in (5, 6, 1 << 45) for i in (0, 1, 200, 255)]
    remember(store, 1, *reversed(rows))
    assert id_page(store, 1) == rows
    assert id_page(store, 1, limit=5) == rows[:5]
    assert id_page(store, 1, 5, bytes([1]), 4) == rows[2:6]
    assert id_page(store, 1, 6, b"", 1) == rows[4:5]
    assert id_page(store, 1, 1 << 45, b"\xff") == id_page(store, 2) == []
    assert store.id_segments(1) == [5, 6, 1 << 45]
    assert store.id_segments(2) == []


def test_the_lowest_ids_are_forgotten(store: Store) -> None:
    rows = [(segment, bytes([i]), i, i) for segment in (5, 6, 7) for i in range(4)]
    remember(store, 1, *rows)
    remember(store, 2, *rows)
    remember(store, 1, (8, b"new", 1, 1), upto=(6, bytes([1])))
    assert id_page(store, 1) == [*rows[6:], (8, b"new", 1, 1)]
    remember(store, 1, upto=(6, b"\xff"))
    assert store.id_segments(1) == [7, 8]
    remember(store, 1, (3, b"low", 1, 1), upto=(9, b""))
    assert store.id_segments(1) == [3], "first forgotten, then remembered"
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


def test_dropping_forgets_ids_in_slices(store: Store) -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [record(n) for n in range(1, 4)]
    changes.ids = [(n % 3, bytes([n]) * 16, n, n) for n in range(1, 11)]
    changes.head = Head(1, 3, [3, 0, 0, 0, 0, 0, 0, 0, 0, 0], 21, 10, 4)
    store.commit([changes])
    remember(store, 2, (1, b"x", 1, 1))
    assert not store.drop(1, 5)
    assert len(id_page(store, 1)) == 8
    (head,) = (head for head in store.heads() if head.fragment == 1)
    assert (head.counts, head.size, head.ids, head.dropped) == ([0] * LANES, 0, 8, 4)
    assert not store.drop(1, 5)
    assert store.drop(1, 5)
    assert store.id_segments(1) == [] and id_page(store, 1) == []
    assert store.id_segments(2) == [1]
