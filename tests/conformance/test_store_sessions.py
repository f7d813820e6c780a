"""Message sessions in every store."""

from __future__ import annotations

import pytest

from busbar.fragment.changes import Changes, Head, MessageEdit, SessionChange, SessionHold, state_size
from busbar.fragment.reads import ReadExpiry, ReadPage, ReadSession, ReadSessionIds, ReadWaitingSessions
from busbar.model.message import ACTIVE, DEAD, DEFERRED, LANES, Record
from busbar.store.contract import Store
from tests.conformance.stores import MANY, Open, delete, edit, numbers, page, put


def session_changes(fragment: int, **by: tuple[int, int, bool]) -> Changes:
    changes = Changes(fragment)
    for id, (active, turn, moved) in by.items():
        change = SessionChange()
        change.active, change.turn, change.moved = active, turn, moved
        changes.sessions[id] = change
    return changes


def line(store: Store, fragment: int, after: int = -1, limit: int = 100) -> list[tuple[str, int, int]]:
    read = ReadWaitingSessions(after, limit)
    store.read(fragment, [read])
    return read.rows


def session_ids(
    store: Store, fragment: int, updated_after: int = 0, after: str | None = None, top: int = 100
) -> list[str]:
    read = ReadSessionIds(updated_after, after, top)
    store.read(fragment, [read])
    return read.ids


def state_of(store: Store, fragment: int, session: str, with_state: bool = True) -> tuple[int, bytes | None]:
    read = ReadSession(session, with_state)
    store.read(fragment, [read])
    return read.size, read.state


def set_state(store: Store, fragment: int, at: int, **states: bytes | None) -> None:
    changes = Changes(fragment)
    changes.states = {id: (at, state) for id, state in states.items()}
    store.commit([changes])


def of(n: int, session: str | None, ttl: int = 0, enqueued: int = 1_000) -> Record:
    return Record(n, enqueued, ttl, 0, 0, 7, b"content", None, session)


def test_the_messages_of_a_session_are_a_page_of_their_own(store: Store) -> None:
    put(store, 1, ACTIVE, of(1, "a"), of(2, "b"), of(3, "a"), of(4, None), of(5, "a"))
    put(store, 1, DEFERRED, of(6, "a"))
    put(store, 2, ACTIVE, of(1, "a"))
    for start, limit, found, complete in ((1, 2, [1, 3], False), (2, 9, [3, 5], True), (6, 9, [], True)):
        read = ReadPage(ACTIVE, start, limit, MANY, "a")
        store.read(1, [read])
        assert (numbers(read.records), read.complete) == (found, complete)
        assert all(record.session_id == "a" for record in read.records)
    assert [record.session_id for record in page(store, 1, ACTIVE)] == ["a", "b", "a", None, "a"]
    edit(store, 1, MessageEdit(ACTIVE, 1, DEAD, 1, None))
    delete(store, 1, ACTIVE, 3)
    read = ReadPage(ACTIVE, 1, 9, MANY, "a")
    store.read(1, [read])
    assert numbers(read.records) == [5]
    (dead,) = page(store, 1, DEAD)
    assert (dead.n, dead.session_id) == (1, "a")


def test_sessions_are_counted_by_difference_and_stand_in_the_order_of_their_turns(open_store: Open) -> None:
    store = open_store()
    store.claim()
    store.commit([session_changes(1, a=(2, 1, False), b=(1, 2, False)), session_changes(2, a=(1, 1, False))])
    store.commit([session_changes(1, a=(1, 3, False), c=(1, 4, False))])  # a row that is there keeps its turn
    assert line(store, 1) == [("a", 1, 0), ("b", 2, 0), ("c", 4, 0)]
    store.commit([session_changes(1, a=(-2, 0, False), b=(-1, 0, False), d=(0, 5, False))])
    assert line(store, 1) == [("a", 1, 0), ("c", 4, 0)]
    store.commit([session_changes(1, a=(0, 6, True), b=(0, 7, True))])  # to the end, if it is there
    assert line(store, 1) == [("c", 4, 0), ("a", 6, 0)]
    assert line(store, 1, after=4) == [("a", 6, 0)]
    assert line(store, 1, limit=1) == [("c", 4, 0)]
    store.close()
    again = open_store()
    again.claim()
    assert (line(again, 1), line(again, 2)) == ([("c", 4, 0), ("a", 6, 0)], [("a", 1, 0)])
    again.close()


def test_when_the_active_messages_of_a_session_expire(store: Store) -> None:
    put(store, 1, ACTIVE, of(1, "a"), of(2, "a", 50), of(3, "a", 20), of(4, "b", 5), of(5, None, 1))
    put(store, 1, DEFERRED, of(6, "a", 1))
    store.commit([session_changes(1, a=(3, 1, False), b=(1, 2, False), c=(1, 3, False))])
    assert line(store, 1) == [("a", 1, 1020), ("b", 2, 1005), ("c", 3, 0)]
    read = ReadExpiry("a", 9)
    store.read(1, [read])
    assert read.rows == [(1020, 3), (1050, 2)]
    edit(store, 1, MessageEdit(ACTIVE, 3, DEFERRED, 0, None))
    read = ReadExpiry("a", 1)
    store.read(1, [read])
    assert read.rows == [(1050, 2)]


