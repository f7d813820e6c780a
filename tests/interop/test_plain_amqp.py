"""Qpid Proton: AMQP 1.0 as its specification has it, from a client that was not made for this broker."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from proton import (
    Condition,
    Data,
    Delivery,
    Described,
    Message,
    byte,
    char,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from proton.reactor import AtMostOnce
from proton.utils import LinkDetached

from harness.serving import Busbar
from tests.interop.azure_sdk import Azure, take_one, text_of
from tests.interop.plain_amqp import PlainAmqp, ReceiveSecond, Via, array
from tests.interop.queue_pool import QueuePool

pytestmark = pytest.mark.timeout(60)


def data(text: str, **fields: Any) -> Message:
    """A message whose body is one data section."""
    return Message(body=text.encode(), inferred=True, **fields)


def texts(plain: PlainAmqp, receiver: Any, count: int) -> list[str]:
    return [plain.take(receiver)[0].body.decode() for _ in range(count)]


@pytest.mark.req("U2")
def test_send_and_receive(plain: PlainAmqp, queue: str) -> None:
    sent = plain.send(queue, data("hello", id="id-1", subject="s", content_type="text/plain", reply_to="r"))
    assert sent.remote_state == Delivery.ACCEPTED

    message, delivery = plain.take(plain.receiver(queue, 1))

    assert (message.body, message.id, message.subject, message.reply_to) == (b"hello", "id-1", "s", "r")
    assert message.content_type == "text/plain"
    assert message.delivery_count == 0
    assert plain.settle(delivery, Delivery.ACCEPTED) == Delivery.ACCEPTED
    status, _body = plain.manage(
        queue, "peek-message", {"from-sequence-number": 1, "message-count": int32(1)}
    )
    assert status == 204


def test_a_message_without_an_id_gets_one(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("1"), data("2"))
    receiver = plain.receiver(queue, 2)

    ids = [plain.take(receiver)[0].id for _ in range(2)]

    assert all(isinstance(given, str) and len(given) == 32 for given in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("given", "kind"),
    [(uuid.UUID(int=7), uuid.UUID), (ulong(7), int), (b"seven", memoryview), ("seven", str)],
    ids=["uuid", "ulong", "binary", "string"],
)
def test_a_message_id_keeps_its_type(plain: PlainAmqp, queue: str, given: Any, kind: type) -> None:
    plain.send(queue, data("x", id=given))

    message, _delivery = plain.take(plain.receiver(queue, 1))

    assert message.id == given
    assert type(message.id) is kind


def test_the_annotations_have_their_exact_types(plain: PlainAmqp, queue: str) -> None:
    """Other SDKs cast these values: a sequence number that is not a long breaks them."""
    plain.send(queue, data("x"))

    message, _delivery = plain.take(plain.receiver(queue, 1))

    annotations = {str(key): value for key, value in message.annotations.items()}
    assert type(annotations["x-opt-sequence-number"]) is int  # proton's plain int is AMQP's long
    assert annotations["x-opt-sequence-number"] == 1
    assert type(annotations["x-opt-enqueued-time"]) is timestamp
    assert type(annotations["x-opt-locked-until"]) is timestamp
    assert annotations["x-opt-locked-until"] - annotations["x-opt-enqueued-time"] >= 60_000
    assert abs(annotations["x-opt-enqueued-time"] - time.time() * 1000) < 10_000


EVERY_TYPE: dict[str, Any] = {
    "null": None,
    "bool": True,
    "ubyte": ubyte(200),
    "byte": byte(-100),
    "ushort": ushort(60_000),
    "short": short(-30_000),
    "uint": uint(4_000_000_000),
    "int": int32(-2_000_000_000),
    "ulong": ulong((1 << 64) - 1),
    "long": -(1 << 60),
    "float": float32(0.5),
    "double": 0.1,
    "decimal": decimal128(b"\x01" * 16),
    "char": char("\N{SNOWMAN}"),
    "timestamp": timestamp(1_700_000_000_000),
    "uuid": uuid.UUID(int=99),
    "binary": b"\x00\x01",
    "string": "text",
    "symbol": symbol("a-symbol"),
    "timespan": Described(symbol("com.microsoft:timespan"), 36_000_000_000),
}


def test_application_properties_of_every_amqp_type(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("x", properties=dict(EVERY_TYPE)))

    message, _delivery = plain.take(plain.receiver(queue, 1))

    assert message.properties == EVERY_TYPE
    for name, value in EVERY_TYPE.items():
        assert type(message.properties[name]) is type(value), name


VALUES: dict[str, Any] = {
    "text": "a value",
    "nested": {"list": [1, [2, {"three": 3}]], "described": Described(symbol("my:type"), ["x"])},
    "array": array(Data.INT, 1, 2, 3),
    "null": None,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_body(plain: PlainAmqp, queue: str, name: str) -> None:
    plain.send(queue, Message(body=VALUES[name]))

    message, _delivery = plain.take(plain.receiver(queue, 1))

    assert message.body == VALUES[name]
    assert not message.inferred


def test_small_frames(broker: Busbar, queue: str) -> None:
    """A client may ask for frames of 512 bytes: then 50 KB are a hundred frames each way."""
    client = PlainAmqp(broker.port, broker.key, max_frame_size=512)
    body = bytes(range(250)) * 200
    client.send(queue, Message(body=body, inferred=True))

    message, delivery = client.take(client.receiver(queue, 1))

    assert bytes(message.body) == body
    assert client.settle(delivery, Delivery.ACCEPTED) == Delivery.ACCEPTED
    client.close()


@pytest.mark.req("B3")
def test_many_sends_in_flight(plain: PlainAmqp, queue: str) -> None:
    """Hundreds of sends are under way at once, and credit is topped up in time for 3,000."""
    sender = plain.connection.create_sender(queue)
    deliveries: list[Any] = []
    for n in range(3000):
        if not sender.link.credit:
            plain.pump(lambda: sender.link.credit)
        deliveries.append(sender.link.send(data(str(n))))
    assert sum(not delivery.settled for delivery in deliveries) > 100
    plain.pump(lambda: all(delivery.settled for delivery in deliveries), timeout=20)

    assert {delivery.remote_state for delivery in deliveries} == {Delivery.ACCEPTED}
    receiver = plain.receiver(queue, 3000, AtMostOnce())
    assert texts(plain, receiver, 3000) == [str(n) for n in range(3000)]


def test_sends_that_are_already_settled(plain: PlainAmqp, queue: str) -> None:
    sender = plain.connection.create_sender(queue, options=AtMostOnce())
    for n in range(3):
        sender.send(data(str(n)))

    assert texts(plain, plain.receiver(queue, 3), 3) == ["0", "1", "2"]


def test_a_settled_receiver_deletes(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("1"), data("2"))
    receiver = plain.receiver(queue, 5, AtMostOnce())

    assert texts(plain, receiver, 2) == ["1", "2"]
    status, _body = plain.manage(
        queue, "peek-message", {"from-sequence-number": 1, "message-count": int32(1)}
    )
    assert status == 204


# Outcomes


@pytest.mark.req("U2")
def test_abandon_with_modified_properties(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("x", properties={"kept": 1, "changed": "old"}))
    receiver = plain.receiver(queue, 2)
    _message, delivery = plain.take(receiver)

    outcome = plain.settle(
        delivery, Delivery.MODIFIED, failed=True, annotations={symbol("changed"): "new", symbol("added"): 2}
    )

    assert outcome == Delivery.MODIFIED
    message, _delivery = plain.take(receiver)
    assert message.delivery_count == 1
    assert message.properties == {"kept": 1, "changed": "new", "added": 2}


@pytest.mark.req("U2")
def test_defer_with_modified_properties(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("x"))
    receiver = plain.receiver(queue, 1)
    _message, delivery = plain.take(receiver)

    outcome = plain.settle(
        delivery, Delivery.MODIFIED, undeliverable=True, annotations={symbol("why"): "later"}
    )

    assert outcome == Delivery.MODIFIED
    status, body = plain.manage(
        queue,
        "receive-by-sequence-number",
        {"sequence-numbers": array(Data.LONG, 1), "receiver-settle-mode": uint(1)},
    )
    assert status == 200
    [entry] = body["messages"]
    assert isinstance(entry["lock-token"], uuid.UUID)
    deferred = Message()
    deferred.decode(bytes(entry["message"]))
    assert deferred.properties == {"why": "later"}


@pytest.mark.req("U2")
def test_release_does_not_count(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("x"))
    receiver = plain.receiver(queue, 1)
    for _ in range(12):  # more often than MaxDeliveryCount
        message, delivery = plain.take(receiver)
        assert message.delivery_count == 0
        assert plain.settle(delivery, Delivery.RELEASED) == Delivery.RELEASED
        receiver.link.flow(1)


@pytest.mark.req("U2")
def test_reject_is_dead_letter(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("1"), data("2"))
    receiver = plain.receiver(queue, 2)
    _message, first = plain.take(receiver)
    _message, second = plain.take(receiver)

    info: Any = {
        symbol("DeadLetterReason"): "Bad",
        symbol("DeadLetterErrorDescription"): "Very",
        symbol("mine"): 3,
    }
    outcome = plain.settle(
        first, Delivery.REJECTED, condition=Condition("com.microsoft:dead-letter", "a text", info)
    )
    assert outcome == Delivery.REJECTED
    assert first.remote.condition is None
    assert plain.settle(second, Delivery.REJECTED) == Delivery.REJECTED

    dead_letters = plain.receiver(f"{queue}/$DeadLetterQueue", 2)
    message, _delivery = plain.take(dead_letters)
    assert message.properties == {"DeadLetterReason": "Bad", "DeadLetterErrorDescription": "Very", "mine": 3}
    message, _delivery = plain.take(dead_letters)
    assert not message.properties


def test_a_receiver_that_settles_first(plain: PlainAmqp, queue: str) -> None:
    """Without waiting for the broker's word (rcv-settle-mode first): the outcome still holds."""
    plain.send(queue, data("1"), data("2"))
    receiver: Any = plain.connection.create_receiver(queue, credit=2)
    assert bytes(receiver.receive().body) == b"1"
    receiver.accept()
    assert bytes(receiver.receive().body) == b"2"
    receiver.release(delivered=False)
    receiver.close()

    message, _delivery = plain.take(plain.receiver(queue, 2))
    assert bytes(message.body) == b"2"
    assert message.delivery_count == 0


