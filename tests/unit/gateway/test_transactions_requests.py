"""Management requests in transactions, AMQP sessions that cross entities, and links with a destination."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from busbar.amqp.outcomes import ACCEPTED
from busbar.amqp.types import Array
from busbar.message.lock_token import tag_to_uuid
from busbar.model.commands import (
    CancelScheduled,
    Peek,
    Probe,
    Renew,
    ReserveNumbers,
    Send,
    Settle,
    Transact,
)
from busbar.model.effects import Peeked
from busbar.model.entities import RuleDescription
from busbar.model.errors import ArgumentError
from busbar.model.message import VIA
from harness.amqp_driver import (
    BATCH_FORMAT,
    LinkRefused,
    LoadConnection,
    batch_of,
)
from harness.transaction_driver import (
    Coordinator,
    WireSession,
    code_and_txn,
    condition,
    text,
)
from harness.waiting import until
from tests.unit.gateway.transactional_port import TransactionalPort, received
from tests.unit.partitions.messages import encoded
from tests.unit.partitions.transactions import index

UUID_CODE = 0x98


# ---- management


async def test_management_in_a_transaction(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    receiver, management = await wire.receiver("q"), await wire.management("q")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    message = {"message-id": "1", "message": encoded("1")}
    status, _, body = await management.ask("schedule-message", {"messages": [message, message]}, txn)
    assert status == 200 and isinstance(body["sequence-numbers"], Array)
    assert body["sequence-numbers"].items == [1, 2]
    assert (await management.ask("cancel-scheduled-message", {"sequence-numbers": [5]}, txn))[0] == 200
    token = tag_to_uuid(delivery.tag)
    settle: dict[str, object] = {"disposition-status": "completed", "lock-tokens": Array(UUID_CODE, [token])}
    assert (await management.ask("update-disposition", settle, txn))[0] == 200
    status, error, _ = await management.ask("update-disposition", settle, txn)
    assert (status, error) == (410, "com.microsoft:message-lock-lost"), "once in a transaction"
    assert not broker.said(CancelScheduled) and not broker.said(Settle) and not broker.said(Send)
    assert [command.count for command in broker.said(ReserveNumbers)] == [2]
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    parts = broker.said(Transact)[0].parts
    assert [type(part).__name__ for part in parts] == ["Settle", "CancelScheduled", "Send"]
    assert isinstance(parts[2], Send) and [draft.number for draft in parts[2].drafts] == [1, 2]


async def test_reads_and_renewals_are_done_at_once(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    """.NET names the transaction on every request that is made inside its scope."""
    management = await wire.management("q")
    txn = await coordinator.declare()
    peeking = asyncio.create_task(
        management.ask("peek-message", {"from-sequence-number": 1, "message-count": 1}, txn)
    )
    await until(lambda: bool(broker.said(Peek)))
    (peek,) = broker.said(Peek)
    broker.emit(Peeked(peek.origin, peek.request, [], [], []))
    assert (await peeking)[0] == 204
    token = Array(UUID_CODE, [UUID(bytes_le=b"\0\0\0\x01" + bytes(12))])
    renewing = asyncio.create_task(management.ask("renew-lock", {"lock-tokens": token}, txn))
    await until(lambda: bool(broker.said(Renew)))
    renewing.cancel()
    assert code_and_txn(await coordinator.discharge(txn, fail=True)) == (ACCEPTED, None)
    assert not broker.said(Probe)


async def test_a_request_of_an_unknown_transaction_is_answered(wire: WireSession) -> None:
    management = await wire.management("q")
    status, error, _ = await management.ask(
        "peek-message", {"from-sequence-number": 1, "message-count": 1}, b"nothing"
    )
    assert (status, error) == (404, "amqp:transaction:unknown-id")


async def test_nothing_is_received_and_deleted_in_a_transaction(
    coordinator: Coordinator, wire: WireSession
) -> None:
    management = await wire.management("q")
    txn = await coordinator.declare()
    receive: dict[str, object] = {"sequence-numbers": [1], "receiver-settle-mode": 0}
    assert (await management.ask("receive-by-sequence-number", receive, txn))[:2] == (400, "amqp:not-allowed")
    delete: dict[str, object] = {"message-count": 1, "enqueued-time-utc": 1}
    assert (await management.ask("batch-delete-messages", delete, txn))[:2] == (400, "amqp:not-allowed")


async def test_a_schedule_elsewhere_is_refused(coordinator: Coordinator, wire: WireSession) -> None:
    sender, management = await wire.sender("other"), await wire.management("q")
    txn = await coordinator.declare()
    await sender.send(encoded(), txn)
    message = {"message-id": "1", "message": encoded("1")}
    assert (await management.ask("schedule-message", {"messages": [message]}, txn))[:2] == (
        400,
        "amqp:not-allowed",
    )


async def test_a_request_before_the_discharge_is_waited_for(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    management = await wire.management("q")
    txn = await coordinator.declare()
    broker.held.add(Probe)
    cancelling = asyncio.create_task(
        management.ask("cancel-scheduled-message", {"sequence-numbers": [5]}, txn)
    )
    await until(lambda: bool(broker.said(Probe)))
    ending = asyncio.create_task(coordinator.discharge(txn))
    await asyncio.sleep(0.05)
    assert not ending.done()
    broker.release(Probe)
    assert (await cancelling)[0] == 200
    assert code_and_txn(await ending) == (ACCEPTED, None)
    assert len(broker.said(Transact)) == 1


# ---- rules of subscriptions


async def test_a_rule_is_changed_at_the_commit(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    management = await wire.management("t/Subscriptions/s")
    for fail in (True, False):
        txn = await coordinator.declare()
        assert (await management.ask("remove-rule", {"rule-name": "r"}, txn))[0] == 200
        assert not broker.changes
        assert code_and_txn(await coordinator.discharge(txn, fail)) == (ACCEPTED, None)
    assert broker.changes == [("t/Subscriptions/s/Rules/r", None)]


async def test_a_rule_that_the_catalogue_refuses_is_no_part_of_the_transaction(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    management = await wire.management("t/Subscriptions/s")
    txn = await coordinator.declare()
    broker.rule_error = ArgumentError("a bad expression")
    rule = {"sql-filter": {"expression": "= ="}}
    refused = await management.ask("add-rule", {"rule-name": "r", "rule-description": rule}, txn)
    assert refused[:2] == (400, ArgumentError.condition)
    broker.rule_error = None
    assert (await management.ask("remove-rule", {"rule-name": "R"}, txn))[0] == 200
    rule = {"sql-filter": {"expression": "1=1"}}
    assert (await management.ask("add-rule", {"rule-name": "r", "rule-description": rule}, txn))[0] == 200
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    path = "t/Subscriptions/s/Rules"
    assert broker.changes == [(f"{path}/R", None), (f"{path}/r", RuleDescription())]
    assert broker.checked[1:] == [
        [(f"{path}/R", None)],
        [(f"{path}/r", None), (f"{path}/r", RuleDescription())],
    ]


async def test_rules_of_partitioned_topics_are_not_changed_in_a_transaction(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    management = await wire.management("pt/Subscriptions/s")
    txn = await coordinator.declare()
    rule = {"sql-filter": {"expression": "1=1"}}
    add = await management.ask("add-rule", {"rule-name": "r", "rule-description": rule}, txn)
    assert add[:2] == (400, "amqp:not-allowed")
    assert (await management.ask("remove-rule", {"rule-name": "r"}, txn))[:2] == (400, "amqp:not-allowed")
    assert (await management.ask("add-rule", {"rule-name": "r", "rule-description": rule}))[0] == 200
    assert len(broker.changes) == 1


# ---- crossing sessions, and links with a destination


async def crossing(client: LoadConnection, *, idle: bool = True) -> tuple[WireSession, Coordinator]:
    """As .NET has it: a coordinator that is never used, then another one on the same session."""
    session = WireSession(client, new=True)
    if idle:
        await session.coordinator()
    return session, await session.coordinator()


async def test_the_first_link_names_the_via_entity(broker: TransactionalPort, client: LoadConnection) -> None:
    session, coordinator = await crossing(client)
    receiver, sender = await session.receiver("q"), await session.sender("p")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    await receiver.settle(delivery, txn)
    assert code_and_txn(await sender.send(encoded(key="k"), txn)) == (ACCEPTED, txn)
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (transact,) = broker.said(Transact)
    assert transact.fragment == 1
    _settle, send = transact.parts
    assert isinstance(send, Send) and send.fragment == 1
    (draft,) = send.drafts
    assert (draft.kind, draft.path, draft.target) == (VIA, "p", 100 + index("k"))
    assert code_and_txn(await sender.send(encoded("direct", key="k"))) == (ACCEPTED, None)
    (direct,) = broker.said(Send)
    assert direct.fragment == 100 + index("k") and direct.drafts[0].kind == 0, "outside of transactions"


async def test_a_subscription_names_its_topic(broker: TransactionalPort, client: LoadConnection) -> None:
    session, coordinator = await crossing(client)
    receiver, sender = await session.receiver("t/Subscriptions/s"), await session.sender("q")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    await receiver.settle(delivery, txn)
    await sender.send(encoded(), txn)
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (transact,) = broker.said(Transact)
    assert transact.fragment == 4 and [part.fragment for part in transact.parts] == [5, 4]


async def test_a_receiver_of_another_entity_is_refused(client: LoadConnection) -> None:
    session, _ = await crossing(client)
    await session.receiver("q")
    with pytest.raises(LinkRefused, match="amqp:not-allowed"):
        await session.receiver("other")
    await session.management("other")
    await session.sender("other")
    await WireSession(client).receiver("other")


async def test_a_refused_link_names_nothing(client: LoadConnection) -> None:
    session, _ = await crossing(client)
    with pytest.raises(LinkRefused):
        await session.receiver("nothing")
    with pytest.raises(LinkRefused):
        await session.receiver("t")
    await session.receiver("other")
    with pytest.raises(LinkRefused):
        await session.receiver("q")


async def test_links_name_in_the_order_of_their_frames(
    broker: TransactionalPort, client: LoadConnection
) -> None:
    session, coordinator = await crossing(client)
    sender, _ = await asyncio.gather(session.sender("other"), session.sender("q"))
    txn = await coordinator.declare()
    assert code_and_txn(await sender.send(encoded(), txn)) == (ACCEPTED, txn)
    receiver = await session.receiver("other")
    assert receiver.link.is_attached


async def test_a_session_whose_first_link_is_to_an_entity_does_not_cross(
    broker: TransactionalPort, client: LoadConnection
) -> None:
    session = WireSession(client, new=True)
    await session.management("q")
    one = await session.sender("q")
    coordinator = await session.coordinator()
    two = await session.sender("other")
    txn = await coordinator.declare()
    await one.send(encoded(), txn)
    assert condition(await two.send(encoded(), txn)) == "amqp:not-allowed"


async def test_a_coordinator_on_a_session_of_its_own_does_not_cross(
    coordinator: Coordinator, wire: WireSession
) -> None:
    one, two = await wire.sender("q"), await wire.sender("other")
    txn = await coordinator.declare()
    await one.send(encoded(), txn)
    outcome = await two.send(encoded(), txn)
    assert condition(outcome) == "amqp:not-allowed"
    assert "cannot span multiple top-level entities" in text(outcome)


async def test_a_link_with_a_destination(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q", destination="p")
    assert sender.link.properties == {"com.microsoft:transfer-destination-address": "p"}
    assert code_and_txn(await sender.send(encoded("1", key="k"))) == (ACCEPTED, None)
    batch = batch_of([encoded("2", key="a"), encoded("3")])
    assert code_and_txn(await sender.send(batch, format=BATCH_FORMAT)) == (ACCEPTED, None)
    one, two = broker.said(Send)
    assert (one.fragment, two.fragment, two.atomic) == (1, 1, True)
    drafts = [*one.drafts, *two.drafts]
    assert {(draft.kind, draft.path) for draft in drafts} == {(VIA, "p")}
    assert [draft.target for draft in drafts[:2]] == [100 + index("k"), 100 + index("a")]
    txn = await coordinator.declare()
    assert code_and_txn(await sender.send(encoded("4"), txn)) == (ACCEPTED, txn)
    await coordinator.discharge(txn)
    (send,) = broker.said(Transact)[0].parts
    assert isinstance(send, Send) and (send.fragment, send.drafts[0].kind) == (1, VIA)


async def test_the_outbox_of_a_partitioned_entity_is_chosen_by_key(
    broker: TransactionalPort, wire: WireSession
) -> None:
    sender = await wire.sender("p", destination="q")
    await sender.send(encoded(via="k"))
    await sender.send(encoded(key="other", via="k"))
    await sender.send(encoded(key="k"))
    await sender.send(encoded())
    assert [send.fragment for send in broker.said(Send)[:3]] == [100 + index("k")] * 3
    batch = batch_of([encoded(via="a"), encoded(via="b")])
    assert condition(await sender.send(batch, format=BATCH_FORMAT)) == "amqp:not-allowed"


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        ("nothing", "amqp:not-found"),
        ("t/Subscriptions/s", "amqp:not-allowed"),
        ("other/$DeadLetterQueue", "amqp:not-allowed"),
        ("other/$management", "com.microsoft:argument-error"),
        ("q", "amqp:not-allowed"),
    ],
)
async def test_destinations_that_are_none(wire: WireSession, destination: str, expected: str) -> None:
    with pytest.raises(LinkRefused, match=expected):
        await wire.sender("q", destination=destination)


async def test_what_the_destination_would_refuse(wire: WireSession) -> None:
    sender = await wire.sender("q", destination="sessions")
    assert condition(await sender.send(encoded())) == "amqp:not-allowed"
    assert code_and_txn(await sender.send(encoded(session="s")))[0] == ACCEPTED
