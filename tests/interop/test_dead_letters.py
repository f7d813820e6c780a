"""The dead-letter queue: how messages get there, and that it is a queue like any other once they are."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import ServiceBusError

from tests.interop.azure_sdk import Azure, nothing_left, take, take_one, text_of
from tests.interop.queue_pool import QueuePool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


async def bury(azure: Azure, queue: str, *texts: str) -> None:
    """Dead-letter messages with these texts."""
    await azure.send(queue, *texts)
    receiver = azure.receiver(queue)
    for message in await take(receiver, len(texts)):
        await receiver.dead_letter_message(message, reason="tested")


@pytest.mark.req("U1", "U12")
async def test_dead_letter_with_reason_and_description(azure: Azure, queue: str) -> None:
    await azure.send(queue, ServiceBusMessage("bad", message_id="m", application_properties={"mine": 1}))
    receiver, dead_letters = azure.receiver(queue), azure.dead_letters(queue)
    message = await take_one(receiver)

    await receiver.dead_letter_message(message, reason="TooBad", error_description="It could not be read.")

    assert await nothing_left(receiver, 0.2)
    dead = await take_one(dead_letters)
    assert text_of(dead) == "bad"
    assert dead.dead_letter_reason == "TooBad"
    assert dead.dead_letter_error_description == "It could not be read."
    assert dead.message_id == "m"
    assert dead.sequence_number == message.sequence_number
    assert dead.enqueued_time_utc == message.enqueued_time_utc
    assert (dead.application_properties or {})[b"mine"] == 1


async def test_dead_letter_without_a_reason(azure: Azure, queue: str) -> None:
    await azure.send(queue, "bad")
    receiver = azure.receiver(queue)
    await receiver.dead_letter_message(await take_one(receiver))

    dead = await take_one(azure.dead_letters(queue))

    assert not dead.dead_letter_reason
    assert not dead.dead_letter_error_description


@pytest.mark.req("U13")
async def test_too_many_deliveries(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("twice")
    await azure.send(queue, "poison")
    receiver = azure.receiver(queue)
    for _ in range(2):
        await receiver.abandon_message(await take_one(receiver))

    assert await nothing_left(receiver, 0.2)
    dead = await take_one(azure.dead_letters(queue))
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description == "Message could not be consumed after 2 delivery attempts."
    assert dead.delivery_count == 2


@pytest.mark.req("U13")
async def test_too_many_expired_locks(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("brief-once")
    await azure.send(queue, "poison")
    await take_one(azure.receiver(queue))

    dead = await take_one(azure.dead_letters(queue))

    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


@pytest.mark.req("U12")
async def test_dead_letters_are_settled_like_other_messages(azure: Azure, queue: str) -> None:
    dead_letters = azure.dead_letters(queue)
    await bury(azure, queue, "complete", "abandon", "defer")
    complete, abandon, defer = await take(dead_letters, 3)

    await dead_letters.complete_message(complete)
    await dead_letters.abandon_message(abandon)
    await dead_letters.defer_message(defer)

    again = await take_one(dead_letters)
    assert text_of(again) == "abandon"
    assert again.delivery_count == 1
    [deferred] = await dead_letters.receive_deferred_messages(defer.sequence_number)
    assert text_of(deferred) == "defer"
    await dead_letters.complete_message(deferred)
    await dead_letters.renew_message_lock(again)
    await dead_letters.complete_message(again)
    assert await dead_letters.peek_messages(sequence_number=1) == []


async def test_dead_letters_are_never_dead_lettered_again(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("twice")
    dead_letters = azure.dead_letters(queue)
    await bury(azure, queue, "for ever")
    for attempt in range(4):
        message = await take_one(dead_letters)
        assert message.delivery_count == attempt
        await dead_letters.abandon_message(message)
    message = await take_one(dead_letters)

    with pytest.raises(ServiceBusError) as refused:
        await dead_letters.dead_letter_message(message)

    assert "amqp:not-allowed" in str(refused.value)


@pytest.mark.req("U12")
async def test_dead_letters_are_peeked_apart_from_the_queue(azure: Azure, queue: str) -> None:
    dead_letters = azure.dead_letters(queue)
    await bury(azure, queue, "1", "2", "3")
    await azure.send(queue, "alive")
    second = (await take(dead_letters, 2))[1]
    await dead_letters.defer_message(second)

    peeked = await dead_letters.peek_messages(max_message_count=10, sequence_number=1)

    assert [text_of(message) for message in peeked] == ["1", "2", "3"]
    assert [message.state for message in peeked] == [
        ServiceBusMessageState.ACTIVE,
        ServiceBusMessageState.DEFERRED,
        ServiceBusMessageState.ACTIVE,
    ]
    assert peeked[0].dead_letter_reason == "tested"
    main = await azure.receiver(queue).peek_messages(max_message_count=10)
    assert [text_of(message) for message in main] == ["alive"]


async def test_dead_letters_in_receive_and_delete(azure: Azure, queue: str) -> None:
    from azure.servicebus import ServiceBusReceiveMode

    dead_letters = azure.dead_letters(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    await bury(azure, queue, "1", "2")

    assert [text_of(message) for message in await take(dead_letters, 2)] == ["1", "2"]
    assert await dead_letters.peek_messages(sequence_number=1) == []


async def test_nobody_sends_to_a_dead_letter_queue(azure: Azure, queue: str) -> None:
    with pytest.raises(ServiceBusError) as refused:
        await azure.send(f"{queue}/$DeadLetterQueue", "no")

    assert "amqp:not-allowed" in str(refused.value)


async def test_a_dead_letter_is_sent_back_to_its_queue(azure: Azure, queue: str) -> None:
    """What an operator does by hand: receive from the dead-letter queue, send again, complete."""
    dead_letters = azure.dead_letters(queue)
    await bury(azure, queue, "second chance")
    dead = await take_one(dead_letters)

    await azure.sender(queue).send_messages(dead)
    await dead_letters.complete_message(dead)

    assert text_of(await take_one(azure.receiver(queue))) == "second chance"
    assert await dead_letters.peek_messages(sequence_number=1) == []