# Credit


@pytest.mark.req("U2")
def test_credit_is_respected_to_the_message(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, *(data(str(n)) for n in range(10)))
    receiver = plain.receiver(queue)
    plain.listen(0.2)
    assert not receiver.fetcher.has_message

    receiver.link.flow(3)
    plain.listen(0.3)
    assert receiver.fetcher.has_message == 3

    receiver.link.flow(2)
    assert texts(plain, receiver, 5) == ["0", "1", "2", "3", "4"]


def test_drain_returns_the_credit_that_is_left(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, data("1"), data("2"))
    receiver = plain.receiver(queue)

    receiver.link.drain(10)
    plain.pump(lambda: receiver.link.credit == 0)

    assert texts(plain, receiver, 2) == ["1", "2"]
    plain.send(queue, data("3"))
    plain.listen(0.2)
    assert not receiver.fetcher.has_message
    receiver.link.drain_mode = False
    receiver.link.flow(1)
    assert texts(plain, receiver, 1) == ["3"]


def test_drain_of_an_empty_queue_is_answered_at_once(plain: PlainAmqp, queue: str) -> None:
    receiver = plain.receiver(queue, 5)
    plain.listen(0.1)

    receiver.link.drain(0)

    plain.pump(lambda: receiver.link.credit == 0, timeout=2)


