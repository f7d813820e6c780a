"""What a delivery says of itself: its lock token, the sender's delivery annotations, and the state of the message.

Every way in which a message is received or peeked is here once, for the state: active, deferred, scheduled.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

from tests.interop.azure_sdk import Azure, Handler, take, take_one, text_of
from tests.interop.http_runtime import Http
from tests.interop.session_queues import World, every_way, message
from tests.interop.topics import Topic, everywhere

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]

ACTIVE, DEFERRED, SCHEDULED = (
    ServiceBusMessageState.ACTIVE,
    ServiceBusMessageState.DEFERRED,
    ServiceBusMessageState.SCHEDULED,
)
TOKEN = b"x-opt-lock-token"
STATE = b"x-opt-message-state"
MINE = {b"hop": 1, b"name": b"me"}


def annotated(text: str, **options: Any) -> ServiceBusMessage:
    sent = ServiceBusMessage(text, **options)
    sent.raw_amqp_message.delivery_annotations = {"hop": 1, "name": "me"}
    return sent


def token_of(received: Any) -> uuid.UUID:
    """In the delivery annotations, which have to agree with the delivery tag."""
    found = received.raw_amqp_message.delivery_annotations[TOKEN]
    assert isinstance(found, uuid.UUID) and found == received.lock_token
    return found


def state_of(received: Any) -> ServiceBusMessageState:
    """What the SDK says, if the broker said it."""
    assert STATE in received.raw_amqp_message.annotations
    return received.state  # type: ignore[no-any-return]


async def later(sender: Handler, sent: ServiceBusMessage) -> None:
    await sender.schedule_messages(sent, datetime.now(UTC) + timedelta(hours=1))


@pytest.mark.req("U1", "U12")
async def test_every_locked_delivery_has_its_lock_token(azure: Azure, queue: str) -> None:
    await azure.send(queue, "plain", annotated("mine"), "deleted", annotated("mine, deleted"))
    receiver, once = azure.receiver(queue), azure.once(queue)
    first, second = await take(receiver, 2)
    tokens = {token_of(first), token_of(second)}
    assert second.raw_amqp_message.delivery_annotations == MINE | {TOKEN: second.lock_token}
    await receiver.abandon_message(first)
    again = await take_one(receiver)
    assert token_of(again) not in tokens, "a new lock has a new token"
    await receiver.complete_message(again)

    third, fourth = await take(once, 2)
    assert (text_of(third), third.raw_amqp_message.delivery_annotations) == ("deleted", {})
    assert (text_of(fourth), fourth.raw_amqp_message.delivery_annotations) == ("mine, deleted", MINE)


@pytest.mark.req("U12")
async def test_a_deferred_message_has_its_lock_token_and_its_state(azure: Azure, queue: str) -> None:
    await azure.send(queue, annotated("later"), "later, deleted")
    receiver, once = azure.receiver(queue), azure.once(queue)
    first, second = await take(receiver, 2)
    assert {state_of(first), state_of(second)} == {ACTIVE}
    await receiver.defer_message(first)
    await receiver.defer_message(second)

    (got,) = await receiver.receive_deferred_messages([first.sequence_number])

    assert got.raw_amqp_message.delivery_annotations == MINE | {TOKEN: got.lock_token}
    assert (state_of(got), text_of(got)) == (DEFERRED, "later")
    assert [state_of(each) for each in await receiver.peek_messages(2, sequence_number=1)] == [
        DEFERRED,
        DEFERRED,
    ]
    await receiver.abandon_message(got)
    (got,) = await receiver.receive_deferred_messages([first.sequence_number])
    assert (state_of(got), token_of(got)) == (DEFERRED, got.lock_token)
    await receiver.dead_letter_message(got)
    (gone,) = await once.receive_deferred_messages([second.sequence_number])
    assert (state_of(gone), gone.raw_amqp_message.delivery_annotations) == (DEFERRED, {})


@pytest.mark.req("U15")
async def test_the_state_in_a_dead_letter_queue(azure: Azure, queue: str, http: Http) -> None:
    """A message that was deferred before is active there, until it is deferred there too."""
    await azure.send(queue, "a", "b")
    receiver, dead = azure.receiver(queue), azure.dead_letters(queue)
    first, second = await take(receiver, 2)
    await receiver.defer_message(first)
    (first,) = await receiver.receive_deferred_messages([first.sequence_number])
    await receiver.dead_letter_message(first)
    await receiver.dead_letter_message(second)

    assert [state_of(each) for each in await dead.peek_messages(2)] == [ACTIVE, ACTIVE]
    held = await take_one(dead)
    assert (state_of(held), token_of(held)) == (ACTIVE, held.lock_token)
    await dead.defer_message(held)
    assert sorted(state_of(each).name for each in await dead.peek_messages(2, sequence_number=1)) == [
        "ACTIVE",
        "DEFERRED",
    ]
    (held,) = await dead.receive_deferred_messages([held.sequence_number])
    assert (state_of(held), token_of(held)) == (DEFERRED, held.lock_token)
    shown = await http.peek_lock(f"{queue}/$DeadLetterQueue")
    assert shown.broker["State"] == "Active"


@pytest.mark.req("U14")
async def test_a_scheduled_message_is_active_when_its_time_has_come(azure: Azure, queue: str) -> None:
    receiver, sender = azure.receiver(queue), azure.sender(queue)
    await later(sender, annotated("far"))
    (far,) = await receiver.peek_messages(1)
    assert (state_of(far), far.raw_amqp_message.delivery_annotations) == (SCHEDULED, MINE)
    await sender.schedule_messages(annotated("near"), datetime.now(UTC) + timedelta(seconds=0.3))
    near = await take_one(receiver)
    assert (text_of(near), state_of(near)) == ("near", ACTIVE)
    assert near.raw_amqp_message.delivery_annotations == MINE | {TOKEN: near.lock_token}


@every_way
async def test_the_states_in_a_session(world: World) -> None:
    queue = world.queue()
    sender = world.sdk.sender(queue)
    for text in ("active", "deferred"):
        await sender.send_messages(message("s", text))
    receiver = world.accept(queue, "s")
    first, second = await take(receiver, 2)
    assert {state_of(first), state_of(second)} == {ACTIVE}
    assert token_of(first) != token_of(second)
    await receiver.defer_message(second)
    if "subscription" not in world.place:  # a topic keeps what is scheduled
        await later(sender, message("s", "scheduled"))
        states = [ACTIVE, DEFERRED, SCHEDULED]
    else:
        states = [ACTIVE, DEFERRED]
    assert [state_of(each) for each in await receiver.peek_messages(3, sequence_number=1)] == states
    (got,) = await receiver.receive_deferred_messages([second.sequence_number])
    assert (state_of(got), token_of(got)) == (DEFERRED, got.lock_token)


@everywhere
async def test_the_states_in_a_subscription(world: World) -> None:
    """Delivery annotations go with each copy."""
    topic = Topic(world, one="")
    await world.sdk.topic(topic.name).send_messages(annotated("copy"))
    receiver = world.sdk.receiver(topic.path("one"))
    got = await take_one(receiver)
    assert state_of(got) == ACTIVE
    assert got.raw_amqp_message.delivery_annotations == MINE | {TOKEN: got.lock_token}
    await receiver.defer_message(got)
    (peeked,) = await receiver.peek_messages(1, sequence_number=1)
    assert (state_of(peeked), peeked.raw_amqp_message.delivery_annotations) == (DEFERRED, MINE)
    (got,) = await receiver.receive_deferred_messages([got.sequence_number])
    assert (state_of(got), token_of(got)) == (DEFERRED, got.lock_token)
