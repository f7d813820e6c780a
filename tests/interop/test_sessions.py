"""Message sessions: ordered, exclusive, resumable. Every test runs on regular and on partitioned queues."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, SessionCannotBeLockedError

from harness.amqp_driver import connect, session_payload
from harness.serving import Busbar
from tests.interop.azure_sdk import Handler, nothing_left, take, take_one, text_of
from tests.interop.session_queues import (
    World,
    every_way,
    message,
    on_partitioned_queues,
    on_queues,
    on_subscriptions,
)

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]


def texts(messages: list[Any]) -> list[str]:
    return [text_of(each) for each in messages]


def number_of(message: Any) -> int:
    return int(message.sequence_number)


async def complete(receiver: Handler, messages: list[Any]) -> None:
    for each in messages:
        await receiver.complete_message(each)


# ---- order ----


@pytest.mark.req("S1", "S10", "S11", "P15")
@every_way
async def test_interleaved_sessions_are_received_apart_each_in_its_order(world: World) -> None:
    queue = world.queue()
    receivers = {name: world.accept(queue, name) for name in "abc"}
    sender = world.sdk.sender(queue)
    for n in range(12):
        for name in "abc":
            await sender.send_messages(message(name, f"{name}{n}"))

    for name, receiver in receivers.items():
        got = await take(receiver, 12)
        assert texts(got) == [f"{name}{n}" for n in range(12)]
        assert {each.session_id for each in got} == {name}
        numbers = [number_of(each) for each in got]
        assert numbers == sorted(numbers)
        assert len({number >> 48 for number in numbers}) == 1, "a session lies in one fragment"
        random.shuffle(got)
        await complete(receiver, got)
        assert await nothing_left(receiver)


@pytest.mark.req("S15")
@every_way
async def test_two_consumers_cannot_overtake_each_other(world: World) -> None:
    """The seed's story: consumer 2 gets nothing of the stream before consumer 1 has finished its part."""
    queue = world.queue()
    await world.send(queue, "s", "1", "2", "3")
    processed = []
    first = world.accept(queue)
    one = await take_one(first)
    second = world.accept(queue, max_wait_time=1.5)
    with pytest.raises(OperationTimeoutError):
        await second.opened()
    processed.append(text_of(one))
    await first.complete_message(one)
    await first.close()

    third = world.accept(queue)
    rest = await take(third, 2)
    processed += texts(rest)
    await complete(third, rest)
    assert processed == ["1", "2", "3"]