def test_credit_waits_for_messages(plain: PlainAmqp, queue: str) -> None:
    receiver = plain.receiver(queue, 2)
    plain.listen(0.1)

    plain.send(queue, data("1"), data("2"), data("3"))

    assert texts(plain, receiver, 2) == ["1", "2"]
    plain.listen(0.2)
    assert not receiver.fetcher.has_message


def test_a_link_that_closes_gives_back_what_it_releases(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, *(data(str(n)) for n in range(20)))
    leaving = plain.receiver(queue, 20)
    plain.take(leaving)
    plain.pump(lambda: leaving.fetcher.has_message == 19)
    for _message, delivery in leaving.fetcher.incoming:
        delivery.update(Delivery.RELEASED)
        delivery.settle()
    leaving.close()

    receiver = plain.receiver(queue, 20)
    plain.listen(0.3)
    assert {message.delivery_count for message, _delivery in receiver.fetcher.incoming} == {0}
    assert texts(plain, receiver, 19) == [str(n) for n in range(1, 20)]


def test_two_links_and_two_connections_share_a_queue(plain: PlainAmqp, broker: Busbar, queue: str) -> None:
    other = PlainAmqp(broker.port, broker.key)
    mine, also_mine, theirs = plain.receiver(queue, 1), plain.receiver(queue, 1), other.receiver(queue, 1)
    plain.listen(0.1)
    other.listen(0.1)
    plain.send(queue, data("1"), data("2"), data("3"))

    plain.pump(lambda: mine.fetcher.has_message and also_mine.fetcher.has_message)
    other.pump(lambda: theirs.fetcher.has_message)

    received = [*texts(plain, mine, 1), *texts(plain, also_mine, 1), *texts(other, theirs, 1)]
    assert sorted(received) == ["1", "2", "3"]
    other.close()


