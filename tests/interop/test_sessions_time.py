"""Message sessions and time: locks that end and are renewed, delivery counts, and messages that expire."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError, SessionLockLostError

from harness.amqp_driver import connect
from harness.serving import Busbar
from tests.interop.azure_sdk import nothing_left, take, take_one, text_of
from tests.interop.session_queues import BRIEF_LOCK, MODEST_LOCK, World, every_way, on_session

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]

BRIEF_LIFE = timedelta(seconds=1)  # the SDK sends whole seconds


def texts(messages: list[Any]) -> list[str]:
    return [text_of(each) for each in messages]


@pytest.mark.req("S9", "S13")
@every_way
async def test_an_expired_session_lock_counts_and_gives_the_session_back(world: World) -> None:
    queue = world.queue("brief")
    await world.send(queue, "s", "1", "2")
    slow = world.accept(queue, "s")
    locked = await take(slow, 2)
    assert [each.delivery_count for each in locked] == [0, 0]
    heir = world.accept(queue, max_wait_time=10)
    again = await take(heir, 2)

    assert datetime.now(UTC) >= slow.raw.session.locked_until_utc
    assert texts(again) == ["1", "2"]
    assert [each.delivery_count for each in again] == [1, 1]
    with pytest.raises(SessionLockLostError):
        await slow.complete_message(locked[0])
    for each in again:
        await heir.complete_message(each)


@pytest.mark.req("S9")
@every_way
async def test_whatever_is_done_with_a_lost_session_says_so(world: World) -> None:
    queue = world.queue("brief")
    await world.send(queue, "s", "1")
    receiver = world.accept(queue, "s")
    locked = await take_one(receiver)
    await asyncio.sleep(BRIEF_LOCK + 0.2)
    # The client's clock stands still, so that each attempt reaches the broker.
    receiver.raw.session._locked_until_utc = datetime.now(UTC) + timedelta(hours=1)
    for attempt in (
        receiver.complete_message(locked),
        on_session(receiver, "set_state", b"x"),
        on_session(receiver, "get_state"),
        on_session(receiver, "renew_lock"),
        receiver.receive_messages(max_wait_time=1),
    ):
        with pytest.raises(SessionLockLostError):
            await attempt


@pytest.mark.req("S9", "P32")
@every_way
async def test_a_renewed_lock_holds(world: World) -> None:
    queue = world.queue("modest")
    await world.send(queue, "s", "1")
    receiver = world.accept(queue, "s")
    locked = await take_one(receiver)
    for _ in range(3):
        await asyncio.sleep(MODEST_LOCK * 0.5)
        until = await on_session(receiver, "renew_lock")
        assert until > datetime.now(UTC) + timedelta(seconds=MODEST_LOCK * 0.6)
    await receiver.complete_message(locked)
    assert await nothing_left(receiver)


@pytest.mark.req("S9")
@every_way
async def test_automatic_renewal(world: World) -> None:
    queue = world.queue("modest")
    await world.send(queue, "s", "1")
    lost: list[object] = []
    renewer = world.sdk.renewer(
        max_lock_renewal_duration=20, on_lock_renew_failure=lambda *args: lost.append(args)
    )
    receiver = world.accept(queue, "s", auto_lock_renewer=renewer.raw)
    locked = await take_one(receiver)
    await asyncio.sleep(MODEST_LOCK * 1.5)
    await receiver.complete_message(locked)
    assert not lost
    assert locked.delivery_count == 0


@pytest.mark.req("S13")
@every_way
async def test_closing_a_session_counts_nothing(world: World) -> None:
    """The seed's table, second row: not completed, locked or not, and closed."""
    queue = world.queue()
    await world.send(queue, "s", "1", "2", "3")
    for _ in range(2):
        receiver = world.accept(queue, "s")
        locked = await take(receiver, 2)
        assert texts(locked) == ["1", "2"]
        await receiver.close()
    receiver = world.accept(queue, "s")
    got = await take(receiver, 3)
    assert texts(got) == ["1", "2", "3"]
    assert [each.delivery_count for each in got] == [0, 0, 0]


@pytest.mark.req("S13")
@every_way
async def test_a_dropped_connection_is_a_close(world: World, session_broker: Busbar) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1")
    connection = await connect(session_broker.port)
    receiver = await connection.receiver(queue, session="s", decide=lambda deliveries: [])
    await receiver.until(lambda: receiver.received == 1)
    connection.abort()
    heir = world.accept(queue, max_wait_time=10)
    got = await take_one(heir)
    assert (text_of(got), got.delivery_count) == ("1", 0)


@pytest.mark.req("S16")
@every_way
async def test_if_one_message_has_expired_its_whole_session_goes(world: World) -> None:
    await asyncio.gather(expiring_session(world, "buried"), expiring_session(world, "workflow"))


async def expiring_session(world: World, kind: str) -> None:
    queue = world.queue(kind)
    await world.send(queue, "s", "1", "2")
    await world.send(queue, "s", "brief", time_to_live=BRIEF_LIFE)
    await world.send(queue, "s", "4")
    await world.send(queue, "other", "5")
    await asyncio.sleep(1.1)
    receiver, other = world.accept(queue, "s"), world.accept(queue, "other")
    assert await nothing_left(receiver)
    assert text_of(await take_one(other)) == "5", "another session is not concerned"
    dead_letters = world.sdk.dead_letters(queue)
    if kind == "buried":
        dead = await take(dead_letters, 4)
        assert sorted(texts(dead)) == ["1", "2", "4", "brief"]
        assert {each.dead_letter_reason for each in dead} == {"TTLExpiredException"}
    else:
        assert await nothing_left(dead_letters)


@pytest.mark.req("S16")
@every_way
async def test_without_a_listener_nothing_expires(world: World, plain_sessions: Any) -> None:
    queue = world.queue("buried")
    await world.send(queue, "s", "1")
    await world.send(queue, "s", "brief", time_to_live=BRIEF_LIFE)
    await asyncio.sleep(1.1)
    peek = {"from-sequence-number": 0, "message-count": 10}
    status, body = await asyncio.to_thread(plain_sessions.manage, queue, "peek-message", peek)
    assert status == 200 and len(body["messages"]) == 2, "peek is no listener"
    assert (
        await asyncio.to_thread(plain_sessions.manage, f"{queue}/$deadletterqueue", "peek-message", peek)
    )[0] == 204
    assert await nothing_left(world.accept(queue, "s"))
    assert len(await take(world.sdk.dead_letters(queue), 2)) == 2


@every_way
async def test_the_lock_of_a_message_is_that_of_its_session(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1")
    receiver = world.accept(queue, "s")
    got = await take_one(receiver)
    # The SDK shows none for a message of a session; what came is what counts.
    until = got._raw_amqp_message.annotations[b"x-opt-locked-until"] / 1000
    assert abs(until - receiver.raw.session.locked_until_utc.timestamp()) < 0.01
    with pytest.raises((TypeError, ServiceBusError)):
        await receiver.renew_message_lock(got)
