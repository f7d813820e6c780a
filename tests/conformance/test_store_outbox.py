"""What every store keeps of the outbox, and of marks."""

from __future__ import annotations

from busbar.fragment.changes import Changes, Head, MessageEdit, OutboxChange
from busbar.fragment.reads import ReadOutbox
from busbar.fragment.writers import mark_name
from busbar.model.message import (
    ACTIVE,
    DEAD,
    FORWARD,
    LANES,
    OUTBOX,
    TRANSFER_DEAD,
    TRANSFER_DEAD_DEFERRED,
    VIA,
    Record,
)
from busbar.store.contract import Store
from tests.conformance.stores import MANY, Open, edit, lanes, numbers, page, put, record, values


def entering(fragment: int, *records: Record, paths: dict[int, str] | None = None) -> Changes:
    """Records come into the outbox."""
    changes = Changes(fragment)
    changes.puts[OUTBOX] = list(records)
    for each in records:
        path = (paths or {}).get(each.target, f"path {each.target}")
        changes.outbox.setdefault(each.target, OutboxChange(path)).count += 1
    return changes


def leaving(fragment: int, target: int, *gone: int) -> Changes:
    changes = Changes(fragment)
    changes.deletes[OUTBOX] = list(gone)
    changes.outbox[target] = OutboxChange("")
    changes.outbox[target].count = -len(gone)
    return changes


def waiting(
    store: Store, fragment: int, target: int, after: int = 0, limit: int = 99, size: int = MANY
) -> list[int]:
    read = ReadOutbox(target, after, limit, size)
    store.read(fragment, [read])
    return numbers(read.records)


def moved(n: int, target: int, kind: int = FORWARD, hops: int = 1) -> Record:
    return record(n, b"bytes", due=n << 48, overlay={"name": b"value"}, hops=hops, target=target, kind=kind)


def claimed(open_store: Open) -> Store:
    store = open_store()
    store.claim()
    return store


def test_records_come_back_as_they_were_and_in_the_order_of_their_target(open_store: Open) -> None:
    store = claimed(open_store)
    store.commit([entering(1, moved(1, 7), moved(2, 8, VIA, 0), moved(4, 7)), entering(2, moved(3, 7))])
    store.close()
    store = claimed(open_store)
    read = ReadOutbox(7, 0, 99, MANY)
    store.read(1, [read])
    assert [values(r) for r in read.records] == [values(moved(1, 7)), values(moved(4, 7))]
    assert [values(r) for r in page(store, 1, OUTBOX)] == [
        values(r) for r in (moved(1, 7), moved(2, 8, VIA, 0), moved(4, 7))
    ]
    assert waiting(store, 1, 8) == [2] and waiting(store, 2, 7) == [3]
    assert waiting(store, 1, 9) == [] and waiting(store, 3, 7) == []
    store.close()


def test_a_page_is_bounded_and_has_one_at_least(open_store: Open) -> None:
    store = claimed(open_store)
    store.commit([entering(1, *(moved(n, 7) for n in range(1, 6)))])
    assert waiting(store, 1, 7, limit=2) == [1, 2]
    assert waiting(store, 1, 7, after=2, size=11) == [3, 4]
    assert waiting(store, 1, 7, after=4, size=1) == [5]
    store.close()


def test_a_target_has_a_row_while_there_is_something_for_it(open_store: Open) -> None:
    store = claimed(open_store)
    store.commit([entering(1, moved(1, 7), moved(2, 7), moved(3, 8), paths={7: "orders", 8: "é"})])
    store.commit([entering(1, moved(4, 7), paths={7: "another"})])
    assert store.outbox(1) == {7: ("orders", 3), 8: ("é", 1)} and store.outbox(2) == {}
    store.commit([leaving(1, 7, 1, 2), leaving(1, 8, 3)])
    store.close()
    store = claimed(open_store)
    assert store.outbox(1) == {7: ("orders", 1)}
    store.commit([leaving(1, 7, 4)])
    assert store.outbox(1) == {}
    store.close()


