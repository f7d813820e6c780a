"""Partitioned queues, topics and subscriptions have each advanced feature of regular ones.

The clients are azure-servicebus and, for transactions, busbar.client. Each test uses messages in several fragments, since a
feature that worked in one fragment only would be none of the entity. The index of a fragment is in the top 16 bits of a
sequence number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from busbar.client import MessagingFactory
from harness.serving import PATIENCE, Busbar
from tests.interop.transactions import message, peeked, received
from tests.interop.transactions import text_of as text_of_received

PARTITIONED: dict[str, object] = {"EnablePartitioning": True}
FEATURES: dict[str, dict[str, object]] = {
    "transactions": {},
    "sessions": {"RequiresSession": True},
    "duplicates": {"RequiresDuplicateDetection": True},
    "dead-letters": {"MaxDeliveryCount": 2},
    "expiry": {"DefaultMessageTimeToLive": "PT1S", "DeadLetteringOnMessageExpiration": True},
    "deferral": {},
    "schedules": {},
    "forwarding": {"ForwardTo": "end"},
    "forwarded-letters": {"ForwardDeadLetteredMessagesTo": "end-of-letters"},
}
OF_TOPICS = ("RequiresDuplicateDetection",)
"""What is set on a topic; all else is set on its subscription."""
RULES = {
    "red": [
        {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "colour = 'red'"}}}
    ],
    "urgent": [
        {"Name": "r", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Label": "urgent"}}}
    ],
}
COUNT = 12


def topic(feature: str, properties: dict[str, object]) -> dict[str, object]:
    own = {name: value for name, value in properties.items() if name in OF_TOPICS}
    others = {name: value for name, value in properties.items() if name not in OF_TOPICS}
    subscription = {"Name": "s", "Properties": others}
    return {"Name": f"{feature}-topic", "Properties": {**PARTITIONED, **own}, "Subscriptions": [subscription]}


QUEUES = {feature: {**PARTITIONED, **properties} for feature, properties in FEATURES.items()}
QUEUES |= {"end": PARTITIONED, "end-of-letters": PARTITIONED}
TOPICS: list[dict[str, object]] = [topic(feature, properties) for feature, properties in FEATURES.items()]
TOPICS.append(
    {
        "Name": "rules-topic",
        "Properties": PARTITIONED,
        "Subscriptions": [{"Name": name, "Properties": {}, "Rules": rules} for name, rules in RULES.items()],
    }
)
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.req("P5"),
    pytest.mark.server(QUEUES, PATIENCE, topics=TOPICS, checked=True),
]


@pytest.fixture(scope="module")
def client(server: Busbar) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as made:
        yield made


class Place:
    """A partitioned queue, or a partitioned topic with a subscription."""

    def __init__(self, client: ServiceBusClient, feature: str, kind: str, subscription: str = "s") -> None:
        self._client = client
        self.is_queue = kind == "queue"
        self.entity = feature if self.is_queue else f"{feature}-topic"
        self._subscription = subscription

    @property
    def source(self) -> str:
        """What messages are received from."""
        return self.entity if self.is_queue else f"{self.entity}/Subscriptions/{self._subscription}"

    def sender(self) -> Any:
        if self.is_queue:
            return self._client.get_queue_sender(self.entity)
        return self._client.get_topic_sender(self.entity)

    def send(self, *messages: ServiceBusMessage) -> None:
        with self.sender() as sender:
            for each in messages:
                sender.send_messages(each)

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        if self.is_queue:
            return self._client.get_queue_receiver(self.entity, **options)
        return self._client.get_subscription_receiver(self.entity, self._subscription, **options)


@pytest.fixture(params=["queue", "topic"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def numbered(count: int = COUNT) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(str(n), message_id=str(n), partition_key=f"key {n}") for n in range(count)]


def take(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    taken: list[ServiceBusReceivedMessage] = []
    while len(taken) < count:
        more = receiver.receive_messages(count - len(taken), max_wait_time=10)
        assert more, f"{len(taken)} of {count} messages came"
        taken += more
    return taken


def complete(receiver: ServiceBusReceiver, messages: list[ServiceBusReceivedMessage]) -> set[str]:
    for each in messages:
        receiver.complete_message(each)
    return {str(each) for each in messages}


def require_spread(messages: list[ServiceBusReceivedMessage]) -> None:
    assert len({(each.sequence_number or 0) >> 48 for each in messages}) > 3, "they are in several fragments"


ALL = {str(number) for number in range(COUNT)}


async def test_transactions(server: Busbar, client: ServiceBusClient, kind: str) -> None:
    place = Place(client, "transactions", kind)
    async with await MessagingFactory.connect(server.connection_string) as factory:
        sender, receiver = await factory.sender(place.entity), await factory.receiver(place.source, credit=8)
        fragments = set()
        for key in map("key {}".format, range(8)):
            await sender.send([message("old", partition_key=key)])
            (old,) = await received(receiver, 1)
            fragments.add(old.sequence_number >> 48)
            undone = factory.transaction()
            await undone.begin()
            await sender.send([message("never", partition_key=key)], transaction=undone)
            await undone.rollback()
            async with factory.transaction() as tx:
                await receiver.complete([old], transaction=tx)
                await sender.send([message("new", partition_key=key)], transaction=tx)
                assert await peeked(factory, place.source) == ["old"]
            assert await peeked(factory, place.source) == ["new"]
            (new,) = await received(receiver, 1)
            assert text_of_received(new) == "new"
            await receiver.complete([new])
        assert len(fragments) > 3


def test_message_sessions(client: ServiceBusClient, kind: str) -> None:
    place = Place(client, "sessions", kind)
    names = [f"session {number}" for number in range(6)]
    for turn in range(3):
        place.send(*(ServiceBusMessage(f"{name} {turn}", session_id=name) for name in names))
    fragments = set()
    for name in names:
        with place.receiver(session_id=name) as receiver:
            assert receiver.session.get_state() is None
            taken = take(receiver, 3)
            assert [str(each) for each in taken] == [f"{name} {turn}" for turn in range(3)], "in their order"
            complete(receiver, taken)
            receiver.session.set_state(f"state of {name}")
            receiver.session.renew_lock()
            fragments |= {(each.sequence_number or 0) >> 48 for each in taken}
        with place.receiver(session_id=name) as receiver:
            assert receiver.session.get_state() == f"state of {name}".encode()
    assert len(fragments) > 1


def test_duplicate_detection(client: ServiceBusClient, kind: str) -> None:
    place = Place(client, "duplicates", kind)
    for _ in range(2):
        place.send(*(ServiceBusMessage(str(n), message_id=str(n)) for n in range(COUNT)))
    with place.receiver() as receiver:
        taken = take(receiver, COUNT)
        require_spread(taken)
        assert complete(receiver, taken) == ALL
        assert receiver.receive_messages(1, max_wait_time=1) == []


def test_dead_lettering(client: ServiceBusClient, kind: str) -> None:
    """By a client with a reason, and by the broker after the last delivery."""
    place = Place(client, "dead-letters", kind)
    place.send(*numbered())
    with place.receiver() as receiver:
        taken = take(receiver, COUNT)
        require_spread(taken)
        for each in taken[: COUNT // 2]:
            receiver.dead_letter_message(each, reason="wrong", error_description="as a test")
        for each in taken[COUNT // 2 :]:
            receiver.abandon_message(each)
        for each in take(receiver, COUNT // 2):
            receiver.abandon_message(each)
        assert receiver.receive_messages(1, max_wait_time=1) == []
    with place.receiver(sub_queue=ServiceBusSubQueue.DEAD_LETTER) as letters:
        dead = take(letters, COUNT)
        reasons = sorted(str(each.dead_letter_reason) for each in dead)
        assert reasons == ["MaxDeliveryCountExceeded"] * (COUNT // 2) + ["wrong"] * (COUNT // 2)
        assert complete(letters, dead) == ALL


def test_expired_messages_are_dead_lettered(client: ServiceBusClient, kind: str) -> None:
    place = Place(client, "expiry", kind)
    place.send(*numbered())
    time.sleep(1.2)
    with place.receiver() as receiver:
        assert receiver.receive_messages(1, max_wait_time=1) == []
    with place.receiver(sub_queue=ServiceBusSubQueue.DEAD_LETTER) as letters:
        dead = take(letters, COUNT)
        assert {each.dead_letter_reason for each in dead} == {"TTLExpiredException"}
        require_spread(dead)
        assert complete(letters, dead) == ALL


def test_deferral(client: ServiceBusClient, kind: str) -> None:
    place = Place(client, "deferral", kind)
    place.send(*numbered())
    with place.receiver() as receiver:
        taken = take(receiver, COUNT)
        require_spread(taken)
        for each in taken:
            receiver.defer_message(each)
        assert receiver.receive_messages(1, max_wait_time=1) == []
        numbers = [each.sequence_number or 0 for each in taken]
        fetched = [each for number in numbers for each in receiver.receive_deferred_messages(number)]
        assert complete(receiver, fetched) == ALL
        assert receiver.peek_messages(1) == []


def test_scheduling(client: ServiceBusClient, kind: str) -> None:
    place = Place(client, "schedules", kind)
    with place.sender() as sender:
        hour = datetime.now(UTC) + timedelta(hours=1)
        later = [number for each in numbered() for number in sender.schedule_messages(each, hour)]
        assert len({number >> 48 for number in later}) > 3
        for number in later:
            sender.cancel_scheduled_messages(number)
        due = datetime.now(UTC) + timedelta(seconds=2)
        for each in numbered():
            sender.schedule_messages(each, due)
    with place.receiver() as receiver:
        taken = take(receiver, COUNT)
        assert datetime.now(UTC) >= due
        require_spread(taken)
        assert complete(receiver, taken) == ALL
        assert receiver.receive_messages(1, max_wait_time=1) == []


def test_forwarding(client: ServiceBusClient, kind: str) -> None:
    Place(client, "forwarding", kind).send(*numbered())
    with client.get_queue_receiver("end") as receiver:
        taken = take(receiver, COUNT)
        require_spread(taken)
        assert complete(receiver, taken) == ALL


def test_forwarding_of_dead_letters(client: ServiceBusClient, kind: str) -> None:
    place = Place(client, "forwarded-letters", kind)
    place.send(*numbered())
    with place.receiver() as receiver, client.get_queue_receiver("end-of-letters") as letters:
        for each in take(receiver, COUNT):
            receiver.dead_letter_message(each, reason="wrong")
        dead = take(letters, COUNT)
        assert {each.dead_letter_source for each in dead} == {place.source}
        require_spread(dead)
        assert complete(letters, dead) == ALL


def test_rules(client: ServiceBusClient) -> None:
    everything = [
        ServiceBusMessage(
            f"{colour} {subject} {n}",
            subject=subject,
            application_properties={"colour": colour},
            partition_key=f"key {n}",
        )
        for colour in ("red", "blue")
        for subject in ("urgent", "usual")
        for n in range(8)
    ]
    Place(client, "rules", "topic").send(*everything)
    for subscription in RULES:
        with Place(client, "rules", "topic", subscription).receiver() as receiver:
            taken = take(receiver, 16)
            require_spread(taken)
            assert complete(receiver, taken) == {
                str(each) for each in everything if subscription in str(each)
            }
            assert receiver.receive_messages(1, max_wait_time=1) == []
