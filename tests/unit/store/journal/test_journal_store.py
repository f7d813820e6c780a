"""The files of an embedded store: SQLite's, and the journal beside it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from busbar.fragment.changes import Changes, Head
from busbar.fragment.reads import ReadPage
from busbar.model.message import ACTIVE, LANES, Record
from busbar.store.contract import OutcomeUnknown, StoreError
from busbar.store.journal.changes_decoder import JournalDamaged
from busbar.store.journal.directory import EmbeddedLocation, stores_in
from busbar.store.journal.segment_names import segments_of
from busbar.store.journal.store import MIN_PENDING, JournalStore
from busbar.store.sqlite import file

NAME = "store-0"


@pytest.fixture
def place(tmp_path: Path) -> EmbeddedLocation:
    return EmbeddedLocation(tmp_path, NAME)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{NAME}.db"


def opened(path: Path) -> JournalStore:
    store = JournalStore(path)
    store.claim()
    return store


def put(store: JournalStore, *numbers: int) -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [Record(n, 1, 0, 0, 0, 7, b"content", None) for n in numbers]
    changes.head = Head(1, max(numbers), [0] * LANES, 0)
    store.commit([changes])


def found(store: JournalStore) -> list[int]:
    page = ReadPage(ACTIVE, 0, 1000, 1 << 40)
    store.read(1, [page])
    return [record.n for record in page.records]


def files(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if not each.name.endswith((".lock", ".reserve")))


def killed(path: Path, *numbers: int) -> None:
    """Commit messages, and leave the files as a killed process does."""
    store = opened(path)
    put(store, *numbers)
    store.close()


def test_a_clean_stop_leaves_one_file_that_can_be_copied(tmp_path: Path, path: Path) -> None:
    store = opened(path)
    put(store, 1, 2)
    assert len(segments_of(path)) == 1
    store.release()
    assert files(tmp_path) == ["store-0.db"]
    (tmp_path / "backup").mkdir()
    shutil.copy(path, tmp_path / "backup")
    assert found(opened(tmp_path / "backup" / path.name)) == [1, 2]


def test_a_store_that_is_only_read_has_no_journal(tmp_path: Path, path: Path) -> None:
    opened(path).release()
    store = opened(path)
    assert found(store) == []
    assert segments_of(path) == []


def test_segments_are_for_their_owner_only(path: Path) -> None:
    before = os.umask(0)
    try:
        killed(path, 1)
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in segments_of(path)] == [0o600]


def test_a_file_that_is_put_back_without_its_journal_is_refused(tmp_path: Path, path: Path) -> None:
    killed(path, 1)
    (segment,) = segments_of(path)
    segment.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(
            JournalDamaged, match=r"store-0\.db was not closed cleanly, and its journal is missing"
        ):
            opened(path)
    (tmp_path / "elsewhere").rename(segment)
    assert found(opened(path)) == [1]


def test_a_journal_without_its_file_is_refused(tmp_path: Path, path: Path) -> None:
    killed(path, 1)
    path.rename(tmp_path / "elsewhere")
    path.with_name(path.name + "-wal").rename(tmp_path / "elsewhere-wal")
    with pytest.raises(
        StoreError, match=r"is missing, but its journal store-0\.db\.00000001\.segment is there"
    ):
        opened(path)
    assert not path.exists()
    assert stores_in(tmp_path) == [NAME], "a store of which something is left"


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_older_file_under_a_later_journal_is_refused(tmp_path: Path, path: Path, is_closed: bool) -> None:
    """A backup is put back after a crash, and the segments that are not of it are left in place."""
    killed(path, 1)
    if is_closed:
        opened(path).release()
    shutil.copytree(tmp_path, tmp_path / "backup")
    opened(path).release()
    killed(path, 2)
    for each in (path, path.with_name(path.name + "-wal")):
        each.unlink()
        if (tmp_path / "backup" / each.name).exists():
            shutil.copy(tmp_path / "backup" / each.name, each)
    with pytest.raises(JournalDamaged, match=r"belongs to another file than store-0\.db"):
        opened(path)


def test_a_replaced_store_takes_its_journal_along_and_comes_back_with_it(
    tmp_path: Path, path: Path, place: EmbeddedLocation
) -> None:
    killed(path, 1, 2)
    made = place.make()
    assert isinstance(made, JournalStore)
    made.claim()
    put(made, 7)
    made.release()
    (aside,) = place.replaced_files()
    assert len(segments_of(aside)) == 1 and segments_of(path) == []
    assert stores_in(tmp_path) == [NAME]
    other = place.rename_current()
    place.put_back(aside)
    assert found(opened(path)) == [1, 2]
    assert found(opened(other)) == [7]


def test_the_size_is_that_of_all_files(path: Path, place: EmbeddedLocation, tmp_path: Path) -> None:
    store = opened(path)
    put(store, 1)
    assert place.size() == sum((tmp_path / name).stat().st_size for name in files(tmp_path))
    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("suffix", ["", "-wal", ".00000001.segment"])
def test_a_commit_is_not_acknowledged_when_a_file_was_removed(path: Path, suffix: str) -> None:
    store = opened(path)
    put(store, 1)
    path.with_name(path.name + suffix).unlink()
    with pytest.raises(OutcomeUnknown):
        put(store, 2)
    for refused in (lambda: put(store, 3), lambda: found(store), store.heads):
        with pytest.raises(OutcomeUnknown):
            refused()
    store.close()


def test_a_file_without_a_journal_of_an_older_version_is_used(path: Path) -> None:
    store = opened(path)
    put(store, 1)
    store.release()
    with sqlite3.connect(path) as old:
        old.execute("DELETE FROM meta WHERE key IN ('journal', 'applied', 'closed', 'moving')")
        old.execute("UPDATE meta SET value = 6 WHERE key = 'schema'")
    old.close()
    killed(path, 2)
    assert found(opened(path)) == [1, 2]


def test_the_reserves_hold_what_is_pending_on_a_disk_with_little_space() -> None:
    """On a page there may be one row of little more than half of it, and the log has as much as the file gets."""
    in_file = 2 * MIN_PENDING
    log = file.LOG_LIMIT * 8192
    assert in_file + log <= file.RESERVE_SIZE + file.LAST_RESERVE_SIZE


def test_a_frozen_file_is_that_of_a_clean_stop_while_commits_go_on(tmp_path: Path, path: Path) -> None:
    store = opened(path)
    put(store, 1, 2)
    store.freeze()
    frozen = path.read_bytes()
    for number in range(3, 3_003):
        put(store, number)
        if number % 100 == 0:
            store.maintain()
    found(store)  # moves all that is pending
    store._checkpoint()  # as a long log asks for
    assert path.read_bytes() == frozen, "no checkpoint has changed the file"
    (tmp_path / "backup").mkdir()
    shutil.copy(path, tmp_path / "backup")
    assert found(opened(tmp_path / "backup" / path.name)) == [1, 2]

    assert store.thaw() and not store.thaw()
    store.close()
    assert found(opened(path))[:3] == [1, 2, 3], "what was committed meanwhile is there after a crash"


def test_a_file_that_was_opened_again_was_not_frozen(path: Path) -> None:
    store = opened(path)
    put(store, 1)
    store.freeze()
    store.release()
    again = opened(path)
    assert not again.thaw()
