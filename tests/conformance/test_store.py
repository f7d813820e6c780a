"""What every store does besides messages: counters, locks over a clean shutdown, the catalogue, owners."""

from __future__ import annotations

import pytest

from busbar.fragment.changes import Changes, Head, Lock
from busbar.fragment.reads import ReadByNumber
from busbar.model.message import ACTIVE, DEAD, SCHEDULED
from busbar.store.contract import OutcomeUnknown, Store, StoreError
from tests.conformance.stores import Open, head_values, lanes, put, record

# Heads, creation and dropping


def test_heads_are_written_with_the_commit(store: Store) -> None:
    store.create(3)
    changes = Changes(5)
    changes.puts[ACTIVE] = [record(1)]
    changes.head = Head(5, 17, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 600)
    store.commit([changes])
    expected = [(3, 0, (0,) * 10, 0), (5, 17, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 600)]
    assert [head_values(head) for head in store.heads()] == expected


def test_a_commit_without_a_head_leaves_the_head(store: Store) -> None:
    changes = Changes(5)
    changes.head = Head(5, 17, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 600)
    store.commit([changes])
    put(store, 5, ACTIVE, record(18))
    assert [head_values(head) for head in store.heads()] == [(5, 17, (1, 0, 0, 0, 0, 0, 0, 0, 0, 0), 600)]


def test_creating_again_changes_nothing(store: Store) -> None:
    changes = Changes(5)
    changes.head = Head(5, 17, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 600)
    store.commit([changes])
    store.create(5)
    assert [head_values(head) for head in store.heads()] == [(5, 17, (1, 0, 0, 0, 0, 0, 0, 0, 0, 0), 600)]


def test_a_head_given_out_or_in_is_not_shared(store: Store) -> None:
    changes = Changes(5)
    changes.head = Head(5, 1, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6)
    store.commit([changes])
    changes.head.counts[0] = 99
    store.heads()[0].counts[0] = 98
    assert store.heads()[0].counts == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]


def test_a_fragment_is_dropped_in_slices(store: Store) -> None:
    changes = Changes(1)
    changes.puts = {
        ACTIVE: [record(n, size=10) for n in range(1, 8)],
        DEAD: [record(n, size=100) for n in range(8, 11)],
        SCHEDULED: [record(11, due=5, size=1000)],
    }
    changes.head = Head(1, 11, [7, 3, 0, 1, 0, 0, 0, 0, 0, 0], 1370)
    store.commit([changes])
    put(store, 2, ACTIVE, record(1))
    store.create(2)
    assert not store.drop(1, 8)
    assert head_values(store.heads()[0]) == (1, 11, (0, 2, 0, 1, 0, 0, 0, 0, 0, 0), 1200)
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


def test_dropping_forgets_kept_locks(store: Store) -> None:
    put(store, 1, ACTIVE, record(1))
    store.save_locks(1, [Lock(record(1), ACTIVE, 5, 6)])
    assert store.drop(1, 10)
    put(store, 1, ACTIVE, record(1))
    assert store.take_locks(1) == []


# Kept locks


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
    assert store.definitions() == {}
    store.write_definitions({"queue/a": b"1", "queue/É": b"\x00\xff", "gone": b"3"})
    store.write_definitions({"queue/a": b"2", "gone": None, "never": None})
    store.close()
    again = open_store()
    again.claim()
    assert again.definitions() == {"queue/a": b"2", "queue/É": b"\x00\xff"}
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
            lambda: store.read(1, [ReadByNumber(ACTIVE, [1])]),
            store.heads,
            store.definitions,
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
