"""How demand is spread over fragments, and what the cache keeps: plain values, no sockets."""

from __future__ import annotations

import random

import pytest

from busbar.model.message import Record
from busbar.partitions.credit_allocation import CreditAllocator, FragmentCredit
from busbar.partitions.receive_cache import LockedBatch, ReceiveCache


def shares(count: int = 16) -> CreditAllocator:
    return CreditAllocator([FragmentCredit(100 + index, index, index) for index in range(count)])


def asked(spread: CreditAllocator) -> list[int]:
    return [demand.outstanding for demand in spread.demands]


def test_one_wanted_message_is_looked_for_in_every_fragment() -> None:
    spread = shares()
    grants = spread.plan(1, 1000)
    assert sorted(demand.index for demand in grants) == [*range(16)]
    assert asked(spread) == [1] * 16
    assert spread.plan(1, 1000) == {}


def test_a_fragment_that_gave_is_asked_again_and_the_others_are_left_alone() -> None:
    spread = shares()
    spread.plan(1, 1000)
    spread.delivered(spread.demands[5], 1)
    assert [(demand.index, credit) for demand, credit in spread.plan(1, 1000).items()] == [(5, 1)]


def test_a_small_want_never_asks_for_much_more_however_fast_a_fragment_gives() -> None:
    spread = shares()
    for _ in range(50):
        spread.plan(1, 1000)
        for demand in spread.demands:
            spread.delivered(demand, demand.outstanding)
    spread.plan(1, 1000)
    assert asked(spread) == [1] * 16


def test_a_fragment_with_all_the_traffic_gets_most_of_the_credit() -> None:
    spread = shares()
    spread.plan(1000, 1000)
    hot = spread.demands[3]
    for _ in range(10):
        spread.delivered(hot, hot.outstanding)
        spread.plan(1000, 1000)
    assert hot.outstanding > 700
    assert all(demand.outstanding for demand in spread.demands)


def test_fragments_with_a_backlog_are_emptied_in_turn_and_a_lot_at_a_time() -> None:
    spread = shares()
    given = [0] * 16
    for turn in range(200):
        grants = spread.plan(1000, 1000)
        if turn >= 40:
            assert len(grants) <= 2, "large parts"
        for demand in spread.demands:
            if turn >= 40:
                given[demand.index] += demand.outstanding
            spread.delivered(demand, demand.outstanding)
    assert max(given) - min(given) <= 1016, "nobody has two turns before another one has its own"


def test_fragments_whose_store_answers_later_give_as_much_as_the_others() -> None:
    """Every fourth fragment answers each third time only; turns that it cannot take meanwhile are not lost to it."""
    spread = shares()
    given = [0] * 16
    for turn in range(3_000):
        spread.plan(20, 1000)
        for demand in spread.demands:
            if demand.index % 4 or turn % 3 == 0:
                given[demand.index] += demand.outstanding
                spread.delivered(demand, demand.outstanding)
    assert max(given) - min(given) <= 2 * 20


def test_a_fragment_that_begins_to_flow_does_not_catch_up() -> None:
    spread = shares(2)
    early, late = spread.demands
    spread.plan(20, 1000)
    for _ in range(100):
        spread.delivered(early, early.outstanding)
        spread.plan(20, 1000)
    ahead = early.served
    before = late.served
    for _ in range(100):
        for demand in spread.demands:
            spread.delivered(demand, demand.outstanding)
            spread.plan(20, 1000)
    assert early.served - ahead > 900, "it goes on beside the one that came later"
    assert late.served - before > 900


def test_one_that_flows_gets_what_another_one_holds_in_vain() -> None:
    spread = shares()
    spread.plan(1000, 1000)
    before, now = spread.demands[3], spread.demands[4]
    for _ in range(5):
        spread.delivered(before, before.outstanding)
        spread.plan(1000, 1000)
    assert before.outstanding > 900 and now.outstanding
    spread.delivered(now, now.outstanding)
    spread.plan(1000, 1000)
    assert spread.starved and spread.largest_holder() is before
    before.draining = True
    assert spread.largest_holder() is None, "one at a time"
    spread.drained(before)
    spread.plan(1000, 1000)
    assert not spread.starved and spread.largest_holder() in (None, now)
    assert 0 < before.outstanding <= 4, "it is looked at in case it has something again"
    for _ in range(3):
        spread.delivered(now, now.outstanding)
        spread.plan(1000, 1000)
    assert now.outstanding > 900


