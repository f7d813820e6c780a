"""The filter over ids: never forgets, seldom errs, clears an era and grows without touching the others."""

from __future__ import annotations

from hashlib import blake2b

from busbar.fragment.bloom_filter import ERAS, ROOM, RotatingBloomFilter


def ids(first: int, count: int) -> list[bytes]:
    return [blake2b(b"%d" % i, digest_size=16).digest() for i in range(first, first + count)]


def full(size: int) -> RotatingBloomFilter:
    table = RotatingBloomFilter(size)
    for era in range(ERAS):
        for id in ids(era * size, size // ROOM):
            table.add(id, era)
    return table


def test_what_was_added_is_found_in_its_era() -> None:
    table = full(4096)
    for era in range(ERAS):
        assert all(table.generations_of(id) >> era & 1 for id in ids(era * 4096, 4096 // ROOM))


def test_an_empty_filter_knows_nothing() -> None:
    table = RotatingBloomFilter(64)
    assert not any(table.generations_of(id) for id in ids(0, 100))


def test_a_full_filter_seldom_errs() -> None:
    table = full(16_384)
    wrong = sum(table.generations_of(id) != 0 for id in ids(10_000_000, 20_000))
    assert wrong < 20_000 * 0.01, "8 full eras, each wrong once in 1,700 times"


def test_clearing_an_era_in_parts_leaves_the_others() -> None:
    table = full(4096)
    gone = 1 << 2 | 1 << 5
    for start in range(0, 4096, 1000):
        table.clear(gone, start, min(start + 1000, 4096))
    for era in range(ERAS):
        left = [table.generations_of(id) for id in ids(era * 4096, 4096 // ROOM)]
        assert all(eras & gone == 0 for eras in left)
        assert gone >> era & 1 or all(eras >> era & 1 for eras in left)


def test_growing_keeps_what_is_there_and_gives_new_eras_room() -> None:
    table = RotatingBloomFilter(1024)
    old, new = ids(0, 64), ids(100, 256)
    for id in old:
        table.add(id, 0)
    table.grow(4)
    assert table.size == 4096
    for id in new:
        table.add(id, 1)
    assert all(table.generations_of(id) & 1 for id in old)
    assert all(table.generations_of(id) & 2 for id in new)
    wrong = sum(table.generations_of(id) != 0 for id in ids(10_000, 20_000))
    assert wrong < 20_000 * 0.004
