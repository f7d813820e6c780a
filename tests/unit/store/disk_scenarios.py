"""What a store does when its disk fills up or fails. Run under harness/faults/failing_disk.c, one scenario a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from busbar.fragment.changes import Changes, Head, Keep, MessageEdit
from busbar.fragment.reads import ReadPage
from busbar.model.effects import MessageEvent
from busbar.model.message import ACTIVE, DEAD, KEPT, LANES, Record
from busbar.store.catalogue_contract import CatalogueContent
from busbar.store.contract import OutcomeUnknown, Store, StoreFull
from busbar.store.journal import store as journal_store
from busbar.store.journal.segment_names import segments_of
from busbar.store.journal.store import JournalStore
from busbar.store.sqlite import file
from busbar.store.sqlite.catalogue import SqliteCatalogue, catalogue_in
from busbar.store.sqlite.store import SqliteStore

DISK = Path(os.environ["FAILING_DIR"])
NOTES = Path(os.environ["FAILING_LOG"])
PATH = DISK / "store.db"
RESERVE = DISK / "store.db.reserve"
LAST_RESERVE = DISK / "store.db.last.reserve"
BODY = bytes(1000)


def opened() -> SqliteStore:
    store = SqliteStore(PATH)
    store.claim()
    return store


def opened_with_journal() -> JournalStore:
    store = JournalStore(PATH)
    store.claim()
    return store


def put(store: Store, first: int, count: int) -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [Record(n, 1, 0, 0, 0, len(BODY), BODY, None) for n in range(first, first + count)]
    changes.head = Head(1, first + count - 1, [0] * LANES, 0)
    store.commit([changes])


def delete(store: Store, lane: int, numbers: list[int]) -> None:
    changes = Changes(1)
    changes.deletes[lane] = numbers
    store.commit([changes])


def numbers(store: Store, lane: int = ACTIVE) -> list[int]:
    page = ReadPage(lane, 0, 1 << 30, 1 << 40)
    store.read(1, [page])
    assert all(record.content == BODY for record in page.records)
    return [record.n for record in page.records]


def used() -> int:
    return sum(file.stat().st_size for file in DISK.iterdir())


def fill(store: Store, space: int) -> int:
    """Leave so much space and use it up; the last number that was put. With a journal, what is acknowledged may take the
    reserve."""
    os.environ["FAILING_SPACE"] = str(used() + space)
    last = 0
    try:
        while True:
            put(store, last + 1, 100)
            last += 100
    except StoreFull:
        assert RESERVE.stat().st_size or isinstance(store, JournalStore), "a send took the reserve"
        return last


def refused(store: Store) -> None:
    for forbidden in (lambda: put(store, 900_001, 1), store.heads, lambda: numbers(store), store.claim):
        try:
            forbidden()
        except OutcomeUnknown:
            continue
        raise AssertionError("a broken store went on")


def a_full_disk_refuses_and_stays_as_it_was() -> None:
    store = opened()
    last = fill(store, 3_000_000)
    assert last > 100
    for _ in range(3):
        try:
            put(store, last + 1, 100)
        except StoreFull as refusal:
            assert str(PATH) in str(refusal)
        else:
            raise AssertionError("a full disk took more")
        assert numbers(store) == list(range(1, last + 1))
    store.close()
    again = opened()
    assert numbers(again) == list(range(1, last + 1))
    assert again.heads()[0].last == last


def a_full_disk_can_be_drained() -> None:
    # 30 MB: the log is re-created several times before the disk is full, and again while it is drained.
    store = opened()
    last = fill(store, 30_000_000)
    assert last > 10_000
    edited = Changes(1)
    edited.edits = [MessageEdit(ACTIVE, n, DEAD, 1, {"why": b"full"}) for n in range(1, 101)]
    store.commit([edited])
    for first in range(101, last + 1, 100):
        delete(store, ACTIVE, list(range(first, first + 100)))
    assert numbers(store) == []
    assert numbers(store, DEAD) == list(range(1, 101))
    put(store, last + 1, 1000)  # into the space that the others left
    store.close()
    again = opened()
    assert len(numbers(again)) == 1000


def the_reserve_comes_back() -> None:
    store = opened()
    last = fill(store, 3_000_000)
    delete(store, ACTIVE, list(range(1, 1001)))  # touches more pages than the last put, which did not fit
    assert RESERVE.stat().st_size == 0
    os.environ["FAILING_SPACE"] = str(1 << 40)
    for n in range(1001, 1101):
        delete(store, ACTIVE, [n])
    assert RESERVE.stat().st_size == file.RESERVE_SIZE
    assert numbers(store) == list(range(1101, last + 1))


def a_disk_that_is_full_from_the_start() -> None:
    os.environ["FAILING_SPACE"] = str(400_000)
    store = opened()
    assert not RESERVE.exists()
    put(store, 1, 10)
    try:
        put(store, 11, 1000)
    except StoreFull:
        assert numbers(store) == list(range(1, 11))
    else:
        raise AssertionError("a full disk took more")


def settle(store: Store, numbers: list[int]) -> None:
    """Keep messages for a tap that wants events, so that nothing is freed."""
    changes = Changes(1)
    changes.keeps = [Keep(ACTIVE, KEPT, numbers)]
    changes.events = [MessageEvent(n, n, 1, 1, 1, 1, "r" * 256) for n in numbers]
    store.commit([changes])


def what_settles_leaves_nothing_for_sends() -> None:
    store = opened()
    last = fill(store, 20_000_000)
    for first in range(1, last - 99, 100):
        settle(store, list(range(first, first + 100)))
        if RESERVE.stat().st_size == 0:
            break
    assert RESERVE.stat().st_size == 0, "the reserve was not needed"
    for handle in range(2):
        for _ in range(3):
            try:
                put(store, last + 1, 1000)
            except StoreFull:
                continue
            raise AssertionError("a send took the space of the reserve")
        if not handle:
            store.close()
            store = opened()
    delete(store, KEPT, list(range(1, first + 100)))
    delete(store, ACTIVE, list(range(first + 100, last + 1)))
    put(store, last + 1, 1000)  # into the space that the others left


def what_frees_has_a_reserve_of_its_own() -> None:
    store = opened()
    store.write_definitions({"orders": b"with a tap"})
    last = fill(store, 60_000_000)
    n = 1
    try:
        while True:
            settle(store, list(range(n, n + 100)))
            n += 100
    except StoreFull:
        assert RESERVE.stat().st_size == 0 and LAST_RESERVE.stat().st_size
    store.write_definitions({"orders": b"without"})
    for first in range(1, n, 100):
        delete(store, KEPT, list(range(first, first + 100)))
    put(store, last + 1, 1000)


def syncs() -> list[str]:
    return NOTES.read_text().splitlines() if NOTES.exists() else []


def _after_a_failure(store: SqliteStore, before: int) -> SqliteStore:
    del os.environ["FAILING_SYNC"]
    at = len(syncs())
    refused(store)
    store.release()
    store.close()
    assert syncs()[at:] == [], "the handle was synced again"
    again = SqliteStore(PATH)
    again.claim()
    assert syncs()[at] == "ok store.db-wal", "what only the cache may know was not made durable first"
    assert numbers(again) in (list(range(1, before + 1)), list(range(1, before + 101)))
    put(again, 5001, 10)
    return again


def a_commit_whose_sync_fails_is_unknown() -> None:
    store = opened()
    put(store, 1, 100)
    os.environ["FAILING_SYNC"] = "store.db-wal"
    try:
        put(store, 101, 100)
    except OutcomeUnknown as failure:
        assert str(PATH) in str(failure) and "SQLITE_IOERR_FSYNC" in str(failure)
    else:
        raise AssertionError("a commit was acknowledged without a sync")
    assert syncs()[-1] == "failed store.db-wal"
    _after_a_failure(store, 100)


def a_checkpoint_whose_sync_fails_breaks_the_store() -> None:
    file.LOG_LIMIT = 30
    store = opened()
    put(store, 1, 1000)
    os.environ["FAILING_SYNC"] = "store.db"
    try:
        put(store, 1001, 100)
    except OutcomeUnknown:
        pass
    else:
        raise AssertionError("a failed checkpoint went unnoticed")
    again = _after_a_failure(store, 1000)
    again.close()
    assert len(numbers(opened())) in (1010, 1110)


def a_full_disk_ends_the_journal_and_can_be_drained() -> None:
    journal_store.AMPLE_SPACE = 1 << 60
    store = opened_with_journal()
    last = fill(store, 30_000_000)
    assert last > 5_000
    assert segments_of(PATH) == [], "the journal gives its space back"
    for _ in range(3):
        try:
            put(store, last + 1, 1000)
        except StoreFull as refusal:
            assert str(PATH) in str(refusal)
        else:
            raise AssertionError("a full disk took more")
    store.close()
    store = opened_with_journal()
    assert numbers(store) == list(range(1, last + 1))
    for first in range(1, last + 1, 100):
        delete(store, ACTIVE, list(range(first, first + 100)))
    assert numbers(store) == []
    put(store, last + 1, 1000)  # into the space that the others left
    os.environ["FAILING_SPACE"] = str(1 << 40)
    for n in range(last + 1001, last + 1200):
        put(store, n, 1)
    assert segments_of(PATH), "there is room for a journal again"
    store.close()
    assert len(numbers(opened_with_journal())) == 1199


def a_disk_that_others_fill_at_once_can_be_drained() -> None:
    """More is pending than the reserves hold, since there was ample space."""
    store = opened_with_journal()
    last = 0
    for _ in range(300):
        put(store, last + 1, 100)
        last += 100
    os.environ["FAILING_SPACE"] = str(used())
    while segments_of(PATH):
        try:
            put(store, last + 1, 100)
            last += 100
        except StoreFull:
            break
    assert store._pending.bytes() > journal_store.MIN_PENDING and segments_of(PATH)
    for first in range(1, last + 1, 100):
        delete(store, ACTIVE, list(range(first, first + 100)))
    assert numbers(store) == []
    os.environ["FAILING_SPACE"] = str(1 << 40)
    put(store, last + 1, 100)
    store.close()
    assert numbers(opened_with_journal()) == list(range(last + 1, last + 101))


def a_journal_is_recovered_on_a_full_disk() -> None:
    journal_store.AMPLE_SPACE = 1 << 60
    store = opened_with_journal()
    put(store, 1, 1)
    assert numbers(store) == [1]
    for first in range(2, 8_002, 100):  # nearly as much as may be pending
        put(store, first, 100)
    os.environ["FAILING_SPACE"] = str(used())
    store.close()
    store = opened_with_journal()
    assert numbers(store) == list(range(1, 8_002))
    assert segments_of(PATH) == []
    try:
        put(store, 8_002, 100)
    except StoreFull:
        pass
    else:
        raise AssertionError("a full disk took more")
    delete(store, ACTIVE, list(range(1, 8_002)))
    assert numbers(store) == []


def a_disk_that_has_no_room_for_a_journal() -> None:
    os.environ["FAILING_SPACE"] = str(600_000)
    store = opened_with_journal()
    put(store, 1, 10)
    assert segments_of(PATH) == []
    try:
        put(store, 11, 1000)
    except StoreFull:
        assert numbers(store) == list(range(1, 11))
    else:
        raise AssertionError("a full disk took more")


def a_record_whose_sync_fails_is_unknown() -> None:
    store = opened_with_journal()
    put(store, 1, 100)
    (segment,) = segments_of(PATH)
    os.environ["FAILING_SYNC"] = segment.name
    try:
        put(store, 101, 100)
    except OutcomeUnknown as failure:
        assert str(PATH) in str(failure)
    else:
        raise AssertionError("a commit was acknowledged without a sync")
    del os.environ["FAILING_SYNC"]
    at = len(syncs())
    refused(store)
    store.release()
    store.close()
    assert syncs()[at:] == [], "the handle was synced again"
    again = opened_with_journal()
    assert f"ok {segment.name}" in syncs()[at:], "what only the cache may know was not made durable first"
    assert numbers(again) in (list(range(1, 101)), list(range(1, 201)))


def catalogue_entries(count: int) -> tuple[SqliteCatalogue, int]:
    """A catalogue with so many entries, and the number of its last change."""
    catalogue_in(DISK).create(CatalogueContent("n"))
    store = SqliteCatalogue(DISK / "catalogue.db")
    store.claim()
    for number in range(1, count + 1):
        store.write(number, {f"entity/{number}": BODY})
    return store, count


def a_catalogue_on_a_full_disk_takes_deletions() -> None:
    store, last = catalogue_entries(20)
    os.environ["FAILING_SPACE"] = str(used() + 300_000)
    try:
        while True:
            store.write(last + 1, {f"entity/{last + 1}": BODY})
            last += 1
    except StoreFull:
        pass
    before = store.read_all()
    assert before.version == last and len(before.entries) == last, "a change that finds no space is not made"
    for number in range(1, last + 1):
        store.write(last + number, {f"entity/{number}": None, f"emptying/{number}": b"store-0"})
    found = store.read_all()
    assert found.version == 2 * last and not any(name.startswith("entity/") for name in found.entries)
    store.close()
    again = SqliteCatalogue(DISK / "catalogue.db")
    again.claim()
    assert again.read_all() == found


def a_change_of_the_catalogue_whose_sync_fails_is_unknown() -> None:
    store, last = catalogue_entries(3)
    os.environ["FAILING_SYNC"] = "catalogue.db-wal"
    try:
        store.write(last + 1, {"entity/1": None})
    except OutcomeUnknown as failure:
        assert "SQLITE_IOERR_FSYNC" in str(failure)
    else:
        raise AssertionError("a change was acknowledged without a sync")
    del os.environ["FAILING_SYNC"]
    store.close()
    again = SqliteCatalogue(DISK / "catalogue.db")
    again.claim()
    made = again.changes_since(last)
    assert made in ({}, {last + 1: {"entity/1": None}})
    assert ("entity/1" in again.read_all().entries) == (not made)
    again.write(last + len(made) + 1, {"entity/2": None})


SCENARIOS: dict[str, Callable[[], None]] = {
    scenario.__name__: scenario
    for scenario in (
        a_full_disk_refuses_and_stays_as_it_was,
        a_full_disk_can_be_drained,
        the_reserve_comes_back,
        a_disk_that_is_full_from_the_start,
        what_settles_leaves_nothing_for_sends,
        what_frees_has_a_reserve_of_its_own,
        a_commit_whose_sync_fails_is_unknown,
        a_checkpoint_whose_sync_fails_breaks_the_store,
        a_full_disk_ends_the_journal_and_can_be_drained,
        a_disk_that_others_fill_at_once_can_be_drained,
        a_journal_is_recovered_on_a_full_disk,
        a_disk_that_has_no_room_for_a_journal,
        a_record_whose_sync_fails_is_unknown,
        a_catalogue_on_a_full_disk_takes_deletions,
        a_change_of_the_catalogue_whose_sync_fails_is_unknown,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
