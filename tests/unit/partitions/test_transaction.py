"""The rules of a transaction: every state with every operation, and each rule by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from busbar.model.api import RuleChange
from busbar.model.commands import ABANDON, COMPLETE, DEFER, CancelScheduled, Send, SetSessionState, Settle
from busbar.model.entities import FalseFilter, RuleDescription, TrueFilter
from busbar.model.errors import (
    ArgumentError,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
)
from busbar.model.message import VIA
from busbar.partitions.transaction import (
    ITEM_COST,
    OPERATION_COST,
    Operation,
    Transaction,
    TransactionState,
)
from busbar.partitions.transaction_parts import fragments_of, merged_parts
from tests.unit.partitions.transactions import (
    DETECTING,
    LIMITS,
    OTHER,
    PARTITIONED,
    PARTITIONED_SESSIONS,
    PARTITIONED_SUBSCRIPTION,
    PARTITIONED_TOPIC,
    QUEUE,
    SECOND,
    SESSIONS,
    SUBSCRIPTION,
    TOPIC,
    Bytes,
    index,
    keys_of,
    lock,
    message,
    sender,
    transaction,
)

LISTEN = ("Listen", "q")
NOW = 10_000


def send(tx: Transaction) -> Operation:
    return tx.send(sender(QUEUE), [message()], NOW)


def schedule(tx: Transaction) -> Operation:
    return tx.schedule(sender(QUEUE), [message()], NOW)


def settle(tx: Transaction) -> Operation:
    return tx.settle(QUEUE, [lock(1, 7)], COMPLETE, None, LISTEN, NOW)


def cancel(tx: Transaction) -> Operation:
    return tx.cancel(QUEUE, 0, [8], LISTEN, NOW)


def set_state(tx: Transaction) -> Operation:
    return tx.set_state(SESSIONS, 0, 9, b"state", LISTEN, NOW)


def change_rule(tx: Transaction) -> Operation:
    return tx.change_rule(SUBSCRIPTION, ("t/Subscriptions/s/Rules/r", None), ("Manage", "t"), NOW)


OPERATIONS: dict[str, Callable[[Transaction], Operation]] = {
    "send": send,
    "schedule": schedule,
    "settle": settle,
    "cancel": cancel,
    "set_state": set_state,
    "change_rule": change_rule,
}
PROBED = {"schedule", "settle", "cancel", "set_state", "change_rule"}


def in_state(state: TransactionState) -> Transaction:
    tx = transaction()
    if state is TransactionState.FAILED:
        tx.fail(QuotaExceeded("full"))
    elif state is TransactionState.DISCHARGING:
        tx.discharge(False)
    elif state is TransactionState.TIMED_OUT:
        send(tx)
        assert tx.expire(NOW + LIMITS.transaction_timeout)
    elif state is TransactionState.OVER:
        tx.end()
    assert tx.state is state
    return tx


REFUSALS = {
    TransactionState.OPEN: None,
    TransactionState.FAILED: TransactionRolledBack,
    TransactionState.DISCHARGING: TransactionUnknown,
    TransactionState.TIMED_OUT: TransactionTimeout,
    TransactionState.OVER: TransactionUnknown,
}


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_in_every_state(state: TransactionState, name: str) -> None:
    tx = in_state(state)
    refusal = REFUSALS[state]
    if refusal is None:
        operation = OPERATIONS[name](tx)
        assert list(tx.operations()) == [operation]
        assert tx.is_ready is (name not in PROBED), "a fragment or the catalogue is asked first"
        assert tx.deadline == NOW + LIMITS.transaction_timeout
    else:
        with pytest.raises(refusal):
            OPERATIONS[name](tx)
        assert tx.state is state and not tx.operations()


@pytest.mark.parametrize("fail", [False, True], ids=["commit", "roll back"])
@pytest.mark.parametrize("state", TransactionState)
def test_a_discharge_in_every_state(state: TransactionState, fail: bool) -> None:
    tx = in_state(state)
    refusal = REFUSALS[state]
    is_known = state not in (TransactionState.DISCHARGING, TransactionState.OVER)
    if refusal is None or (fail and is_known):
        tx.discharge(fail)
        assert tx.state is (TransactionState.OVER if fail else TransactionState.DISCHARGING)
    else:
        with pytest.raises(refusal):
            tx.discharge(fail)
        assert tx.state is (TransactionState.OVER if is_known else state)


@pytest.mark.parametrize("state", TransactionState)
def test_a_timeout_in_every_state(state: TransactionState) -> None:
    tx = in_state(state)
    tx.deadline = NOW
    expires = state in (TransactionState.OPEN, TransactionState.FAILED)
    assert not tx.expire(NOW - 1)
    assert tx.expire(NOW) is expires
    assert tx.state is (TransactionState.TIMED_OUT if expires else state)


def test_time_runs_from_the_first_operation() -> None:
    tx = transaction()
    assert not tx.expire(10**15)
    send(tx)
    tx.send(sender(QUEUE), [message()], NOW + 500)
    assert not tx.expire(NOW + 999)
    assert tx.expire(NOW + 1_000)


# ---- operations that a fragment is asked about


@pytest.mark.parametrize("name", sorted(PROBED))
def test_an_operation_that_its_fragment_refuses_is_no_part(name: str) -> None:
    held = Bytes()
    tx = transaction(held=held)
    operation = OPERATIONS[name](tx)
    tx.withdraw(operation, MessageLockLost("lost"), is_answered=True)
    assert not tx.operations() and tx.is_ready and held.held == 0
    assert tx.state is TransactionState.OPEN
    tx.send(sender(OTHER), [message()], NOW)  # another home: there was no first operation
    tx.discharge(False)
    assert tx.failure is None


@pytest.mark.parametrize("name", sorted(PROBED))
def test_a_refused_operation_can_be_tried_again(name: str) -> None:
    tx = transaction()
    tx.withdraw(OPERATIONS[name](tx), MessageLockLost("lost"), is_answered=True)
    operation = OPERATIONS[name](tx)
    tx.confirm(operation)
    assert list(tx.operations()) == [operation] and tx.is_ready


def test_a_refusal_without_an_answer_fails_the_transaction() -> None:
    tx = transaction()
    send(tx)
    tx.withdraw(settle(tx), MessageLockLost("it is lost"), is_answered=False)
    with pytest.raises(TransactionRolledBack, match="it is lost"):
        tx.discharge(False)


def test_a_refusal_after_the_discharge_fails_the_transaction() -> None:
    tx = transaction()
    operation = settle(tx)
    tx.discharge(False)
    assert not tx.is_ready
    tx.withdraw(operation, MessageLockLost("it is lost"), is_answered=True)
    assert tx.is_ready and tx.failure is not None
    assert "it is lost" in tx.rolled_back().text


def test_settlements_that_are_refused_together_are_operations_of_their_own() -> None:
    held = Bytes()
    tx = transaction(held=held)
    together = tx.settle(QUEUE, [(1, [0, 1, 2], [11, 12, 13], [7, 7, 7])], COMPLETE, None, LISTEN, NOW)
    send(tx)
    size = held.held
    tx.discharge(False)
    first, second, third = tx.split(together)
    assert held.held == size and not tx.is_ready
    tx.confirm(first)
    tx.withdraw(second, MessageLockLost("it is lost"), is_answered=True)
    tx.confirm(third)
    assert tx.is_ready and tx.failure is not None
    (settle_part, _) = merged_parts(tx.operations())
    assert isinstance(settle_part, Settle) and settle_part.numbers == [11, 13]
    tx.end()
    assert held.held == 0 and tx.split(together) == []


def test_a_late_answer_of_a_fragment_changes_nothing() -> None:
    held = Bytes()
    tx = transaction(held=held)
    operation = set_state(tx)
    tx.discharge(True)
    tx.withdraw(operation, MessageLockLost("lost"), is_answered=False)
    tx.confirm(operation)
    assert tx.state is TransactionState.OVER and held.held == 0 and tx.failure is None


def test_a_discharge_waits_for_requests_that_are_under_way() -> None:
    tx = transaction()
    tx.request_begun()
    tx.discharge(False)
    assert not tx.is_ready
    with pytest.raises(TransactionUnknown):
        settle(tx)
    tx.request_finished(TransactionUnknown("too late"))
    assert tx.is_ready and tx.failure is not None


def test_a_refused_request_before_the_discharge_changes_nothing() -> None:
    tx = transaction()
    tx.request_begun()
    tx.request_finished(MessageLockLost("lost"))
    tx.discharge(False)
    assert tx.is_ready and tx.failure is None


# ---- one home


@pytest.mark.parametrize("second", ["send", "schedule", "settle", "cancel", "set_state"])
def test_one_top_level_entity(second: str) -> None:
    tx = transaction()
    tx.send(sender(OTHER), [message()], NOW)
    with pytest.raises(InvalidOperation, match="cannot span multiple top-level entities"):
        OPERATIONS[second](tx)
    assert len(tx.operations()) == 1
    tx.send(sender(OTHER), [message()], NOW)


def test_a_topic_and_its_subscriptions_are_one_entity() -> None:
    tx = transaction()
    tx.settle(SUBSCRIPTION, [lock(5, 1)], COMPLETE, None, LISTEN, NOW)
    tx.send(sender(TOPIC), [message()], NOW)
    tx.settle(SECOND, [lock(6, 1)], COMPLETE, None, LISTEN, NOW)
    assert fragments_of(tx.operations()) == [5, 4, 6]
    with pytest.raises(InvalidOperation):
        send(tx)


def test_a_sender_elsewhere_goes_through_the_via_entity() -> None:
    tx = transaction(via=QUEUE)
    settle(tx)
    draft = message(key="k")
    operation = tx.send(sender(PARTITIONED), [draft], NOW)
    (part,) = operation.parts
    assert isinstance(part, Send) and part.fragment == 1
    assert (draft.kind, draft.path, draft.target) == (VIA, "p", 100 + index("k"))
    direct = message()
    send_to_home = tx.send(sender(QUEUE), [direct], NOW)
    assert send_to_home.parts[0].fragment == 1 and direct.kind == 0


def test_a_via_entity_is_the_home_from_the_beginning() -> None:
    tx = transaction(via=QUEUE)
    tx.send(sender(OTHER), [message()], NOW)
    with pytest.raises(InvalidOperation):
        tx.settle(OTHER, [lock(2, 1)], COMPLETE, None, LISTEN, NOW)
    with pytest.raises(InvalidOperation):
        tx.schedule(sender(OTHER), [message()], NOW)
    settle(tx)


def test_a_link_with_a_destination_has_its_own_entity_for_a_home() -> None:
    tx = transaction()
    settle(tx)
    draft = message()
    operation = tx.send(sender(OTHER, via=QUEUE), [draft], NOW)
    assert operation.parts[0].fragment == 1
    assert (draft.kind, draft.path, draft.target) == (VIA, "other", 2)
    with pytest.raises(InvalidOperation):
        tx.send(sender(QUEUE, via=OTHER), [message()], NOW)


def test_messages_for_another_entity_without_a_key_go_round() -> None:
    tx = transaction(via=QUEUE)
    drafts = [message() for _ in range(4)]
    tx.send(sender(PARTITIONED), drafts, NOW)
    assert len({draft.target for draft in drafts}) == 4


def test_what_the_destination_would_refuse_is_refused_at_once() -> None:
    tx = transaction(via=QUEUE)
    with pytest.raises(InvalidOperation, match="SessionId"):
        tx.send(sender(SESSIONS), [message()], NOW)
    with pytest.raises(InvalidOperation, match="equal"):
        tx.send(sender(PARTITIONED), [message(session="a", key="b")], NOW)
    assert not tx.operations()


# ---- partitioned homes


def test_every_message_needs_a_key() -> None:
    tx = transaction()
    with pytest.raises(InvalidOperation, match="needs a SessionId"):
        tx.send(sender(PARTITIONED), [message()], NOW)
    with pytest.raises(InvalidOperation):
        tx.send(sender(PARTITIONED), [message(key="k"), message()], NOW)
    assert not tx.operations()


@pytest.mark.parametrize("given", [{"session": "k"}, {"key": "k"}, {"session": "k", "key": "k"}])
def test_the_key_chooses_the_fragment(given: dict[str, str]) -> None:
    operation = transaction().send(sender(PARTITIONED), [message(**given)], NOW)
    assert (operation.index, operation.parts[0].fragment) == (index("k"), 100 + index("k"))


def test_a_message_id_is_a_key_where_duplicates_are_detected() -> None:
    operation = transaction().send(sender(DETECTING), [message(id="k")], NOW)
    assert operation.index == index("k")
    with pytest.raises(InvalidOperation):
        transaction().send(sender(PARTITIONED), [message(id="k")], NOW)


def test_all_keys_are_the_same_text() -> None:
    """Also two keys of one fragment are two keys: what is allowed never depends on a hash."""
    one, two = keys_of(3)
    tx = transaction()
    tx.send(sender(PARTITIONED), [message(key=one)], NOW)
    with pytest.raises(InvalidOperation, match="same SessionId or PartitionKey"):
        tx.send(sender(PARTITIONED), [message(key=two)], NOW)
    with pytest.raises(InvalidOperation):
        tx.send(sender(PARTITIONED), [message(key=one), message(key=two)], NOW)
    tx.send(sender(PARTITIONED), [message(session=one)], NOW)
    assert len(tx.operations()) == 2


def test_one_session_of_a_partitioned_entity_and_many_of_a_regular_one() -> None:
    tx = transaction()
    tx.send(sender(PARTITIONED_SESSIONS), [message(session="a")], NOW)
    with pytest.raises(InvalidOperation):
        tx.send(sender(PARTITIONED_SESSIONS), [message(session="b")], NOW)
    tx = transaction()
    tx.send(sender(SESSIONS), [message(session="a"), message(session="b")], NOW)
    tx.send(sender(SESSIONS), [message(session="c")], NOW)
    assert sum(operation.messages for operation in tx.operations()) == 3


@pytest.mark.parametrize("entity", [SESSIONS, PARTITIONED_SESSIONS], ids=["regular", "partitioned"])
@pytest.mark.parametrize("given", [{}, {"key": "k"}, {"session": "s", "key": "k"}])
def test_an_entity_with_sessions_needs_one_session_id(entity: object, given: dict[str, str]) -> None:
    with pytest.raises(InvalidOperation):
        transaction().send(sender(entity), [message(**given)], NOW)  # type: ignore[arg-type]
    transaction().send(sender(entity), [message(session="s", key="s")], NOW)  # type: ignore[arg-type]


def test_settlements_are_of_the_fragment_of_the_key() -> None:
    tx = transaction()
    tx.send(sender(PARTITIONED), [message(key="k")], NOW)
    here, elsewhere = 100 + index("k"), 100 + (index("k") + 1) % 16
    with pytest.raises(InvalidOperation, match="same partition"):
        tx.settle(PARTITIONED, [lock(elsewhere, 1)], COMPLETE, None, LISTEN, NOW)
    with pytest.raises(InvalidOperation):
        tx.settle(PARTITIONED, [lock(here, 1), lock(elsewhere, 1)], COMPLETE, None, LISTEN, NOW)
    with pytest.raises(InvalidOperation):
        tx.cancel(PARTITIONED, (index("k") + 1) % 16, [1], LISTEN, NOW)
    tx.settle(PARTITIONED, [lock(here, 1)], COMPLETE, None, LISTEN, NOW)
    assert len(tx.operations()) == 2


def test_messages_are_of_the_fragment_of_the_settlements() -> None:
    tx = transaction()
    tx.settle(PARTITIONED, [lock(100 + index("k"), 1)], COMPLETE, None, LISTEN, NOW)
    other = next(key for key in ("a", "b", "c", "d") if index(key) != index("k"))
    with pytest.raises(InvalidOperation):
        tx.send(sender(PARTITIONED), [message(key=other)], NOW)
    tx.send(sender(PARTITIONED), [message(key="k")], NOW)


def test_a_partitioned_topic_and_its_subscription_share_the_index() -> None:
    tx = transaction()
    tx.settle(PARTITIONED_SUBSCRIPTION, [lock(500 + index("k"), 1)], COMPLETE, None, LISTEN, NOW)
    operation = tx.send(sender(PARTITIONED_TOPIC), [message(key="k")], NOW)
    assert operation.parts[0].fragment == 400 + index("k")


def test_a_via_partition_key_is_the_key_of_a_direct_send_without_another() -> None:
    tx = transaction()
    operation = tx.send(sender(PARTITIONED), [message(via="k")], NOW)
    assert operation.parts[0].fragment == 100 + index("k")
    tx.send(sender(PARTITIONED), [message(key="k", via="not k")], NOW)
    with pytest.raises(InvalidOperation):
        tx.send(sender(PARTITIONED), [message(via="not k")], NOW)


def test_the_via_partition_key_is_no_key_of_the_destination() -> None:
    targets, to_topic = set(), sender(PARTITIONED_TOPIC)
    for _ in range(40):
        draft = message(via="k")
        transaction(via=PARTITIONED).send(to_topic, [draft], NOW)
        targets.add(int(draft.target))
    assert len(targets) > 4


def test_the_via_partition_key_chooses_the_fragment_of_the_outbox() -> None:
    tx = transaction(via=PARTITIONED)
    draft = message(key="theirs", via="k")
    operation = tx.send(sender(DETECTING), [draft], NOW)
    assert operation.parts[0].fragment == 100 + index("k")
    assert draft.target == 200 + index("theirs")
    different = message(key="another", via="k")
    tx.send(sender(DETECTING), [different], NOW)  # keys of the destination may differ
    with pytest.raises(InvalidOperation):
        tx.send(sender(OTHER), [message()], NOW)
    with pytest.raises(InvalidOperation):
        tx.send(sender(OTHER), [message(via="not k")], NOW)


# ---- limits


def test_so_many_messages_and_no_more() -> None:
    tx = transaction()
    tx.send(sender(QUEUE), [message() for _ in range(4)], NOW)
    with pytest.raises(QuotaExceeded, match="5 messages; these would be 6"):
        tx.send(sender(QUEUE), [message(), message()], NOW)
    tx.send(sender(QUEUE), [message()], NOW)
    with pytest.raises(QuotaExceeded):
        schedule(tx)
    settle(tx)


def test_so_many_settlements_and_no_more() -> None:
    tx = transaction()
    tx.settle(QUEUE, [lock(1, 1, 2, 3, 4)], COMPLETE, None, LISTEN, NOW)
    tx.cancel(QUEUE, 0, [20, 21], LISTEN, NOW)
    with pytest.raises(QuotaExceeded, match="7 settlements; these would be 8"):
        tx.settle(QUEUE, [lock(1, 5, 6)], COMPLETE, None, LISTEN, NOW)
    tx.settle(QUEUE, [lock(1, 5)], COMPLETE, None, LISTEN, NOW)


def test_bytes_are_given_back_at_the_end() -> None:
    held = Bytes(2 * (OPERATION_COST + ITEM_COST))
    tx = transaction(held=held)
    send(tx)
    one = held.held
    assert one > 0
    with pytest.raises(QuotaExceeded):
        tx.send(sender(QUEUE), [message() for _ in range(4)], NOW)
    assert held.held == one and len(tx.operations()) == 1
    tx.discharge(False)
    assert held.held == one
    tx.end()
    assert held.held == 0


def test_a_lock_is_settled_once() -> None:
    tx = transaction()
    settle(tx)
    with pytest.raises(MessageLockLost):
        settle(tx)
    with pytest.raises(MessageLockLost):
        tx.settle(QUEUE, [lock(1, 8, 8)], COMPLETE, None, LISTEN, NOW)
    cancel(tx)
    with pytest.raises(MessageNotFound):
        cancel(tx)


# ---- rules


def test_rules_come_alone() -> None:
    added = ("t/Subscriptions/s/Rules/r2", RuleDescription(TrueFilter()))
    tx = transaction()
    change_rule(tx)
    tx.change_rule(SUBSCRIPTION, added, ("Manage", "t"), NOW)
    with pytest.raises(InvalidOperation, match="cannot be mixed"):
        tx.change_rule(SECOND, added, ("Manage", "t"), NOW)
    for name in ("send", "schedule", "settle", "cancel", "set_state"):
        with pytest.raises(InvalidOperation):
            OPERATIONS[name](tx)
    assert [rule for operation in tx.operations() for rule in operation.rules] == [
        ("t/Subscriptions/s/Rules/r", None),
        added,
    ]
    tx = transaction()
    tx.send(sender(TOPIC), [message()], NOW)
    with pytest.raises(InvalidOperation):
        change_rule(tx)


def test_what_changes_of_one_rule_come_to() -> None:
    path, old, new = "t/Subscriptions/s/Rules/r", RuleDescription(), RuleDescription(FalseFilter())
    tx = transaction()
    assert tx.changes_of_rule(path) == []
    gone: RuleChange = (path, None)
    for rule in (None, old, None, new):
        tx.change_rule(SUBSCRIPTION, (path, rule), ("Manage", "t"), NOW)
        assert tx.changes_of_rule(path) == ([gone] if rule is None else [gone, (path, rule)])
        assert len(tx.changes_of_rule(path.upper())) == len(tx.changes_of_rule(path))
    other = "t/Subscriptions/s/Rules/other"
    tx.change_rule(SUBSCRIPTION, (other, old), ("Manage", "t"), NOW)
    assert tx.changes_of_rule(other) == [(other, old)]
    tx.change_rule(SUBSCRIPTION, (other, None), ("Manage", "t"), NOW)
    assert tx.changes_of_rule(other) == []


def test_a_rule_that_is_withdrawn_does_not_count() -> None:
    tx = transaction(limits=replace(LIMITS, max_transaction_settlements=1))
    for _ in range(3):
        tx.withdraw(change_rule(tx), ArgumentError("bad"), is_answered=True)
    assert tx.operations() == [] and tx.is_ready
    change_rule(tx)
    assert not tx.is_ready, "a discharge waits for the catalogue"
    with pytest.raises(QuotaExceeded):
        change_rule(tx)


def test_rules_of_partitioned_topics_are_not_changed() -> None:
    with pytest.raises(InvalidOperation, match="partitioning"):
        transaction().change_rule(
            PARTITIONED_SUBSCRIPTION, ("pt/Subscriptions/s/Rules/r", None), ("Manage", "pt"), NOW
        )


# ---- the parts of the commit


def test_parts_are_merged_to_one_of_a_kind() -> None:
    tx = transaction(limits=LIMITS)
    drafts = [message(session=str(number)) for number in range(3)]
    tx.send(sender(SESSIONS), drafts[:2], NOW)
    tx.settle(SESSIONS, [lock(3, 1)], COMPLETE, None, LISTEN, NOW)
    tx.set_state(SESSIONS, 0, 9, b"old", LISTEN, NOW)
    tx.send(sender(SESSIONS), drafts[2:], NOW)
    tx.settle(SESSIONS, [lock(3, 2)], COMPLETE, None, LISTEN, NOW)
    tx.settle(SESSIONS, [lock(3, 4)], DEFER, {"a": b"1"}, LISTEN, NOW)
    tx.settle(SESSIONS, [lock(3, 5)], DEFER, {"a": b"2"}, LISTEN, NOW)
    tx.settle(SESSIONS, [lock(3, 6)], ABANDON, None, LISTEN, NOW)
    tx.set_state(SESSIONS, 0, 9, None, LISTEN, NOW)
    tx.cancel(SESSIONS, 0, [30], LISTEN, NOW)
    tx.cancel(SESSIONS, 0, [31], LISTEN, NOW)
    parts = merged_parts(tx.operations())
    assert [type(part) for part in parts] == [Settle] * 4 + [CancelScheduled, SetSessionState, Send]
    assert {part.fragment for part in parts} == {3} and {part.origin for part in parts} == {77}
    settles = [part for part in parts if isinstance(part, Settle)]
    assert [(part.outcome, part.numbers, part.nonces, part.overlay) for part in settles] == [
        (COMPLETE, [1, 2], [10, 20], None),
        (DEFER, [4], [40], {"a": b"1"}),
        (DEFER, [5], [50], {"a": b"2"}),
        (ABANDON, [6], [60], None),
    ]
    cancel, state, sent = parts[4:]
    assert isinstance(cancel, CancelScheduled) and cancel.numbers == [30, 31]
    assert isinstance(state, SetSessionState) and (state.consumer, state.state) == (9, None)
    assert isinstance(sent, Send) and sent.drafts == drafts and sent.atomic
