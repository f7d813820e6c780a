"""What a sender does with the answers it gets, and with those it does not get."""

from __future__ import annotations

import asyncio

import pytest

from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.amqp.outcomes import annotated_state
from busbar.amqp.types import Int, Symbol
from busbar.client import (
    NO_RETRY,
    BatchOver,
    CannotConnect,
    MessagingFactory,
    NotFound,
    OutgoingMessage,
    SendFailed,
    Unauthorized,
    Writer,
    encode,
)
from busbar.message.parsing import parse_batch
from tests.unit.client.conftest import BRIEFLY
from tests.unit.client.scripted_broker import ScriptedBroker, accept_all

BATCH_FORMAT = 0x80013700


def messages(count: int, size: int = 10) -> list[bytes]:
    return [encode(OutgoingMessage(b"x" * size, message_id=f"{number}")) for number in range(count)]


def ids_of(delivery: Delivery) -> list[str]:
    if delivery.format == BATCH_FORMAT:
        return [draft.message_id for draft in parse_batch(delivery.payload, str, 128, 65536)]
    return [
        draft.message_id
        for draft in parse_batch(
            b"\x00\x53\x75\xb0" + len(delivery.payload).to_bytes(4, "big") + delivery.payload, str, 128, 65536
        )
    ]


async def test_batches_are_as_large_as_the_link_takes(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    scripted.message_size = 10_000
    sender = await factory.sender("q")
    outcome = await sender.send(messages(500, 100))
    assert (outcome.count, outcome.repeated) == (500, 0)
    assert [len(delivery.payload) <= 10_000 for delivery in scripted.arrived].count(False) == 0
    assert len(scripted.arrived) < 10
    assert [name for delivery in scripted.arrived for name in ids_of(delivery)] == [
        str(number) for number in range(500)
    ]


async def test_a_broker_without_mixed_batches_gets_single_messages(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    scripted.offers = []
    sender = await factory.sender("q")
    await sender.send(messages(50))
    assert [delivery.format for delivery in scripted.arrived] == [0] * 50


async def test_no_more_on_their_way_than_allowed(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    held: list[tuple[Link, list[Delivery]]] = []
    scripted.answer = lambda link, deliveries: held.append((link, deliveries))
    sender = await factory.sender("q", in_flight=40)
    sending = asyncio.create_task(sender.send(messages(100)))
    seen = 0
    while seen < 100:
        await asyncio.sleep(0.01)
        waiting = sum(len(ids_of(delivery)) for _link, deliveries in held for delivery in deliveries)
        assert waiting <= 40
        seen += waiting
        for link, deliveries in held:
            accept_all(link, deliveries)
        held.clear()
        for peer in scripted.peers:
            peer.flush()
    await sending


async def test_a_mixed_batch_names_what_failed(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    def answer(link: Link, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            info: dict[object, object] = {"busbar:failed": [1], "busbar:unknown": [0, 3]}
            link.reject_delivery(delivery.id, "amqp:not-allowed", "some of them", info)

    scripted.answer = answer
    sender = await factory.sender("q", in_flight=16)
    with pytest.raises(SendFailed) as caught:
        await sender.send(messages(8))
    assert caught.value.failed == {
        1: ("amqp:not-allowed", "some of them"),
        5: ("amqp:not-allowed", "some of them"),
    }
    assert caught.value.unknown == (0, 3, 4, 7)
    assert len(scripted.arrived) == 2


async def test_a_batch_is_halved_until_the_bad_message_is_alone(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    stored: list[str] = []

    def answer(link: Link, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if {"7", "23"} & set(ids_of(delivery)):
                link.reject_delivery(delivery.id, "com.microsoft:argument-error", "bad")
            else:
                stored.extend(ids_of(delivery))
                link.accept_deliveries([delivery.id])

    scripted.answer = answer
    sender = await factory.sender("q", in_flight=200)
    with pytest.raises(SendFailed) as caught:
        await sender.send(messages(50))
    assert set(caught.value.failed) == {7, 23} and caught.value.unknown == ()
    assert sorted(map(int, stored)) == [number for number in range(50) if number not in (7, 23)]


async def test_a_message_that_is_too_large_is_not_sent(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    scripted.message_size = 1000
    sender = await factory.sender("q")
    mixed = messages(3)
    mixed.insert(1, encode(OutgoingMessage(b"y" * 2000)))
    with pytest.raises(SendFailed, match="takes 1000") as caught:
        await sender.send(mixed)
    assert list(caught.value.failed) == [1]
    assert [name for delivery in scripted.arrived for name in ids_of(delivery)] == ["0", "1", "2"]


async def test_what_is_not_answered_is_unknown_and_what_was_not_sent_has_failed(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    def answer(link: Link, deliveries: list[Delivery]) -> None:
        if len(scripted.arrived) > 2:
            scripted.hang_up()
        else:
            accept_all(link, deliveries)

    scripted.answer = answer
    sender = await factory.sender("q", in_flight=4)  # one message at a time, four on their way
    with pytest.raises(SendFailed) as caught:
        await sender.send(messages(100))
    error = caught.value
    assert error.retryable and error.condition == "busbar:connection-lost"
    assert 0 < len(error.unknown) <= 4
    accepted = 100 - len(error.failed) - len(error.unknown)
    assert sorted([*error.failed, *error.unknown]) == list(range(accepted, 100))
    scripted.answer = accept_all
    await sender.send(messages(1))
    assert scripted.connections == 2, "the next call opens another connection"


async def test_a_writer_repeats_what_was_not_answered(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    seen: list[dict[object, object]] = []
    scripted.attach = lambda link: None if link.sending else seen.append(dict(link.properties))
    stored: list[str] = []

    def answer(link: Link, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            stored.extend(ids_of(delivery))
        if scripted.connections < 3:
            scripted.hang_up()  # stored, but nobody hears of it
        else:
            accept_all(link, deliveries)

    scripted.answer = answer
    sender = await factory.sender("q", writer=Writer("w", 7), in_flight=8)
    outcome = await sender.send(messages(20))
    assert outcome.count == 20 and outcome.repeated >= 20
    assert set(stored) == {str(number) for number in range(20)}
    assert seen.count({"busbar:writer": "w", "busbar:batch": 7}) == 3


async def test_what_the_broker_dropped_is_counted_over_all_connections(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    scripted.offers = ["busbar:mixed-batches", "busbar:duplicates"]
    stored: set[str] = set()

    def answer(link: Link, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            known = len(stored.intersection(ids_of(delivery)))
            stored.update(ids_of(delivery))
            if len(stored) == 30 and scripted.connections == 1:
                scripted.hang_up()  # stored, without an answer
                return
            if known:
                link.dispose([delivery.id], annotated_state({Symbol("busbar:duplicates"): Int(known)}))
            else:
                link.accept_deliveries([delivery.id])

    scripted.answer = answer
    sender = await factory.sender("q", writer=Writer("w", 7))
    assert sender.duplicates == 0
    for _ in range(2):
        await sender.send(messages(20))
    assert (sender.duplicates, sender.doubtful) == (20, 0)
    await sender.send(messages(30)[20:])
    assert scripted.connections == 2
    assert (sender.duplicates, sender.doubtful) == (30, 10), "the ten are repetitions of its own"


async def test_an_older_broker_reports_no_duplicates(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    sender = await factory.sender("q", writer=Writer("w", 7))
    await sender.send(messages(2))
    assert sender.duplicates is None


async def test_a_writer_gives_up_what_cannot_be_stored(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    def answer(link: Link, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            link.reject_delivery(delivery.id, "busbar:batch-over", "later")

    scripted.answer = answer
    sender = await factory.sender("q", writer=Writer("w", 1))
    with pytest.raises(SendFailed) as caught:
        await sender.send(messages(3))
    assert caught.value.condition == BatchOver.default_condition and not caught.value.retryable
    assert len(caught.value.failed) == 3 and len(scripted.arrived) == 1


async def test_silence_ends_the_connection(scripted: ScriptedBroker) -> None:
    scripted.answer = lambda link, deliveries: None
    async with await MessagingFactory.connect(
        scripted.connection_string, retry=NO_RETRY, operation_timeout=0.2
    ) as factory:
        sender = await factory.sender("q")
        with pytest.raises(SendFailed, match=r"No answer for 0\.2 s") as caught:
            await sender.send(messages(3))
        assert caught.value.unknown == (0, 1, 2)


async def test_nobody_there() -> None:
    broker = await ScriptedBroker().start()
    await broker.stop()
    with pytest.raises(CannotConnect, match="cannot be reached"):
        await MessagingFactory.connect(broker.connection_string, retry=NO_RETRY)


async def test_a_broker_that_comes_back_is_waited_for() -> None:
    broker = await ScriptedBroker().start()
    await broker.stop()
    connecting = asyncio.create_task(MessagingFactory.connect(broker.connection_string, retry=BRIEFLY))
    await asyncio.sleep(0.1)
    await broker.start()
    factory = await connecting
    sender = await factory.sender("q")
    await sender.send(messages(1))
    await factory.close()
    await broker.stop()


async def test_refusals_are_not_repeated(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    attaches: list[Link] = []

    def refuse(link: Link) -> None:
        if not link.sending and link.target is not None and link.target.address == "missing":
            attaches.append(link)
            link.refuse("amqp:not-found", "there is no such thing")

    scripted.attach = refuse
    with pytest.raises(NotFound, match="no such thing"):
        await factory.sender("missing")
    assert len(attaches) == 1
    scripted.token_status = 401
    with pytest.raises(Unauthorized, match="as told"):
        await factory.sender("other")
