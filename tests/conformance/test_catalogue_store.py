"""What every home of a catalogue does. A new one adds its place to PLACES and passes this before it is used."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from busbar.store import catalogue_contract
from busbar.store.catalogue_contract import CatalogueContent, CatalogueLocation, VersionedEntry
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreInUse
from busbar.store.postgresql.catalogue import catalogue_at
from busbar.store.sqlite import catalogue
from busbar.store.sqlite.catalogue import SqliteCatalogue, catalogue_in
from harness.memory_catalogue import CatalogueDisk
from harness.postgresql import shared_database

_names = itertools.count(1)
PLACES: dict[str, Callable[[Path], CatalogueLocation]] = {
    "memory": lambda _: CatalogueDisk().location,
    "sqlite": catalogue_in,
    "postgresql": lambda _: catalogue_at(shared_database().url(f"catalogue_{next(_names)}")),
}
FIRST = CatalogueContent(
    "n", 7 << 32, {"a": VersionedEntry(3, b"1"), "É": VersionedEntry(7 << 32, b"\x00\xff")}
)
NEXT = (7 << 32) + 1


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CatalogueLocation:
    return PLACES[request.param](tmp_path)


def test_it_is_made_with_its_first_content(place: CatalogueLocation) -> None:
    assert not place.exists()
    place.create(FIRST)
    assert place.exists()
    store = place.open()
    store.claim()
    assert store.read_all() == FIRST
    assert store.changes_since(FIRST.version) == {}
    store.close()


def test_changes_are_numbered_and_durable(place: CatalogueLocation) -> None:
    place.create(FIRST)
    store = place.open()
    store.claim()
    store.write(NEXT, {"a": b"2", "b": b"", "never": None})
    store.write(NEXT + 1, {"É": None, "b": b"3"})
    store.close()
    again = place.open()
    again.claim()
    entries = {"a": VersionedEntry(NEXT, b"2"), "b": VersionedEntry(NEXT + 1, b"3")}
    assert again.read_all() == CatalogueContent("n", NEXT + 1, entries)
    assert again.changes_since(FIRST.version) == {
        NEXT: {"a": b"2", "b": b"", "never": None},
        NEXT + 1: {"É": None, "b": b"3"},
    }
    assert again.changes_since(NEXT) == {NEXT + 1: {"É": None, "b": b"3"}}
    assert again.changes_since(NEXT + 1) == {}
    again.close()


@pytest.mark.parametrize("number", [NEXT - 1, NEXT + 1, 0])
def test_a_number_that_is_not_the_next_one_writes_nothing(place: CatalogueLocation, number: int) -> None:
    place.create(FIRST)
    store = place.open()
    store.claim()
    with pytest.raises(OutcomeUnknown):
        store.write(number, {"a": b"2"})
    store.close()
    again = place.open()
    again.claim()
    assert again.read_all() == FIRST
    again.close()


def test_old_changes_are_not_kept(place: CatalogueLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (catalogue, "harness.memory_catalogue", "busbar.store.postgresql.catalogue"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.KEPT_CHANGES", 5)
    assert catalogue_contract.KEPT_CHANGES > 100
    place.create(FIRST)
    store = place.open()
    store.claim()
    for step in range(20):
        store.write(NEXT + step, {"a": str(step).encode()})
    last = NEXT + 19
    assert [*(store.changes_since(last - 5) or {})] == [last - 4, last - 3, last - 2, last - 1, last]
    assert store.changes_since(last - 6) is None, "not all of them are there"
    store.close()


def test_each_claim_raises_the_epoch_and_a_released_one_may_be_claimed_again(
    place: CatalogueLocation,
) -> None:
    place.create(FIRST)
    store = place.open()
    epochs = [store.claim()]
    store.release()
    store.release()
    with pytest.raises(StoreError):
        store.read_all()
    epochs.append(store.claim())
    store.close()
    store.close()
    again = place.open()
    epochs.append(again.claim())
    again.close()
    assert epochs == sorted(set(epochs))


def test_there_is_one_writer(place: CatalogueLocation) -> None:
    """A second one is refused, or the first one can write nothing any more."""
    place.create(FIRST)
    first, second = place.open(), place.open()
    first.claim()
    try:
        second.claim()
    except StoreInUse:
        first.write(NEXT, {"a": b"2"})
    else:
        with pytest.raises((Fenced, OutcomeUnknown)):
            first.write(NEXT, {"a": b"2"})
        assert second.read_all() == FIRST
    first.close()
    second.close()


def test_a_catalogue_that_is_set_aside_makes_room_for_another(place: CatalogueLocation) -> None:
    place.create(FIRST)
    if place.name != "the catalogue in memory":  # which has no name to give
        assert "replaced" in place.set_aside()
        assert not place.exists()
    place.create(CatalogueContent("other"))
    store = place.open()
    store.claim()
    store.beat()
    assert store.read_all() == CatalogueContent("other")
    store.close()


def test_a_write_of_an_old_owner_is_fenced(tmp_path: Path) -> None:
    """Its lock keeps others away; the epoch would tell if they came in another way."""
    place = catalogue_in(tmp_path)
    place.create(FIRST)
    store = place.open()
    assert isinstance(store, SqliteCatalogue)
    store.claim()

    def claim_again(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE meta SET value = 9 WHERE key = 'epoch'")

    store._file.transact(claim_again)
    with pytest.raises(Fenced):
        store.write(NEXT, {"a": b"2"})
    assert store.read_all() == FIRST
    store.close()


def test_what_is_not_claimed_or_closed_does_nothing(place: CatalogueLocation) -> None:
    place.create(FIRST)
    store = place.open()
    for _ in range(2):
        for forbidden in (
            store.read_all,
            lambda: store.write(NEXT, {}),
            lambda: store.changes_since(0),
        ):
            with pytest.raises(StoreError):
                forbidden()
        store.close()
    with pytest.raises(OutcomeUnknown):
        store.claim()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    place = catalogue_in(tmp_path)
    with pytest.raises(StoreError, match="is missing"):
        place.open()
    (tmp_path / "catalogue.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="is not a Busbar catalogue"):
        place.open().claim()
