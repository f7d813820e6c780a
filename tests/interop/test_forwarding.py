"""Automatic forwarding with real clients: what goes where, with which properties, and what becomes of what cannot go.

All tests run with one process and with two brokers: there source and target may be in different processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusClient, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from proton import Data, int32, uint

from busbar.client import BusbarClientError, MessagingFactory
from busbar.model.partitioning import FRAGMENTS, index_of_key
from harness.serving import Busbar
from tests.interop.forwarding import Forwarding, bodies, body, description, reason
from tests.interop.plain_amqp import PlainAmqp, array

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    pytest.mark.server(
        {},
        {"transfer_patience": 1_500, "min_size_in_megabytes": 1, "size_increment": 1},
        arguments=("--stores", "4"),
        checked=True,
    ),
]

HOPS = "MaxTransferHopCountExceeded"


@pytest_asyncio.fixture(loop_scope="session")
async def here(server: Busbar) -> AsyncIterator[Forwarding]:
    async with await MessagingFactory.connect(server.connection_string) as factory:
        yield Forwarding(server, factory)


def fragment_of(number: int) -> int:
    return number >> 48


# ---- the ways ----


async def test_a_queue_forwards_to_a_queue_in_order(here: Forwarding) -> None:
    target = here.queue("target")
    source = here.queue("source", ForwardTo=target)
    texts = [f"{number}" for number in range(1_500)]
    await here.send(source, *texts)
    got = await here.take(target, len(texts))
    assert bodies(got) == texts
    await here.until(source, "All", 0)
    assert [message.sequence_number for message in got] == sorted(message.sequence_number for message in got)


async def test_a_subscription_forwards_its_copies_to_a_queue(here: Forwarding) -> None:
    target, topic = here.queue("target"), here.topic()
    first = here.subscription(topic, ForwardTo=target)
    second = here.subscription(topic, ForwardTo=target)
    plain = here.subscription(topic)
    await here.send(topic, "a", "b")
    assert sorted(bodies(await here.take(target, 4))) == ["a", "a", "b", "b"]
    assert bodies(await here.take(plain, 2)) == ["a", "b"]
    await here.until(first, "All", 0)
    await here.until(second, "All", 0)


async def test_a_queue_forwards_to_a_topic_whose_subscriptions_select(here: Forwarding) -> None:
    topic = here.topic()
    one, two = here.subscription(topic), here.subscription(topic)
    source = here.queue("source", ForwardTo=topic)
    await here.send(source, *[str(number) for number in range(300)])
    for subscription in (one, two):
        assert bodies(await here.take(subscription, 300)) == [str(number) for number in range(300)]


async def test_dead_letters_are_forwarded_and_name_their_source(here: Forwarding) -> None:
    target, topic = here.queue("letters"), here.topic()
    source = here.subscription(topic, MaxDeliveryCount=1, ForwardDeadLetteredMessagesTo=target)
    await here.send(topic, "poison", subject="s", application_properties={"mine": 7})
    receiver = await here.factory.receiver(source)
    (message,) = await receiver.receive(1, 10)
    await receiver.abandon([message])
    await receiver.close()
    (letter,) = await here.take(target, 1)
    assert letter.annotations["x-opt-deadletter-source"] == source
    decoded = letter.decode()
    assert decoded.application_properties["mine"] == 7 and decoded.subject == "s"
    assert reason(letter) == "MaxDeliveryCountExceeded"
    assert letter.delivery_count == 0
    await here.until(source, "All", 0)


# ---- chains ----


def chain(here: Forwarding, hops: int) -> list[str]:
    """Queues of which each forwards to the next."""
    queues = [here.queue("last")]
    for _ in range(hops):
        queues.append(here.queue("hop", ForwardTo=queues[-1]))
    return queues[::-1]


async def test_four_hops_are_allowed(here: Forwarding) -> None:
    queues = chain(here, 4)
    await here.send(queues[0], "far", subject="kept")
    (message,) = await here.take(queues[-1], 1)
    assert message.decode().subject == "kept"
    assert message.annotations["x-opt-enqueue-sequence-number"] == 1


async def test_a_fifth_hop_is_not_allowed(here: Forwarding) -> None:
    queues = chain(here, 5)
    await here.send(queues[0], "far")
    (letter,) = await here.dead_letters(queues[4])
    assert body(letter) == "far" and reason(letter) == HOPS
    assert here.counts(queues[5])["All"] == 0


async def test_what_forwards_to_itself_ends_in_the_dead_letter_queue(here: Forwarding) -> None:
    queue = here.queue("itself")
    here.update(queue, ForwardTo=queue)
    await here.send(queue, "round", "and round")
    letters = await here.dead_letters(queue, 2)
    assert bodies(letters) == ["round", "and round"]
    assert {reason(letter) for letter in letters} == {HOPS}
    await here.until(queue, "All", 0)


async def test_two_that_forward_to_each_other_end(here: Forwarding) -> None:
    one = here.queue("one")
    two = here.queue("two", ForwardTo=one)
    here.update(one, ForwardTo=two)
    await here.send(one, "ping")
    await here.until(one, "DeadLetter", 1)  # one, two, one, two, one: four moves
    (letter,) = await here.dead_letters(one)
    assert reason(letter) == HOPS


async def test_dead_letters_that_moved_too_often_are_failed_transfers(here: Forwarding) -> None:
    last = here.queue("last")
    chain = [last]
    for _ in range(5):
        chain.append(here.queue("hop", ForwardDeadLetteredMessagesTo=chain[-1]))
    chain.reverse()
    await here.send(chain[0], "bad")
    for queue in chain[:5]:
        receiver = await here.factory.receiver(queue)
        (message,) = await receiver.receive(1, 10)
        await receiver.dead_letter([message], "Bad", "It is bad.")
        await receiver.close()
    (letter,) = await here.failed_transfers(chain[4])
    assert reason(letter) == HOPS
    await here.until(last, "All", 0)
    await here.until(chain[4], "All", 0)


# ---- what goes along ----


async def test_what_a_message_says_goes_along_and_it_counts_from_there(here: Forwarding) -> None:
    target = here.queue("target")
    source = here.queue("source", ForwardTo=target, DefaultMessageTimeToLive="PT1H")
    await here.send(source, "first")
    await here.take(target, 1)
    fields = {
        "subject": "label", "correlation_id": "c", "to": "t", "reply_to": "r", "reply_to_session_id": "rs",
        "content_type": "text/plain", "partition_key": "s", "session_id": "s", "time_to_live": 7_200_000,
        "application_properties": {"n": 5, "text": "yes"},
    }  # fmt: skip
    await here.send(source, "whole", **fields)
    (message,) = await here.take(target, 1)
    decoded = message.decode()
    assert decoded.message_id == "whole" and decoded.group_id == "s" and decoded.reply_to_group_id == "rs"
    assert (decoded.subject, decoded.correlation_id, decoded.to, decoded.reply_to) == ("label", "c", "t", "r")
    assert (decoded.content_type, decoded.application_properties) == ("text/plain", {"n": 5, "text": "yes"})
    assert message.annotations["x-opt-partition-key"] == "s"
    assert message.annotations["x-opt-enqueue-sequence-number"] == 2 == message.sequence_number


async def test_the_time_to_live_is_that_of_the_source(here: Forwarding) -> None:
    target = here.queue("target")
    source = here.queue("source", ForwardTo=target, DefaultMessageTimeToLive="PT1S")
    await here.send(source, "short")
    await here.until(target, "Active", 1)
    await asyncio.sleep(1.2)
    receiver = await here.factory.receiver(target)
    assert await receiver.receive(1, 0.3) == []
    await receiver.close()


async def test_scheduled_messages_wait_in_the_source(here: Forwarding) -> None:
    target = here.queue("target")
    source = here.queue("source", ForwardTo=target)
    soon = int(time.time() * 1000) + 1_500
    await here.send(source, "later", scheduled_enqueue_time=soon)
    assert here.counts(source)["Scheduled"] == 1 and here.counts(target)["All"] == 0
    (message,) = await here.take(target, 1)
    assert message.enqueued_time >= soon
    await here.until(source, "All", 0)


# ---- partitioned entities ----


@pytest.mark.req("P24")
@pytest.mark.parametrize(("from_many", "to_many"), [(False, True), (True, False), (True, True)])
async def test_keys_pick_the_fragments_of_partitioned_entities(
    here: Forwarding, from_many: bool, to_many: bool
) -> None:
    target = here.queue("target", EnablePartitioning=to_many)
    source = here.queue("source", EnablePartitioning=from_many, ForwardTo=target)
    for place in range(20):
        texts = [f"{place}-{number}" for number in range(10)]
        await here.send(source, *texts, partition_key=f"key {place}")
    await here.send(source, *[f"free-{number}" for number in range(100)])
    got = await here.take(target, 300)
    by_key: dict[str, list[str]] = {}
    for message in got:
        key = message.annotations.get("x-opt-partition-key")
        if key is not None:
            by_key.setdefault(str(key), []).append(body(message))
            if to_many:
                assert fragment_of(message.sequence_number) == index_of_key(str(key), FRAGMENTS)
            first = int(str(message.annotations["x-opt-enqueue-sequence-number"]))
            assert fragment_of(first) == (index_of_key(str(key), FRAGMENTS) if from_many else 0)
    assert len(by_key) == 20
    for place in range(20):  # the order of a key is kept
        assert by_key[f"key {place}"] == [f"{place}-{number}" for number in range(10)]
    assert sorted(body(message) for message in got if body(message).startswith("free")) == sorted(
        f"free-{number}" for number in range(100)
    )
    await here.until(source, "All", 0)


@pytest.mark.req("P24")
async def test_a_partitioned_subscription_forwards_sessions_to_a_partitioned_queue(here: Forwarding) -> None:
    target = here.queue("target", EnablePartitioning=True, RequiresSession=True)
    topic = here.topic(EnablePartitioning=True)
    here.subscription(topic, ForwardTo=target)
    for session in ("a", "b", "c"):
        await here.send(topic, *[f"{session}{number}" for number in range(5)], session_id=session)
    with ServiceBusClient.from_connection_string(here.server.connection_string, retry_total=0) as client:
        for session in ("a", "b", "c"):
            got: list[str] = []
            with client.get_queue_receiver(target, session_id=session) as receiver:
                while len(got) < 5:
                    for message in receiver.receive_messages(5, 10):
                        assert fragment_of(message.sequence_number or 0) == index_of_key(session, FRAGMENTS)
                        receiver.complete_message(message)
                        got.append(str(message))
            assert got == [f"{session}{number}" for number in range(5)]


async def test_the_message_id_is_the_key_where_the_target_detects_duplicates(here: Forwarding) -> None:
    target = here.queue("target", EnablePartitioning=True, RequiresDuplicateDetection=True)
    source = here.queue("source", EnablePartitioning=True, ForwardTo=target)
    for _ in range(3):
        await here.send(source, *[f"id {number}" for number in range(40)])
    got = await here.take(target, 40)
    for message in got:
        assert fragment_of(message.sequence_number) == index_of_key(body(message), FRAGMENTS)
    await here.until(source, "All", 0)
    await here.until(target, "All", 0)


async def test_a_source_with_sessions_forwards_them(here: Forwarding) -> None:
    target = here.queue("target", RequiresSession=True)
    source = here.queue("source", RequiresSession=True, ForwardTo=target)
    for session in ("x", "y"):
        await here.send(source, *[f"{session}{number}" for number in range(40)], session_id=session)
    await here.until(target, "Active", 80)
    with (
        ServiceBusClient.from_connection_string(here.server.connection_string, retry_total=0) as client,
        client.get_queue_receiver(target, session_id="y") as receiver,
    ):
        got = [str(message) for message in receiver.receive_messages(40, 10)]
        assert got == [f"y{number}" for number in range(len(got))] and got


# ---- duplicates ----


async def test_both_ends_detect_duplicates_by_their_own_window(here: Forwarding) -> None:
    target = here.queue("target", RequiresDuplicateDetection=True)
    strict = here.queue("strict", RequiresDuplicateDetection=True, ForwardTo=target)
    loose = here.queue("loose", ForwardTo=target)
    for _ in range(2):
        await here.send(strict, "a", "b")
        await here.send(loose, "b", "c")
    assert sorted(bodies(await here.take(target, 3))) == ["a", "b", "c"]
    await here.until(strict, "All", 0)
    await here.until(loose, "All", 0)


# ---- when a move fails ----


async def test_a_target_that_was_deleted_leaves_messages_in_the_sources_dead_letter_queue(
    here: Forwarding,
) -> None:
    target = here.queue("target")
    source = here.queue("source", ForwardTo=target)
    here.delete(target)
    await here.send(source, "lost")
    (letter,) = await here.dead_letters(source)
    assert reason(letter) == "MessagingEntityNotFoundException" and target in description(letter)
    here.put(target, "Queue", {})  # another entity of that name
    await here.send(source, "found")
    assert bodies(await here.take(target, 1)) == ["found"]


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
async def test_a_disabled_target_leaves_messages_in_the_sources_dead_letter_queue(
    here: Forwarding, status: str
) -> None:
    target = here.queue("target", Status=status)
    source = here.queue("source", ForwardTo=target)
    await here.send(source, "refused")
    (letter,) = await here.dead_letters(source)
    assert reason(letter) == "MessagingEntityDisabledException" and target in description(letter)
    here.update(target, Status="Active")
    await here.send(source, "taken")
    assert bodies(await here.take(target, 1)) == ["taken"]


async def test_dead_letters_stay_while_their_target_is_disabled_or_gone(here: Forwarding) -> None:
    target = here.queue("letters")
    source = here.queue("source", ForwardDeadLetteredMessagesTo=target)
    here.update(target, Status="Disabled")
    await here.send(source, "bad")
    receiver = await here.factory.receiver(source)
    await receiver.dead_letter(await receiver.receive(1, 10), "Bad", "")
    await receiver.close()
    await here.until(source, "DeadLetter", 1)
    await asyncio.sleep(0.5)
    assert here.counts(source)["DeadLetter"] == 1
    here.update(target, Status="Active")
    assert bodies(await here.take(target, 1)) == ["bad"]


async def test_a_full_target_is_waited_for_and_then_its_messages_are_dead_lettered(here: Forwarding) -> None:
    target = here.queue("target", MaxSizeInMegabytes=1)
    source = here.queue("source", ForwardTo=target)
    big = "x" * 200_000
    for number in range(7):
        await here.send(source, big, message_id=f"m{number}", subject=f"{number}")
    letters = await here.dead_letters(source, 1) if here.counts(source)["DeadLetter"] else []
    held = here.counts(source)["Transfer"]
    assert held or letters
    await here.until(source, "Transfer", 0)  # the patience of this namespace is over
    count = here.counts(source)["DeadLetter"] + len(letters)
    assert count and count + here.counts(target)["Active"] == 7
    for letter in letters or await here.dead_letters(source, count):
        assert reason(letter) == "QuotaExceededException" and target in description(letter)


async def test_messages_go_on_when_a_full_target_has_room_in_time(here: Forwarding) -> None:
    target = here.queue("target", MaxSizeInMegabytes=1)
    source = here.queue("source", ForwardTo=target)
    big = "x" * 200_000
    for number in range(8):
        await here.send(source, big, message_id=f"m{number}", subject=f"{number}")
    receiver = await here.factory.receiver(target, credit=2)
    got: list[str] = []
    while len(got) < 8:
        messages = await receiver.receive(2, 10)
        assert messages, got
        got += [str(message.decode().subject) for message in messages]
        await receiver.complete(messages)
    await receiver.close()
    assert got == [str(number) for number in range(8)]
    await here.until(source, "All", 0)


async def test_a_target_that_requires_sessions_refuses_messages_without_one(here: Forwarding) -> None:
    target = here.queue("target", RequiresSession=True)
    source = here.queue("source", ForwardTo=target)
    await here.send(source, "none")
    await here.send(source, "some", session_id="s")
    await here.until(target, "Active", 1)
    (letter,) = await here.dead_letters(source)
    assert body(letter) == "none" and target in description(letter)


async def test_keys_that_contradict_each_other_do_not_reach_a_partitioned_target(here: Forwarding) -> None:
    target = here.queue("target", EnablePartitioning=True)
    source = here.queue("source", ForwardTo=target)
    await here.send(source, "both", session_id="s", partition_key="p")
    await here.send(source, "one", session_id="s")
    assert bodies(await here.take(target, 1)) == ["one"]
    (letter,) = await here.dead_letters(source)
    assert body(letter) == "both" and target in description(letter)


# ---- receivers ----


async def test_receivers_of_what_forwards_are_refused(here: Forwarding) -> None:
    target = here.queue("target")
    both = here.queue("both", ForwardTo=target, ForwardDeadLetteredMessagesTo=target)
    for sub_queue in ("", "deadletter"):
        with pytest.raises(BusbarClientError, match="auto-forwarding enabled"):
            await here.factory.receiver(both, sub_queue=sub_queue)
    transfers = await here.factory.receiver(both, sub_queue="transferdeadletter")
    assert await transfers.receive(1, 0.1) == []
    await transfers.close()
    letters = here.queue("letters", ForwardTo=target)
    await (await here.factory.receiver(letters, sub_queue="deadletter")).close()
    with (
        ServiceBusClient.from_connection_string(here.server.connection_string, retry_total=0) as client,
        pytest.raises(ServiceBusError, match="auto-forwarding enabled"),
        client.get_queue_receiver(both) as receiver,
    ):
        receiver.receive_messages(1, 1)


async def test_open_receivers_end_and_give_back_what_they_fetched(here: Forwarding) -> None:
    target, source = here.queue("target"), here.queue("source", LockDuration="PT5S")
    await here.send(source, *[str(number) for number in range(20)])
    receiver = await here.factory.receiver(source, credit=20)
    first = await receiver.receive(5, 10)
    here.update(source, ForwardTo=target, LockDuration="PT5S")
    with pytest.raises(BusbarClientError, match="auto-forwarding enabled"):
        while True:
            first += await receiver.receive(20, 10)
    assert 5 <= len(first) <= 20
    got = await here.take(target, 20)
    assert sorted(bodies(got), key=int) == [str(number) for number in range(20)]


async def test_messages_can_still_be_peeked_and_received_by_number(here: Forwarding) -> None:
    target, source = here.queue("target"), here.queue("source")
    await here.send(source, "deferred")
    receiver = await here.factory.receiver(source)
    (message,) = await receiver.receive(1, 10)
    await receiver.defer([message])
    await receiver.close()
    here.update(source, ForwardTo=target)
    await here.send(source, "scheduled", scheduled_enqueue_time=int(time.time() * 1000) + 3_600_000)
    client = PlainAmqp(here.server.port, here.server.key)
    try:
        asked: dict[str, object] = {"from-sequence-number": 1, "message-count": int32(5)}
        status, found = client.manage(source, "peek-message", asked)
        assert (status, len(found["messages"])) == (200, 2)
        numbers = array(Data.LONG, message.sequence_number)
        asked = {"sequence-numbers": numbers, "receiver-settle-mode": uint(1)}
        status, found = client.manage(source, "receive-by-sequence-number", asked)
        assert (status, len(found["messages"])) == (200, 1)
    finally:
        client.close()
    assert here.counts(source)["Scheduled"] == 1


async def test_the_sdk_receives_and_settles_failed_transfers(here: Forwarding) -> None:
    """A dead letter that moved too often is peeked, deferred, received by its number and completed there."""
    itself = here.queue("itself")
    here.update(itself, ForwardDeadLetteredMessagesTo=itself)
    await here.send(itself, "bad")
    with ServiceBusClient.from_connection_string(here.server.connection_string, retry_total=0) as client:
        with client.get_queue_receiver(itself) as receiver:
            for _ in range(5):
                (message,) = receiver.receive_messages(1, 10)
                receiver.dead_letter_message(message, reason="Bad")
        await here.until(itself, "TransferDeadLetter", 1)
        sub_queue = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
        with client.get_queue_receiver(itself, sub_queue=sub_queue) as receiver:
            (peeked,) = receiver.peek_messages(5)
            assert peeked.dead_letter_reason == HOPS
            (message,) = receiver.receive_messages(1, 10)
            receiver.defer_message(message)
            assert here.counts(itself)["TransferDeadLetter"] == 1
            assert message.sequence_number is not None
            (message,) = receiver.receive_deferred_messages([message.sequence_number])
            receiver.complete_message(message)
    await here.until(itself, "All", 0)


# ---- settings that change while messages flow ----


async def test_what_waits_follows_a_target_that_changes(here: Forwarding) -> None:
    """Nothing is lost or doubled while the target changes again and again."""
    targets = [here.queue("target") for _ in range(2)]
    source = here.queue("source", ForwardTo=targets[0])
    total = 3_000

    async def sending() -> None:
        for first in range(0, total, 100):
            await here.send(source, *[str(number) for number in range(first, first + 100)])

    async def changing() -> None:
        for turn in range(8):
            await asyncio.sleep(0.1)
            await asyncio.to_thread(here.update, source, ForwardTo=targets[turn % 2])

    await asyncio.gather(sending(), changing())
    await here.until(source, "All", 0)
    counts = [here.counts(target)["Active"] for target in targets]
    assert sum(counts) == total
    got = [
        int(text)
        for target, count in zip(targets, counts, strict=True)
        for text in bodies(await here.take(target, count))
    ]
    assert sorted(got) == list(range(total))
