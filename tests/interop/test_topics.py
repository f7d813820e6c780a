"""Messages through topics: every subscription is a queue of copies. Every test runs on regular and partitioned topics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from tests.interop.azure_sdk import nothing_left, take, take_one, text_of
from tests.interop.session_queues import World, on_session
from tests.interop.topics import Topic, everywhere, keyed, texts

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]

FRAGMENT = 1 << 48
EVERY = '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>'


def numbers(messages: list[Any]) -> list[int]:
    """Within their fragment."""
    return [each.sequence_number % FRAGMENT for each in messages]


# ---- copies ----


@everywhere
async def test_every_subscription_gets_a_copy_and_settles_it_for_itself(world: World) -> None:
    topic = Topic(world, slow="", quick="", late="")
    slow, quick = topic.receiver("slow"), topic.once("quick")
    sender = topic.sender()
    await sender.send_messages(keyed("1", application_properties={"n": 7}, subject="s", message_id="id"))
    await sender.send_messages([keyed("2"), keyed("3")])

    deleted = await take(quick, 3)
    locked = await take(slow, 3)
    assert texts(deleted) == texts(locked) == ["1", "2", "3"]
    first = locked[0]
    assert (first.application_properties, first.subject, first.message_id) == ({b"n": 7}, "s", "id")
    assert first.delivery_count == 0
    await slow.complete_message(locked[0])
    await slow.abandon_message(locked[1])
    await slow.complete_message(locked[2])

    again = await take_one(slow)
    assert (text_of(again), again.delivery_count) == ("2", 1)
    await slow.complete_message(again)
    assert await topic.left("slow") == await topic.left("quick") == []
    untouched = await take(topic.receiver("late"), 3)
    assert [each.delivery_count for each in untouched] == [0, 0, 0]


@everywhere
async def test_a_subscription_counts_for_itself_and_remembers_the_topics_number(world: World) -> None:
    topic = Topic(world, early="")
    await topic.send("1", "2", "3")
    topic.subscribe("late")
    await topic.send("4", "5")

    early: list[Any] = await take(topic.once("early"), 5)
    late: list[Any] = await take(topic.once("late"), 2)
    assert texts(late) == ["4", "5"], "what was sent before it was there is not for it"
    assert (numbers(early), numbers(late)) == ([1, 2, 3, 4, 5], [1, 2])
    of_topic = [each.enqueued_sequence_number for each in early]
    assert [number % FRAGMENT for number in of_topic] == [1, 2, 3, 4, 5]
    assert [each.enqueued_sequence_number for each in late] == of_topic[3:]
    assert {number // FRAGMENT for number in of_topic} == {early[0].sequence_number // FRAGMENT}


@everywhere
async def test_many_messages_to_many_subscriptions_without_a_key(world: World) -> None:
    """Some large enough to be handed over in several frames; received with prefetch, by competing receivers."""
    names = [f"s{n}" for n in range(4)]
    topic = Topic(world, **dict.fromkeys(names, ""))
    pairs = [(topic.receiver(name, prefetch_count=20), topic.receiver(name)) for name in names]
    sender = topic.sender()
    sent = [f"{n}:" + "x" * (0 if n % 10 else 70_000) for n in range(60)]
    for begin in range(0, 60, 3):
        await sender.send_messages([ServiceBusMessage(text) for text in sent[begin : begin + 3]])

    async def consume(receiver: Any, found: list[str]) -> None:
        while got := await receiver.receive_messages(max_message_count=8, max_wait_time=1.5):
            for each in got:
                found.append(text_of(each))
                await receiver.complete_message(each)

    found: list[list[str]] = [[] for _ in names]
    await asyncio.gather(*[consume(receiver, found[n]) for n, pair in enumerate(pairs) for receiver in pair])
    for each in found:
        assert sorted(each) == sorted(sent)
    for name in names:
        assert await topic.left(name) == []


@everywhere
async def test_a_topic_without_subscriptions_takes_messages(world: World) -> None:
    topic = Topic(world)
    await topic.send("nobody listens")
    topic.subscribe("late")
    await topic.send("heard")
    assert await topic.drained("late", 1) == ["heard"]


@everywhere
async def test_a_deleted_subscription_gets_nothing_more_and_its_receivers_end(world: World) -> None:
    topic = Topic(world, stays="", goes="")
    await topic.send("1")
    going, staying = topic.receiver("goes"), topic.receiver("stays")
    held = await take_one(going)
    await staying.opened()
    topic.unsubscribe("goes")
    with pytest.raises(ServiceBusError):
        await going.complete_message(held)
    with pytest.raises(ServiceBusError, match=r"(?i)not.found|could not be found|not exist"):
        await topic.receiver("goes").opened()
    await topic.send("2")
    assert texts(await take(staying, 2)) == ["1", "2"]

    topic.subscribe("goes")
    await topic.send("3")
    again = await take(topic.once("goes"), 1)
    assert (texts(again), numbers(again)) == (["3"], [1]), "the new one of the same name is another"


# ---- what a receiver does with a copy ----


@everywhere
async def test_too_many_deliveries_end_in_the_dead_letter_queue_of_that_subscription(world: World) -> None:
    topic = Topic(world, twice="<MaxDeliveryCount>2</MaxDeliveryCount>", other="")
    await topic.send("poison", "fine")
    receiver = topic.receiver("twice")
    for count in range(2):
        got = await take_one(receiver)
        assert (text_of(got), got.delivery_count) == ("poison", count)
        await receiver.abandon_message(got)
    fine = await take_one(receiver)
    assert text_of(fine) == "fine"
    await receiver.dead_letter_message(fine, reason="mine", error_description="as I say")

    letters = topic.dead_letters("twice")
    dead = {text_of(each): each for each in await take(letters, 2)}
    assert dead["poison"].dead_letter_reason == "MaxDeliveryCountExceeded"
    assert (dead["fine"].dead_letter_reason, dead["fine"].dead_letter_error_description) == (
        "mine",
        "as I say",
    )
    for each in dead.values():
        await letters.complete_message(each)
    assert await nothing_left(letters)
    assert await topic.left("twice") == []
    assert await topic.drained("other", 2) == ["poison", "fine"]
    assert await nothing_left(topic.dead_letters("other"))


@everywhere
async def test_defer_peek_and_renew(world: World) -> None:
    topic = Topic(world, one="", two="")
    await topic.send("1", "2")
    receiver = topic.receiver("one")
    first, second = await take(receiver, 2)
    assert await receiver.renew_message_lock(first) > datetime.now(UTC)
    await receiver.defer_message(first)
    await receiver.complete_message(second)
    assert await nothing_left(receiver)
    assert await topic.left("one") == ["1"]
    with pytest.raises(ServiceBusError):
        await topic.receiver("two").receive_deferred_messages([first.sequence_number])
    (again,) = await receiver.receive_deferred_messages([first.sequence_number])
    assert text_of(again) == "1"
    await receiver.complete_message(again)
    assert await topic.left("one") == []
    assert await topic.drained("two", 2) == ["1", "2"]


@pytest.mark.req("P15")
@everywhere
async def test_sessions_beside_a_subscription_without(world: World) -> None:
    """The same messages, in one subscription with sessions and in one that does not care."""
    topic = Topic(world, sessions="<RequiresSession>true</RequiresSession>", plain="")
    sender = topic.sender()
    for n in range(3):
        for name in "ab":
            await sender.send_messages(ServiceBusMessage(f"{name}{n}", session_id=name))
    first = topic.receiver("sessions", session_id="a")
    await on_session(first, "set_state", b"so far")
    got = await take(first, 3)
    assert texts(got) == ["a0", "a1", "a2"]
    await first.complete_message(got[0])
    await first.close()

    again = topic.receiver("sessions", session_id="a")
    assert await on_session(again, "get_state") == b"so far"
    rest = await take(again, 2)
    assert [(text_of(each), each.delivery_count) for each in rest] == [("a1", 0), ("a2", 0)]
    assert texts(await take(topic.receiver("sessions", session_id="b"), 3)) == ["b0", "b1", "b2"]
    plain = await take(topic.once("plain"), 6)
    assert sorted(texts(plain)) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert {each.session_id for each in plain} == {"a", "b"}


# ---- what the topic does ----


@everywhere
async def test_messages_are_scheduled_in_the_topic_and_selected_when_they_are_due(world: World) -> None:
    topic = Topic(world, early="")
    sender = topic.sender()
    due = datetime.now(UTC) + timedelta(seconds=2)
    await sender.schedule_messages(keyed("soon"), due)
    await sender.send_messages(keyed("annotated", scheduled_enqueue_time_utc=due))
    cancelled = await sender.schedule_messages([keyed("a"), keyed("b")], due)
    await sender.cancel_scheduled_messages(cancelled)
    early = await topic.left("early")
    assert early == [] or datetime.now(UTC) >= due, "a topic's scheduled messages are its own"
    topic.subscribe("late")  # before they are due: they are for it, too
    receivers = topic.receiver("early"), topic.receiver("late")
    for receiver in receivers:
        got: list[Any] = await take(receiver, 2)
        assert sorted(texts(got)) == ["annotated", "soon"]
        assert min(each.enqueued_time_utc for each in got) >= due - timedelta(milliseconds=1)
        assert sorted(numbers(got)) == [1, 2]
        for each in got:
            await receiver.complete_message(each)
        assert await nothing_left(receiver)


@everywhere
async def test_duplicates_are_found_at_the_topic(world: World) -> None:
    topic = Topic(world, "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>", one="")
    first = ServiceBusMessage("first", message_id="same")
    await topic.send(first)
    assert await topic.drained("one", 1) == ["first"]
    topic.subscribe("two")
    await topic.send(
        ServiceBusMessage("again", message_id="same"), ServiceBusMessage("new", message_id="new")
    )
    assert await topic.drained("one", 1) == ["new"]
    assert await topic.drained("two", 1) == ["new"], "also for who did not get the first"


@everywhere
async def test_the_smallest_of_three_lives(world: World) -> None:
    topic = Topic(
        world,
        "<DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive>",
        hour="",
        minutes="<DefaultMessageTimeToLive>PT10M</DefaultMessageTimeToLive>",
    )
    await topic.send(
        keyed("none"),
        keyed("five minutes", time_to_live=timedelta(minutes=5)),
        keyed("two hours", time_to_live=timedelta(hours=2)),
    )
    for name, most in (("hour", 60), ("minutes", 10)):
        got: list[Any] = await take(topic.once(name), 3)
        lives = [round((each.expires_at_utc - each.enqueued_time_utc).total_seconds() / 60) for each in got]
        assert lives == [most, 5, most]


@everywhere
async def test_a_copy_expires_where_it_lives_shortest(world: World) -> None:
    dead_letter = "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
    brief = "<DefaultMessageTimeToLive>PT0.2S</DefaultMessageTimeToLive>"
    topic = Topic(world, buried=brief + dead_letter, dropped=brief, kept=dead_letter)
    await topic.send("short")
    await asyncio.sleep(0.4)
    assert await nothing_left(topic.receiver("buried"))  # nothing expires until somebody listens
    letter = await take_one(topic.dead_letters("buried"))
    assert (text_of(letter), letter.dead_letter_reason) == ("short", "TTLExpiredException")
    assert await nothing_left(topic.receiver("dropped"))
    assert await topic.left("dropped") == [] and await nothing_left(topic.dead_letters("dropped"))
    assert await topic.drained("kept", 1) == ["short"]


@everywhere
async def test_what_is_disabled(world: World) -> None:
    topic = Topic(world, on="", off="")
    topic.subscribe("off", "<Status>Disabled</Status>", change=True)
    await topic.send("1")
    with pytest.raises(MessagingEntityDisabledError):
        await topic.receiver("off").opened()
    topic.subscribe("off", "<Status>Active</Status>", change=True)
    assert await topic.drained("off", 1) == ["1"], "a disabled subscription gets its copies"

    topic.update("<Status>Disabled</Status>")
    with pytest.raises(MessagingEntityDisabledError):
        await topic.send("2")
    assert await topic.drained("on", 1) == ["1"], "a disabled topic's subscriptions can be received from"
    topic.update("<Status>Active</Status>")
    await topic.send("3")
    assert await topic.drained("on", 1) == ["3"]


@pytest.mark.req("P11")
@everywhere
async def test_a_full_topic_refuses_and_loses_nothing(world: World) -> None:
    """One megabyte for all copies, on a partitioned topic in each fragment."""
    names = ["a", "b", "c"]
    topic = Topic(world, "<MaxSizeInMegabytes>1</MaxSizeInMegabytes>", **dict.fromkeys(names, ""))
    sender = topic.sender()
    accepted = []
    with pytest.raises(ServiceBusQuotaExceededError):
        for n in range(10):
            await sender.send_messages(keyed(f"{n}" + "x" * 100_000))
            accepted.append(str(n))
    assert 3 <= len(accepted) <= 4, "three copies of each"
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages([keyed("x" * 50_000)] * 4)
    for name in names[:2]:
        assert [text[0] for text in await topic.drained(name, len(accepted))] == accepted
    await sender.send_messages(keyed("y" * 100_000))
    assert [text[0] for text in await topic.drained("a", 1)] == ["y"]
    assert [text[0] for text in await topic.drained("c", len(accepted) + 1)] == [*accepted, "y"]


@everywhere
async def test_only_what_is_selected_is_taken_if_the_topic_says_so(world: World) -> None:
    topic = Topic(world, "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>")
    with pytest.raises(ServiceBusError, match="selects"):
        await topic.send("for nobody")
    topic.subscribe("one")
    await topic.send("for one")
    assert await topic.drained("one", 1) == ["for one"]


# ---- refusals, idleness ----


@everywhere
async def test_what_is_sent_and_received_where(world: World) -> None:
    topic = Topic(world, one="")
    client = world.sdk.client()
    with pytest.raises(ServiceBusError, match="but from its subscriptions") as refused:
        await world.sdk.receiver(topic.name).opened()
    assert "amqp:not-allowed" in str(refused.value) or "not-allowed" in repr(refused.value)
    for path in (topic.path("one"), f"{topic.path('one')}/$DeadLetterQueue"):
        handler = world.sdk.kept(client.get_queue_sender(path))
        with pytest.raises(ServiceBusError, match="cannot be sent to"):
            await handler.send_messages(ServiceBusMessage("x"))
    await topic.send("x")
    assert await topic.drained("one", 1) == ["x"]


@everywhere
async def test_what_is_idle_goes(world: World) -> None:
    idle = "<AutoDeleteOnIdle>PT3S</AutoDeleteOnIdle>"  # longer than anything below takes on a busy machine
    topic, used = Topic(world, idle, one=""), Topic(world, read="")
    receiver = used.receiver("read", max_wait_time=30)
    await receiver.opened()
    sender = used.sender()
    await sender.opened()  # which takes the SDK a while
    used.subscribe("read", idle, change=True)
    for name in ("unread", "ruled"):
        used.subscribe(name, idle)
    rules = 0
    async with asyncio.timeout(60):
        while used.status("/Subscriptions/unread") == 200 or topic.status() == 200:
            await sender.send_messages(keyed("x"))  # what it gets is no use of a subscription
            used.put(f"/Subscriptions/ruled/Rules/r{rules}", f"RuleDescription {EVERY}")  # a new rule is
            rules += 1
            await asyncio.sleep(0.1)
    assert topic.status("/Subscriptions/one") == 404
    assert used.status() == used.status("/Subscriptions/read") == used.status("/Subscriptions/ruled") == 200
    assert text_of(await take_one(receiver)) == "x"