def test_states_are_set_replaced_and_cleared(open_store: Open) -> None:
    store = open_store()
    store.claim()
    set_state(store, 1, 10, a=b"first", b=b"")
    set_state(store, 1, 20, a=b"\x00second", c=b"gone")
    set_state(store, 1, 30, c=None, d=None)
    store.close()
    store = open_store()
    store.claim()
    assert state_of(store, 1, "a") == (state_size("a", b"\x00second"), b"\x00second")
    assert state_of(store, 1, "a", with_state=False) == (state_size("a", b"\x00second"), None)
    assert state_of(store, 1, "b") == (state_size("b", b""), b"")
    assert [state_of(store, where, id) for where, id in ((1, "c"), (1, "d"), (2, "a"))] == [(-1, None)] * 3
    store.commit([session_changes(1, a=(1, 1, False), z=(1, 2, False))])
    assert session_ids(store, 1) == ["a", "b", "z"]
    assert session_ids(store, 1, after="a", top=1) == ["b"]
    assert session_ids(store, 1, updated_after=10) == ["a"]
    store.close()


def test_the_empty_id_is_one_of_them(open_store: Open) -> None:
    store = open_store()
    store.claim()
    put(store, 1, ACTIVE, of(1, ""), of(2, None), of(3, "a"), of(4, "", ttl=50))
    changes = session_changes(1, a=(1, 2, False))
    changes.sessions[""] = SessionChange()
    changes.sessions[""].active, changes.sessions[""].turn = 2, 1
    changes.states = {"": (10, b"state")}
    store.commit([changes])
    store.close()
    store = open_store()
    store.claim()
    read, expiry = ReadPage(ACTIVE, 1, 9, MANY, ""), ReadExpiry("", 9)
    store.read(1, [read, expiry])
    assert (numbers(read.records), [record.session_id for record in read.records]) == ([1, 4], ["", ""])
    assert expiry.rows == [(1050, 4)]
    assert line(store, 1) == [("", 1, 1050), ("a", 2, 0)]
    assert session_ids(store, 1) == ["", "a"]
    assert session_ids(store, 1, after="") == ["a"]
    assert state_of(store, 1, "") == (state_size("", b"state"), b"state")
    store.close()


@pytest.mark.parametrize("count", [1, 3, 1000, 1500])
def test_any_number_of_sessions(store: Store, count: int) -> None:
    store.commit([session_changes(1, **{f"s{i}": (1, i + 1, False) for i in range(count)})])
    assert line(store, 1, limit=5000) == [(f"s{i}", i + 1, 0) for i in range(count)]
    store.commit([session_changes(1, **{f"s{i}": (-1, 0, False) for i in range(1, count)})])
    assert line(store, 1) == [("s0", 1, 0)]


def test_dropping_takes_sessions_and_states_along(store: Store) -> None:
    changes = session_changes(1, **{f"s{i}": (1, i + 1, False) for i in range(5)})
    changes.puts[ACTIVE] = [of(i + 1, f"s{i}") for i in range(5)]
    changes.states = {f"t{i}": (1, b"state") for i in range(5)}
    changes.head = Head(1, 5, [5, 0, 0, 0, 0, 0, 0, 0, 0, 0], 5 * 7 + 5 * state_size("t0", b"state"), 0, 0, 5)
    store.commit([changes])
    (head,) = store.heads()
    assert head.turn == 5
    slices = 0
    while not store.drop(1, 2):
        slices += 1
        (head,) = store.heads()
        states = sum(max(0, state_of(store, 1, f"t{i}")[0]) for i in range(5))
        assert head.size == 7 * head.counts[ACTIVE] + states
    assert slices >= 4
    assert (store.heads(), line(store, 1), session_ids(store, 1)) == ([], [], [])


def hold(store: Store, fragment: int, **holds: tuple[str, int] | None) -> None:
    changes = Changes(fragment)
    for id, row in holds.items():
        changes.holds[id] = None if row is None else SessionHold(id, *row)
    changes.head = Head(fragment, 0, [0] * LANES, 0)
    store.commit([changes])


def holds(store: Store, fragment: int) -> list[tuple[str, str, int]]:
    return [(one.session, one.holder, one.until) for one in store.holds(fragment)]


def test_locks_of_sessions_are_set_renewed_and_ended(store: Store) -> None:
    assert holds(store, 1) == []
    hold(store, 1, b=("gateway 1 2", 2**45), a=("other 3 4", 7))
    hold(store, 2, a=("gateway 5 6", 8))
    assert holds(store, 1) == [("a", "other 3 4", 7), ("b", "gateway 1 2", 2**45)]
    hold(store, 1, a=("other 3 4", 9), b=None, never=None)
    assert holds(store, 1) == [("a", "other 3 4", 9)]
    assert holds(store, 2) == [("a", "gateway 5 6", 8)]


def test_locks_of_sessions_are_there_for_the_next_owner_and_go_with_their_fragment(open_store: Open) -> None:
    store = open_store()
    store.claim()
    hold(store, 1, a=("gateway 1 2", 7))
    store.close()
    store = open_store()
    store.claim()
    assert holds(store, 1) == [("a", "gateway 1 2", 7)]
    while not store.drop(1, 10):
        pass
    store.create(1)
    assert holds(store, 1) == []
    store.close()
