"""The empty session id is a session like any other: over AMQP and HTTP, on regular and partitioned entities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import SessionCannotBeLockedError

from harness.serving import Busbar
from tests.interop.azure_sdk import Azure, nothing_left, take, take_one, text_of
from tests.interop.http_runtime import Http
from tests.interop.partitioned_queues import index_of
from tests.interop.queue_pool import QueuePool
from tests.interop.session_queues import (
    SessionQueues,
    World,
    every_way,
    listed_sessions,
    message,
    on_session,
)

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


@pytest.mark.req("S3", "S8", "S12")
@every_way
async def test_it_is_sent_to_accepted_and_settled(world: World, session_broker: Busbar) -> None:
    queue = world.queue()
    await world.send(queue, "other", "not this")
    await world.send(queue, "", "one", "two", "three")
    receiver = world.accept(queue, "")
    await receiver.opened()
    assert receiver.raw.session.session_id == ""
    with pytest.raises(SessionCannotBeLockedError):
        await world.accept(queue, "").opened()

    first, second, third = await take(receiver, 3)
    assert [text_of(each) for each in (first, second, third)] == ["one", "two", "three"]
    assert {each.session_id for each in (first, second, third)} == {""}
    peeked = await receiver.peek_messages(5, sequence_number=1)
    assert [text_of(each) for each in peeked] == ["one", "two", "three"], "only its own"
    await on_session(receiver, "set_state", b"state of the empty one")
    assert await on_session(receiver, "get_state") == b"state of the empty one"
    assert await on_session(receiver, "renew_lock") is not None
    await receiver.complete_message(first)
    await receiver.defer_message(second)
    (second,) = await receiver.receive_deferred_messages([second.sequence_number])
    await receiver.complete_message(second)
    await receiver.dead_letter_message(third, reason="tested")
    assert await nothing_left(receiver)
    dead = await take_one(world.sdk.dead_letters(queue))
    assert (text_of(dead), dead.session_id) == ("three", "")
    assert await listed_sessions(session_broker, queue) == ["", "other"], "it has a state"


@pytest.mark.req("S4", "S9")
@every_way
async def test_it_is_the_next_available_one(world: World) -> None:
    """And it is found again with its state when it was given up."""
    queue = world.queue()
    await world.send(queue, "", "only")
    receiver = world.accept(queue, NEXT_AVAILABLE_SESSION, max_wait_time=20)
    await receiver.opened()
    assert receiver.raw.session.session_id == ""
    await take_one(receiver)
    await on_session(receiver, "set_state", b"kept")
    await receiver.close()
    again = world.accept(queue, NEXT_AVAILABLE_SESSION, max_wait_time=20)
    got = await take_one(again)
    assert (text_of(got), got.session_id, got.delivery_count) == ("only", "", 0)
    assert await on_session(again, "get_state") == b"kept"


@every_way
async def test_messages_are_scheduled_into_it(world: World) -> None:
    queue = world.queue()
    sender = world.sdk.sender(queue)
    due = datetime.now(UTC) + timedelta(seconds=0.3)
    await sender.schedule_messages([message("", "a"), message("", "b")], due)
    receiver = world.accept(queue, "")
    assert [text_of(each) for each in await take(receiver, 2)] == ["a", "b"]


@pytest.mark.req("P15")
async def test_it_is_a_partition_key(partitioned_azure: Azure, partitioned: str) -> None:
    """Also without sessions: all its messages meet in one fragment, and another key contradicts it."""
    sender, receiver = partitioned_azure.sender(partitioned), partitioned_azure.receiver(partitioned)
    for n in range(8):
        await sender.send_messages(message("", str(n)))
    got = await take(receiver, 8)
    assert [text_of(each) for each in got] == [str(n) for n in range(8)]
    assert len({index_of(each) for each in got}) == 1


@pytest.mark.req("U23", "S6")
async def test_over_http(session_broker: Busbar, session_pool: SessionQueues, worlds: list[World]) -> None:
    """HTTP sends into sessions and receives where there are none, and shows the empty id as one."""
    client = Http(session_broker.port, session_broker.key)
    for place in ("regular", "partitioned"):
        queue = session_pool.take(place)
        assert (await client.send(queue, b"text", {"SessionId": ""})).status == 201
        sent = await client.send_batch(queue, [{"Body": "batch", "BrokerProperties": {"SessionId": ""}}])
        assert sent.status == 201
        (await client.send(queue, b"without")).error(403)
        refused = await client.send(queue, b"contradicts itself", {"SessionId": "", "PartitionKey": "p"})
        assert "SessionId is ''" in refused.error(400)
        receiver = worlds[0].accept(queue, "")
        got = await take(receiver, 2)
        assert [(text_of(each), each.session_id) for each in got] == [("text", ""), ("batch", "")]
        await receiver.dead_letter_message(got[0])
        dead = await client.peek_lock(f"{queue}/$DeadLetterQueue")
        assert dead.broker["SessionId"] == ""
    await client.close()


@pytest.mark.req("U21")
async def test_it_is_a_key_of_duplicates(azure: Azure, queues: QueuePool) -> None:
    """One id in one session is one message, whatever else is said of it."""
    queue = queues.take("unique")
    sender, receiver = azure.sender(queue), azure.receiver(queue)
    for key in ("p", "q"):
        sent = message("", key, message_id="id")
        sent.raw_amqp_message.annotations = {"x-opt-partition-key": key}
        await sender.send_messages(sent)
    assert text_of(await take_one(receiver)) == "p"
    assert await nothing_left(receiver)
