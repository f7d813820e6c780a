"""Moves of what is pending to SQLite, interrupted at any point, against a model."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.fragment.changes import Changes, Head, MessageEdit
from busbar.fragment.reads import ReadIdPage, ReadPage
from busbar.model.message import ACTIVE, DEAD, LANES, Record
from busbar.store.journal import moving
from busbar.store.journal import store as journal_store
from busbar.store.journal.segment_names import segments_of
from busbar.store.journal.store import JournalStore
from tests.conformance.test_store_model import (
    DELETES,
    EDITS,
    FRAGMENTS,
    KEEPS,
    PUTS,
    Model,
    _changes,
    _compare,
)

COMMIT = st.lists(
    st.tuples(FRAGMENTS, PUTS, EDITS, KEEPS, DELETES), min_size=1, max_size=2, unique_by=lambda part: part[0]
)
STEPS = st.lists(COMMIT | st.sampled_from(["maintain", "maintain", "read", "crash", "restart"]), max_size=14)


@pytest.fixture(autouse=True)
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have moves of many slices with few messages."""
    monkeypatch.setattr(moving, "SLICE", 2)
    monkeypatch.setattr(journal_store, "SLICE", 4)
    monkeypatch.setattr(journal_store, "GENERATIONS", journal_store.MAX_PENDING // 1_000)


@settings(
    max_examples=1_000 if os.environ.get("BUSBAR_DEEP") == "1" else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_any_changes_with_moves_at_any_point(steps: list) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        model = Model()
        store = opened(path)
        for step in [*steps, "crash"]:
            if not isinstance(step, str):
                store.commit([_changes(model, *part) for part in step])
            elif step == "maintain":
                store.maintain()
            elif step == "read":
                _compare(store, model)
            else:
                if step == "restart":
                    store.release()
                store.close()
                store = opened(path)
        _compare(store, model)
        store.close()


def opened(path: Path) -> JournalStore:
    store = JournalStore(path, segment_size=1 << 16)
    store.claim()
    return store


def put(store: JournalStore, first: int, count: int) -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [Record(n, 1, 0, 0, 0, 7, b"content", None) for n in range(first, first + count)]
    changes.ids = [(1, b"%016d" % n, 1, n) for n in range(first, first + count)]
    changes.head = Head(1, first + count - 1, [0] * LANES, 0)
    store.commit([changes])


def delete(store: JournalStore, *numbers: int) -> None:
    changes = Changes(1)
    changes.deletes[ACTIVE] = list(numbers)
    store.commit([changes])


def found(store: JournalStore) -> list[int]:
    page = ReadPage(ACTIVE, 0, 1000, 1 << 40)
    store.read(1, [page])
    return [record.n for record in page.records]


def in_sqlite(store: JournalStore) -> list[int]:
    return [n for n in range(1, 100) if store._sqlite.contains(1, ACTIVE, n)]


def idle(store: JournalStore) -> None:
    """Do one look at an idle store, and what follows from it."""
    while store.maintain():
        pass


def test_an_idle_store_moves_a_message_at_its_second_look(tmp_path: Path) -> None:
    store = opened(tmp_path / "store.db")
    put(store, 1, 3)
    idle(store)
    put(store, 4, 1)
    assert in_sqlite(store) == []
    idle(store)
    assert in_sqlite(store) == [1, 2, 3]
    idle(store)
    assert in_sqlite(store) == [1, 2, 3, 4]


def test_a_message_that_is_completed_between_two_looks_never_reaches_sqlite(tmp_path: Path) -> None:
    store = opened(tmp_path / "store.db")
    put(store, 1, 10)
    idle(store)
    delete(store, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    idle(store)
    assert in_sqlite(store) == [10]
    assert found(store) == [10]


def test_a_message_that_is_edited_after_its_generation_is_deleted_from_where_it_went(tmp_path: Path) -> None:
    store = opened(tmp_path / "store.db")
    put(store, 1, 6)
    idle(store)
    changes = Changes(1)
    changes.edits = [MessageEdit(ACTIVE, 2, DEAD, 1, None), MessageEdit(DEAD, 2, ACTIVE, 2, None)]
    changes.edits.append(MessageEdit(ACTIVE, 3, DEAD, 1, None))
    store.commit([changes])
    delete(store, 2, 3)
    assert found(store) == [1, 4, 5, 6]
    dead = ReadPage(DEAD, 0, 10, 1 << 40)
    store.read(1, [dead])
    assert [record.n for record in dead.records] == [3]


def test_a_message_that_is_deleted_while_it_is_moved(tmp_path: Path) -> None:
    store = opened(tmp_path / "store.db")
    put(store, 1, 3)
    idle(store)
    put(store, 4, 1)
    store.maintain()  # begins the move of the first three
    assert store.maintain()
    assert in_sqlite(store) == [1, 2]
    delete(store, 1, 3)
    assert found(store) == [2, 4]


def test_an_edit_does_not_revive_a_deleted_message(tmp_path: Path) -> None:
    store = opened(tmp_path / "store.db")
    put(store, 1, 2)
    store._moved()
    delete(store, 1)
    changes = Changes(1)
    changes.edits = [MessageEdit(ACTIVE, 1, DEAD, 1, None)]
    store.commit([changes])
    dead = ReadPage(DEAD, 0, 10, 1 << 40)
    store.read(1, [dead])
    assert (found(store), dead.records) == ([2], [])


@pytest.mark.parametrize("slices", range(8))
def test_an_unfinished_move_is_undone_and_made_again(
    tmp_path: Path, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_store, "GENERATIONS", journal_store.MAX_PENDING // 100_000)
    path = tmp_path / "store.db"
    store = opened(path)
    put(store, 1, 4)
    store.release()
    store = opened(path)
    put(store, 5, 6)
    delete(store, 1, 2, 4)
    idle(store)
    store.maintain()  # begins the move
    for _ in range(slices):
        assert store.maintain()
    assert in_sqlite(store) != [1, 2, 3, 4] or not slices
    delete(store, 6)
    store.close()
    again = opened(path)
    assert found(again) == [3, 5, 7, 8, 9, 10]
    ids = ReadIdPage(0, b"", 100)
    again.read(1, [ids])
    assert [row[3] for row in ids.rows] == list(range(1, 11))
    assert again._sqlite.journal_state().is_moving is False


def test_an_idle_store_holds_little(tmp_path: Path) -> None:
    store = opened(tmp_path / "store.db")
    for first in range(1, 12_000, 300):
        put(store, first, 300)
        delete(store, *range(first, first + 300))
    assert len(segments_of(tmp_path / "store.db")) > 2
    for _ in range(4):
        idle(store)
    assert store._pending.is_empty()
    assert len(segments_of(tmp_path / "store.db")) <= 2


def test_a_commit_waits_for_moves_that_do_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_store, "MAX_PENDING", 20_000)
    store = opened(tmp_path / "store.db")
    for k in range(50):
        put(store, 1 + k * 100, 100)
        assert store._pending.bytes() < 120_000
    assert len(found(store)) == 1000