@pytest.mark.req("S11")
@every_way
async def test_an_abandoned_message_is_the_next_one_again(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1", "2")
    receiver = world.accept(queue, "s")
    for deliveries in range(3):
        first = await take_one(receiver)
        assert (text_of(first), first.delivery_count) == ("1", deliveries)
        await receiver.abandon_message(first)
    got = [await take_one(receiver), await take_one(receiver)]
    assert texts(got) == ["1", "2"]
    await complete(receiver, got)


@every_way
async def test_after_too_many_deliveries_a_message_is_dead_and_its_session_goes_on(world: World) -> None:
    queue = world.queue("twice")
    await world.send(queue, "s", "poison", "2")
    receiver = world.accept(queue, "s")
    for _ in range(2):
        await receiver.abandon_message(await take_one(receiver))
    second = await take_one(receiver)
    assert text_of(second) == "2"
    await receiver.complete_message(second)

    dead = await take_one(world.sdk.dead_letters(queue))
    assert (text_of(dead), dead.session_id, dead.dead_letter_reason) == (
        "poison",
        "s",
        "MaxDeliveryCountExceeded",
    )


@pytest.mark.req("S5")
@every_way
async def test_start_and_end_marks_and_positions(world: World) -> None:
    queue = world.queue()
    sender = world.sdk.sender(queue)
    for subject in ("start", "content", "content", "end"):
        await sender.send_messages(message("s", "x", subject=subject))
    got = await take(world.accept(queue, "s"), 4)
    assert [each.subject for each in got] == ["start", "content", "content", "end"]
    assert [number_of(each) - number_of(got[0]) for each in got] == [0, 1, 2, 3]


@every_way
async def test_a_message_is_deferred_and_taken_within_its_session(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1", "2")
    receiver = world.accept(queue, "s")
    first, second = await take(receiver, 2)
    await receiver.defer_message(first)
    await receiver.complete_message(second)
    assert await nothing_left(receiver)

    (again,) = await receiver.receive_deferred_messages([first.sequence_number])
    assert (text_of(again), again.session_id) == ("1", "s")
    await receiver.complete_message(again)


@every_way
async def test_a_message_is_dead_lettered_within_its_session(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1", "2")
    receiver = world.accept(queue, "s")
    await receiver.dead_letter_message(await take_one(receiver), reason="bad")
    assert text_of(await take_one(receiver)) == "2"
    dead = await take_one(world.sdk.dead_letters(queue))
    assert (text_of(dead), dead.dead_letter_reason, dead.session_id) == ("1", "bad", "s")


@every_way
async def test_receive_and_delete(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1", "2", "3")
    receiver = world.sdk.once(queue, session_id="s")
    assert texts(await take(receiver, 3)) == ["1", "2", "3"]
    await receiver.close()
    again = world.accept(queue, "s")
    assert await nothing_left(again)


@every_way
async def test_a_scheduled_message_joins_its_session(world: World) -> None:
    queue = world.queue()
    receiver = world.accept(queue, "s")
    sender = world.sdk.sender(queue)
    due = datetime.now(UTC) + timedelta(seconds=1)
    await sender.schedule_messages(message("s", "later"), due)
    got = await take_one(receiver)
    assert (text_of(got), got.session_id) == ("later", "s")
    assert datetime.now(UTC) >= due


# ---- accepting ----


@pytest.mark.req("S4")
@every_way
async def test_one_message_makes_a_session_and_a_later_one_belongs_to_it(world: World) -> None:
    queue = world.queue()
    for text in ("first", "later"):
        await world.send(queue, "same", text)
        receiver = world.accept(queue)
        got = await take_one(receiver)
        assert receiver.raw.session.session_id == "same"
        assert text_of(got) == text
        await receiver.complete_message(got)
        await receiver.close()


@pytest.mark.req("S6")
@on_queues
async def test_without_a_session_nothing_is_sent_and_nothing_received(world: World) -> None:
    queue = world.queue()
    plain = world.sdk.receiver(queue)
    sender = world.sdk.sender(queue)
    with pytest.raises(ServiceBusError, match=r"(?i)session"):
        await sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match=r"(?i)session"):
        await sender.send_messages([message(None, "x"), message(None, "y")])
    with pytest.raises(ServiceBusError, match="entity that requires sessions"):
        await plain.opened()
    with pytest.raises(ServiceBusError, match="does not require sessions"):
        await world.accept("plain", "s").opened()


@on_subscriptions
async def test_a_copy_without_a_session_is_a_dead_letter_of_its_subscription(world: World) -> None:
    """The topic does not know that a subscription wants sessions, and takes what it is sent."""
    path = world.queue()
    sender = world.sdk.sender(path)
    await sender.send_messages(ServiceBusMessage("alone"))
    await sender.send_messages([message("s", "1"), message("s", "2")])
    with pytest.raises(ServiceBusError, match="entity that requires sessions"):
        await world.sdk.receiver(path).opened()
    dead = await take_one(world.sdk.dead_letters(path))
    assert (text_of(dead), dead.dead_letter_reason) == ("alone", "Session ID is null")
    receiver = world.accept(path)
    assert texts(await take(receiver, 2)) == ["1", "2"]


@pytest.mark.req("S8", "S9")
@every_way
async def test_a_session_has_one_holder_until_it_closes(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1")
    holder = world.accept(queue, "s")
    await holder.opened()
    with pytest.raises(SessionCannotBeLockedError):
        await world.accept(queue, "s").opened()
    with pytest.raises(OperationTimeoutError):
        await world.accept(queue, max_wait_time=1).opened()
    await world.send(queue, "s", "2")
    assert texts(await take(holder, 2)) == ["1", "2"], "what comes later is the holder's too"
    await holder.close()

    heir = world.accept(queue, "s")
    assert texts(await take(heir, 2)) == ["1", "2"]


@pytest.mark.req("S9")
@every_way
async def test_closing_frees_the_session_at_once(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "s", "1")
    holder = world.accept(queue, "s")
    await take_one(holder)
    waiting = world.accept(queue, max_wait_time=10)
    await waiting_for_a_session(waiting)
    closing = asyncio.ensure_future(holder.close())
    assert text_of(await take_one(waiting)) == "1"
    await closing


async def waiting_for_a_session(receiver: Handler, seconds: float = 0.7) -> None:
    opening = asyncio.ensure_future(receiver.opened())
    done, _pending = await asyncio.wait([opening], timeout=seconds)
    assert not done, "it did not wait"
    opening.add_done_callback(lambda future: future.cancelled() or future.exception())


@pytest.mark.req("S8", "S10")
@every_way
async def test_the_next_available_session_comes_when_there_is_one(world: World) -> None:
    queue = world.queue()
    waiting = world.accept(queue, max_wait_time=20)
    await waiting_for_a_session(waiting)
    await world.send(queue, "late", "1")
    got = await take_one(waiting)
    assert (waiting.raw.session.session_id, text_of(got)) == ("late", "1")
    await waiting.complete_message(got)


@every_way
async def test_nothing_is_available(world: World) -> None:
    queue = world.queue()
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        await world.accept(queue, max_wait_time=1).opened()
    assert 0.9 <= time.monotonic() - began < 4


@pytest.mark.req("S10")
@every_way
async def test_who_waits_gets_sessions_one_each(world: World) -> None:
    """Eight sessions for eight receivers that waited before there was any."""
    queue = world.queue()
    waiting = [world.accept(queue, max_wait_time=20) for _ in range(8)]
    await waiting_for_a_session(waiting[-1])
    names = [f"session-{n}" for n in range(8)]
    for name in names:
        await world.send(queue, name, name)
    got = await asyncio.gather(*[take_one(receiver) for receiver in waiting])
    assert sorted(texts(got)) == names
    for receiver, each in zip(waiting, got, strict=True):
        assert receiver.raw.session.session_id == text_of(each)
        await receiver.complete_message(each)


async def test_no_session_starves(session_broker: Busbar, session_queue: str) -> None:
    """All sessions have messages all the time; fragments take turns, and the sessions of a fragment."""
    names = [f"s{n}" for n in range(8)]
    connection = await connect(session_broker.port)
    sender = await connection.sender(session_queue, session_payload(lambda n: names[n % len(names)]))
    await sender.send(len(names) * 50)
    seen = []
    for _ in range(3 * len(names)):
        receiver = await connection.receiver(session_queue, session=None, credit=1, single=True)
        await receiver.settled(1)
        seen.append(receiver.session)
        assert receiver.link is not None
        receiver.link.detach()
    await connection.close()
    assert set(seen) == set(names)
    if "regular" in session_queue:
        assert seen == [*seen[: len(names)]] * 3, "one after the other, in turn"


@pytest.mark.req("S10")
@every_way
async def test_a_session_without_an_owner_delivers_nothing(world: World) -> None:
    queue = world.queue()
    other = world.accept(queue, "other")
    await world.send(queue, "orphan", "1")
    await world.send(queue, "other", "2")
    got = await take_one(other)
    assert text_of(got) == "2"
    await other.complete_message(got)
    assert await nothing_left(other)
    assert text_of(await take_one(world.accept(queue, "orphan"))) == "1"


@every_way
async def test_a_client_that_gives_up_waiting_takes_no_session_with_it(world: World) -> None:
    queue = world.queue()
    with pytest.raises(OperationTimeoutError):
        await world.accept(queue, max_wait_time=1).opened()
    await world.send(queue, "s", "1")
    receiver = world.accept(queue, max_wait_time=5)
    assert text_of(await take_one(receiver)) == "1"


@pytest.mark.req("S14")
@every_way
async def test_request_and_response(world: World) -> None:
    """The requester accepts its own session before there is any reply in it."""
    replies = world.queue()
    mine, others = world.accept(replies, "requester-1"), world.accept(replies, "requester-2")
    await mine.opened()
    await others.opened()
    asking = world.sdk.sender("requests")
    worker = world.sdk.receiver("requests")
    for number in (1, 2):
        await asking.send_messages(
            ServiceBusMessage(
                f"question {number}", reply_to=replies, reply_to_session_id=f"requester-{number}"
            )
        )
    for _ in range(2):
        request = await take_one(worker)
        reply = message(request.reply_to_session_id, f"answer to {text_of(request)}")
        await world.sdk.sender(str(request.reply_to)).send_messages(reply)
        await worker.complete_message(request)

    assert text_of(await take_one(mine)) == "answer to question 1"
    assert text_of(await take_one(others)) == "answer to question 2"


@every_way
async def test_a_program_takes_one_session_after_the_other(world: World) -> None:
    """It iterates over the messages of each, with locks that are renewed for it, until there are none."""
    queue = world.queue()
    for name in ("a", "b"):
        await world.send(queue, name, f"{name}1", f"{name}2", f"{name}3")
    renewer = world.sdk.renewer(max_lock_renewal_duration=60)
    handled: dict[str, list[str]] = {}
    closing: list[asyncio.Future[None]] = []
    while True:
        receiver = world.accept(
            queue, NEXT_AVAILABLE_SESSION, max_wait_time=0.5, auto_lock_renewer=renewer.raw
        )
        try:
            async for each in receiver:
                handled.setdefault(str(each.session_id), []).append(text_of(each))
                await receiver.complete_message(each)
        except OperationTimeoutError:
            break
        closing.append(asyncio.ensure_future(receiver.close()))
    await asyncio.gather(*closing)
    assert handled == {"a": ["a1", "a2", "a3"], "b": ["b1", "b2", "b3"]}


@pytest.mark.req("P15")
@on_partitioned_queues
async def test_sessions_spread_over_the_fragments(world: World) -> None:
    queue = world.queue()
    receivers = {name: world.accept(queue, name) for name in ("a", "b", "c", "d", "e")}
    homes = {}
    sender = world.sdk.sender(queue)
    for name, receiver in receivers.items():
        await sender.send_messages(message(name, name))
        got = await take_one(receiver)
        homes[name] = number_of(got) >> 48
        await receiver.complete_message(got)
    assert len(set(homes.values())) > 1


@pytest.mark.req("P32")
@every_way
async def test_peek_within_a_session(world: World) -> None:
    queue = world.queue()
    await world.send(queue, "a", "a1", "a2", "a3")
    await world.send(queue, "b", "b1")
    receiver = world.accept(queue, "a")
    peeked = await receiver.peek_messages(10)
    assert texts(peeked) == ["a1", "a2", "a3"]
    assert all(one.sequence_number < two.sequence_number for one, two in pairwise(peeked))
    assert texts(await receiver.peek_messages(1, sequence_number=peeked[1].sequence_number)) == ["a2"]


@pytest.mark.parametrize("name", ["", "ein Ümlaut", "x" * 128])
@every_way
async def test_any_string_of_128_characters_names_a_session(world: World, name: str) -> None:
    queue = world.queue()
    receiver = world.accept(queue, name)
    await receiver.opened()
    assert receiver.raw.session.session_id == name
    if name:  # the SDK does not send an empty one
        await world.send(queue, name, "1")
        got = await take_one(receiver)
        assert got.session_id == name
