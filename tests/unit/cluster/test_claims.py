"""Which broker owns which store: every store has a living owner, and load stays even."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.cluster.claims import StoreClaims, home_of

BROKERS = [f"broker-{number}" for number in range(4)]


def claims(brokers: int, stores: int) -> StoreClaims:
    made = StoreClaims(BROKERS[:brokers])
    for broker in BROKERS[:brokers]:
        made.begin(broker)
    for number in range(stores):
        made.add(f"store-{number}")
    return made


def test_the_home_of_a_store_is_its_number_modulo_the_number_of_brokers() -> None:
    assert [home_of(f"store-{number}", BROKERS) for number in range(6)] == [*BROKERS, *BROKERS[:2]]
    assert home_of("other", BROKERS) == "broker-0"
    assert claims(2, 4).owners == {
        "store-0": "broker-0",
        "store-1": "broker-1",
        "store-2": "broker-0",
        "store-3": "broker-1",
    }


def test_stores_of_a_broker_that_ended_are_shared_by_the_living_and_others_stay() -> None:
    here = claims(4, 16)
    before = dict(here.owners)
    moved = here.end("broker-2")
    assert {*moved} == {store for store, owner in before.items() if owner == "broker-2"}
    assert {*moved.values()} == {"broker-0", "broker-1", "broker-3"}
    assert {store: owner for store, owner in here.owners.items() if store not in moved} == {
        store: owner for store, owner in before.items() if store not in moved
    }


def test_without_a_living_broker_each_store_waits_for_its_own() -> None:
    here = claims(2, 4)
    assert here.end("broker-0") == {"store-0": "broker-1", "store-2": "broker-1"}
    assert here.end("broker-1") == {}
    assert here.stores_of("broker-1") == ["store-0", "store-1", "store-2", "store-3"]


def test_a_new_store_goes_to_a_living_broker() -> None:
    here = claims(2, 2)
    here.end("broker-1")
    assert here.add("store-3") == "broker-0"


@given(
    brokers=st.integers(2, 4),
    stores=st.integers(1, 20),
    events=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30),
)
def test_whatever_begins_and_ends_stores_have_a_living_owner_and_load_does_not_get_uneven_by_a_claim(
    brokers: int, stores: int, events: list[tuple[bool, int]]
) -> None:
    here, twin = claims(brokers, stores), claims(brokers, stores)
    living = {*BROKERS[:brokers]}
    for begins, number in events:
        broker = BROKERS[number % brokers]
        before = dict(here.owners)
        if begins:
            here.begin(broker)
            twin.begin(broker)
            living.add(broker)
            continue
        living.discard(broker)
        moved = here.end(broker)
        assert twin.end(broker) == moved, "the same everywhere"
        assert {*here.owners} == {*before}, "no store is without an owner"
        if not living:
            assert here.owners == before and not moved
            continue
        assert {store: owner for store, owner in here.owners.items() if before[store] != owner} == moved
        assert {before[store] for store in moved} <= {broker}
        assert {*moved.values()} <= living
        assert not here.stores_of(broker)
        loads, then = Counter(here.owners.values()), Counter(before.values())
        most_before = max(then[one] for one in living)
        fewest = min(loads[one] for one in living)
        for one in living:
            assert loads[one] <= max(most_before, fewest + 1), "never more than one more than another"


@pytest.mark.parametrize("stores", [4, 8, 16])
def test_the_stores_of_a_broker_do_not_all_go_to_one(stores: int) -> None:
    here = claims(4, stores)
    moved = here.end("broker-1")
    assert max(Counter(moved.values()).values()) <= -(-stores // 4 // 3) + (stores // 4 % 3 > 0)


# ---- moves between living brokers ----


def moves(here: StoreClaims, members: set[str]) -> list[tuple[str, str]]:
    """All moves that are needed, made one after the other."""
    made = []
    while (move := here.next_move(members)) is not None:
        store, broker = move
        assert here.owners[store] in members and here.owners[store] != broker
        here.move(store, broker)
        made.append(move)
        assert len(made) <= len(here.owners), "it never ends"
    return made


def test_a_broker_that_is_back_gets_its_share_and_most_of_its_own_stores() -> None:
    here = claims(4, 16)
    home = dict(here.owners)
    here.end("broker-2")
    here.begin("broker-2")
    assert len(moves(here, {*BROKERS})) == 4
    assert here.owners == home, "the very stores that it had"
    assert here.next_move({*BROKERS}) is None


def test_a_pinned_store_stays_and_goes_back_when_its_broker_is_there_again() -> None:
    here = claims(2, 4)
    here.move("store-0", "broker-1")
    here.pins["store-0"] = "broker-1"
    ((moved, _),) = moves(here, {*BROKERS[:2]})
    assert moved in ("store-1", "store-3"), "another one makes room"
    here.end("broker-1")
    assert here.owners["store-0"] == "broker-0"
    here.begin("broker-1")
    assert ("store-0", "broker-1") in moves(here, {*BROKERS[:2]})


def test_a_broker_without_a_gateway_takes_no_part() -> None:
    here = claims(3, 6)
    here.end("broker-2")
    here.begin("broker-2")
    assert here.next_move({"broker-0", "broker-1"}) is None
    assert here.next_move(set()) is None


@given(
    brokers=st.integers(2, 4),
    stores=st.integers(1, 20),
    owners=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    away=st.sets(st.integers(0, 3), max_size=2),
    pins=st.dictionaries(st.integers(0, 19), st.integers(0, 3), max_size=5),
)
def test_moves_end_with_even_load_and_there_are_as_few_as_possible(
    brokers: int, stores: int, owners: list[int], away: set[int], pins: dict[int, int]
) -> None:
    here = claims(brokers, stores)
    members = {BROKERS[number] for number in range(brokers) if number not in away}
    for number in range(stores):
        here.owners[f"store-{number}"] = BROKERS[owners[number] % brokers]
    for number, broker in pins.items():
        if number < stores:
            here.pins[f"store-{number}"] = BROKERS[broker % brokers]
    before = dict(here.owners)
    made = moves(here, members)
    assert {*here.owners} == {*before}, "every store has one owner"
    for store, owner in before.items():
        if owner not in members:
            assert here.owners[store] == owner, "whoever cannot take part keeps what it has"
    of_members = [owner for owner in before.values() if owner in members]
    loads = {broker: len(here.stores_of(broker)) for broker in members}
    if not here.pins and members:
        _check_even(of_members, loads, made)


def _check_even(before: list[str], loads: dict[str, int], made: list[tuple[str, str]]) -> None:
    share = -(-len(before) // len(loads))
    assert all(load <= share for load in loads.values())
    assert max(loads.values()) - min(loads.values()) <= 1
    then = sorted((before.count(broker) for broker in loads), reverse=True)
    even = sorted(loads.values(), reverse=True)
    assert len(made) == sum(max(0, a - b) for a, b in zip(then, even, strict=True)), "no more than needed"
    assert len({store for store, _ in made}) == len(made), "no store moves twice"
