"""What time does to messages: time to live, and messages that are scheduled."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

from tests.interop.azure_sdk import Azure, nothing_left, take, take_one, text_of
from tests.interop.queue_pool import BRIEF_LIFE, QueuePool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60), pytest.mark.req("U14")]


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


LIFE = 1
"""Seconds that a brief message lives: the SDK counts whole seconds."""


def brief_message(text: str) -> ServiceBusMessage:
    return ServiceBusMessage(text, time_to_live=timedelta(seconds=LIFE))


async def test_an_expired_message_is_dropped(azure: Azure, queue: str) -> None:
    await azure.send(queue, brief_message("short"), "long")
    await asyncio.sleep(LIFE + 0.1)
    receiver = azure.receiver(queue)

    assert text_of(await take_one(receiver)) == "long"
    assert await azure.dead_letters(queue).peek_messages() == []


async def test_an_expired_message_is_dead_lettered_where_the_queue_says_so(
    azure: Azure, queues: QueuePool
) -> None:
    queue = queues.take("buried")
    dead_letters = azure.dead_letters(queue)
    await azure.send(queue, brief_message("short"), "long")
    await asyncio.sleep(LIFE + 0.1)

    assert text_of(await take_one(azure.receiver(queue))) == "long"

    dead = await take_one(dead_letters)
    assert text_of(dead) == "short"
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert dead.dead_letter_error_description == "The message expired and was dead lettered."


async def test_the_queues_time_to_live_counts_when_it_is_shorter(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("vanishing")
    await azure.send(queue, "none of its own", ServiceBusMessage("longer", time_to_live=timedelta(hours=1)))
    receiver = azure.receiver(queue)
    messages = await receiver.peek_messages(max_message_count=2)
    assert [message.time_to_live for message in messages] == [timedelta(seconds=BRIEF_LIFE)] * 2
    await asyncio.sleep(BRIEF_LIFE + 0.1)

    assert await nothing_left(receiver, 0.2)


async def test_the_queues_time_to_live_with_dead_lettering(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("fading")
    dead_letters = azure.dead_letters(queue)
    await azure.send(queue, "fading")
    await asyncio.sleep(BRIEF_LIFE + 0.1)
    assert await nothing_left(azure.receiver(queue), 0.2)

    dead = await take_one(dead_letters)

    assert dead.dead_letter_reason == "TTLExpiredException"


async def test_a_locked_message_outlives_its_time(azure: Azure, queue: str) -> None:
    """Time to live ends what waits, not what is being worked on."""
    await azure.send(queue, brief_message("locked"))
    receiver = azure.receiver(queue)
    message = await take_one(receiver)
    await asyncio.sleep(LIFE + 0.1)

    await receiver.complete_message(message)

    assert await receiver.peek_messages(sequence_number=1) == []


async def test_an_abandoned_message_that_has_expired_does_not_come_again(azure: Azure, queue: str) -> None:
    await azure.send(queue, brief_message("locked"))
    receiver = azure.receiver(queue)
    message = await take_one(receiver)
    await asyncio.sleep(LIFE + 0.1)
    await receiver.abandon_message(message)

    assert await nothing_left(receiver)


async def test_a_message_scheduled_on_send(azure: Azure, queue: str) -> None:
    due = soon(1.5)
    await azure.send(queue, ServiceBusMessage("later", scheduled_enqueue_time_utc=due), "now")
    receiver = azure.receiver(queue)

    now, message = await take_one(receiver), await take_one(receiver)

    assert (text_of(now), text_of(message)) == ("now", "later")
    assert datetime.now(UTC) >= due - timedelta(milliseconds=1)
    assert message.enqueued_time_utc is not None
    assert abs(message.enqueued_time_utc - due) < timedelta(seconds=1)
    assert message.state == ServiceBusMessageState.ACTIVE
    # Enqueued anew: it stands behind what was sent meanwhile.
    assert message.sequence_number == 3


async def test_schedule_and_cancel(azure: Azure, queue: str) -> None:
    sender, receiver = azure.sender(queue), azure.receiver(queue)
    numbers = await sender.schedule_messages([ServiceBusMessage("1"), ServiceBusMessage("2")], soon(3600))
    assert numbers == [1, 2]
    assert await sender.schedule_messages(ServiceBusMessage("3"), soon(3600)) == [3]

    await sender.cancel_scheduled_messages([1, 3])

    peeked = await receiver.peek_messages(max_message_count=10, sequence_number=1)
    assert [(text_of(message), message.state) for message in peeked] == [
        ("2", ServiceBusMessageState.SCHEDULED)
    ]
    assert await nothing_left(receiver, 0.2)
    for gone in (1, 3, 99):
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(gone)


async def test_what_has_become_due_cannot_be_cancelled(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    [number] = await sender.schedule_messages(ServiceBusMessage("due"), soon(0.5))
    receiver = azure.receiver(queue)

    assert text_of(await take_one(receiver)) == "due"

    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages(number)


async def test_cancelling_is_all_or_none(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    numbers = await sender.schedule_messages(ServiceBusMessage("kept"), soon(3600))

    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages([*numbers, 55])

    assert len(await azure.receiver(queue).peek_messages()) == 1


async def test_a_time_in_the_past_means_now(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    await sender.schedule_messages(ServiceBusMessage("scheduled"), soon(-60))
    await sender.send_messages(ServiceBusMessage("sent", scheduled_enqueue_time_utc=soon(-60)))

    texts = [text_of(message) for message in await take(azure.receiver(queue), 2)]

    assert texts == ["scheduled", "sent"]


async def test_scheduled_messages_come_in_the_order_of_their_times(azure: Azure, queue: str) -> None:
    now = datetime.now(UTC)
    await azure.sender(queue).send_messages(
        [
            ServiceBusMessage(text, scheduled_enqueue_time_utc=now + timedelta(seconds=delay))
            for text, delay in (("third", 1.4), ("first", 0.8), ("second", 1.1))
        ]
    )

    texts = [text_of(message) for message in await take(azure.receiver(queue), 3)]

    assert texts == ["first", "second", "third"]


async def test_the_life_of_a_scheduled_message_begins_when_it_is_enqueued(azure: Azure, queue: str) -> None:
    message = brief_message("fresh")
    sender = azure.sender(queue)
    await sender.opened()  # else the message would not have waited for as long as it lives
    message.scheduled_enqueue_time_utc = soon(LIFE + 0.5)
    await sender.send_messages(message)

    assert text_of(await take_one(azure.receiver(queue))) == "fresh"
