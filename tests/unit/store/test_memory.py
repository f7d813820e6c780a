"""The memory store's own rules: its faults, its crashes, its fencing."""

from __future__ import annotations

import pytest

from busbar.fragment.changes import Changes
from busbar.fragment.reads import ReadPage
from busbar.model.message import ACTIVE, Record
from busbar.store.contract import Fenced, OutcomeUnknown, StoreFull
from harness.memory_store import Fault, MemoryStore


def claimed(store: MemoryStore | None = None) -> MemoryStore:
    store = store or MemoryStore()
    store.claim()
    return store


def put(store: MemoryStore, n: int) -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [Record(n, 1, 0, 0, 0, 1, b"x", None)]
    store.commit([changes])


def numbers(store: MemoryStore) -> list[int]:
    page = ReadPage(ACTIVE, 0, 100, 1000)
    store.read(1, [page])
    return [record.n for record in page.records]


def test_full_is_certain_and_passes() -> None:
    store = claimed()
    store.fail_next_commit(Fault.FULL)
    with pytest.raises(StoreFull):
        put(store, 1)
    assert numbers(store) == []
    put(store, 2)
    assert numbers(store) == [2]


@pytest.mark.parametrize(("fault", "there"), [(Fault.LOST, []), (Fault.UNHEARD, [1])])
def test_an_unknown_outcome_breaks_the_handle_and_is_known_after_reopening(
    fault: Fault, there: list[int]
) -> None:
    store = claimed()
    store.fail_next_commit(fault)
    with pytest.raises(OutcomeUnknown):
        put(store, 1)
    with pytest.raises(OutcomeUnknown):
        put(store, 2)
    with pytest.raises(OutcomeUnknown):
        numbers(store)
    assert numbers(claimed(store.crash())) == there


def test_faults_happen_in_their_order() -> None:
    store = claimed()
    store.fail_next_commit(Fault.FULL)
    store.fail_next_commit(Fault.UNHEARD)
    with pytest.raises(StoreFull):
        put(store, 1)
    with pytest.raises(OutcomeUnknown):
        put(store, 2)
    assert numbers(claimed(store.crash())) == [2]


def test_a_crash_leaves_what_was_committed() -> None:
    store = claimed()
    put(store, 1)
    after = claimed(store.crash())
    assert numbers(after) == [1]
    with pytest.raises(OutcomeUnknown):
        put(store, 2)


def test_an_owner_whose_epoch_has_passed_is_fenced() -> None:
    first = claimed()
    second = claimed(MemoryStore(first.disk))
    with pytest.raises(Fenced):
        put(first, 1)
    put(second, 1)
    assert numbers(second) == [1]
