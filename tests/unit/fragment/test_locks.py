"""The table of locks by itself: ends, renewals, leftovers."""

from __future__ import annotations

from busbar.fragment.changes import Lock
from busbar.fragment.locks import SLACK, LockTable
from busbar.model.message import ACTIVE, DEFERRED, LANES, Record


def record(n: int, size: int = 100) -> Record:
    return Record(n, 0, 0, 0, 0, size, b"x" * size, None)


def numbers(locks: list[Lock]) -> list[int]:
    return sorted(lock.record.n for lock in locks)


def drop(table: LockTable, *gone: int) -> None:
    table.released([table.held.pop(n) for n in gone])


def test_locks_end_in_the_order_of_their_times() -> None:
    table = LockTable([])
    table.take([record(1), record(2)], ACTIVE, 7, 200, 1000)
    table.take([record(3)], ACTIVE, 8, 100, 1000)
    assert table.earliest() == 100
    assert numbers(table.expire(99, 10)) == []
    assert numbers(table.expire(100, 10)) == [3]
    assert numbers(table.expire(500, 10)) == [1, 2]
    assert table.earliest() == 0


def test_a_renewed_lock_does_not_end_at_its_old_time() -> None:
    table = LockTable([])
    table.take([record(1), record(2)], ACTIVE, 7, 100, 1000)
    table.renew([table.held[1]], 200)
    assert numbers(table.expire(100, 10)) == [2]
    assert table.earliest() == 200
    assert numbers(table.expire(200, 10)) == [1]


def test_a_new_lock_on_the_same_message_has_its_own_end() -> None:
    table = LockTable([])
    table.take([record(1)], ACTIVE, 7, 100, 1000)
    drop(table, 1)
    table.take([record(1)], ACTIVE, 8, 300, 1000)
    assert table.expire(100, 10) == []
    assert table.earliest() == 300


def test_no_more_end_at_once_than_asked_for() -> None:
    table = LockTable([])
    table.take([record(n) for n in range(1, 6)], ACTIVE, 7, 100, 1000)
    assert len(table.expire(100, 2)) == 2
    assert table.earliest() == 100
    table.take([record(9)], ACTIVE, 8, 100, 1000)
    assert len(table.expire(100, 10)) == 4
    table.take([record(10)], ACTIVE, 8, 100, 1000)
    assert table.earliest() == 100


def test_counts_and_bytes_follow() -> None:
    table = LockTable([])
    table.take([record(1), record(2), record(3)], ACTIVE, 7, 100, 250)
    table.take([record(4)], DEFERRED, 7, 100, 1000)
    assert table.counts[ACTIVE] == 3 and table.counts[DEFERRED] == 1
    assert table.bytes == 300
    assert table.held[3].record.content is None, "there was room for two"
    drop(table, 1, 3, 4)
    assert table.counts == [1] + [0] * (LANES - 1)
    assert table.bytes == 100


def test_leftovers_are_cleared() -> None:
    table = LockTable([])
    for n in range(1, 10 * SLACK):
        table.take([record(n)], ACTIVE, 7, 1000 + n, 1000)
        if n > 5:
            drop(table, n)
    assert table._numbers <= SLACK + 2 * len(table.held)
    assert table.earliest() == 1001
    assert numbers(table.expire(100_000, 100)) == [1, 2, 3, 4, 5]


def test_it_starts_with_the_locks_that_were_kept() -> None:
    kept = [Lock(record(1).without_content(), DEFERRED, 5, 70), Lock(record(2), ACTIVE, 6, 60)]
    table = LockTable(kept)
    assert table.counts[:3] == [1, 0, 1] and not any(table.counts[3:])
    assert table.bytes == 100
    assert table.earliest() == 60
    assert numbers(table.expire(70, 10)) == [1, 2]
