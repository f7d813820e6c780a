"""What the SDK sends arrives as it was sent: one by one, in batches, in every shape a message can have."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from harness.serving import Busbar
from tests.interop.azure_sdk import Azure, nothing_left, take, take_one, text_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


async def test_the_connection_string_is_the_emulators(broker: Busbar) -> None:
    assert broker.connection_string.startswith("Endpoint=sb://")
    assert broker.connection_string.rstrip(";").endswith("UseDevelopmentEmulator=true")


@pytest.mark.req("U1")
async def test_one_message(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages(ServiceBusMessage("hello"))

    message = await take_one(azure.receiver(queue))

    assert text_of(message) == "hello"
    assert message.sequence_number == 1
    assert message.delivery_count == 0


@pytest.mark.req("U1")
async def test_a_list_goes_as_one_batch_and_keeps_its_order(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(50)])

    messages = await take(azure.receiver(queue), 50)

    assert [text_of(message) for message in messages] == [str(n) for n in range(50)]
    assert [message.sequence_number for message in messages] == list(range(1, 51))


async def test_a_batch_is_filled_to_the_limit_that_the_broker_names(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    batch = await sender.create_message_batch()
    assert batch.max_size_in_bytes == 256 * 1024
    sent = 0
    with pytest.raises(ValueError, match="size"):
        while True:
            batch.add_message(ServiceBusMessage(bytes(10_000), message_id=f"m{sent}"))
            sent += 1

    await sender.send_messages(batch)

    assert sent > 20
    messages = await take(azure.receiver(queue), sent)
    assert [message.message_id for message in messages] == [f"m{n}" for n in range(sent)]


async def test_a_message_without_a_body(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages(ServiceBusMessage(None, message_id="empty"))

    message = await take_one(azure.receiver(queue))

    assert message.message_id == "empty"
    assert message.body is None or list(message.body) in ([], [b""])


async def test_a_message_of_many_frames(azure: Azure, queue: str) -> None:
    """200 KB do not fit in a frame of 64 KB: the transfer is split on the way in and on the way out."""
    body = bytes(range(256)) * 800
    await azure.sender(queue).send_messages(ServiceBusMessage(body))

    message = await take_one(azure.receiver(queue))

    assert b"".join(message.body) == body


@pytest.mark.req("U1")
async def test_all_properties_of_a_message(azure: Azure, queue: str) -> None:
    sent = ServiceBusMessage(
        b"body",
        message_id="id-1",
        correlation_id="correlation-1",
        subject="the subject",
        content_type="application/json",
        to="somewhere",
        reply_to="back-here",
        reply_to_session_id="reply-session",
        session_id="key",
        partition_key="key",
        time_to_live=timedelta(minutes=5),
    )
    before = datetime.now(UTC)
    await azure.sender(queue).send_messages(sent)

    got = await take_one(azure.receiver(queue))

    for name in (
        "message_id",
        "correlation_id",
        "subject",
        "content_type",
        "to",
        "reply_to",
        "reply_to_session_id",
        "session_id",
        "partition_key",
        "time_to_live",
    ):
        assert getattr(got, name) == getattr(sent, name), name
    enqueued = got.enqueued_time_utc
    assert enqueued is not None
    assert before - timedelta(seconds=1) <= enqueued <= datetime.now(UTC) + timedelta(seconds=1)
    assert got.expires_at_utc == enqueued + timedelta(minutes=5)
    assert got.locked_until_utc is not None
    assert timedelta(seconds=55) < got.locked_until_utc - datetime.now(UTC) <= timedelta(seconds=60)
    assert got.dead_letter_reason is None and got.dead_letter_source is None


APPLICATION_PROPERTIES: dict[str | bytes, Any] = {
    "text": "grün",
    "empty": "",
    "true": True,
    "false": False,
    "int": 7,
    "negative": -7,
    "float": 0.25,
    "uuid": uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"),
    "nothing": None,
    "a name with spaces and \N{SNOWMAN}": "as it is",
}


async def test_application_properties_of_every_type(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages(
        ServiceBusMessage("p", application_properties=dict(APPLICATION_PROPERTIES))
    )

    got = await take_one(azure.receiver(queue))

    properties = {_text(name): _text(value) for name, value in (got.application_properties or {}).items()}
    assert properties == APPLICATION_PROPERTIES


def _text(value: Any) -> Any:
    """The SDK gives strings back as bytes (and makes strings of bytes when it sends)."""
    return value.decode() if isinstance(value, bytes) else value


BODIES: dict[str, tuple[dict[str, Any], AmqpMessageBodyType, Any]] = {
    "one data section": ({"data_body": b"one"}, AmqpMessageBodyType.DATA, [b"one"]),
    "several data sections": ({"data_body": [b"a", b"", b"c"]}, AmqpMessageBodyType.DATA, [b"a", b"", b"c"]),
    "a value": (
        {"value_body": {b"k": [1, b"two", None]}},
        AmqpMessageBodyType.VALUE,
        {b"k": [1, b"two", None]},
    ),
    "a sequence": (
        {"sequence_body": [[1, 2], [b"three"]]},
        AmqpMessageBodyType.SEQUENCE,
        [[1, 2], [b"three"]],
    ),
}


async def test_a_body_of_every_kind(azure: Azure, queue: str) -> None:
    sender, receiver = azure.sender(queue), azure.receiver(queue)
    for kind, (body, body_type, expected) in BODIES.items():
        await sender.send_messages(AmqpAnnotatedMessage(**body))

        got = await take_one(receiver)

        assert got.body_type == body_type, kind
        assert _sections(got) == expected, kind


def _sections(message: ServiceBusReceivedMessage) -> Any:
    body = message.raw_amqp_message.body
    return body if message.body_type == AmqpMessageBodyType.VALUE else list(body)


async def test_the_sections_of_a_raw_amqp_message(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages(
        AmqpAnnotatedMessage(
            data_body=b"raw",
            header=AmqpMessageHeader(priority=7, durable=True, first_acquirer=True),
            properties=AmqpMessageProperties(
                message_id="raw-1",
                user_id=b"user",
                content_encoding="gzip",
                group_id="group",
                group_sequence=3,
                reply_to_group_id="reply-group",
            ),
            annotations={"x-opt-mine": "kept"},
            footer={"checksum": 42},
        )
    )

    raw = (await take_one(azure.receiver(queue))).raw_amqp_message

    assert raw.properties is not None and raw.header is not None
    assert raw.header.priority == 7
    assert raw.properties.message_id == b"raw-1"
    assert raw.properties.user_id == b"user"
    assert raw.properties.content_encoding == b"gzip"
    assert raw.properties.group_id == b"group"
    assert raw.properties.group_sequence == 3
    assert raw.properties.reply_to_group_id == b"reply-group"
    assert (raw.annotations or {})[b"x-opt-mine"] == b"kept"
    assert (raw.footer or {})[b"checksum"] == 42


async def test_a_received_message_can_be_sent_on(azure: Azure, queue: str) -> None:
    """The SDK sends the broker's annotations back with it: they mean nothing on the way in."""
    await azure.send(queue, "again")
    first = await take_one(azure.receiver(queue))

    await azure.sender(queue).send_messages(first)

    second = await take_one(azure.receiver(queue))
    assert text_of(second) == "again"
    assert second.sequence_number == 2
    assert second.delivery_count == 0
    assert second.lock_token != first.lock_token


async def test_asynchronous_sends_overlap(azure_async: Azure, queue: str) -> None:
    """The next send starts before the last has ended, on one sender and on several."""
    senders = [azure_async.sender(queue) for _ in range(3)]
    await asyncio.gather(*(sender.send_messages(ServiceBusMessage("open")) for sender in senders))

    await asyncio.gather(
        *(
            sender.send_messages(ServiceBusMessage(f"{number}-{n}"))
            for n in range(20)
            for number, sender in enumerate(senders)
        )
    )

    receiver = azure_async.once(queue)
    texts = [text_of(message) for message in await take(receiver, 63)]
    assert sorted(texts) == sorted(["open"] * 3 + [f"{s}-{n}" for s in range(3) for n in range(20)])
    assert await nothing_left(receiver)
