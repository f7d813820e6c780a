"""Tokens that are renewed, settlements that go wrong, links that end; and patience."""

from __future__ import annotations

import asyncio

import pytest

from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED
from busbar.client import (
    NO_RETRY,
    BusbarClientError,
    CannotConnect,
    ConnectionLost,
    EntityGone,
    InvalidOperation,
    LockLost,
    MessagingFactory,
    NotFound,
    OutgoingMessage,
    QuotaExceeded,
    Retry,
    SendFailed,
    SessionCannotBeLocked,
    SettleFailed,
    Unauthorized,
    encode,
)
from busbar.client import tokens as tokens_module
from busbar.client.errors import error_of
from busbar.client.tokens import Tokens
from harness.waiting import until
from tests.unit.client.scripted_broker import Peer, ScriptedBroker


def payload(number: int) -> bytes:
    return encode(OutgoingMessage(b"%d" % number, message_id=str(number)))


def giving(broker: ScriptedBroker, count: int) -> list[Link]:
    """Let the broker deliver so many messages on each link on which it sends from `q`; those links."""
    links: list[Link] = []

    def attach(link: Link) -> None:
        if link.sending and link.source is not None and link.source.address == "q":
            links.append(link)
            asyncio.get_running_loop().call_later(0.01, give, link)

    def give(link: Link) -> None:
        tags = [number.to_bytes(16, "big") for number in range(count)]
        link.deliver(tags, [payload(number) for number in range(count)], link.snd_settle_mode == 1)
        for peer in broker.peers:
            peer.flush()

    broker.attach = attach
    return links


