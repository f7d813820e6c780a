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
