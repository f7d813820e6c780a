"""What every store remembers of writers that repeat themselves."""

from __future__ import annotations

import pytest

from busbar.fragment.changes import Changes
from busbar.fragment.reads import ReadWritten
from busbar.store.contract import Store
from tests.conformance.stores import Open

A, B, C, D = (bytes([n]) * 16 for n in range(4))


def write(store: Store, fragment: int, *rows: tuple[str, int, bytes]) -> None:
    changes = Changes(fragment)
    changes.written = list(rows)
    store.commit([changes])


def committed(store: Store, fragment: int, **writers: tuple[int, int] | None) -> None:
    changes = Changes(fragment)
    changes.writers = dict(writers)
    store.commit([changes])


def known(store: Store, fragment: int, writer: str, *ids: bytes) -> set[bytes]:
    read = ReadWritten(writer, list(ids or (A, B, C, D)))
    store.read(fragment, [read])
    return read.found


def test_ids_are_known_of_their_writer_in_any_batch(open_store: Open) -> None:
    store = open_store()
    store.claim()
    write(store, 1, ("w", 5, A), ("w", 6, B), ("é", 5, C))
    write(store, 1, ("w", 6, B))
    write(store, 2, ("w", 5, D))
    store.close()
    again = open_store()
    again.claim()
    assert known(again, 1, "w") == {A, B}
    assert known(again, 1, "é") == {C}
    assert known(again, 1, "nobody") == set()
    assert known(again, 2, "w") == {D} and known(again, 3, "w") == set()
    assert again.writers(1) == {}
    again.close()


def test_a_committed_batch_forgets_those_before_it(open_store: Open) -> None:
    store = open_store()
    store.claim()
    write(store, 1, ("w", 4, A), ("w", 5, B), ("w", 6, C), ("x", 1, D))
    committed(store, 1, w=(5, 1_000))
    assert known(store, 1, "w") == {B, C}
    assert known(store, 1, "x") == {D}
    committed(store, 1, w=(6, 2_000), x=(1, 1_500))
    store.close()
    again = open_store()
    again.claim()
    assert known(again, 1, "w") == {C} and known(again, 1, "x") == {D}
    assert again.writers(1) == {"w": (6, 2_000), "x": (1, 1_500)}
    assert again.writers(2) == {}
    again.close()


def test_what_is_written_and_over_in_one_commit_is_forgotten(store: Store) -> None:
    changes = Changes(1)
    changes.written = [("w", 5, A), ("w", 6, B)]
    changes.writers = {"w": (6, 1)}
    store.commit([changes])
    assert known(store, 1, "w") == {B}


def test_a_writer_is_forgotten_with_its_ids(store: Store) -> None:
    write(store, 1, ("w", 5, A), ("x", 5, B))
    committed(store, 1, w=(5, 1), x=(5, 1))
    committed(store, 1, w=None, nobody=None)
    assert store.writers(1) == {"x": (5, 1)}
    assert known(store, 1, "w") == set() and known(store, 1, "x") == {B}


@pytest.mark.parametrize("count", [1, 3, 1024, 2500])
def test_any_number_of_ids(store: Store, count: int) -> None:
    ids = [n.to_bytes(16, "big") for n in range(2 * count)]
    write(store, 1, *(("w", 1 + n % 3, id) for n, id in enumerate(ids[:count])))
    assert known(store, 1, "w", *ids) == set(ids[:count])


def test_dropping_takes_writers_along_in_slices(store: Store) -> None:
    for fragment in (1, 2):
        write(store, fragment, *(("w", n % 2, n.to_bytes(16, "big")) for n in range(10)))
        committed(store, fragment, w=(0, 5))
        store.create(fragment)
    assert not store.drop(1, 6)
    assert store.drop(1, 6)
    assert store.writers(1) == {} and known(store, 1, "w", bytes(16)) == set()
    assert store.writers(2) == {"w": (0, 5)} and known(store, 2, "w", bytes(16)) == {bytes(16)}
