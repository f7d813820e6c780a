"""Locks end, are renewed, and say so when they are lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus.exceptions import MessageLockLostError

from tests.interop.azure_sdk import SETTLEMENTS, Azure, nothing_left, take, take_one, text_of
from tests.interop.queue_pool import BRIEF_LOCK, MODEST_LOCK, QueuePool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


@pytest.fixture
def brief(queues: QueuePool) -> str:
    return queues.take("brief")


@pytest.mark.req("U13")
async def test_an_expired_lock_gives_the_message_back_and_counts(azure: Azure, brief: str) -> None:
    await azure.send(brief, "slow")
    receiver, other = azure.receiver(brief), azure.receiver(brief)
    first = await take_one(receiver)
    assert first.locked_until_utc is not None

    second = await take_one(other)

    assert datetime.now(UTC) >= first.locked_until_utc
    assert second.sequence_number == first.sequence_number
    assert second.delivery_count == 1
    assert second.lock_token != first.lock_token
    await other.complete_message(second)


async def test_the_sdk_knows_that_a_lock_has_expired(azure: Azure, brief: str) -> None:
    await azure.send(brief, "late")
    receiver = azure.receiver(brief)
    message = await take_one(receiver)
    await asyncio.sleep(BRIEF_LOCK + 0.1)

    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)


@pytest.mark.req("U13")
async def test_the_broker_refuses_an_expired_lock(azure: Azure, brief: str) -> None:
    """The client's clock stands still here, so each settlement really reaches the broker."""
    await azure.send(brief, *SETTLEMENTS)
    receiver, other, dead_letters = azure.receiver(brief), azure.receiver(brief), azure.dead_letters(brief)
    late = await take(receiver, len(SETTLEMENTS))
    for message in late:
        message._raw_amqp_message.annotations[b"x-opt-locked-until"] = 4102444800000
    again = await take(other, len(SETTLEMENTS))

    for settlement, message in zip(SETTLEMENTS, late, strict=True):
        with pytest.raises(MessageLockLostError):
            await getattr(receiver, f"{settlement}_message")(message)

    assert {message.delivery_count for message in again} == {1}
    assert await dead_letters.peek_messages() == []


@pytest.mark.req("B8")
async def test_a_prefetched_message_can_lose_its_lock_while_it_waits(azure: Azure, brief: str) -> None:
    """The lock runs from the moment the broker hands the message out, not from the call that returns it."""
    await azure.send(brief, "1", "2")
    receiver, other = azure.receiver(brief, prefetch_count=2), azure.receiver(brief)
    await receiver.complete_message(await take_one(receiver))
    again = await take_one(other)
    assert text_of(again) == "2"

    stale = await take_one(receiver)

    assert stale.lock_token != again.lock_token
    # The SDK knows the time, too. Let it believe in the lock, so that the broker is asked.
    stale._raw_amqp_message.annotations[b"x-opt-locked-until"] = 4102444800000
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(stale)
    await other.complete_message(again)


@pytest.mark.req("U13")
async def test_renewal_keeps_the_lock(azure: Azure, brief: str) -> None:
    await azure.send(brief, "long work")
    receiver = azure.receiver(brief)
    message = await take_one(receiver)
    first_end = message.locked_until_utc
    assert first_end is not None
    for _ in range(3):
        await asyncio.sleep(BRIEF_LOCK / 2)
        until = await receiver.renew_message_lock(message)
        assert until == message.locked_until_utc
        assert timedelta(0) < until - datetime.now(UTC) <= timedelta(seconds=BRIEF_LOCK + 0.05)

    assert datetime.now(UTC) > first_end
    await receiver.complete_message(message)
    assert await receiver.peek_messages(sequence_number=1) == []


@pytest.mark.req("U13")
async def test_an_expired_lock_cannot_be_renewed(azure: Azure, brief: str) -> None:
    await azure.send(brief, "too late")
    receiver = azure.receiver(brief)
    message = await take_one(receiver)
    message._raw_amqp_message.annotations[b"x-opt-locked-until"] = 4102444800000
    await take_one(azure.receiver(brief))

    with pytest.raises(MessageLockLostError):
        await receiver.renew_message_lock(message)


async def test_the_lock_of_a_deferred_message_ends_too(azure: Azure, brief: str) -> None:
    await azure.send(brief, "deferred")
    receiver = azure.receiver(brief)
    message = await take_one(receiver)
    await receiver.defer_message(message)
    [locked] = await receiver.receive_deferred_messages(message.sequence_number)
    until = await receiver.renew_message_lock(locked)
    assert until > datetime.now(UTC)
    await asyncio.sleep(BRIEF_LOCK + 0.15)

    [again] = await receiver.receive_deferred_messages(message.sequence_number)

    assert again.delivery_count == 1
    assert await nothing_left(receiver, 0.2)
    await receiver.complete_message(again)


async def test_the_automatic_renewer(azure: Azure, queues: QueuePool) -> None:
    """Both ways to use it: a message is registered, or a receiver registers every message it hands out."""
    by_hand, by_receiver = queues.take("modest"), queues.take("modest")
    await asyncio.gather(azure.send(by_hand, "long work"), azure.send(by_receiver, "long work"))
    renewer = azure.renewer(max_lock_renewal_duration=30)
    first, second = azure.receiver(by_hand), azure.receiver(by_receiver, auto_lock_renewer=renewer.raw)
    registered, handed_out = await asyncio.gather(take_one(first), take_one(second))
    await renewer.register(first.raw, registered, max_lock_renewal_duration=30)
    await asyncio.sleep(MODEST_LOCK + 0.3)

    for receiver, message in ((first, registered), (second, handed_out)):
        assert message.auto_renew_error is None
        await receiver.complete_message(message)
        assert await receiver.peek_messages(sequence_number=1) == []


async def test_a_vanished_client_loses_its_messages_only_when_their_locks_end(
    azure: Azure, brief: str
) -> None:
    await azure.send(brief, "orphan")
    receiver = azure.receiver(brief)
    message = await take_one(receiver)
    await receiver.close()

    again = await take_one(azure.receiver(brief))

    assert message.locked_until_utc is not None
    assert datetime.now(UTC) >= message.locked_until_utc
    assert again.delivery_count == 1
