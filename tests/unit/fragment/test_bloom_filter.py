"""The filter over ids: never forgets, seldom errs, clears a generation and grows without touching the others."""

from __future__ import annotations

from hashlib import blake2b

from busbar.fragment.bloom_filter import GENERATIONS, ROOM, RotatingBloomFilter


def ids(first: int, count: int) -> list[bytes]:
    return [blake2b(b"%d" % i, digest_size=16).digest() for i in range(first, first + count)]


def full(size: int) -> RotatingBloomFilter:
    table = RotatingBloomFilter(size)
    for generation in range(GENERATIONS):
        for id in ids(generation * size, size // ROOM):
            table.add(id, generation)
    return table


def test_what_was_added_is_found_in_its_generation() -> None:
    table = full(4096)
    for generation in range(GENERATIONS):
        assert all(table.generations_of(id) >> generation & 1 for id in ids(generation * 4096, 4096 // ROOM))


def test_an_empty_filter_knows_nothing() -> None:
    table = RotatingBloomFilter(64)
    assert not any(table.generations_of(id) for id in ids(0, 100))


def test_a_full_filter_seldom_errs() -> None:
    table = full(16_384)
    wrong = sum(table.generations_of(id) != 0 for id in ids(10_000_000, 20_000))
    assert wrong < 20_000 * 0.01, "8 full generations, each wrong once in 1,700 times"


def test_clearing_an_generation_in_parts_leaves_the_others() -> None:
    table = full(4096)
    gone = 1 << 2 | 1 << 5
    for start in range(0, 4096, 1000):
        table.clear(gone, start, min(start + 1000, 4096))
    for generation in range(GENERATIONS):
        left = [table.generations_of(id) for id in ids(generation * 4096, 4096 // ROOM)]
        assert all(generations & gone == 0 for generations in left)
        assert gone >> generation & 1 or all(generations >> generation & 1 for generations in left)


def test_growing_keeps_what_is_there_and_gives_new_generations_room() -> None:
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
