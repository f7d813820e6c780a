"""PeekLock and ReceiveAndDelete, each settlement, and the ways to ask for messages."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError, MessageNotFoundError

from tests.interop.azure_sdk import SETTLEMENTS, Azure, nothing_left, take, take_one, text_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


@pytest.mark.req("U1", "U12", "B5")
async def test_peek_lock_is_the_default(azure: Azure, queue: str) -> None:
    """A received message stays until it is completed, and nobody else gets it meanwhile."""
    await azure.send(queue, "kept")
    receiver = azure.receiver(queue)
    message = await take_one(receiver)
    assert message.lock_token is not None
    assert await nothing_left(azure.receiver(queue))
    assert [text_of(seen) for seen in await receiver.peek_messages(sequence_number=1)] == ["kept"]

    await receiver.complete_message(message)

    assert await receiver.peek_messages(sequence_number=1) == []


@pytest.mark.req("U1", "B5")
async def test_receive_and_delete_takes_one_request(azure: Azure, queue: str) -> None:
    await azure.send(queue, "a", "b")
    receiver = azure.once(queue)

    messages = await take(receiver, 2)

    assert [text_of(message) for message in messages] == ["a", "b"]
    assert messages[0].locked_until_utc is None
    assert await receiver.peek_messages(sequence_number=1) == []


@pytest.mark.req("B5")
async def test_nothing_can_be_settled_in_receive_and_delete(azure: Azure, queue: str) -> None:
    await azure.send(queue, *SETTLEMENTS)
    receiver = azure.once(queue)

    for settlement, message in zip(SETTLEMENTS, await take(receiver, len(SETTLEMENTS)), strict=True):
        with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
            await getattr(receiver, f"{settlement}_message")(message)

    assert await receiver.peek_messages(sequence_number=1) == []


@pytest.mark.req("U1", "U12")
async def test_abandon_gives_back_and_counts(azure: Azure, queue: str) -> None:
    await azure.send(queue, "again")
    receiver = azure.receiver(queue)
    for attempt in range(3):
        message = await take_one(receiver)
        assert message.delivery_count == attempt
        assert message.sequence_number == 1
        await receiver.abandon_message(message)

    await receiver.complete_message(await take_one(receiver))
    assert await nothing_left(receiver)


async def test_an_abandoned_message_comes_before_later_ones(azure: Azure, queue: str) -> None:
    await azure.send(queue, "1", "2", "3")
    receiver = azure.receiver(queue)
    first = await take_one(receiver)
    assert text_of(first) == "1"
    await receiver.abandon_message(first)

    assert [text_of(message) for message in await take(receiver, 3)] == ["1", "2", "3"]


@pytest.mark.req("U1", "U12")
async def test_a_deferred_message_waits_for_its_number(azure: Azure, queue: str) -> None:
    await azure.send(queue, "later", "now")
    receiver = azure.receiver(queue)
    deferred = await take_one(receiver)
    await receiver.defer_message(deferred)
    assert text_of(await take_one(receiver)) == "now"
    assert await nothing_left(receiver)

    [again] = await receiver.receive_deferred_messages(deferred.sequence_number)

    assert text_of(again) == "later"
    assert again.delivery_count == 0
    assert again.locked_until_utc is not None and again.locked_until_utc > datetime.now(UTC)
    await receiver.complete_message(again)
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages(deferred.sequence_number)


async def test_deferred_messages_are_taken_all_or_none(azure: Azure, queue: str) -> None:
    await azure.send(queue, "1", "2")
    receiver = azure.receiver(queue)
    numbers = []
    for message in await take(receiver, 2):
        await receiver.defer_message(message)
        numbers.append(message.sequence_number)

    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages([*numbers, 77])

    both = await receiver.receive_deferred_messages(numbers)
    assert [text_of(message) for message in both] == ["1", "2"]


@pytest.mark.req("U12")
async def test_every_settlement_of_a_deferred_message(azure: Azure, queue: str) -> None:
    await azure.send(queue, "complete", "abandon", "defer", "dead-letter")
    receiver = azure.receiver(queue)
    messages = await take(receiver, 4)
    numbers = [message.sequence_number for message in messages]
    for message in messages:
        await receiver.defer_message(message)
    complete, abandon, defer, dead = await receiver.receive_deferred_messages(numbers)

    await receiver.complete_message(complete)
    await receiver.abandon_message(abandon)
    await receiver.defer_message(defer)
    await receiver.dead_letter_message(dead, reason="why", error_description="because")

    [abandoned] = await receiver.receive_deferred_messages(numbers[1])
    assert abandoned.delivery_count == 1
    [deferred] = await receiver.receive_deferred_messages(numbers[2])
    assert deferred.delivery_count == 0
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages(numbers[0])
    buried = await take_one(azure.dead_letters(queue))
    assert (buried.dead_letter_reason, buried.dead_letter_error_description) == ("why", "because")
    assert await nothing_left(receiver)


async def test_deferred_messages_are_deleted_on_receive_in_receive_and_delete(
    azure: Azure, queue: str
) -> None:
    await azure.send(queue, "once")
    locking = azure.receiver(queue)
    message = await take_one(locking)
    await locking.defer_message(message)
    receiver = azure.once(queue)

    [taken] = await receiver.receive_deferred_messages(message.sequence_number)

    assert text_of(taken) == "once"
    assert await receiver.peek_messages(sequence_number=1) == []


async def test_a_message_is_settled_once(azure: Azure, queue: str) -> None:
    await azure.send(queue, *SETTLEMENTS)
    receiver = azure.receiver(queue)
    for settlement, message in zip(SETTLEMENTS, await take(receiver, len(SETTLEMENTS)), strict=True):
        await getattr(receiver, f"{settlement}_message")(message)

        with pytest.raises(MessageAlreadySettled):
            await receiver.complete_message(message)


async def test_the_broker_refuses_a_second_settlement_itself(azure: Azure, queue: str) -> None:
    """Two programs hold the same token; the SDK of the second does not know that the first has settled."""
    await azure.send(queue, "once")
    receiver = azure.receiver(queue)
    message = await take_one(receiver)
    await receiver.complete_message(message)

    message._settled = False
    with pytest.raises(MessageLockLostError):
        await receiver.renew_message_lock(message)
    message._is_deferred_message = True  # settle by token on the management link
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)


async def test_receiving_from_an_empty_queue_waits_and_gives_nothing(azure: Azure, queue: str) -> None:
    receiver = azure.receiver(queue)
    started = time.monotonic()

    assert await receiver.receive_messages(max_wait_time=0.5) == []

    assert 0.4 <= time.monotonic() - started < 3


async def test_a_waiting_receiver_gets_a_message_when_it_is_sent(azure: Azure, queue: str) -> None:
    receiver = azure.receiver(queue)
    waiting = asyncio.ensure_future(receiver.receive_messages(max_wait_time=10))
    await asyncio.sleep(0.3)
    started = time.monotonic()
    await azure.send(queue, "at last")

    [message] = await waiting

    assert text_of(message) == "at last"
    assert time.monotonic() - started < 3


async def test_the_iterator_ends_when_nothing_comes(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(10)])
    receiver = azure.receiver(queue, max_wait_time=0.5)
    texts = []
    async for message in receiver:
        texts.append(text_of(message))
        await receiver.complete_message(message)

    assert texts == [str(n) for n in range(10)]
    assert await receiver.peek_messages(sequence_number=1) == []


@pytest.mark.parametrize("prefetch", [1, 100])
async def test_prefetch(azure: Azure, queue: str, prefetch: int) -> None:
    await azure.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(40)])
    receiver = azure.receiver(queue, prefetch_count=prefetch)
    texts: list[str] = []
    while len(texts) < 40:
        for message in await take(receiver, min(8, 40 - len(texts))):
            texts.append(text_of(message))
            await receiver.complete_message(message)

    assert texts == [str(n) for n in range(40)]
    assert await nothing_left(receiver)


@pytest.mark.req("B8")
async def test_prefetched_messages_are_locked(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(5)])
    first = azure.receiver(queue, prefetch_count=5)
    assert text_of(await take_one(first)) == "0"
    await asyncio.sleep(0.2)

    assert await nothing_left(azure.receiver(queue))


async def test_competing_receivers_share_the_work(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(60)])
    receivers = [azure.receiver(queue) for _ in range(3)]
    await asyncio.gather(*(receiver.opened() for receiver in receivers))

    async def work(receiver: Any) -> list[str]:
        done = []
        while messages := await receiver.receive_messages(max_message_count=5, max_wait_time=0.5):
            for message in messages:
                await receiver.complete_message(message)
                done.append(text_of(message))
        return done

    shares = await asyncio.gather(*(work(receiver) for receiver in receivers))

    assert sorted((text for share in shares for text in share), key=int) == [str(n) for n in range(60)]
    assert all(shares)
    for share in shares:
        assert share == sorted(share, key=int)


async def test_a_receiver_that_closes_gives_back_what_it_had_not_handed_out(azure: Azure, queue: str) -> None:
    """Buffered messages are released: at once available again, and their delivery does not count."""
    await azure.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(10)])
    leaving = azure.receiver(queue, prefetch_count=9)
    message = await take_one(leaving)
    await leaving.complete_message(message)
    await asyncio.sleep(0.2)
    await leaving.close()

    messages = await take(azure.receiver(queue), 9)

    assert [text_of(message) for message in messages] == [str(n) for n in range(1, 10)]
    assert {message.delivery_count for message in messages} == {0}


async def test_locks_outlive_the_connection_and_are_settled_by_token(azure: Azure, queue: str) -> None:
    """The SDK falls back to the management link when the receiving link is gone."""
    await azure.send(queue, "mine")
    receiver = azure.receiver(queue)
    message = await take_one(receiver)
    await receiver.close()
    other = azure.receiver(queue)
    assert await nothing_left(other)

    message._receiver = other.raw
    message._is_deferred_message = True
    await other.complete_message(message)

    assert await other.peek_messages(sequence_number=1) == []


async def test_two_clients_on_two_queues_do_not_meet(azure: Azure, queues: Any) -> None:
    here, there = queues.take("plain"), queues.take("plain")
    await asyncio.gather(azure.send(here, "here"), azure.send(there, "there"))

    first, second = await asyncio.gather(take_one(azure.receiver(here)), take_one(azure.receiver(there)))

    assert (text_of(first), text_of(second)) == ("here", "there")


async def test_queue_names_compare_without_case(azure: Azure, queue: str) -> None:
    await azure.send(queue.upper(), "same")

    assert text_of(await take_one(azure.receiver(queue))) == "same"


async def test_a_thousand_messages_in_order(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    for start in range(0, 1000, 250):
        await sender.send_messages([ServiceBusMessage(str(n)) for n in range(start, start + 250)])
    receiver = azure.receiver(queue, prefetch_count=200)

    messages = await take(receiver, 1000)
    for message in messages[:20]:
        await receiver.complete_message(message)

    assert [int(text_of(message)) for message in messages] == list(range(1000))
    assert [message.sequence_number for message in messages] == list(range(1, 1001))
