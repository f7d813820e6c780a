"""Duplicate detection: a message that comes twice is acknowledged twice and delivered once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from harness.serving import Busbar, config_text
from tests.interop.azure_sdk import Azure, Farewells, nothing_left, take, take_one, text_of
from tests.interop.queue_pool import BRIEF_WINDOW, QueuePool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


def message(text: str, id: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, message_id=id, **options)


@pytest.mark.req("U21")
async def test_a_message_sent_twice_is_delivered_once(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("unique")
    await azure.send(queue, message("first", "1"), message("again", "1"), message("other", "2"))
    receiver = azure.receiver(queue)
    first, other = await take(receiver, 2)
    assert [text_of(first), text_of(other)] == ["first", "other"]
    assert (first.sequence_number, other.sequence_number) == (1, 2), "a duplicate takes no number"
    await receiver.complete_message(first)
    await azure.send(queue, message("after it was completed", "1"))
    assert await nothing_left(receiver)


async def test_within_a_batch_the_first_counts(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("unique")
    sender = azure.sender(queue)
    batch = await sender.create_message_batch()
    for text, id in (("a", "1"), ("b", "2"), ("c", "1")):
        batch.add_message(message(text, id))
    await sender.send_messages(batch)
    await sender.send_messages([message("d", "3"), message("e", "2")])
    messages = await take(azure.receiver(queue), 3)
    assert [text_of(each) for each in messages] == ["a", "b", "d"]


async def test_the_session_id_is_part_of_the_identity(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("unique")
    await azure.send(
        queue,
        message("none", "1"),
        message("s", "1", session_id="s"),
        message("t", "1", session_id="t"),
        message("s again", "1", session_id="s"),
    )
    messages = await take(azure.receiver(queue), 3)
    assert [text_of(each) for each in messages] == ["none", "s", "t"]


async def test_messages_without_an_id_are_all_delivered(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("unique")
    await azure.send(queue, "same", "same", "same")
    assert len(await take(azure.receiver(queue), 3)) == 3


@pytest.mark.req("U21")
async def test_scheduled_messages_take_part(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("unique")
    sender = azure.sender(queue)
    at = datetime.now(UTC) + timedelta(hours=1)
    (number,) = await sender.schedule_messages(message("scheduled", "1"), at)
    (again,) = await sender.schedule_messages(message("scheduled again", "1"), at)
    assert again == number, "the one that stands in the queue can be cancelled by either"
    await sender.send_messages(message("sent", "1"))
    receiver = azure.receiver(queue)
    assert [text_of(each) for each in await receiver.peek_messages(10)] == ["scheduled"]
    await sender.cancel_scheduled_messages(again)
    await sender.send_messages([message("sent after cancelling", "1"), message("new", "2")])
    assert text_of(await take_one(receiver)) == "new"


@pytest.mark.req("U21")
async def test_after_the_window_the_id_is_free(azure: Azure, queues: QueuePool) -> None:
    queue = queues.take("unique-briefly")
    await azure.sender(queue).send_messages(message("first", "1"))
    await asyncio.sleep(BRIEF_WINDOW + 0.1)
    await azure.send(queue, message("second", "1"))
    assert [text_of(each) for each in await take(azure.receiver(queue), 2)] == ["first", "second"]


@pytest.mark.req("U21")
async def test_ids_survive_kill_and_restart(tmp_path: Path, farewells: Farewells) -> None:
    server = Busbar(tmp_path / "data", config_text({"unique": {"RequiresDuplicateDetection": True}}))
    for end in (server.kill, server.stop, None):
        server.start()
        azure = Azure(server.connection_string, farewells, asynchronous=True)
        try:
            await azure.send("unique", message("first", "1"), message("second", "2"))
            if end is None:
                texts = [text_of(each) for each in await azure.receiver("unique").peek_messages(10)]
                assert texts == ["first", "second"]
        finally:
            azure.leave()
            await asyncio.sleep(0)
            await farewells.finish()
            await asyncio.to_thread(end or server.stop)
