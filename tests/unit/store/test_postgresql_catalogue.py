"""What only the catalogue in PostgreSQL does: owners of several processes, lost connections, refused schemas."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from busbar.catalogue.home import CatalogueHome
from busbar.model.errors import ServerBusy
from busbar.store.catalogue_contract import CatalogueContent
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreInUse
from busbar.store.location import OwnerSilence
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.catalogue import asked, catalogue_at, prepare
from busbar.store.postgresql.ownership import LeaseWatch, OwnerRow
from busbar.store.postgresql.store import PostgresqlStore
from harness.faults.database_proxy import Cut, DatabaseProxy
from harness.postgresql import shared_database

_names = itertools.count(1)
FIRST = CatalogueContent("n", 4)


def url() -> str:
    return shared_database().url(f"unit_catalogue_{next(_names)}")


def test_a_catalogue_in_use_is_refused_and_a_hanging_owner_is_replaced() -> None:
    address = url()
    place, other = catalogue_at(address, "node a", 0.5), catalogue_at(address, lease=0.5)
    place.create(FIRST)
    first, second = place.open(), other.open()
    first.claim()
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            first.beat()

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(StoreInUse, match="in use by node a"):
            second.claim()
    finally:
        stop.set()
        beating.join()
    third = other.open()
    third.claim()
    with pytest.raises(OutcomeUnknown):
        first.write(5, {"a": b"old"})
    third.write(5, {"a": b"new"})
    late = place.open()
    with pytest.raises(Fenced):
        late.claim()
    assert third.changes_since(4) == {5: {"a": b"new"}}
    for handle in (first, second, third, late):
        handle.close()


def test_a_claim_that_was_replaced_writes_nothing() -> None:
    """The session of the old owner still lives: the claim alone keeps it from writing."""
    address = url()
    place = catalogue_at(address)
    place.create(FIRST)
    store = place.open()
    store.claim()
    asked(parse_address(address, "catalogue"), lambda one: one.fetch("UPDATE owner SET claim = claim + 1"))
    with pytest.raises(Fenced):
        store.write(5, {"a": b"old"})
    again = catalogue_at(address).open()
    again.close()
    store.close()
    head = asked(parse_address(address, "catalogue"), lambda one: one.fetch("SELECT version FROM head"))
    assert [row[0] for row in head] == [4]


@pytest.mark.parametrize("how", [Cut.ANSWER, Cut.REQUEST])
async def test_a_change_with_a_lost_answer_is_found_out(how: Cut) -> None:
    """The connection is cut behind the statement, or in front of it."""
    server = shared_database()
    schema = f"unit_catalogue_{next(_names)}"
    with DatabaseProxy(server.port) as proxy:
        place = catalogue_at(server.url(schema, proxy.port))
        await asyncio.to_thread(place.create, FIRST)
        home = CatalogueHome(place, asyncio.get_running_loop())
        await home.open()
        await home.write({"a": b"1"})  # the statement is prepared now
        proxy.cut(how)
        if how is Cut.ANSWER:
            await home.write({"b": b"2"})
        else:
            with pytest.raises(ServerBusy) as refused:
                await home.write({"b": b"2"})
            assert refused.value.certain
            await home.write({"b": b"2"})
        assert proxy.cuts == 1
        assert home.version == 6 and home.values == {"a": b"1", "b": b"2"}
        await home.write({"c": b"3"})
        await home.close()
    reader = CatalogueHome(catalogue_at(server.url(schema)), asyncio.get_running_loop())
    await reader.open()
    assert reader.version == 7 and reader.values == {"a": b"1", "b": b"2", "c": b"3"}
    await reader.close()


async def test_an_idle_owner_beats_and_learns_that_it_was_replaced() -> None:
    address = url()
    place = catalogue_at(address, lease=0.2)
    await asyncio.to_thread(place.create, FIRST)
    fenced = asyncio.Event()
    home = CatalogueHome(place, asyncio.get_running_loop(), fenced=fenced.set)
    await home.open()

    async def ask(statement: str) -> list[Any]:
        return await asyncio.to_thread(
            asked, parse_address(address, "catalogue"), lambda one: one.fetch(statement)
        )

    first = await ask("SELECT beat FROM owner")
    async with asyncio.timeout(10):
        while await ask("SELECT beat FROM owner") == first:
            pass
        await ask("UPDATE owner SET claim = claim + 1")
        await fenced.wait()
    await home.close()


def test_a_schema_of_something_else_is_refused() -> None:
    address = url()
    with pytest.raises(StoreError, match="has no catalogue"):
        catalogue_at(address).open()
    store = PostgresqlStore(parse_address(address, "catalogue"))
    store.claim()
    store.close()
    with pytest.raises(StoreError, match="is not a Busbar catalogue"):
        catalogue_at(address).exists()


def test_tables_may_be_there_before_the_catalogue() -> None:
    address = url()
    database = parse_address(address, "catalogue")
    asked(database, lambda one: prepare(one, database, creates=True))
    place = catalogue_at(address)
    assert not place.exists()
    place.create(FIRST)
    assert place.exists()


def row(beat: int, *, is_alive: bool = True) -> OwnerRow:
    return OwnerRow(1, 7, "a", beat, 3, is_alive)


def test_a_lease_is_over_when_nothing_was_seen_for_its_time() -> None:
    watch = LeaseWatch(6.0)
    for second in range(100, 106):
        assert not watch.is_free(row(1), second, second) and not watch.has_moved
    assert not watch.is_free(row(2), 106.0, 106.0) and watch.has_moved
    for second in range(107, 112):
        assert not watch.is_free(row(2), second, second)
    assert watch.is_free(row(2), 112.0, 112.0)
    assert LeaseWatch(6.0).is_free(row(1, is_alive=False), 0.0, 0.0)


def test_one_that_watches_and_was_stopped_itself_does_not_blame_that_on_the_owner() -> None:
    watch = LeaseWatch(6.0)
    assert not watch.is_free(row(1), 100.0, 100.0)
    assert not watch.is_free(row(1), 100.5, 160.0), "it was stopped before it read the answer"
    assert watch.silence == 0.5
    assert not watch.is_free(row(1), 300.0, 300.0), "it was stopped between two looks"
    assert watch.silence == 2.5, "of which a third of the lease counts"


def test_a_watch_goes_on_from_what_another_process_has_seen() -> None:
    first = LeaseWatch(6.0)
    for second in range(5):
        first.is_free(row(1), second, second)
    watch = LeaseWatch(6.0)
    watch.resume(OwnerSilence(first.silence, first.sign))
    assert not watch.is_free(row(1), 900.0, 900.0)
    assert watch.is_free(row(1), 902.0, 902.0)
    moved = LeaseWatch(6.0)
    moved.resume(OwnerSilence(60.0, first.sign))
    assert not moved.is_free(row(2), 900.0, 900.0) and moved.has_moved, "it has worked since"
