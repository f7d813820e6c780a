"""Transactions in the gateway, frame by frame, on fragments that a test scripts: what the broker is asked, and when."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from busbar.amqp.outcomes import ACCEPTED, MODIFIED, Outcome
from busbar.amqp.performatives import Terminus
from busbar.amqp.transactions import discharge_message
from busbar.model.commands import COMPLETE as COMPLETED
from busbar.model.commands import (
    RELEASE,
    Probe,
    Send,
    Settle,
    Transact,
)
from busbar.model.entities import Tier
from busbar.model.errors import MessageLockLost, QuotaExceeded, ServerBusy
from busbar.model.limits import Limits
from busbar.model.sas import SasRule, sign
from harness.amqp_driver import (
    BATCH_FORMAT,
    DEFER,
    LinkRefused,
    LoadConnection,
    batch_of,
    connect,
    sas_token,
)
from harness.transaction_driver import (
    Coordinator,
    Refused,
    WireSender,
    WireSession,
    code_and_txn,
    condition,
    text,
)
from harness.waiting import until
from tests.unit.gateway.transactional_port import ENTITIES, KEY, TransactionalPort, gateway_on, received
from tests.unit.partitions.messages import encoded
from tests.unit.partitions.transactions import index

Future = asyncio.Future[Outcome | None]

# ---- the life of a transaction


async def test_a_transaction_becomes_one_command(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender, receiver = await wire.sender("q"), await wire.receiver("q")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    assert len(txn) == 16
    assert code_and_txn(await sender.send(encoded("1"), txn)) == (ACCEPTED, txn)
    assert code_and_txn(await receiver.settle(delivery, txn)) == (ACCEPTED, txn)
    assert not broker.said(Send) and not broker.said(Settle) and not broker.said(Transact)
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (transact,) = broker.said(Transact)
    assert transact.fragment == 1
    settle, send = transact.parts
    assert isinstance(settle, Settle) and (settle.outcome, settle.numbers, settle.nonces) == (
        COMPLETED,
        [1],
        [7],
    )
    assert isinstance(send, Send) and [draft.message_id for draft in send.drafts] == ["1"] and send.atomic


async def test_a_rollback_asks_the_broker_for_nothing(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    await sender.send(encoded(), txn)
    assert code_and_txn(await coordinator.discharge(txn, fail=True)) == (ACCEPTED, None)
    assert not broker.said(Transact) and not broker.said(Send)
    assert condition(await sender.send(encoded(), txn)) == "amqp:transaction:unknown-id"
    assert condition(await coordinator.discharge(txn)) == "amqp:transaction:unknown-id"


async def test_an_empty_transaction_is_committed(broker: TransactionalPort, coordinator: Coordinator) -> None:
    txn = await coordinator.declare()
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    assert not broker.said(Transact)


async def test_messages_outside_of_a_transaction_go_on_as_ever(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    inside, outside = await asyncio.gather(sender.send(encoded("in"), txn), sender.send(encoded("out")))
    assert code_and_txn(inside) == (ACCEPTED, txn) and code_and_txn(outside) == (ACCEPTED, None)
    (send,) = broker.said(Send)
    assert [draft.message_id for draft in send.drafts] == ["out"]


async def test_a_batch_joins_whole(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    batch = batch_of([encoded("1"), encoded("2")])
    assert code_and_txn(await sender.send(batch, txn, format=BATCH_FORMAT)) == (ACCEPTED, txn)
    await sender.send(encoded("3"), txn)
    await coordinator.discharge(txn)
    (send,) = broker.said(Transact)[0].parts
    assert isinstance(send, Send) and [draft.message_id for draft in send.drafts] == ["1", "2", "3"]


async def test_a_discharge_waits_for_the_fragments(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    receiver = await wire.receiver("q")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    broker.held.add(Probe)
    settling = asyncio.create_task(receiver.settle(delivery, txn))
    await until(lambda: bool(broker.said(Probe)))
    ending = asyncio.create_task(coordinator.discharge(txn))
    await asyncio.sleep(0.05)
    assert not broker.said(Transact) and not ending.done()
    broker.release(Probe)
    assert code_and_txn(await settling) == (ACCEPTED, txn)
    assert code_and_txn(await ending) == (ACCEPTED, None)
    assert len(broker.said(Transact)) == 1


async def test_a_settlement_that_is_refused_is_no_part(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender, receiver = await wire.sender("q"), await wire.receiver("q")
    one, two = await received(broker, receiver, 2)
    txn = await coordinator.declare()
    broker.refusals[Probe] = [MessageLockLost("lost")]
    assert condition(await receiver.settle(one, txn)) == "com.microsoft:message-lock-lost"
    assert code_and_txn(await receiver.settle(two, txn, DEFER)) == (MODIFIED, txn)
    await sender.send(encoded(), txn)
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    settle, _send = broker.said(Transact)[0].parts
    assert isinstance(settle, Settle) and settle.numbers == [2]


async def test_a_refusal_after_the_discharge_rolls_back(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender, receiver = await wire.sender("q"), await wire.receiver("q")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    await sender.send(encoded(), txn)
    broker.held.add(Probe)
    settling = asyncio.create_task(receiver.settle(delivery, txn))
    await until(lambda: bool(broker.said(Probe)))
    ending = asyncio.create_task(coordinator.discharge(txn))
    await asyncio.sleep(0.05)
    broker.refusals[Probe] = [MessageLockLost("gone for good")]
    broker.release(Probe)
    assert condition(await settling) == "com.microsoft:message-lock-lost"
    outcome = await ending
    assert condition(outcome) == "amqp:transaction:rollback" and "lock" in text(outcome)
    assert not broker.said(Transact)


async def test_a_refused_operation_without_an_answer_rolls_back(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    good, bad = await wire.sender("q"), await wire.sender("other")
    txn = await coordinator.declare()
    await good.send(encoded(), txn)
    await bad.send(encoded(), txn, settled=True)
    outcome = await coordinator.discharge(txn)
    assert condition(outcome) == "amqp:transaction:rollback" and "top-level" in text(outcome)
    assert not broker.said(Transact)


async def test_a_settled_disposition_that_is_refused_rolls_back(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    receiver = await wire.receiver("q")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    broker.refusals[Probe] = [MessageLockLost("lost")]
    await receiver.settle(delivery, txn, settled=True)
    await until(lambda: bool(broker.said(Probe)))
    assert condition(await coordinator.discharge(txn)) == "amqp:transaction:rollback"


async def test_a_settled_message_that_is_too_large_rolls_back(broker: TransactionalPort) -> None:
    async with gateway_on(broker, Limits(max_message_size=1_000)) as (_, port):
        client = await connect(port)
        coordinator = await WireSession(client, new=True).coordinator()
        sender = await WireSession(client).sender("q")
        txn = await coordinator.declare()
        await sender.send(encoded(body=bytes(2_000)), txn, settled=True)
        outcome = await coordinator.discharge(txn)
        assert condition(outcome) == "amqp:transaction:rollback" and "1000 bytes" in text(outcome)
        await client.close()


@pytest.mark.parametrize("error", [QuotaExceeded("full"), ServerBusy("unavailable")])
async def test_a_refused_commit_names_its_cause(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession, error: Any
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    await sender.send(encoded(), txn)
    broker.refusals[Transact] = [error]
    outcome = await coordinator.discharge(txn)
    assert condition(outcome) == "amqp:transaction:rollback"
    assert error.text in text(outcome) and error.condition in text(outcome)
    assert condition(await coordinator.discharge(txn)) == "amqp:transaction:unknown-id"


async def test_a_commit_in_doubt_says_so(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    await sender.send(encoded(), txn)
    error = ServerBusy("the store failed")
    error.certain = False
    broker.refusals[Transact] = [error]
    outcome = await coordinator.discharge(txn)
    assert condition(outcome) == "com.microsoft:server-busy" and "may or may not" in text(outcome)


# ---- what ends a transaction without its client


async def test_a_coordinator_link_takes_its_transactions_along(
    broker: TransactionalPort, client: LoadConnection, wire: WireSession
) -> None:
    session = WireSession(client, new=True)
    ending, staying = await session.coordinator(), await session.coordinator()
    sender = await wire.sender("q")
    lost, kept = await ending.declare(), await staying.declare()
    await sender.send(encoded(), lost)
    await sender.send(encoded(), kept)
    await ending.detach()
    await until(lambda: ending.over)
    assert condition(await sender.send(encoded(), lost)) == "amqp:transaction:unknown-id"
    assert code_and_txn(await staying.discharge(kept)) == (ACCEPTED, None)


async def test_an_amqp_session_takes_its_transactions_along(
    broker: TransactionalPort, client: LoadConnection, wire: WireSession
) -> None:
    session = WireSession(client, new=True)
    coordinator = await session.coordinator()
    txn = await coordinator.declare()
    sender = await wire.sender("q")
    await sender.send(encoded(), txn)
    session.end()
    assert condition(await sender.send(encoded(), txn)) == "amqp:transaction:unknown-id"


async def test_the_end_of_a_sender_is_no_rollback(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("q")
    txn = await coordinator.declare()
    await sender.send(encoded("1"), txn)
    await sender.detach()
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    assert len(broker.said(Transact)) == 1


async def test_a_transaction_times_out(broker: TransactionalPort) -> None:
    async with gateway_on(broker, Limits(transaction_timeout=100)) as (_, port):
        client = await connect(port)
        coordinator, wire = await WireSession(client, new=True).coordinator(), WireSession(client)
        sender = await wire.sender("q")
        txn, idle = await coordinator.declare(), await coordinator.declare()
        await sender.send(encoded(), txn)
        await asyncio.sleep(0.3)
        assert condition(await sender.send(encoded(), txn)) == "amqp:transaction:timeout"
        assert condition(await coordinator.discharge(txn)) == "amqp:transaction:timeout"
        assert code_and_txn(await coordinator.discharge(txn, fail=True)) == (ACCEPTED, None)
        assert code_and_txn(await sender.send(encoded(), idle)) == (ACCEPTED, idle), (
            "time runs from an operation"
        )
        await client.close()


async def test_ids_are_good_on_their_connection_alone(broker: TransactionalPort) -> None:
    async with gateway_on(broker) as (_, port):
        one, two = await connect(port), await connect(port)
        txn = await (await WireSession(one, new=True).coordinator()).declare()
        sender = await WireSession(two).sender("q")
        assert condition(await sender.send(encoded(), txn)) == "amqp:transaction:unknown-id"
        await one.close()
        await two.close()


# ---- the coordinator


async def test_a_settled_request_ends_the_coordinator(coordinator: Coordinator) -> None:
    await coordinator.post(discharge_message(b"T", False), settled=True)
    await until(lambda: coordinator.over)


@pytest.mark.parametrize(
    "payload", [b"", b"\x00\x53\x77\xa1\x01x", b"\x00\x53\x77\x00\x53\x31\xc0\x04\x01\xa0\x01g"]
)
async def test_what_a_coordinator_does_not_take(coordinator: Coordinator, payload: bytes) -> None:
    assert condition(await coordinator.post(payload)).startswith("amqp:")
    assert await coordinator.declare(), "the link goes on"


async def test_open_transactions_are_limited(broker: TransactionalPort) -> None:
    async with gateway_on(broker, Limits(max_transactions=2)) as (_, port):
        client = await connect(port)
        coordinator = await WireSession(client, new=True).coordinator()
        first = await coordinator.declare()
        await coordinator.declare()
        with pytest.raises(Refused) as refused:
            await coordinator.declare()
        assert refused.value.condition == "amqp:resource-limit-exceeded"
        await coordinator.discharge(first, fail=True)
        await coordinator.declare()
        await client.close()


async def test_bytes_are_limited(broker: TransactionalPort) -> None:
    """For a connection, and for the gateway: what one client keeps open is not there for others."""
    large = encoded(body=bytes(40_000))
    limits = Limits(max_message_size=50_000, max_transaction_bytes=150_000, max_all_transaction_bytes=200_000)
    async with gateway_on(broker, limits) as (gateway, port):
        clients = [await connect(port), await connect(port)]
        outcomes: list[list[Outcome | None]] = []
        coordinators = []
        for client in clients:
            coordinator = await WireSession(client, new=True).coordinator()
            coordinators.append(coordinator)
            sender = await WireSession(client).sender("q")
            txn = await coordinator.declare()
            outcomes.append([await sender.send(large, txn) for _ in range(4)])
        assert [code_and_txn(outcome)[0] for outcome in outcomes[0][:3]] == [ACCEPTED] * 3
        assert condition(outcomes[0][3]) == "amqp:resource-limit-exceeded"
        assert code_and_txn(outcomes[1][0])[0] == ACCEPTED
        assert condition(outcomes[1][1]) == "com.microsoft:server-busy"
        for client in clients:
            await client.close()
        await until(lambda: gateway._service.transactions.held == 0)


async def test_basic_has_no_transactions() -> None:
    async with gateway_on(TransactionalPort(*ENTITIES, tier=Tier.BASIC)) as (_, port):
        client = await connect(port)
        with pytest.raises(LinkRefused, match="not available in the Basic tier"):
            await WireSession(client).coordinator()
        await client.close()


async def test_a_coordinator_comes_before_the_first_token(broker: TransactionalPort) -> None:
    """As the Java client has it: the link may be there, but nothing can be declared."""
    async with gateway_on(broker) as (_, port):
        loop = asyncio.get_running_loop()
        _transport, client = await loop.create_connection(lambda: LoadConnection(None), "127.0.0.1", port)
        await client.begun
        wire = WireSession(client)
        coordinator = await wire.coordinator()
        with pytest.raises(Refused) as refused:
            await coordinator.declare()
        assert refused.value.condition == "amqp:unauthorized-access"
        resource = f"sb://localhost:{port}/"
        assert await client.put_token(sas_token(resource, KEY), resource) == 202
        txn = await coordinator.declare()
        sender = await wire.sender("q")
        assert code_and_txn(await sender.send(encoded(), txn)) == (ACCEPTED, txn)
        assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
        await client.close()


async def test_rights_are_looked_at_again_at_the_discharge(broker: TransactionalPort) -> None:
    rule = SasRule("sender", (KEY,), frozenset(("Send",)))
    async with gateway_on(broker, Limits(token_grace=0), [rule]) as (_, port):
        loop = asyncio.get_running_loop()
        _transport, client = await loop.create_connection(lambda: LoadConnection(None), "127.0.0.1", port)
        await client.begun
        for path, seconds in (("q", 2), ("other", 60)):
            resource = f"sb://localhost/{path}"
            token = sign(resource, "sender", KEY, int(time.time()) + seconds)
            assert await client.put_token(token, resource) == 202
        coordinator, wire = await WireSession(client, new=True).coordinator(), WireSession(client)
        sender = await wire.sender("q")
        txn = await coordinator.declare()
        assert code_and_txn(await sender.send(encoded(), txn)) == (ACCEPTED, txn)
        await until(lambda: sender.over)
        outcome = await coordinator.discharge(txn)
        assert condition(outcome) == "amqp:transaction:rollback" and "right Send" in text(outcome)
        assert not broker.said(Transact)
        await client.close()


# ---- partitioned entities


async def test_a_settlement_of_another_fragment_gives_up_its_lock(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    key = next(f"k{n}" for n in range(100) if index(f"k{n}") != 0)
    sender, receiver = await wire.sender("p"), await wire.receiver("p")
    await until(lambda: any(type(command).__name__ == "Demand" for command in broker.commands))
    demand = next(c for c in broker.commands if type(c).__name__ == "Demand" and c.fragment == 100)
    broker.commands = [c for c in broker.commands if type(c).__name__ != "Demand"] + [demand]
    broker.deliver()
    delivery = await receiver.take()
    txn = await coordinator.declare()
    await sender.send(encoded(key=key), txn)
    outcome = await receiver.settle(delivery, txn)
    assert condition(outcome) == "amqp:not-allowed" and "same partition" in text(outcome)
    (released,) = broker.said(Settle)
    assert (released.fragment, released.outcome, released.numbers) == (100, RELEASE, [1])
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    assert broker.said(Transact)[0].fragment == 100 + index(key)


async def test_violations_are_refused_at_once(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender = await wire.sender("p")
    txn = await coordinator.declare()
    assert condition(await sender.send(encoded(), txn)) == "amqp:not-allowed"
    assert code_and_txn(await sender.send(encoded(key="k"), txn)) == (ACCEPTED, txn)
    assert condition(await sender.send(encoded(key="other"), txn)) == "amqp:not-allowed"
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None), "it stays usable"


async def test_a_topic_and_its_subscription_are_led_by_the_topic(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    sender, receiver = await wire.sender("t"), await wire.receiver("t/Subscriptions/s")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    await receiver.settle(delivery, txn)
    await sender.send(encoded(), txn)
    assert code_and_txn(await coordinator.discharge(txn)) == (ACCEPTED, None)
    (transact,) = broker.said(Transact)
    assert transact.fragment == 4 and [part.fragment for part in transact.parts] == [5, 4]


# ---- ReceiveAndDelete


async def test_a_deleted_message_is_not_settled_in_a_transaction(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    receiver = await wire.receiver("q", delete=True)
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    outcome = await receiver.settle(delivery, txn)
    assert condition(outcome) == "amqp:not-allowed" and "PeekLock" in text(outcome)
    assert not broker.said(Probe)


async def test_writers_have_no_transactions(
    broker: TransactionalPort, coordinator: Coordinator, client: LoadConnection, wire: WireSession
) -> None:
    sender = WireSender(client)
    properties: dict[object, object] = {"busbar:writer": "w", "busbar:batch": 1}
    sender.link = wire.session.attach_sender("writer", Terminus("me"), Terminus("q"), 0, 0, properties)
    await client.attached(sender, sender.link)
    txn = await coordinator.declare()
    assert condition(await sender.send(encoded("1"), txn)) == "amqp:not-allowed"


async def test_a_disposition_without_an_outcome_is_refused(
    broker: TransactionalPort, coordinator: Coordinator, wire: WireSession
) -> None:
    receiver = await wire.receiver("q")
    (delivery,) = await received(broker, receiver)
    txn = await coordinator.declare()
    assert condition(await receiver.settle(delivery, txn, state=b"")) == "com.microsoft:argument-error"
