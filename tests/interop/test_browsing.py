"""Peek: every message in every state, from a sequence number on, and nothing changes by looking."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

from tests.interop.azure_sdk import Azure, take, take_one, text_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


@pytest.mark.req("U15")
async def test_peek_shows_all_states(azure: Azure, queue: str) -> None:
    await azure.send(
        queue,
        "locked",
        "deferred",
        "abandoned",
        "active",
        ServiceBusMessage("scheduled", scheduled_enqueue_time_utc=datetime.now(UTC) + timedelta(hours=1)),
    )
    receiver = azure.receiver(queue)
    _locked, deferred, abandoned = await take(receiver, 3)
    await receiver.defer_message(deferred)
    await receiver.abandon_message(abandoned)

    peeked = await receiver.peek_messages(max_message_count=10, sequence_number=1)

    assert [(text_of(message), message.state) for message in peeked] == [
        ("locked", ServiceBusMessageState.ACTIVE),
        ("deferred", ServiceBusMessageState.DEFERRED),
        ("abandoned", ServiceBusMessageState.ACTIVE),
        ("active", ServiceBusMessageState.ACTIVE),
        ("scheduled", ServiceBusMessageState.SCHEDULED),
    ]
    assert [message.delivery_count for message in peeked] == [0, 0, 1, 0, 0]
    assert all(message.locked_until_utc is None for message in peeked)


@pytest.mark.req("U15")
async def test_peek_takes_nothing(azure: Azure, queue: str) -> None:
    await azure.send(queue, "still here")
    receiver = azure.receiver(queue)
    for _ in range(3):
        assert len(await receiver.peek_messages(sequence_number=1)) == 1

    message = await take_one(receiver)

    assert message.delivery_count == 0


async def test_peek_from_a_sequence_number(azure: Azure, queue: str) -> None:
    await azure.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(1, 11)])
    receiver = azure.receiver(queue)

    assert [text_of(m) for m in await receiver.peek_messages(3, sequence_number=4)] == ["4", "5", "6"]
    assert [text_of(m) for m in await receiver.peek_messages(9, sequence_number=9)] == ["9", "10"]
    assert await receiver.peek_messages(9, sequence_number=11) == []


async def test_peek_goes_on_after_what_was_received(azure: Azure, queue: str) -> None:
    """Without a number the SDK starts behind the last message it received."""
    await azure.send(queue, "1", "2", "3")
    receiver = azure.receiver(queue)
    await take_one(receiver)

    assert [text_of(message) for message in await receiver.peek_messages(5)] == ["2", "3"]


async def test_peek_of_an_empty_queue(azure: Azure, queue: str) -> None:
    assert await azure.receiver(queue).peek_messages(5) == []


async def browse(receiver: Any, count: int) -> tuple[list[str], list[int]]:
    """Peek until there is nothing more; the texts, and how many came each time."""
    texts: list[str] = []
    sizes: list[int] = []
    following = 1
    while messages := await receiver.peek_messages(count, sequence_number=following):
        texts += [text_of(message)[:6] for message in messages]
        sizes.append(len(messages))
        following = messages[-1].sequence_number + 1
    return texts, sizes


@pytest.mark.req("U15")
async def test_repeated_peeks_reach_every_message(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    for start in range(0, 600, 200):
        await sender.send_messages([ServiceBusMessage(f"{n:06}") for n in range(start, start + 200)])

    texts, sizes = await browse(azure.receiver(queue), 1000)

    assert texts == [f"{n:06}" for n in range(600)]
    assert max(sizes) <= 250 and len(sizes) == 3


async def test_a_peek_returns_at_most_256_kilobytes(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    for n in range(5):
        await sender.send_messages(ServiceBusMessage(f"{n:06}" + "x" * 100_000))

    texts, sizes = await browse(azure.receiver(queue), 10)

    assert texts == [f"{n:06}" for n in range(5)]
    assert sizes == [2, 2, 1]


async def test_a_peek_returns_at_least_one_message(azure: Azure, queue: str) -> None:
    body = b"y" * (256 * 1024 - 300)
    await azure.sender(queue).send_messages(ServiceBusMessage(body))

    [message] = await azure.receiver(queue).peek_messages(5)

    assert b"".join(message.body) == body
