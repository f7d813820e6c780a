"""Transactions whose frames come in one read: what joins together, and what the commit checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from busbar.amqp.events import Delivery
from busbar.amqp.outcomes import ACCEPTED, Outcome, transactional_state
from busbar.amqp.transactions import discharge_message
from busbar.model.commands import (
    Probe,
    Send,
    Settle,
    Transact,
)
from busbar.model.errors import MessageLockLost, QuotaExceeded
from harness.amqp_driver import (
    COMPLETE,
)
from harness.transaction_driver import (
    Coordinator,
    WireReceiver,
    WireSender,
    WireSession,
    code_and_txn,
    condition,
)
from tests.unit.gateway.transactional_port import TransactionalPort, received
from tests.unit.partitions.messages import encoded

Future = asyncio.Future[Outcome | None]


async def test_frames_in_one_read_keep_their_order(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    """A client need not wait for outcomes: a discharge stands behind the transfers before it."""
    sender = await wire.sender("q")
    zero, one, two = [await coordinator.declare() for _ in range(3)]
    flush, coordinator.connection.flush = coordinator.connection.flush, lambda: None  # type: ignore[method-assign]
    waiting = [
        coordinator.start(discharge_message(zero, False)),
        sender.start(encoded("1"), transactional_state(one, b"")),
        coordinator.start(discharge_message(one, False)),
        sender.start(encoded("2"), transactional_state(two, b"")),
        coordinator.start(discharge_message(two, False)),
    ]
    coordinator.connection.flush = flush  # type: ignore[method-assign]
    flush()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert [code_and_txn(outcome)[0] for outcome in outcomes] == [ACCEPTED] * 5
    sent = [
        part.drafts[0].message_id
        for each in broker.said(Transact)
        for part in each.parts
        if isinstance(part, Send)
    ]
    assert sent == ["1", "2"]


def together(link: WireSender | Coordinator, start: Callable[[], list[Future]]) -> list[Future]:
    """Start operations whose frames the broker reads at once."""
    flush, link.connection.flush = link.connection.flush, lambda: None  # type: ignore[method-assign]
    waiting = start()
    link.connection.flush = flush  # type: ignore[method-assign]
    flush()
    return waiting


async def test_messages_of_one_read_join_together(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    one, two = [await coordinator.declare() for _ in range(2)]
    named = [(one, "1"), (one, "2"), (two, "3"), (None, "4"), (one, "5")]
    waiting = together(
        coordinator,
        lambda: [
            sender.start(encoded(name), b"" if txn is None else transactional_state(txn, b""))
            for txn, name in named
        ],
    )
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert [code_and_txn(outcome) for outcome in outcomes] == [(ACCEPTED, txn) for txn, _ in named]
    for txn in (one, two):
        assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    parts = [part for each in broker.said(Transact) for part in each.parts]
    assert [[draft.message_id for draft in part.drafts] for part in parts if isinstance(part, Send)] == [
        ["1", "2", "5"],
        ["3"],
    ]


async def test_a_message_that_cannot_join_does_not_keep_those_beside_it_out(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("p")
    txn = await coordinator.declare()
    state = transactional_state(txn, b"")
    waiting = together(
        coordinator,
        lambda: [
            sender.start(encoded(name, key=key), state)
            for name, key in (("1", "k"), ("2", "other"), ("3", "k"))
        ],
    )
    first, second, third = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert code_and_txn(first) == code_and_txn(third) == (ACCEPTED, txn)
    assert condition(second) == "amqp:not-allowed"
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (send,) = broker.said(Transact)[0].parts
    assert isinstance(send, Send) and [draft.message_id for draft in send.drafts] == ["1", "3"]


async def settle_together(
    coordinator: Coordinator, receiver: WireReceiver, deliveries: Sequence[Delivery], txn: bytes
) -> list[Future]:
    state = transactional_state(txn, COMPLETE)

    def start() -> list[Future]:
        waiting = [receiver.expect(delivery.id) for delivery in deliveries]
        for delivery in deliveries:
            receiver.link.dispose([delivery.id], state, False)
        return waiting

    return together(coordinator, start)


async def test_settlements_of_one_read_are_asked_for_together(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    receiver = await wire.receiver("q")
    deliveries = await received(broker, receiver, 3)
    txn = await coordinator.declare()
    waiting = await settle_together(coordinator, receiver, deliveries, txn)
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert [code_and_txn(outcome) for outcome in outcomes] == [(ACCEPTED, txn)] * 3
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    assert len(broker.said(Probe)) == 1


async def test_a_lost_lock_does_not_keep_other_settlements_out(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    receiver = await wire.receiver("q")
    deliveries = await received(broker, receiver, 3)
    txn = await coordinator.declare()
    broker.refusals[Probe] = [MessageLockLost("one of them"), MessageLockLost("the first")]
    waiting = await settle_together(coordinator, receiver, deliveries, txn)
    first, *others = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert condition(first) == "com.microsoft:message-lock-lost"
    assert [code_and_txn(outcome) for outcome in others] == [(ACCEPTED, txn)] * 2
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (settle,) = broker.said(Transact)[0].parts
    assert isinstance(settle, Settle) and settle.numbers == [2, 3]


async def settled_with_discharge(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> tuple[bytes, list[Outcome | None]]:
    """Settle two messages in a transaction and discharge it, all in one read. The answers, the discharge's last."""
    receiver = await wire.receiver("q")
    deliveries = await received(broker, receiver, 2)
    txn = await coordinator.declare()
    state = transactional_state(txn, COMPLETE)

    def start() -> list[Future]:
        waiting = [receiver.expect(delivery.id) for delivery in deliveries]
        for delivery in deliveries:
            receiver.link.dispose([delivery.id], state, False)
        return [*waiting, coordinator.start(discharge_message(txn, False))]

    return txn, await asyncio.wait_for(asyncio.gather(*together(coordinator, start)), 10)


