"""Keys, fragments and sequence numbers: the hash is part of what is stored, so its values are pinned here."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from busbar.model import partitioning
from busbar.model.api import EntityView
from busbar.model.effects import Refused
from busbar.model.entities import QueueDescription
from busbar.model.errors import InvalidOperation, MessageNotFound, QuotaExceeded, ServerBusy
from busbar.model.message import Draft
from busbar.model.partitioning import KNOWN_KEYS, index_of_key, key_of, split_number
from busbar.partitions.resolver import FragmentResolver
from busbar.partitions.routing import PIPELINED, TURN_BYTES, TURN_MESSAGES, Router, may_fail_over


def draft(message_id: str = "id", session: str | None = None, partition: str | None = None) -> Draft:
    return Draft(b"", message_id, session, partition, 0, 0)


def entity(fragments: int, *, detects_duplicates: bool = False) -> EntityView:
    description = QueueDescription(
        enable_partitioning=fragments > 1, requires_duplicate_detection=detects_duplicates
    )
    return EntityView("q", description, tuple(range(100, 100 + fragments)))


GOLDEN = {
    "": 4,
    "a": 15,
    "session-1": 12,
    "session-2": 5,
    "00000000-0000-0000-0000-000000000000": 10,
    "Zoë": 10,
    "鍵": 15,
    "x" * 128: 2,
}


@pytest.mark.parametrize(("key", "index"), GOLDEN.items())
def test_the_fragment_of_a_key_never_changes(key: str, index: int) -> None:
    assert index_of_key(key, 16) == index


def test_remembered_keys_are_bounded_and_stay_where_they_are() -> None:
    keys = [f"key-{number}" for number in range(KNOWN_KEYS + 100)]
    first = [index_of_key(key, 16) for key in keys]
    assert len(partitioning._known) <= KNOWN_KEYS
    assert [index_of_key(key, 16) for key in keys] == first
    assert {key: index_of_key(key, 16) for key in GOLDEN} == GOLDEN
    assert [index_of_key(key, 8) for key in keys[:100]] == [index % 8 for index in first[:100]]


def test_the_key_is_session_id_then_partition_key_then_message_id_under_duplicate_detection() -> None:
    assert key_of(draft(session="s", partition=None), True) == "s"
    assert key_of(draft(session="s", partition="s"), True) == "s"
    assert key_of(draft(partition="p"), True) == "p"
    assert key_of(draft("m"), True) == "m"
    assert key_of(draft("m"), False) is None
    assert key_of(draft("m", partition=""), False) is None
    assert key_of(draft("m", session=""), False) == ""


def test_a_partition_key_that_differs_from_the_session_id_is_refused() -> None:
    with pytest.raises(InvalidOperation, match=r"SessionId 's' and the PartitionKey 'p'"):
        key_of(draft(session="s", partition="p"), False)


def test_keyless_messages_take_every_fragment_in_turn() -> None:
    router = Router(entity(16), 0)
    assert router.index(draft()) == -1
    taken = [router.next_index() for _ in range(32)]
    assert sorted(taken) == sorted([*range(16)] * 2)
    assert all(after == (before + 1) % 16 for before, after in pairwise(taken))


def test_a_sender_stays_with_a_fragment_while_messages_are_on_their_way() -> None:
    router = Router(entity(16), 0)
    first = router.pick_keyless(10, 10, 1000)
    assert router.pick_keyless(10, 10, 1000) == first
    router.answered(10)
    assert router.pick_keyless(10, 10, 1000) == first
    router.answered(20)
    second = router.pick_keyless(10, 10, 1000)
    assert second == (first + 1) % 16, "nothing was on its way"
    assert router.pick_keyless(1, TURN_MESSAGES, 1000) == second
    third = router.pick_keyless(1, 1, TURN_BYTES)
    assert third == (first + 2) % 16, "it has had many messages"
    fourth = router.pick_keyless(1, 1, 1000)
    assert fourth == (first + 3) % 16, "it has had many bytes"
    router.end_turn(third)
    assert router.pick_keyless(1, 1, 1000) == fourth
    router.end_turn(fourth)
    assert router.pick_keyless(1, 1, 1000) == (first + 4) % 16, "it did not take a message"


def test_a_sender_that_keeps_many_on_their_way_stays_for_a_turn() -> None:
    router = Router(entity(16), 0)
    first = router.pick_keyless(PIPELINED, PIPELINED, 1000)
    router.answered(PIPELINED)
    assert router.pick_keyless(1, 1, 1000) == first, "a pause is no end"
    router.answered(1)
    assert router.pick_keyless(1, TURN_MESSAGES, 1000) == first
    router.answered(1)
    assert [router.pick_keyless(1, 1, 1000) for _ in range(2)] == [(first + 1) % 16] * 2
    router.answered(2)
    assert router.pick_keyless(1, 1, 1000) == (first + 2) % 16


def test_fragments_of_one_store_have_their_turns_after_each_other() -> None:
    view = replace(entity(16), stores=tuple(f"store-{(index + 2) % 4}" for index in range(16)))
    router = Router(view, 0)
    stores = [view.stores[router.next_index()] for _ in range(32)]
    changes = sum(before != after for before, after in pairwise(stores))
    assert changes <= 8 and {stores.count(store) for store in stores} == {8}


def test_a_sender_stays_with_the_stores_of_its_own_broker() -> None:
    view = replace(entity(16), stores=tuple(f"store-{index % 4}" for index in range(16)))
    near = {"store-1", "store-3"}
    router = Router(view, 5, is_near=near.__contains__)
    taken = [router.next_index() for _ in range(24)]
    assert sorted(taken) == sorted([index for index in range(16) if index % 2] * 3)
    near.clear()
    later = [router.next_index() for _ in range(8 + 16)]
    assert {*later[8:]} == {*range(16)}, "its broker has no store any more: all are as far"
    near.add("store-2")
    again = [router.next_index() for _ in range(16 + 4)]
    assert {view.stores[index] for index in again[-4:]} == {"store-2"}, "a store has come"


def test_a_sender_whose_fragment_refused_goes_over_all_of_them_once() -> None:
    view = replace(entity(16), stores=tuple(f"store-{index % 4}" for index in range(16)))
    router = Router(view, 0, is_near=lambda store: store == "store-1")
    refused = router.next_index()
    router.end_turn(refused)
    others: list[int] = []
    while (index := router.next_index()) % 4 != 1 or len(others) < 8:
        others.append(index)
    assert {view.stores[index] for index in others} >= {"store-2", "store-3"}
    assert {view.stores[router.next_index()] for _ in range(8)} == {"store-1"}, "then its own are tried again"


def test_a_batch_has_one_key_or_none() -> None:
    router = Router(entity(16), 0)
    assert router.index_of_batch([draft(), draft()]) == -1
    assert router.index_of_batch([draft(partition="a"), draft(session="a")]) == index_of_key("a", 16)
    for batch in ([draft(partition="a"), draft(partition="b")], [draft(partition="a"), draft()]):
        with pytest.raises(InvalidOperation, match="distinct SessionId"):
            router.index_of_batch(batch)
    with pytest.raises(InvalidOperation, match="MessageId"):
        Router(entity(16, detects_duplicates=True), 0).index_of_batch([draft("1"), draft("2")])


def test_only_what_was_certainly_not_taken_is_tried_elsewhere() -> None:
    assert may_fail_over(Refused(1, 1, ServerBusy.condition, "unavailable"))
    assert may_fail_over(Refused(1, 1, QuotaExceeded.condition, "full"))
    assert not may_fail_over(Refused(1, 1, ServerBusy.condition, "failed", False))
    assert not may_fail_over(Refused(1, 1, InvalidOperation.condition, "wrong"))


def test_a_sequence_number_names_its_fragment() -> None:
    fragments = FragmentResolver(entity(16))
    number = fragments.sequence_number(15, 7)
    assert number == 15 << 48 | 7 and split_number(number) == (15, 7)
    assert fragments.position(number) == (15, 7)
    assert fragments.position(0) == fragments.position(1) == fragments.position(-5) == (0, 1)
    assert fragments.position(3 << 48) == (3, 1)
    assert fragments.resolve_numbers([number, number + 1]) == (15, [7, 8])
    with pytest.raises(InvalidOperation, match="2 fragments"):
        fragments.resolve_numbers([1, 1 << 48 | 1])
    with pytest.raises(MessageNotFound):
        fragments.resolve_numbers([16 << 48 | 1])
    with pytest.raises(MessageNotFound):
        fragments.resolve_numbers([-1])


def test_the_numbers_of_a_regular_entity_are_taken_as_they_are() -> None:
    fragments = FragmentResolver(entity(1))
    assert fragments.position(1 << 48 | 7) == (0, 1 << 48 | 7)
    assert fragments.resolve_numbers([5, 1 << 48]) == (0, [5, 1 << 48])
    assert fragments.partition_id(0) == -1