async def test_tokens_are_put_once_and_renewed(
    scripted: ScriptedBroker, factory: MessagingFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await factory.sender("q")
    await factory.receiver("q", sub_queue="deadletter")
    assert len(scripted.tokens) == 1, "what is below an entity needs no token of its own"
    await factory.sender("other")
    assert len(scripted.tokens) == 2
    monkeypatch.setattr(tokens_module, "RENEW_AFTER", tokens_module.LIFETIME // 100)
    connection = await factory.connection()
    await Tokens(connection, 5.0, lifetime=10).grant("third")
    while len(scripted.tokens) < 4:
        await asyncio.sleep(0.02)
    assert scripted.tokens[2] != scripted.tokens[1]


async def test_settlements_say_which_failed(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    giving(scripted, 5)

    def settle(link: Link, ids: list[int]) -> None:
        link.deny(ids[1], "com.microsoft:message-lock-lost", "too late")
        link.confirm([ids[0], *ids[2:]], ACCEPTED)

    scripted.settle = settle
    receiver = await factory.receiver("q")
    got = await receiver.receive(10)
    assert [message.decode().data for message in got] == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(SettleFailed, match="Of 5 messages 1 ") as caught:
        await receiver.complete(got)
    assert caught.value.failed == {1: ("com.microsoft:message-lock-lost", "too late")}


async def test_locks_end_with_the_connection(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    links = giving(scripted, 5)
    receiver = await factory.receiver("q")
    got = await receiver.receive(2)
    scripted.settle = lambda link, ids: scripted.hang_up()
    with pytest.raises(SettleFailed) as caught:
        await receiver.complete(got)
    assert caught.value.condition == "busbar:connection-lost"
    with pytest.raises(LockLost):
        await receiver.complete(got)
    with pytest.raises(ConnectionLost):
        await receiver.receive(10)
    assert len(await receiver.receive(10)) == 5 and len(links) == 2


async def test_an_entity_that_goes_ends_its_links_alone(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    links = giving(scripted, 0)
    receiver = await factory.receiver("q")
    sender = await factory.sender("other")
    waiting = asyncio.create_task(receiver.receive(1, 10))
    await asyncio.sleep(0.05)
    links[0].detach("amqp:not-found", "it was deleted")
    scripted.peers[0].flush()
    with pytest.raises(EntityGone, match="it was deleted"):
        await waiting
    await sender.send([payload(1)])
    assert scripted.connections == 1


async def test_nothing_comes(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    receiver = await factory.receiver("q")
    assert await receiver.receive(1, 0.05) == []


async def test_credit_is_not_more_than_asked_for(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    links = giving(scripted, 10)
    receiver = await factory.receiver("q", credit=4)
    await asyncio.sleep(0.1)
    assert links[0].queued == 6
    assert len(await receiver.receive(10)) == 4
    assert len(await receiver.receive(10)) == 4
    with pytest.raises(ValueError, match="credit is 0"):
        await factory.receiver("q", credit=0)


async def test_messages_that_were_deleted_cannot_be_settled(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    giving(scripted, 2)
    receiver = await factory.receiver("q", delete=True)
    got = await receiver.receive(10)
    with pytest.raises(ValueError, match="deleted"):
        await receiver.complete(got)


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:resource-limit-exceeded", QuotaExceeded),
        ("amqp:unauthorized-access", Unauthorized),
        ("amqp:not-found", NotFound),
        ("amqp:not-allowed", InvalidOperation),
    ],
)
async def test_a_refusal_at_open_has_its_own_error(
    scripted: ScriptedBroker, condition: str, kind: type[BusbarClientError]
) -> None:
    scripted.refusal = condition
    error = await refused_once(scripted, kind)
    assert (error.condition, error.retryable) == (condition, False) and "as told" in error.text


@pytest.mark.parametrize(
    "condition", ["amqp:connection:forced", "com.microsoft:server-busy", "unknown:condition"]
)
async def test_a_close_at_open_that_is_no_refusal_is_no_connection(
    scripted: ScriptedBroker, condition: str
) -> None:
    scripted.refusal = condition
    with pytest.raises(CannotConnect, match=condition) as caught:
        await MessagingFactory.connect(scripted.connection_string, retry=NO_RETRY)
    assert caught.value.retryable


async def test_refused_credentials_are_not_tried_again(scripted: ScriptedBroker) -> None:
    scripted.sasl_code = 1
    await refused_once(scripted, Unauthorized)


async def refused_once(scripted: ScriptedBroker, kind: type[BusbarClientError]) -> BusbarClientError:
    """The broker gets one connection, although the Retry has patience."""
    before = scripted.connections
    with pytest.raises(kind) as caught:
        await MessagingFactory.connect(scripted.connection_string, retry=Retry(patience=30.0, first=0.01))
    assert type(caught.value) is kind and scripted.connections == before + 1
    return caught.value


async def test_a_close_after_the_open_loses_the_connection(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    """Whatever its condition: operations may have been under way."""
    scripted.answer = lambda link, deliveries: None
    sender = await factory.sender("q")
    sending = asyncio.create_task(sender.send([payload(1)]))
    while not scripted.arrived:
        await asyncio.sleep(0.01)
    scripted.close("amqp:resource-limit-exceeded")
    with pytest.raises(SendFailed) as caught:
        await sending
    assert (caught.value.condition, caught.value.unknown) == (ConnectionLost.default_condition, (0,))


async def test_a_closed_factory(scripted: ScriptedBroker, factory: MessagingFactory) -> None:
    sender = await factory.sender("q")
    await factory.close()
    with pytest.raises(ValueError, match="closed"):
        await sender.send([payload(1)])


class HeldBytes:
    """What clients send while the broker reads nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._held: list[tuple[Peer, bytes]] = []
        monkeypatch.setattr(Peer, "data_received", lambda peer, data: self._held.append((peer, data)))

    def __len__(self) -> int:
        return len(self._held)

    def release(self) -> None:
        self._monkeypatch.undo()
        for peer, data in self._held:
            peer.data_received(data)


async def test_a_cancelled_call_leaves_no_connection_half_open(
    scripted: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldBytes(monkeypatch)
    factory = MessagingFactory(scripted.connection_string)
    opening = asyncio.create_task(factory.connection())
    await until(lambda: held)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await until(lambda: not scripted.peers)
    await factory.close()


async def test_a_factory_that_is_closed_while_it_connects(
    scripted: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldBytes(monkeypatch)
    factory = MessagingFactory(scripted.connection_string)
    opening = asyncio.create_task(factory.connection())
    await until(lambda: held)
    await factory.close()
    held.release()
    with pytest.raises(ValueError, match="closed"):
        await opening
    await until(lambda: not scripted.peers)


async def test_a_refused_transaction_leaves_no_session(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    def attach(link: Link) -> None:
        if not link.sending and link.target is not None and link.target.address == "missing":
            link.refuse("amqp:not-found", "there is no such thing")

    scripted.attach = attach
    connection = await factory.connection()
    for _ in range(5):
        with pytest.raises(NotFound):
            await factory.transaction(via="missing").begin()
    await until(lambda: len(connection._engine.sessions) == 1)
    await factory.message_sender("q").send_messages(OutgoingMessage(b"still connected"))
    assert scripted.connections == 1


async def test_a_coordinator_that_the_broker_closes_leaves_no_session(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    declared: list[Link] = []

    def answer(link: Link, deliveries: list[Delivery]) -> None:
        declared.append(link)
        for delivery in deliveries:
            link.declared(delivery.id, b"txn")

    scripted.answer = answer
    connection = await factory.connection()
    for round in range(3):
        await factory.transaction().begin()
        declared[round].detach("amqp:internal-error", "it failed")
        scripted.peers[0].flush()
        await until(lambda: len(connection._engine.sessions) == 1)
    assert scripted.connections == 1


async def test_a_send_in_a_transaction_of_a_lost_connection_fails_at_once(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    def answer(link: Link, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            link.declared(delivery.id, b"txn")

    scripted.answer = answer
    transaction = factory.transaction()
    await transaction.begin()
    scripted.hang_up()
    await until(lambda: not scripted.peers)
    began = asyncio.get_running_loop().time()
    with pytest.raises(ConnectionLost, match="rolled it back"):
        await factory.message_sender("q").send_messages(OutgoingMessage(b""), transaction=transaction)
    assert asyncio.get_running_loop().time() - began < factory.retry.patience / 2


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_session_is_accepted_when_the_broker_is_back(
    scripted: ScriptedBroker, factory: MessagingFactory, is_lost: bool
) -> None:
    asked: list[Link] = []

    def attach(link: Link) -> None:
        if link.source is None or link.source.address != "s":
            return
        asked.append(link)
        if len(asked) < 3 and is_lost:
            scripted.hang_up()
        elif len(asked) < 3:
            link.refuse("com.microsoft:server-busy", "a broker is starting")

    scripted.attach = attach
    session = await factory.accept_session("s", "one", max_wait_time=5)
    assert session.session_id == "one" and len(asked) == 3
    assert scripted.connections == (3 if is_lost else 1)


async def test_a_session_that_another_receiver_holds_is_asked_for_once(
    scripted: ScriptedBroker, factory: MessagingFactory
) -> None:
    asked: list[Link] = []

    def attach(link: Link) -> None:
        if link.source is not None and link.source.address == "s":
            asked.append(link)
            link.refuse("com.microsoft:session-cannot-be-locked", "it is held")

    scripted.attach = attach
    with pytest.raises(SessionCannotBeLocked):
        await factory.accept_session("s", "one", max_wait_time=5)
    assert len(asked) == 1


async def test_patience() -> None:
    calls: list[int] = []

    async def call() -> int:
        calls.append(1)
        if len(calls) < 4:
            raise error_of("com.microsoft:server-busy", "later")
        return 7

    assert await Retry(patience=5, first=0.001, longest=0.002).run(call) == 7
    calls.clear()
    with pytest.raises(BusbarClientError, match="later"):
        await NO_RETRY.run(call)
    assert len(calls) == 1
