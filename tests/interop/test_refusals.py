"""Errors: the SDK raises the exception its users know, and other clients do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from harness.serving import Busbar
from tests.interop.azure_sdk import Azure, nothing_left, take, take_one, text_of
from tests.interop.queue_pool import QueuePool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


async def failures(*attempts: Awaitable[object]) -> list[object]:
    """What each attempt raised (or returned, if it wrongly succeeded)."""
    return list(await asyncio.gather(*attempts, return_exceptions=True))


@pytest.mark.req("U7")
async def test_an_unknown_queue(azure: Azure) -> None:
    for failure in await failures(
        azure.sender("nowhere").send_messages(ServiceBusMessage("lost")),
        azure.receiver("nowhere").receive_messages(max_wait_time=5),
        azure.dead_letters("nowhere").receive_messages(max_wait_time=5),
    ):
        assert isinstance(failure, MessagingEntityNotFoundError)
        assert "'nowhere' could not be found" in str(failure)


@pytest.mark.req("U4")
async def test_a_wrong_key(azure: Azure, broker: Busbar, queue: str) -> None:
    wrong_key = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    wrong_name = broker.connection_string.replace("SharedAccessKeyName=Root", "SharedAccessKeyName=Toor")
    for failure in await failures(
        azure.sender(queue, connection_string=wrong_key).send_messages(ServiceBusMessage("no")),
        azure.receiver(queue, connection_string=wrong_key).receive_messages(max_wait_time=5),
        azure.sender(queue, connection_string=wrong_name).send_messages(ServiceBusMessage("no")),
    ):
        assert isinstance(failure, ServiceBusAuthenticationError)


@pytest.mark.req("U15")
async def test_a_message_over_the_size_limit(azure: Azure, queue: str) -> None:
    sender = azure.sender(queue)
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(bytes(256 * 1024 + 1)))

    # The sender can go on, with the largest message that is allowed for example.
    await sender.send_messages(ServiceBusMessage(bytes(255 * 1024)))
    assert len(b"".join((await take_one(azure.receiver(queue))).body)) == 255 * 1024


@pytest.mark.req("U15")
async def test_a_batch_over_the_size_limit_is_refused_as_a_whole(azure: Azure, queue: str) -> None:
    with pytest.raises(MessageSizeExceededError):
        await azure.sender(queue).send_messages([ServiceBusMessage(bytes(100_000)) for _ in range(3)])

    assert await azure.receiver(queue).peek_messages() == []


@pytest.mark.req("U15", "P11")
async def test_a_full_queue(azure: Azure, queues: QueuePool) -> None:
    """1 MB fits; then sends are refused, nothing is lost, and what is taken out makes room again."""
    queue = queues.take("tiny")
    sender = azure.sender(queue)
    sent = 0
    with pytest.raises(ServiceBusQuotaExceededError):
        for sent in range(20):
            await sender.send_messages(ServiceBusMessage(bytes(200_000), message_id=str(sent)))
    assert 4 <= sent <= 6
    receiver = azure.receiver(queue)
    messages = await take(receiver, sent)
    assert [message.message_id for message in messages] == [str(n) for n in range(sent)]
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages(ServiceBusMessage(bytes(200_000)))

    await receiver.complete_message(messages[0])

    await sender.send_messages(ServiceBusMessage(bytes(150_000), message_id="fits"))
    assert (await take_one(receiver)).message_id == "fits"


async def test_a_batch_that_does_not_fit_in_a_queue_leaves_nothing_there(
    azure: Azure, queues: QueuePool
) -> None:
    queue = queues.take("tiny")
    sender = azure.sender(queue)
    for _ in range(4):
        await sender.send_messages(ServiceBusMessage(bytes(230_000)))
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages([ServiceBusMessage(bytes(40_000)) for _ in range(6)])

    assert len(await take(azure.once(queue), 4)) == 4
    assert await nothing_left(azure.receiver(queue))


@pytest.mark.req("U15")
@pytest.mark.parametrize(
    ("status", "can_send", "can_receive"),
    [("disabled", False, False), ("send-disabled", False, True), ("receive-disabled", True, False)],
)
async def test_status(azure: Azure, status: str, can_send: bool, can_receive: bool) -> None:
    queue = f"{status}-0"

    async def attempt(work: object, allowed: bool) -> None:
        if allowed:
            await work  # type: ignore[misc]
        else:
            with pytest.raises(MessagingEntityDisabledError):
                await work  # type: ignore[misc]

    await attempt(azure.send(queue, "x"), can_send)
    await attempt(azure.receiver(queue).receive_messages(max_wait_time=0.2), can_receive)


async def test_a_deferred_message_that_never_was(azure: Azure, queue: str) -> None:
    with pytest.raises(MessageNotFoundError):
        await azure.receiver(queue).receive_deferred_messages([12345])


async def test_sessions_where_they_are_required_and_only_there(azure: Azure, queue: str) -> None:
    sending, receiving = await failures(
        azure.sender("sessions-0").send_messages(ServiceBusMessage("x")),
        azure.receiver(queue, session_id="s").receive_messages(max_wait_time=5),
    )
    assert isinstance(sending, ServiceBusError) and "session" in str(sending)
    assert isinstance(receiving, ServiceBusError) and "does not require sessions" in str(receiving)


@pytest.mark.req("U7")
async def test_errors_of_one_client_are_not_noticed_by_others(
    azure: Azure, broker: Busbar, queue: str
) -> None:
    """While one program makes every mistake it can, another one works on undisturbed, without a retry."""
    working = True
    done: list[str] = []
    sender, receiver = azure.sender(queue), azure.receiver(queue)

    async def work() -> None:
        while working or not done:
            await sender.send_messages(ServiceBusMessage(f"{len(done)}"))
            message = await take_one(receiver)
            await receiver.complete_message(message)
            done.append(text_of(message))

    at_work = asyncio.ensure_future(work())
    wrong = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    mistakes = (
        azure.send("nowhere", "x"),
        azure.receiver("nowhere").receive_messages(max_wait_time=1),
        azure.sender(queue, connection_string=wrong).send_messages(ServiceBusMessage("x")),
        azure.send("disabled-0", "x"),
        azure.send(queue, bytes(300_000)),
        azure.receiver(queue).receive_deferred_messages([999_999]),
        azure.send("$nonsense//", "x"),
    )
    failed = await failures(*mistakes)
    working = False
    await at_work

    assert all(isinstance(failure, ServiceBusError) for failure in failed), failed
    assert done == [str(n) for n in range(len(done))]
