"""What a MessageSender sends, when it sends again, and that it always ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.amqp.types import Symbol
from busbar.client import (
    BusbarClientError,
    CannotConnect,
    MessageTooLarge,
    MessagingFactory,
    NotFound,
    OperationTimeout,
    OutgoingMessage,
    SendFailed,
    ServerBusy,
    encode,
)
from busbar.message.parsing import parse_batch
from tests.unit.client.conftest import BRIEFLY
from tests.unit.client.scripted_broker import ScriptedBroker, accept_all

BATCH_FORMAT = 0x80013700


def ids_of(delivery: Delivery) -> list[str]:
    payload = delivery.payload
    if delivery.format != BATCH_FORMAT:
        payload = b"\x00\x53\x75\xb0" + len(payload).to_bytes(4, "big") + payload
    return [draft.message_id for draft in parse_batch(payload, str, 128, 65536)]


def batches(scripted: ScriptedBroker) -> list[list[str]]:
    return [ids_of(delivery) for delivery in scripted.arrived]


def named(count: int, size: int = 10) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"x" * size, message_id=str(number)) for number in range(count)]


@pytest_asyncio.fixture
async def unbatched(scripted: ScriptedBroker) -> AsyncIterator[MessagingFactory]:
    made = MessagingFactory(scripted.connection_string, retry=BRIEFLY, batch_flush_interval=0)
    yield made
    await made.close()


async def test_concurrent_sends_go_as_one_batch(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    sender = factory.message_sender("q")
    await asyncio.gather(*[sender.send_messages(message) for message in named(50)])
    assert batches(scripted) == [[str(number) for number in range(50)]]


async def test_without_an_interval_each_goes_alone(
    unbatched: MessagingFactory, scripted: ScriptedBroker
) -> None:
    sender = unbatched.message_sender("q")
    await asyncio.gather(*[sender.send_messages(message) for message in named(50)])
    assert sorted(batches(scripted), key=lambda ids: int(ids[0])) == [[str(number)] for number in range(50)]


async def test_a_batch_is_no_larger_than_the_link_takes(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    scripted.message_size = 10_000
    sender = factory.message_sender("q")
    await sender.send_messages(OutgoingMessage(b"", message_id="first"))
    await asyncio.gather(*[sender.send_messages(message) for message in named(10, 3000)])
    assert [len(ids) for ids in batches(scripted)] == [1, 3, 3, 3, 1]
    assert all(len(delivery.payload) <= 10_000 for delivery in scripted.arrived)


async def test_what_waits_goes_before_what_does_not(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    held: list[tuple[Link, list[Delivery]]] = []
    scripted.answer = lambda link, deliveries: held.append((link, deliveries))
    sender = factory.message_sender("q")
    first = asyncio.create_task(sender.send_messages(OutgoingMessage(b"", message_id="first")))
    while not held:
        await asyncio.sleep(0.001)
    second = asyncio.create_task(sender.send_messages(OutgoingMessage(b"", message_id="second")))
    await asyncio.sleep(0)
    third = asyncio.create_task(sender.send_at_once(OutgoingMessage(b"", message_id="third")))
    fourth = asyncio.create_task(sender.send_messages([OutgoingMessage(b"", message_id="fourth")]))
    await asyncio.sleep(0.05)
    for link, deliveries in held:
        accept_all(link, deliveries)
    for peer in scripted.peers:
        peer.flush()
    scripted.answer = accept_all
    await asyncio.gather(first, second, third, fourth)
    assert batches(scripted) == [["first"], ["second"], ["third"], ["fourth"]]


async def test_each_call_gets_its_own_error(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    scripted.message_size = 1000
    sender = factory.message_sender("q")
    messages = [*named(2), OutgoingMessage(b"y" * 2000), OutgoingMessage(b"", message_id="last")]
    outcomes = await asyncio.gather(
        *[sender.send_messages(message) for message in messages], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), MessageTooLarge, type(None)]
    with pytest.raises(SendFailed) as caught:
        await sender.send_messages(messages)
    assert list(caught.value.failed) == [2]


async def test_a_missing_entity(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    def refuse(link: Link) -> None:
        if not link.sending and link.target is not None and link.target.address == "missing":
            link.refuse("amqp:not-found", "there is no such thing")

    scripted.attach = refuse
    sender = factory.message_sender("missing")
    outcomes = await asyncio.gather(
        *[sender.send_messages(message) for message in named(3)], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [NotFound] * 3


async def test_a_lost_answer_is_reported_and_nothing_is_sent_twice(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    scripted.answer = lambda link, deliveries: scripted.hang_up()
    sender = factory.message_sender("q")
    with pytest.raises(SendFailed) as caught:
        await sender.send_messages(OutgoingMessage(b"", message_id="once"))
    assert caught.value.unknown == (0,) and caught.value.failed == {}
    assert batches(scripted) == [["once"]]
    scripted.answer = accept_all
    await sender.send_messages(OutgoingMessage(b"", message_id="next"))
    assert scripted.connections == 2 and batches(scripted) == [["once"], ["next"]]


async def test_with_duplicate_detection_a_lost_answer_is_asked_for_again(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    def answer(link: Link, deliveries: list[Delivery]) -> None:
        if scripted.connections < 3:
            scripted.hang_up()
        else:
            accept_all(link, deliveries)

    scripted.answer = answer
    sender = factory.message_sender("q", resend_unanswered=True)
    message = OutgoingMessage(b"")
    await sender.send_messages(message)
    assert batches(scripted) == [[message.message_id]] * 3


def busy_twice(scripted: ScriptedBroker, info: dict[object, object] | None) -> None:
    """Let the broker refuse the first two deliveries, since a store is unavailable."""

    def answer(link: Link, deliveries: list[Delivery]) -> None:
        if len(scripted.arrived) < 3:
            for delivery in deliveries:
                link.reject_delivery(delivery.id, ServerBusy.default_condition, "unavailable", info)
        else:
            accept_all(link, deliveries)

    scripted.answer = answer


async def test_a_busy_broker_gets_again_what_it_certainly_did_not_store(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    busy_twice(scripted, {Symbol("busbar:not-stored"): True})
    await factory.message_sender("q").send_messages(OutgoingMessage(b"", message_id="a"))
    assert batches(scripted) == [["a"]] * 3


async def test_a_busy_broker_does_not_get_again_what_it_may_have_stored(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    busy_twice(scripted, None)
    with pytest.raises(SendFailed) as caught:
        await factory.message_sender("q").send_messages(OutgoingMessage(b"", message_id="a"))
    assert caught.value.unknown == (0,) and batches(scripted) == [["a"]]


async def test_what_was_not_sent_is_sent_when_the_broker_is_back() -> None:
    broker = await ScriptedBroker().start()
    factory = MessagingFactory(broker.connection_string, retry=BRIEFLY)
    sender = factory.message_sender("q")
    await sender.send_messages(OutgoingMessage(b"", message_id="before"))
    await broker.stop()
    await asyncio.sleep(0.05)
    sending = asyncio.create_task(sender.send_messages(OutgoingMessage(b"", message_id="after")))
    await asyncio.sleep(0.2)
    assert not sending.done()
    await broker.start()
    await sending
    assert batches(broker) == [["before"], ["after"]]
    await factory.close()
    await broker.stop()


async def test_calls_of_one_turn_share_a_write(scripted: ScriptedBroker) -> None:
    """Also after calls one after the other, each of which is written at once."""
    factory = MessagingFactory(scripted.connection_string, batch_flush_interval=0)
    sender = factory.message_sender("q")
    for message in named(20):
        await sender.send_messages(message)
    before, sent = scripted.reads, len(scripted.arrived)
    await asyncio.gather(*[sender.send_messages(message) for message in named(100)])
    assert len(scripted.arrived) == sent + 100
    assert scripted.reads <= before + 2
    await factory.close()


async def test_a_call_without_an_answer_ends_while_others_are_answered(scripted: ScriptedBroker) -> None:
    def answer(link: Link, deliveries: list[Delivery]) -> None:
        answered = [delivery for delivery in deliveries if ids_of(delivery) != ["unanswered"]]
        accept_all(link, answered)

    scripted.answer = answer
    factory = MessagingFactory(
        scripted.connection_string, batch_flush_interval=0, operation_timeout=1, retry=BRIEFLY
    )
    sender = factory.message_sender("q")
    await sender.send_messages(OutgoingMessage(b"", message_id="before"))
    lost = asyncio.create_task(sender.send_messages(OutgoingMessage(b"", message_id="unanswered")))
    began = time.monotonic()
    while not lost.done():
        await sender.send_messages(OutgoingMessage(b""))
        await asyncio.sleep(0.02)
        assert time.monotonic() < began + 30
    with pytest.raises(OperationTimeout, match=r"1 s"):
        await lost
    assert scripted.connections == 1, "the link lives"
    await factory.close()


@pytest.mark.parametrize("interval", [0.0, 0.02])
async def test_silence_ends_after_the_operation_timeout(scripted: ScriptedBroker, interval: float) -> None:
    scripted.answer = lambda link, deliveries: None
    factory = MessagingFactory(
        scripted.connection_string, batch_flush_interval=interval, operation_timeout=0.3, retry=BRIEFLY
    )
    sender = factory.message_sender("q")
    began = time.monotonic()
    outcomes = await asyncio.gather(
        *[sender.send_messages(message) for message in named(5)], return_exceptions=True
    )
    assert time.monotonic() - began < 3
    for outcome in outcomes:
        assert isinstance(outcome, OperationTimeout | SendFailed), outcome
    await factory.close()


async def test_a_broker_that_accepts_connections_and_nothing_more() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    text = (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    )
    factory = MessagingFactory(text, operation_timeout=0.2, retry=BRIEFLY)
    calls = [
        factory.message_sender("q").send_messages(OutgoingMessage(b"")),
        factory.message_receiver("q").receive_messages(1, 0.1),
        factory.message_receiver("q").peek_messages(),
        factory.accept_session("q", max_wait_time=0.1),
    ]
    began = time.monotonic()
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    assert time.monotonic() - began < 15
    assert all(isinstance(outcome, BusbarClientError) for outcome in outcomes), outcomes
    with pytest.raises(CannotConnect, match="does not answer"):
        await MessagingFactory.connect(text, operation_timeout=0.2, retry=BRIEFLY)
    await factory.close()
    server.close()


async def test_a_closed_sender_has_sent_everything(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    sender = factory.message_sender("q")
    await sender.send_messages(OutgoingMessage(b"", message_id="a"))
    last = asyncio.create_task(sender.send_messages(OutgoingMessage(b"", message_id="b")))
    await asyncio.sleep(0)
    await sender.close()
    await last
    assert batches(scripted) == [["a"], ["b"]]
    with pytest.raises(ValueError, match="closed"):
        await sender.send_messages(OutgoingMessage(b""))


async def test_messages_get_ids(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    sender = factory.message_sender("q")
    messages = [OutgoingMessage(b"") for _ in range(20)]
    await asyncio.gather(*[sender.send_messages(message) for message in messages])
    await sender.send_messages(encode(OutgoingMessage(b"", message_id="encoded")))
    sent = [name for ids in batches(scripted) for name in ids]
    assert sent == [*[message.message_id for message in messages], "encoded"] and len(set(sent)) == 21


def test_settings_are_checked() -> None:
    text = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k"
    assert MessagingFactory(text).batch_flush_interval == 0.020
    assert MessagingFactory(text).operation_timeout == 60
    with pytest.raises(ValueError, match="batch_flush_interval"):
        MessagingFactory(text, batch_flush_interval=-1)
    with pytest.raises(ValueError, match="operation_timeout"):
        MessagingFactory(text, operation_timeout=0)
