"""The state of a message session, and the list of sessions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from harness.amqp_driver import connect, session_payload
from harness.serving import Busbar
from tests.interop.azure_sdk import take_one
from tests.interop.http_runtime import Http
from tests.interop.session_queues import (
    World,
    every_way,
    listed_sessions,
    on_regular_entities,
    on_session,
    sent_to,
)

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.req("S12", "P32")
@every_way
async def test_set_read_replace_clear(world: World) -> None:
    queue = world.queue()
    receiver = world.accept(queue, "s")
    assert await on_session(receiver, "get_state") is None, "null if never set"
    await on_session(receiver, "set_state", b"step 1")
    assert await on_session(receiver, "get_state") == b"step 1"
    await on_session(receiver, "set_state", "étape 2")
    assert (await on_session(receiver, "get_state")).decode() == "étape 2"
    await on_session(receiver, "set_state", None)
    assert await on_session(receiver, "get_state") is None


@pytest.mark.req("S12")
@every_way
async def test_the_next_holder_finds_the_state_though_all_messages_are_gone(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1")
    first = world.accept(queue, "s")
    await first.complete_message(await take_one(first))
    await on_session(first, "set_state", bytes(range(256)))
    await first.close()
    second = world.accept(queue, "s")
    assert await on_session(second, "get_state") == bytes(range(256))
    other = world.accept(queue, "t")
    assert await on_session(other, "get_state") is None, "a state belongs to one session"


@pytest.mark.req("S12")
@every_way
async def test_a_state_is_as_large_as_a_message_and_no_larger(world: World) -> None:
    queue = world.queue()
    receiver = world.accept(queue, "s")
    largest = bytes(256 * 1024)
    await on_session(receiver, "set_state", largest)
    assert await on_session(receiver, "get_state") == largest
    with pytest.raises(ServiceBusQuotaExceededError, match="262145 bytes; at most 262144"):
        await on_session(receiver, "set_state", largest + b"x")
    assert await on_session(receiver, "get_state") == largest


@pytest.mark.req("S12")
@on_regular_entities
async def test_a_state_counts_towards_the_quota(world: World) -> None:
    """One megabyte: five states of 250 KB do not fit, four do. Those of a subscription count towards its topic's quota."""
    queue = world.queue("tiny")
    state = bytes(250_000)
    receivers = [world.accept(queue, f"s{n}") for n in range(5)]
    for receiver in receivers[:4]:
        await on_session(receiver, "set_state", state)
    with pytest.raises(ServiceBusQuotaExceededError):
        await on_session(receivers[4], "set_state", state)
    with pytest.raises(ServiceBusQuotaExceededError):
        await world.send(queue, "s", "x" * 100_000)
    await on_session(receivers[0], "set_state", None)
    await on_session(receivers[4], "set_state", state)


@pytest.mark.req("P32")
@every_way
async def test_the_sessions_of_a_queue_are_listed(world: World, session_broker: Busbar) -> None:
    queue = world.queue()
    assert await listed_sessions(session_broker, queue) == []
    for name in ("b", "a", "c"):
        await world.send(queue, name, "1")
    receiver = world.accept(queue, "b")
    await receiver.complete_message(await take_one(receiver))
    kept = world.accept(queue, "state-only")
    await on_session(kept, "set_state", b"x")
    assert await listed_sessions(session_broker, queue) == ["a", "c", "state-only"]
    await on_session(kept, "set_state", None)
    assert await listed_sessions(session_broker, queue) == ["a", "c"]


@every_way
async def test_sessions_whose_state_was_set_after_a_time(world: World, session_broker: Busbar) -> None:
    queue = world.queue()
    await world.send(queue, "no-state", "1")
    old, new = world.accept(queue, "old"), world.accept(queue, "new")
    await on_session(old, "set_state", b"x")
    await new.opened()
    await asyncio.sleep(0.1)
    between = datetime.now(UTC)
    await asyncio.sleep(0.1)
    await on_session(new, "set_state", b"x")
    assert await listed_sessions(session_broker, queue, state_updated_after=between) == ["new"]
    hour_ago = between - timedelta(hours=1)
    assert await listed_sessions(session_broker, queue, state_updated_after=hour_ago) == ["new", "old"]


@every_way
async def test_a_long_list_in_pages(world: World, session_broker: Busbar) -> None:
    queue = world.queue()
    names = [f"s{n:03}" for n in range(230)]
    connection = await connect(session_broker.port)
    sender = await connection.sender(sent_to(queue), session_payload(lambda n: names[n]))
    await sender.send(len(names))
    assert not sender.refused
    await connection.close()
    assert await listed_sessions(session_broker, queue) == names


@pytest.mark.req("S6")
async def test_http_sends_into_sessions_and_cannot_receive_from_them(
    session_broker: Busbar, session_queue: str
) -> None:
    http = Http(session_broker.port, session_broker.key)
    try:
        assert (await http.send(session_queue, b"x", {"SessionId": "s"})).status == 201
        (await http.send(session_queue, b"x")).error(403, 40301)
        (await http.peek_lock(session_queue, 0)).error(403, 40301)
    finally:
        await http.close()
    assert await listed_sessions(session_broker, session_queue) == ["s"]


async def test_a_plain_queue_has_no_list(session_broker: Busbar) -> None:
    with pytest.raises(ServiceBusError):
        await listed_sessions(session_broker, "plain")