def test_a_change_of_nothing_makes_no_row(open_store: Open) -> None:
    store = claimed(open_store)
    changes = Changes(1)
    changes.outbox[7] = OutboxChange("put and moved by the same changes")
    store.commit([changes])
    assert store.outbox(1) == {}
    store.close()


def test_what_cannot_be_moved_is_deleted_and_put_elsewhere_in_one_commit(open_store: Open) -> None:
    store = claimed(open_store)
    store.commit([entering(1, moved(1, 7), moved(2, 7))])
    changes = leaving(1, 7, 1, 2)
    changes.puts[DEAD] = [record(3, b"bytes", dead=1, hops=1)]
    changes.puts[TRANSFER_DEAD] = [record(4, b"bytes", hops=1)]
    store.commit([changes])
    edit(store, 1, MessageEdit(TRANSFER_DEAD, 4, TRANSFER_DEAD_DEFERRED, 3, {"why": b"x"}, 0, 6))
    assert lanes(store, 1) == {DEAD: [3], TRANSFER_DEAD_DEFERRED: [4]}
    (dead,), (transfer,) = page(store, 1, DEAD), page(store, 1, TRANSFER_DEAD_DEFERRED)
    assert values(dead) == values(record(3, b"bytes", dead=1, hops=1))
    assert values(transfer) == values(
        record(4, b"bytes", size=6, overlay={"why": b"x"}, deliveries=3, hops=1)
    )
    assert store.outbox(1) == {}
    store.close()


def test_hops_stay_with_a_message_in_every_lane(open_store: Open) -> None:
    store = claimed(open_store)
    put(store, 1, ACTIVE, record(1, hops=3), record(2))
    changes = Changes(1)
    changes.edits = [MessageEdit(ACTIVE, 1, DEAD, 1, None, 1)]
    store.commit([changes])
    assert [r.hops for r in page(store, 1, DEAD)] == [3] and [r.hops for r in page(store, 1, ACTIVE)] == [0]
    store.close()


def test_a_dropped_fragment_takes_its_outbox_along_slice_by_slice(open_store: Open) -> None:
    store = claimed(open_store)
    changes = entering(1, moved(2, 7), moved(3, 8), moved(4, 7))
    changes.puts[ACTIVE] = [record(1, b"bytes")]
    changes.puts[TRANSFER_DEAD] = [record(5, b"bytes")]
    changes.head = Head(1, 5, [0] * LANES, 25)
    changes.head.counts[ACTIVE], changes.head.counts[OUTBOX], changes.head.counts[TRANSFER_DEAD] = 1, 3, 1
    store.commit([changes, entering(2, moved(1, 7))])
    assert not store.drop(1, 3)
    (head, _) = store.heads([1, 2]) if len(store.heads()) > 1 else (store.heads()[0], None)
    assert head.counts[OUTBOX] + head.counts[TRANSFER_DEAD] == 2 == sum(head.counts) and head.size == 10
    left = page(store, 1, OUTBOX)
    assert sum(count for _, count in store.outbox(1).values()) == len(left)
    while not store.drop(1, 1):
        left = page(store, 1, OUTBOX)
        assert sum(count for _, count in store.outbox(1).values()) == len(left)
    assert store.outbox(1) == {} and waiting(store, 1, 7) == []
    assert waiting(store, 2, 7) == [1] and store.outbox(2) == {7: ("path 7", 1)}
    store.close()


def test_marks_are_rows_of_writers_and_have_no_ids(open_store: Open) -> None:
    store = claimed(open_store)
    changes = Changes(1)
    changes.writers = {mark_name(7): (12, 1_000), "w": (3, 2_000)}
    store.commit([changes])
    changes = Changes(1)
    changes.writers = {mark_name(7): (15, 3_000), mark_name(8): (1, 3_000)}
    store.commit([changes])
    store.close()
    store = claimed(open_store)
    assert store.writers(1) == {mark_name(7): (15, 3_000), mark_name(8): (1, 3_000), "w": (3, 2_000)}
    changes = Changes(1)
    changes.writers = {mark_name(7): None}
    store.commit([changes])
    assert store.writers(1) == {mark_name(8): (1, 3_000), "w": (3, 2_000)}
    while not store.drop(1, 9):
        pass
    assert store.writers(1) == {}
    store.close()
