"""A received message is sent again as it is, with the vendor's SDK, from every kind of entity.

The SDK has bytes where it received a text, and cannot encode every integer that it received itself (a scheduled time, a
sequence number of another fragment than the first): where that is so, the test does what a user would have to do.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from busbar.model.partitioning import FRAGMENTS, index_of_key
from harness.serving import Busbar
from tests.interop.azure_sdk import Azure, nothing_left, take_one, text_of
from tests.interop.partitioned_queues import index_of
from tests.interop.queue_pool import QueuePool
from tests.interop.session_queues import World, every_way
from tests.interop.topics import Topic, everywhere

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]

FIRST = next(key for key in (f"schlüssel-{n}" for n in range(999)) if index_of_key(key, FRAGMENTS) == 0)
"""A key of the first fragment, whose sequence numbers the SDK can encode."""
SHOWN = (
    *("message_id", "session_id", "partition_key", "correlation_id", "subject", "content_type", "reply_to"),
    *("reply_to_session_id", "to", "time_to_live"),
)


def full(**options: Any) -> ServiceBusMessage:
    sent = ServiceBusMessage(
        "body",
        message_id="id",
        partition_key=FIRST,
        correlation_id="correlation",
        subject="subject",
        content_type="text/plain",
        reply_to="reply",
        reply_to_session_id="answers",
        to="to",
        application_properties={"a": 1, "b": "text", "c": True},
        time_to_live=timedelta(hours=1),
        **options,
    )
    sent.raw_amqp_message.annotations = {
        **(sent.raw_amqp_message.annotations or {}),
        "x-opt-via-partition-key": FIRST,
        "mine": "kept",
    }
    return sent


def properties_of(received: Any) -> dict[str, Any]:
    """Texts in place of bytes: sending a message changes its properties so."""
    texts = received.application_properties.items()
    return {key.decode(): value.decode() if isinstance(value, bytes) else value for key, value in texts}


def same(first: Any, again: Any) -> None:
    assert text_of(again) == text_of(first)
    assert properties_of(again) == properties_of(first)
    for name in SHOWN:
        assert getattr(again, name) == getattr(first, name), name
    own = {
        f"x-opt-{name}".encode()
        for name in ("sequence-number", "enqueued-time", "locked-until", "enqueue-sequence-number")
    }
    of = [
        {key: value for key, value in each.raw_amqp_message.annotations.items() if key not in own}
        for each in (first, again)
    ]
    assert of[0] == of[1]


@pytest.mark.req("U1")
async def test_from_a_queue(azure: Azure, queue: str) -> None:
    sender, receiver = azure.sender(queue), azure.receiver(queue)
    await sender.send_messages(full())
    first = await take_one(receiver)
    await receiver.complete_message(first)
    for _ in range(2):
        await sender.send_messages(first)
        again = await take_one(receiver)
        same(first, again)
        await receiver.complete_message(again)
        first = again
    await sender.send_messages([first])
    same(first, await take_one(receiver))


@pytest.mark.req("P15", "P16")
async def test_from_a_partitioned_queue(partitioned_server: Busbar, partitioned: str, farewells: Any) -> None:
    """With both clients. The key that came as bytes is the same key: it chooses the same fragment."""
    clients = [
        Azure(partitioned_server.connection_string, farewells, asynchronous=way, retry_total=0)
        for way in (False, True)
    ]
    for azure in clients:
        sender, receiver = azure.sender(partitioned), azure.receiver(partitioned)
        await sender.send_messages(full())
        first = await take_one(receiver)
        await receiver.complete_message(first)
        await sender.send_messages(first)
        again = await take_one(receiver)
        same(first, again)
        assert index_of(again) == index_of(first) == 0
        await receiver.complete_message(again)
        azure.leave()


@every_way
async def test_from_a_session(world: World) -> None:
    queue = world.queue()
    sender, receiver = world.sdk.sender(queue), world.accept(queue, FIRST)
    await sender.send_messages(full(session_id=FIRST))
    first = await take_one(receiver)
    await receiver.complete_message(first)
    await sender.send_messages(first)
    same(first, await take_one(receiver))


async def test_a_key_that_is_no_text_is_refused_by_its_name(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    for name in ("x-opt-partition-key", "x-opt-via-partition-key"):
        wrong = ServiceBusMessage("body")
        wrong.raw_amqp_message.annotations = {name: b"\xff"}
        with pytest.raises(ServiceBusError, match=f"{name} .* is not UTF-8"):
            await sender.send_messages(wrong)


async def test_a_message_that_was_scheduled(azure: Azure, queue: str) -> None:
    sender, receiver = azure.sender(queue), azure.receiver(queue)
    due = (datetime.now(UTC) + timedelta(seconds=0.3)).replace(microsecond=0)
    await sender.schedule_messages(full(), due)
    first = await take_one(receiver)
    await receiver.complete_message(first)
    assert first.scheduled_enqueue_time_utc == due
    first.scheduled_enqueue_time_utc = due  # the SDK cannot encode the integer that it received
    await sender.send_messages(first)
    again = await take_one(receiver)
    assert again.scheduled_enqueue_time_utc == due
    assert (again.message_id, again.partition_key) == ("id", FIRST)


async def test_from_a_dead_letter_queue(azure: Azure, queue: str) -> None:
    sender, receiver, dead = azure.sender(queue), azure.receiver(queue), azure.dead_letters(queue)
    await sender.send_messages(full())
    await receiver.dead_letter_message(
        await take_one(receiver), reason="because", error_description="of this"
    )
    letter = await take_one(dead)
    await sender.send_messages(letter)
    again = await take_one(receiver)
    assert again.dead_letter_reason == "because"  # it is a property like any other now
    assert (again.message_id, again.partition_key) == ("id", FIRST)
    await dead.complete_message(letter)


@pytest.mark.req("U21")
async def test_a_message_is_a_duplicate_of_itself(azure: Azure, queues: QueuePool) -> None:
    """Its id came as a text, and goes back as bytes."""
    queue = queues.take("unique")
    sender, receiver = azure.sender(queue), azure.receiver(queue)
    await sender.send_messages(full())
    first = await take_one(receiver)
    await receiver.complete_message(first)
    await sender.send_messages(first)
    assert await nothing_left(receiver)


@everywhere
async def test_through_the_filters_of_a_topic(world: World) -> None:
    """A rule that a message matched is matched by it again."""
    topic = Topic(world, one="")
    filters = "<CorrelationId>correlation</CorrelationId><MessageId>id</MessageId><Label>subject</Label>"
    topic.delete("/subscriptions/one/rules/$Default")
    topic.put(
        "/subscriptions/one/rules/exact",
        f'RuleDescription <Filter i:type="CorrelationFilter" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{filters}</Filter>',
    )
    sender, receiver = world.sdk.topic(topic.name), world.sdk.receiver(topic.path("one"))
    await sender.send_messages(full())
    first = await take_one(receiver)
    await receiver.complete_message(first)
    await sender.send_messages(first)
    same_id = await take_one(receiver)
    assert (same_id.message_id, same_id.correlation_id, same_id.partition_key) == ("id", "correlation", FIRST)