async def test_the_commit_checks_what_came_with_the_discharge(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    txn, answers = await settled_with_discharge(broker, coordinator, wire)
    assert [code_and_txn(answer) for answer in answers] == [
        (ACCEPTED, txn),
        (ACCEPTED, txn),
        (ACCEPTED, None),
    ]
    assert len(broker.said(Transact)) == 1 and not broker.said(Probe)


async def test_a_lost_lock_among_others_rolls_back_after_the_discharge(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    broker.refusals[Transact] = [MessageLockLost("one of them")]
    broker.refusals[Probe] = [MessageLockLost("one of them"), MessageLockLost("the first")]
    txn, (first, second, end) = await settled_with_discharge(broker, coordinator, wire)
    assert condition(first) == "com.microsoft:message-lock-lost"
    assert code_and_txn(second) == (ACCEPTED, txn)
    assert condition(end) == "amqp:transaction:rollback" and len(broker.said(Transact)) == 1


async def test_a_commit_that_is_refused_for_another_reason_is_asked_for_again(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    """The fragment agrees to each settlement, and refuses their commit, as it does when it is full."""
    broker.refusals[Transact] = [QuotaExceeded("full"), QuotaExceeded("still full")]
    txn, (first, second, end) = await settled_with_discharge(broker, coordinator, wire)
    assert [code_and_txn(first), code_and_txn(second)] == [(ACCEPTED, txn), (ACCEPTED, txn)]
    assert condition(end) == "amqp:transaction:rollback" and "still full" in str(end)
    assert len(broker.said(Transact)) == 2 and len(broker.said(Probe)) == 1


async def test_what_follows_a_discharge_in_one_read_is_no_part(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    state = transactional_state(txn, b"")
    before, end, after = together(
        coordinator,
        lambda: [
            sender.start(encoded("before"), state),
            coordinator.start(discharge_message(txn, False)),
            sender.start(encoded("after"), state),
        ],
    )
    assert code_and_txn(await asyncio.wait_for(before, 10)) == (ACCEPTED, txn)
    assert code_and_txn(await asyncio.wait_for(end, 10)) == (ACCEPTED, None)
    assert condition(await asyncio.wait_for(after, 10)) == "amqp:transaction:unknown-id"
    (send,) = broker.said(Transact)[0].parts
    assert isinstance(send, Send) and [draft.message_id for draft in send.drafts] == ["before"]


async def test_a_discharge_before_the_end_of_its_coordinator_is_performed(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    state = transactional_state(txn, b"")

    def start() -> list[Future]:
        waiting = [sender.start(encoded("last"), state)]
        coordinator.start(discharge_message(txn, False))
        coordinator.link.detach()
        return waiting

    (sent,) = together(coordinator, start)
    assert code_and_txn(await asyncio.wait_for(sent, 10)) == (ACCEPTED, txn)
    assert len(broker.said(Transact)) == 1
