"""Messages over HTTP, sent to topics and received from subscriptions and their dead letters; regular and partitioned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from harness.serving import Busbar
from tests.interop.administration import entry
from tests.interop.http_runtime import Answer, Http

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]

VERSION = "api-version=2021-05"
PARTITIONED = "<EnablePartitioning>true</EnablePartitioning>"


class TopicHttp(Http):
    """A program that knows HTTP, and a topic of its own with the subscriptions one, two and messages."""

    topic = ""
    partitioned = False

    async def put(self, path: str, description: str, *, change: bool = False) -> Answer:
        headers = {"Content-Type": "application/atom+xml"} | ({"If-Match": "*"} if change else {})
        return await self.request("PUT", f"{path}?{VERSION}", entry(description).encode(), headers)

    def path(self, subscription: str) -> str:
        return f"{self.topic}/subscriptions/{subscription}"


@pytest_asyncio.fixture(params=["regular", "partitioned"], loop_scope="session")
async def http(request: pytest.FixtureRequest, broker: Busbar) -> AsyncIterator[TopicHttp]:
    client = TopicHttp(broker.port, broker.key)
    client.topic = f"http-{request.param}-{request.node.originalname}"[:100]
    client.partitioned = request.param == "partitioned"
    last = PARTITIONED if client.partitioned else ""
    assert (await client.put(client.topic, f"TopicDescription {last}")).status == 201
    for name, about in (
        ("one", "<LockDuration>PT0.6S</LockDuration>"),
        ("two", "<MaxDeliveryCount>2</MaxDeliveryCount>"),
        ("messages", ""),
    ):
        description = f"SubscriptionDescription {about}"
        assert (await client.put(f"{client.topic}/Subscriptions/{name}", description)).status == 201
    yield client
    await client.request("DELETE", f"{client.topic}?{VERSION}")
    await client.close()


@pytest.mark.req("U23")
async def test_send_to_a_topic_and_receive_from_its_subscriptions(http: TopicHttp) -> None:
    sent = await http.send(http.topic, b"hello", {"Label": "M1", "PartitionKey": "k"}, Priority='"High"')
    assert (sent.status, sent.body) == (201, b"")
    batch = [{"Body": "second", "BrokerProperties": {"PartitionKey": "k"}, "UserProperties": {"n": 5}}]
    assert (await http.send_batch(http.topic, batch)).status == 201

    for name in ("two", "messages"):
        path = http.path(name)
        message = await http.peek_lock(path)
        assert (message.status, message.body) == (201, b"hello")
        assert (message.headers["Priority"], message.broker["Label"]) == ('"High"', "M1")
        assert message.broker["DeliveryCount"] == 1
        assert message.broker["SequenceNumber"] % (1 << 48) == 1
        assert message.broker["EnqueuedSequenceNumber"] == message.broker["SequenceNumber"]
        assert message.lock.lower() == (
            f"{path}/messages/{message.broker['SequenceNumber']}/{message.broker['LockToken']}".lower()
        )
        assert (await http.renew(message.lock)).status == 200
        assert (await http.complete(message.lock)).status == 200
        (await http.complete(message.lock)).error(404, 40400)
        second = await http.take(path.upper().replace(http.topic.upper(), http.topic))
        assert (second.status, second.body, second.headers["n"]) == (200, b"second", "5")
        assert (await http.take(path, 0)).status == 204
    assert (await http.take(http.path("one"))).body == b"hello", "untouched by what the others did"


@pytest.mark.req("U23")
async def test_unlock_until_it_is_a_dead_letter_of_that_subscription(http: TopicHttp) -> None:
    await http.send(http.topic, b"again")
    path = http.path("two")
    for delivery in (1, 2):
        message = await http.peek_lock(path)
        assert message.broker["DeliveryCount"] == delivery
        assert (await http.unlock(message.lock)).status == 200
        (await http.unlock(message.lock)).error(404, 40400)
    assert (await http.peek_lock(path, 0)).status == 204
    letters = f"{path}/$DeadLetterQueue"
    dead = await http.peek_lock(letters)
    assert dead.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert "/$deadletterqueue/messages/" in dead.lock.lower()
    assert (await http.unlock(dead.lock)).status == 200
    assert (await http.take(letters)).body == b"again"
    assert (await http.take(letters, 0)).status == 204
    assert (await http.take(f"{http.path('one')}/$deadletterqueue", 0)).status == 204


@pytest.mark.req("U23")
async def test_a_renewed_lock_outlives_its_time_and_another_does_not(http: TopicHttp) -> None:
    await http.send(http.topic, b"slow work")
    path = http.path("one")
    message = await http.peek_lock(path)
    for _ in range(3):
        await asyncio.sleep(0.3)
        renewed = await http.renew(message.lock)
        assert renewed.status == 200 and renewed.broker["LockedUntilUtc"]
    again = await http.peek_lock(path)  # waits for the lock to end
    assert again.broker["DeliveryCount"] == 2
    (await http.complete(message.lock)).error(404, 40400)
    assert (await http.complete(again.lock)).status == 200


@pytest.mark.req("U23")
async def test_waits_are_answered_by_a_later_send_or_by_the_end(http: TopicHttp) -> None:
    waiting = [asyncio.ensure_future(http.take(http.path(name), 10)) for name in ("one", "two")]
    ended = asyncio.ensure_future(http.peek_lock(f"{http.path('messages')}/$deadletterqueue", 30))
    await asyncio.sleep(0.2)
    await http.send(http.topic, b"x")
    assert [answer.body for answer in await asyncio.gather(*waiting)] == [b"x", b"x"]
    assert (await http.request("DELETE", f"{http.path('messages')}?{VERSION}")).status == 200
    (await asyncio.wait_for(ended, 5)).error(410)
    sleeping = asyncio.ensure_future(http.take(http.path("one"), 30))
    await asyncio.sleep(0.1)
    disabled = "SubscriptionDescription <Status>Disabled</Status>"
    assert (await http.put(http.path("one"), disabled, change=True)).status == 200
    (await asyncio.wait_for(sleeping, 5)).error(403)


async def test_what_is_refused(http: TopicHttp) -> None:
    (await http.take(http.topic, 0)).error(403, 40301)
    (await http.send(http.path("one"), b"x")).error(403, 40301)
    (await http.send(f"{http.path('one')}/$DeadLetterQueue", b"x")).error(403, 40301)
    (await http.peek_lock(http.path("other"), 0)).error(404, 40400)
    (await http.send(f"{http.topic}x", b"x")).error(404, 40400)
    sessions = f"{http.topic}/Subscriptions/sessions"
    description = "SubscriptionDescription <RequiresSession>true</RequiresSession>"
    assert (await http.put(sessions, description)).status == 201
    (await http.take(sessions, 0)).error(403, 40301)
    disabled = f"TopicDescription <Status>Disabled</Status>{PARTITIONED if http.partitioned else ''}"
    assert (await http.put(http.topic, disabled, change=True)).status == 200
    (await http.send(http.topic, b"x")).error(403)


async def test_a_token_for_a_subscription_opens_that_one_alone(http: TopicHttp) -> None:
    token = http.token(http.path("one"))
    assert (await http.send(http.topic, b"x")).status == 201
    taken = await http.request("DELETE", f"{http.path('one')}/messages/head?timeout=1", token=token)
    assert taken.body == b"x"
    refused = await http.request("DELETE", f"{http.path('two')}/messages/head?timeout=0", token=token)
    refused.error(401)


@pytest.mark.req("P10")
async def test_an_older_api_version_is_refused_a_partitioned_topics_messages(http: TopicHttp) -> None:
    statuses = []
    for version in ("2012-08", "2013-10"):
        answers = [
            await http.request("POST", f"{http.topic}/messages?api-version={version}", b"x"),
            await http.request("DELETE", f"{http.path('one')}/messages/head?timeout=1&api-version={version}"),
        ]
        statuses.append([answer.status for answer in answers])
    old = [400, 400] if http.partitioned else [201, 200]
    assert statuses == [old, [201, 200]]