def test_heartbeats_keep_an_idle_connection(broker: Busbar, queue: str) -> None:
    """The client asks for a frame at least every 400 ms; the broker sends empty ones when it has nothing to say."""
    client = PlainAmqp(broker.port, broker.key, heartbeat=0.4)
    client.listen(1.5)

    assert client.send(queue, data("still there")).remote_state == Delivery.ACCEPTED
    client.close()


def test_links_can_be_closed_and_opened_again(plain: PlainAmqp, queue: str) -> None:
    for n in range(5):
        plain.send(queue, data(str(n)))
        receiver = plain.receiver(queue, 1)
        assert texts(plain, receiver, 1) == [str(n)]
        receiver.close()


@pytest.mark.req("B3")
def test_dispositions_of_a_whole_range(plain: PlainAmqp, queue: str) -> None:
    plain.send(queue, *(data(str(n)) for n in range(30)))
    receiver = plain.receiver(queue, 30, ReceiveSecond())  # 30 receives overlap
    deliveries = [plain.take(receiver)[1] for _ in range(30)]
    for delivery in deliveries:
        delivery.update(Delivery.ACCEPTED)

    plain.pump(lambda: all(delivery.settled for delivery in deliveries))

    assert {delivery.remote_state for delivery in deliveries} == {Delivery.ACCEPTED}


# Together with the SDK


@pytest.mark.req("U2")
@pytest.mark.asyncio(loop_scope="session")
async def test_the_two_clients_understand_each_other(
    plain: PlainAmqp, azure: Azure, queues: QueuePool
) -> None:
    there, back = queues.take("plain"), queues.take("plain")
    plain.send(there, data("from proton", id="p", subject="s", properties={"n": int32(1)}, ttl=60))
    await azure.send(
        back, ServiceBusMessage("from azure", message_id="a", subject="t", application_properties={"n": 2})
    )

    got = await take_one(azure.receiver(there))
    assert (text_of(got), got.message_id, got.subject, got.application_properties) == (
        "from proton",
        "p",
        "s",
        {b"n": 1},
    )
    assert got.time_to_live == timedelta(seconds=60)
    message, _delivery = plain.take(plain.receiver(back, 1))
    assert (message.body, message.id, message.subject, message.properties) == (
        b"from azure",
        "a",
        "t",
        {"n": 2},
    )


@pytest.mark.parametrize(
    ("field", "value"), [("id", "x" * 129), ("group_id", "x" * 129)], ids=["message-id", "group-id"]
)
def test_an_id_that_is_too_long_is_refused(plain: PlainAmqp, queue: str, field: str, value: str) -> None:
    sender = plain.connection.create_sender(queue)
    delivery: Any = sender.link.send(data("x", **{field: value}))
    plain.pump(lambda: delivery.settled)

    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == "com.microsoft:argument-out-of-range"
    assert "129" in delivery.remote.condition.description
    assert sender.send(data("next")).remote_state == Delivery.ACCEPTED


def test_sending_via_another_entity_needs_a_destination(plain: PlainAmqp, queue: str) -> None:
    """The link's own entity would keep the messages, and nobody would hear of it."""
    with pytest.raises(LinkDetached) as refusal:
        plain.connection.create_sender(queue, name=f"via-{queue}", options=Via("somewhere/else"))
    assert refusal.value.condition == "amqp:not-found"
    assert "'somewhere/else'" in str(refusal.value) and "could not be found" in str(refusal.value)
    plain.send(queue, Message(body="straight"))  # the connection goes on
    message, delivery = plain.take(plain.receiver(queue, 5))
    assert message.body == "straight"
    plain.settle(delivery, Delivery.ACCEPTED)