def test_fragments_that_have_a_little_each_come_to_terms() -> None:
    """All have the same traffic: at first they take from each other, then nobody is called back any more."""
    spread = shares()
    called_back = []
    for _ in range(60):
        count = 0
        for _ in range(20):
            spread.plan(1000, 1000)
            largest = spread.largest_holder() if spread.starved else None
            if largest is None:
                break
            count += 1
            spread.drained(largest)
        called_back.append(count)
        for demand in spread.demands:
            if demand.outstanding:
                spread.delivered(demand, min(demand.outstanding, 20))
    assert sum(called_back[-20:]) <= 20, called_back


@pytest.mark.parametrize("credit", [1, 2, 20, 29, 32, 100, 500, 1000])
def test_a_client_gets_all_that_its_credit_is_for(credit: int) -> None:
    """Every fragment has messages without end, and gives at once: the client is given as many as it wants, to the last."""
    spread = shares()
    left = credit
    for _ in range(1_000):
        spread.plan(left, 1000)
        if spread.starved and (largest := spread.largest_holder()) is not None:
            left -= largest.outstanding
            spread.delivered(largest, largest.outstanding)
            spread.drained(largest)
        for demand in spread.demands:
            if demand.outstanding and left > 0:
                given = min(demand.outstanding, left)
                left -= given
                spread.delivered(demand, given)
        if left <= 0:
            break
    assert left <= 0


@pytest.mark.parametrize("seed", range(20))
def test_nobody_starves_and_the_demand_is_bounded(seed: int) -> None:
    chance = random.Random(seed)
    spread = shares()
    most = 200
    for _ in range(500):
        want = chance.choice([0, 1, 3, 20, 100, 1000])
        if want:
            before = spread.outstanding
            spread.plan(want, most)
            asked_all = all(demand.outstanding or demand.draining for demand in spread.demands)
            assert spread.starved is not asked_all
            assert spread.outstanding <= max(before, want + 16)
            if spread.starved:
                spread.plan(want, most, force=True)
                assert all(demand.outstanding or demand.draining for demand in spread.demands)
                assert spread.outstanding <= max(before, want + 16) + 16
        assert spread.outstanding == sum(asked(spread))
        demand = chance.choice(spread.demands)
        if chance.random() < 0.1:
            demand.draining = True
        elif demand.draining:
            spread.drained(demand)
        elif demand.outstanding:
            spread.delivered(demand, chance.randint(1, demand.outstanding))


def test_who_holds_demand_and_gives_nothing_is_called_back() -> None:
    spread = shares(4)
    spread.plan(400, 1000)
    busy, *idle = spread.demands
    for _ in range(10):
        spread.delivered(busy, busy.outstanding)
        spread.plan(400, 1000)
    for demand in idle:
        demand.outstanding, spread.outstanding = 500, spread.outstanding + 500 - demand.outstanding
    spread.stalled()
    spread.delivered(busy, busy.outstanding)
    assert spread.plan(400, 1000) == {} and spread.starved
    assert spread.stalled() == idle
    assert spread.plan(400, 1000, force=True) == {busy: 1}


def record(n: int, size: int = 100) -> Record:
    return Record(n, 0, 0, 0, 0, size, b"", None)


def parcel(*records: Record) -> LockedBatch:
    return LockedBatch(FragmentCredit(1, 0, 0), list(records), 9, 60_000, 0)


def numbers(parcels: list[LockedBatch]) -> list[int]:
    return [record.n for parcel in parcels for record in parcel.records]


def test_the_cache_gives_back_in_the_order_it_was_filled() -> None:
    cache = ReceiveCache(1000)
    assert not cache.add(parcel(record(1), record(2), record(3))).records
    assert not cache.add(parcel(record(7))).records
    assert numbers(cache.take(2)) == [1, 2]
    assert len(cache) == 2
    assert numbers(cache.take(5)) == [3, 7]
    assert not cache and not cache.stale_at


def test_the_cache_keeps_what_it_has_room_for_and_at_least_one() -> None:
    cache = ReceiveCache(250)
    assert numbers([cache.add(parcel(record(1), record(2), record(3)))]) == [3]
    assert numbers([cache.add(parcel(record(4)))]) == [4]
    cache.take(1)
    assert not cache.add(parcel(record(5))).records
    assert numbers(cache.take(5)) == [2, 5]
    assert not cache.add(parcel(record(6, 10_000))).records
