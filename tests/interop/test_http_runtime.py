"""Messages over HTTP: every operation and its answers, waiting, vanishing clients, and the same messages over AMQP."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from tests.interop.azure_sdk import Azure, nothing_left, take_one, text_of
from tests.interop.http_runtime import Answer, Http
from tests.interop.queue_pool import BRIEF_LOCK, QueuePool
from tests.serving import Busbar, config_text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]

UNKNOWN_LOCK = str(uuid.UUID(int=0))


@pytest_asyncio.fixture(loop_scope="session")
async def http(broker: Busbar) -> AsyncIterator[Http]:
    client = Http(broker.port, broker.key)
    yield client
    await client.close()


# Send, receive, settle


async def test_send_peek_lock_and_complete(http: Http, queue: str) -> None:
    sent = await http.send(
        queue, b"hello", {"Label": "M1", "TimeToLive": 10}, Priority='"High"', Customer="12"
    )
    assert (sent.status, sent.body) == (201, b"")

    message = await http.peek_lock(queue)

    assert (message.status, message.body) == (201, b"hello")
    assert (message.headers["Priority"], message.headers["Customer"]) == ('"High"', "12")
    broker = message.broker
    assert (broker["Label"], broker["TimeToLive"], broker["SequenceNumber"]) == ("M1", 10, 1)
    assert (broker["DeliveryCount"], broker["State"]) == (1, "Active")
    assert len(broker["MessageId"]) == 32  # it came without one
    locked = parsedate_to_datetime(broker["LockedUntilUtc"]) - parsedate_to_datetime(
        broker["EnqueuedTimeUtc"]
    )
    assert timedelta(seconds=58) < locked < timedelta(seconds=62)
    assert message.headers["Location"] == f"{http.base}/{queue}/messages/1/{broker['LockToken']}"

    completed = await http.complete(message.lock)
    assert (completed.status, completed.body) == (200, b"")
    assert (await http.peek_lock(queue, 0)).status == 204


async def test_receive_and_delete(http: Http, queue: str) -> None:
    await http.send(queue, b"once", Content_Type="text/plain;charset=utf-8")
    message = await http.take(queue)
    assert (message.status, message.body) == (200, b"once")
    assert message.headers["Content-Type"] == "text/plain;charset=utf-8"
    assert "LockToken" not in message.broker
    assert "Location" not in message.headers
    assert (await http.take(queue, 0)).status == 204


async def test_unlock_counts_a_delivery_and_ends_the_lock(http: Http, queues: QueuePool) -> None:
    queue = queues.take("twice")
    await http.send(queue, b"again")
    for delivery in (1, 2):
        message = await http.peek_lock(queue)
        assert message.broker["DeliveryCount"] == delivery
        assert (await http.unlock(message.lock)).status == 200
        (await http.unlock(message.lock)).error(404, 40400)

    assert (await http.peek_lock(queue, 0)).status == 204
    dead = await http.peek_lock(f"{queue}/$deadletterqueue")
    assert dead.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert dead.lock.startswith(f"{queue}/$DeadLetterQueue/messages/1/")
    assert (await http.complete(dead.lock)).status == 200
    assert (await http.take(f"{queue}/$DeadLetterQueue", 0)).status == 204


async def test_a_renewed_lock_outlives_its_time(http: Http, queues: QueuePool) -> None:
    queue = queues.take("brief")
    await http.send(queue, b"slow work")
    message = await http.peek_lock(queue)
    for _ in range(3):
        await asyncio.sleep(BRIEF_LOCK / 2)
        renewed = await http.renew(message.lock)
        assert (renewed.status, renewed.body) == (200, b"")
    assert parsedate_to_datetime(renewed.broker["LockedUntilUtc"]) > datetime(2000, 1, 1, tzinfo=UTC)
    assert (await http.complete(message.lock)).status == 200


async def test_a_lock_that_ran_out_is_not_found(http: Http, queues: QueuePool) -> None:
    queue = queues.take("brief")
    await http.send(queue, b"slow work")
    message = await http.peek_lock(queue)
    again = await http.peek_lock(queue)  # waits for the first lock to end
    assert again.broker["DeliveryCount"] == 2
    for refused in (await http.complete(message.lock), await http.renew(message.lock)):
        refused.error(404, 40400)
    assert (await http.complete(again.lock)).status == 200


async def test_a_lock_is_named_by_number_or_by_message_id(http: Http, queue: str) -> None:
    for message_id in ("word", "4711", "2"):
        await http.send(queue, b"", {"MessageId": message_id})
        message = await http.peek_lock(queue)
        token = message.broker["LockToken"]
        for wrong in ("99", "0", "4712"):
            (await http.renew(f"{queue}/messages/{wrong}/{token}")).error(404, 40400)
        assert (
            await http.renew(f"{queue}/messages/{message.broker['SequenceNumber']}/{token}")
        ).status == 200
        assert (await http.complete(f"{queue}/messages/{message_id}/{token.upper()}")).status == 200


async def test_every_property_comes_back(http: Http, queue: str) -> None:
    given = {
        "CorrelationId": "c",
        "Label": "l ü €",
        "MessageId": "m",
        "PartitionKey": "s",
        "ReplyTo": "r",
        "ReplyToSessionId": "rs",
        "SessionId": "s",
        "TimeToLive": 3600,
        "To": "t",
        "ViaPartitionKey": "v",
        "ForcePersistence": True,
    }
    await http.send(
        queue, b"\x00\xff", given, Number="-1.5", Flag="true", Date_Of='"Sun, 06 Nov 1994 08:49:37 GMT"'
    )
    message = await http.take(queue)
    assert message.body == b"\x00\xff"
    assert {key: message.broker[key] for key in given} == given
    assert message.headers["Number"] == "-1.5"
    assert message.headers["Flag"] == "true"
    assert message.headers["Date-Of"] == '"Sun, 06 Nov 1994 08:49:37 GMT"'


@pytest.mark.parametrize("iso", [True, False])
async def test_a_scheduled_message_comes_when_it_is_due(http: Http, queue: str, iso: bool) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1.2)
    text = due.isoformat() if iso else due.strftime("%a, %d %b %Y %H:%M:%S GMT")
    await http.send(queue, b"later", {"ScheduledEnqueueTimeUtc": text})
    if iso:
        assert (await http.take(queue, 0)).status == 204
    message = await http.take(queue, 5)
    assert message.body == b"later"
    assert datetime.now(UTC) >= due.replace(microsecond=due.microsecond if iso else 0)


async def test_a_message_expires(http: Http, queue: str) -> None:
    await http.send(queue, b"short-lived", {"TimeToLive": 0.2})
    await asyncio.sleep(0.3)
    assert (await http.take(queue, 0)).status == 204


# Batches


async def test_a_batch_keeps_its_order_and_its_types(http: Http, queue: str) -> None:
    sent = await http.send_batch(
        queue,
        [
            {"Body": "ä", "BrokerProperties": {"Label": "first", "TimeToLiveTimeSpan": "00:01:00"}},
            {"Body": "second", "UserProperties": {"Priority": "High", "n": 5, "f": 0.5, "b": False}},
        ],
    )
    assert (sent.status, sent.body) == (201, b"")
    first, second = await http.take(queue), await http.take(queue)
    assert (first.body.decode(), first.broker["Label"], first.broker["TimeToLive"]) == ("ä", "first", 60)
    assert [second.headers[name] for name in ("Priority", "n", "f", "b")] == ['"High"', "5", "0.5", "false"]


async def test_a_batch_is_sent_whole_or_not_at_all(http: Http, queues: QueuePool) -> None:
    queue = queues.take("tiny")
    bad = await http.send_batch(
        queue, [{"Body": "fine"}, {"Body": "bad", "BrokerProperties": {"TimeToLive": -1}}]
    )
    assert "Message 1 of the batch" in bad.error(400, 40000)
    (await http.send_batch(queue, [{"Body": "fine"}, {"BrokerProperties": {"MessageId": "x" * 129}}])).error(
        400, 40000
    )
    (await http.send_batch(queue, [{"Body": "x" * 100_000}] * 3)).error(413)
    assert (await http.take(queue, 0)).status == 204
    # The quota: a batch of which only the first message would fit.
    big = b"x" * 250_000
    for _ in range(4):
        assert (await http.send(queue, big)).status == 201
    room = {"Body": "y" * 20_000}
    (await http.send_batch(queue, [room, {"Body": "y" * 100_000}])).error(403, 40300)
    (await http.send(queue, big)).error(403, 40300)
    bodies = [(await http.take(queue, 0)).body[:1] for _ in range(5)]
    assert bodies == [b"x"] * 4 + [b""]


# Waiting


async def test_a_wait_is_answered_by_a_later_send(http: Http, queue: str) -> None:
    waiting = [asyncio.ensure_future(http.take(queue, 10)) for _ in range(3)]
    await asyncio.sleep(0.2)
    for body in (b"1", b"2", b"3"):
        await http.send(queue, body)
    assert sorted(answer.body for answer in await asyncio.gather(*waiting)) == [b"1", b"2", b"3"]


async def test_without_timeout_nothing_is_waited_for(http: Http, queue: str) -> None:
    began = time.monotonic()
    for _ in range(5):
        assert (await http.peek_lock(queue, 0)).status == 204
    assert time.monotonic() - began < 1
    began = time.monotonic()
    answer = await http.take(queue, 0.3)
    assert (answer.status, answer.body) == (204, b"")
    assert 0.29 < time.monotonic() - began < 2


async def test_waits_that_end_as_messages_come_lose_none(http: Http, queue: str) -> None:
    sending = asyncio.ensure_future(_send_slowly(http, queue, 40))
    received: list[bytes] = []
    while len(received) < 40:
        answers = await asyncio.gather(*(http.take(queue, 0.01) for _ in range(3)))
        received += [answer.body for answer in answers if answer.status == 200]
    await sending
    assert sorted(received) == sorted(b"%d" % n for n in range(40))


async def _send_slowly(http: Http, queue: str, count: int) -> None:
    for n in range(count):
        await http.send(queue, b"%d" % n)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("abruptly", [True, False])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_client_that_vanishes_while_it_waits_takes_nothing(
    broker: Busbar, http: Http, queue: str, method: str, abruptly: bool
) -> None:
    gone = socket.create_connection(("localhost", broker.port))
    gone.sendall(_request(http, method, f"{queue}/messages/head?timeout=30"))
    await asyncio.sleep(0.2)
    if abruptly:
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    await asyncio.sleep(0.1)
    await http.send(queue, b"for somebody else")
    message = await http.peek_lock(queue)
    assert (message.body, message.broker["DeliveryCount"]) == (b"for somebody else", 1)


async def test_a_crowd_of_vanishing_clients_loses_nothing(
    broker: Busbar, http: Http, queues: QueuePool
) -> None:
    """They go while messages come. What was locked for one of them is there again at once, or, if its answer was on the
    wire already, when that lock ends."""
    queue = queues.take("brief")
    sending = asyncio.ensure_future(_send_slowly(http, queue, 20))
    for n in range(40):
        gone = socket.create_connection(("localhost", broker.port))
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.sendall(_request(http, "POST", f"{queue}/messages/head?timeout=5") * 2)
        await asyncio.sleep(0.002 * (n % 4))
        gone.close()
    await sending
    found = {(await http.take(queue)).body for _ in range(20)}
    assert found == {b"%d" % n for n in range(20)}
    assert (await http.take(queue, 0)).status == 204


def _request(http: Http, method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} /{path} HTTP/1.1", "Host: localhost", f"Authorization: {http.token()}", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def test_a_wait_ends_when_its_queue_is_deleted_or_disabled(http: Http) -> None:
    for name, change, status in (("goes", "delete", 410), ("sleeps", "disable", 403)):
        assert (await _manage(http, "PUT", name)).status == 201
        waiting = asyncio.ensure_future(http.peek_lock(name, 30))
        await asyncio.sleep(0.2)
        if change == "delete":
            assert (await _manage(http, "DELETE", name)).status == 200
        else:
            assert (await _manage(http, "PUT", name, "Disabled")).status == 200
        (await asyncio.wait_for(waiting, 5)).error(status)
    (await http.peek_lock("goes", 0)).error(404, 40400)


async def _manage(http: Http, method: str, name: str, status: str = "") -> Answer:
    description = f"<Status>{status}</Status>" if status else ""
    entry = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        f"{description}</QueueDescription></content></entry>"
    ).encode()
    headers = {"Content-Type": "application/atom+xml;type=entry;charset=utf-8"}
    if status:
        headers["If-Match"] = "*"
    return await http.request(method, name, entry if method == "PUT" else None, headers)


# Refusals


async def test_tokens(http: Http, queue: str) -> None:
    path = f"{queue}/messages"
    refused = [
        ("", "MissingToken"),
        ("Bearer abc", "InvalidToken"),
        (http.token()[:-3], "invalid signature"),
        (http.token(rule="Unknown"), "invalid signature"),
        (http.token(life=-100), "expired"),
        (http.token("another"), "does not include"),
        (http.token(queue + "x"), "does not include"),
    ]
    for token, reason in refused:
        for method, of in (
            ("POST", path),
            ("POST", f"{path}/head?timeout=0"),
            ("DELETE", f"{path}/1/{UNKNOWN_LOCK}"),
        ):
            answer = await http.request(method, of, b"", token=token)
            assert reason in answer.error(401), (token, reason)
            assert http.key not in answer.body.decode()
    for scope in ("", queue, path, queue.upper()):
        assert (await http.request("POST", path, b"x", token=http.token(scope))).status == 201
    # Who may not use a name does not learn whether it exists.
    (await http.request("POST", "no-such-queue/messages", b"", token=http.token("another"))).error(401)


async def test_unknown_entities_and_locks(http: Http, queue: str) -> None:
    for path in (f"missing-{queue}/messages", "missing/subscriptions/s/messages"):
        (await http.request("POST", path, b"")).error(404, 40400)
        (await http.request("POST", f"{path}/head")).error(404, 40400)
        (await http.request("DELETE", f"{path}/1/{UNKNOWN_LOCK}")).error(404, 40400)
    for token in (UNKNOWN_LOCK, "not-a-guid", f"{{{UNKNOWN_LOCK}}}", UNKNOWN_LOCK.replace("-", "")):
        for method in ("PUT", "POST", "DELETE"):
            (await http.request(method, f"{queue}/messages/1/{token}")).error(404, 40400)


async def test_a_lock_of_another_queue_is_not_found(http: Http, queue: str, queues: QueuePool) -> None:
    other = queues.take("plain")
    await http.send(queue, b"mine")
    message = await http.peek_lock(queue)
    (await http.complete(message.lock.replace(queue, other, 1))).error(404, 40400)
    assert (await http.complete(message.lock)).status == 200


@pytest.mark.parametrize("timeout", ["x", "-1", "1e3", "NaN", "5s", "9" * 50, "%00"])
async def test_a_timeout_that_is_none(http: Http, queue: str, timeout: str) -> None:
    (await http.peek_lock(queue, timeout)).error(400, 40000)


@pytest.mark.parametrize(
    "properties",
    [
        "{",
        "[]",
        '{"TimeToLive": 0}',
        '{"SessionId": "a", "PartitionKey": "b"}',
        '{"MessageId": "%s"}' % ("x" * 129),
    ],
)
async def test_bad_broker_properties(http: Http, queue: str, properties: str) -> None:
    (await http.send(queue, b"x", properties)).error(400, 40000)
    assert (await http.take(queue, 0)).status == 204


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b"[1]", b"[" * 100_000, b'[{"Body": 5}]'])
async def test_bad_batches(http: Http, queue: str, document: bytes) -> None:
    (await http.send_batch(queue, document)).error(400, 40000)


async def test_methods_that_are_none(http: Http, queue: str) -> None:
    for method, path in (
        ("GET", "messages"),
        ("GET", "messages/head"),
        ("PATCH", f"messages/1/{UNKNOWN_LOCK}"),
    ):
        (await http.request(method, f"{queue}/{path}")).error(405)


async def test_disabled_entities(http: Http) -> None:
    (await http.send("disabled-0", b"")).error(403, 40301)
    (await http.peek_lock("disabled-0", 0)).error(403, 40301)
    (await http.send("send-disabled-0", b"")).error(403, 40301)
    assert (await http.peek_lock("send-disabled-0", 0)).status == 204
    assert (await http.send("receive-disabled-0", b"")).status == 201
    (await http.take("receive-disabled-0", 0)).error(403, 40301)


async def test_what_is_not_allowed_or_not_served(http: Http, queue: str) -> None:
    (await http.send(f"{queue}/$DeadLetterQueue", b"")).error(403, 40301)
    (await http.peek_lock("sessions-0", 0)).error(403, 40301)
    (await http.peek_lock(f"{queue}/$Transfer/$DeadLetterQueue", 0)).error(501)


async def test_too_large_messages(broker: Busbar, http: Http, queue: str) -> None:
    (await http.send(queue, b"x" * (256 * 1024 + 1))).error(413)
    (await http.send(queue, b"x" * (256 * 1024 - 100), Property='"' + "y" * 200 + '"')).error(413)
    assert (await http.send(queue, b"x" * (256 * 1024 - 200))).status == 201
    # What announces too much is refused before it is sent.
    reader, writer = await asyncio.open_connection("localhost", broker.port)
    head = _request(http, "POST", f"{queue}/messages").replace(
        b"Content-Length: 0", b"Content-Length: 1000000000"
    )
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 413 ")
    writer.close()
    # What does not announce its size is cut off.
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    reader, writer = await asyncio.open_connection("localhost", broker.port)
    writer.write(head.replace(b"Content-Length: 1000000000", b"Transfer-Encoding: chunked") + chunk * 5)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 413 ")
    writer.close()
    assert len((await http.take(queue)).body) == 256 * 1024 - 200
    assert (await http.take(queue, 0)).status == 204


# Both protocols


@pytest.mark.req("B1")
async def test_from_http_to_amqp(http: Http, azure_async: Azure, queue: str) -> None:
    await http.send(
        queue,
        "grüß".encode(),
        {
            "MessageId": "m1",
            "CorrelationId": "c1",
            "Label": "ordered",
            "To": "t",
            "ReplyTo": "r",
            "SessionId": "s1",
            "PartitionKey": "s1",
            "ReplyToSessionId": "s2",
            "TimeToLive": 60,
        },
        Content_Type="text/plain",
        Priority='"High"',
        Count="5",
        Big="5000000000",
        Ratio="0.5",
        Paid="true",
        At='"Sun, 06 Nov 1994 08:49:37 GMT"',
    )
    receiver = azure_async.receiver(queue)
    message = await take_one(receiver)
    assert text_of(message) == "grüß"
    assert (message.message_id, message.correlation_id, message.subject) == ("m1", "c1", "ordered")
    assert (message.to, message.reply_to, message.reply_to_session_id) == ("t", "r", "s2")
    assert (message.session_id, message.partition_key, message.content_type) == ("s1", "s1", "text/plain")
    assert message.time_to_live == timedelta(seconds=60)
    assert message.delivery_count == 0
    properties = {
        key.decode() if isinstance(key, bytes) else key: value
        for key, value in (message.application_properties or {}).items()
    }
    assert properties == {
        "Priority": b"High",
        "Count": 5,
        "Big": 5_000_000_000,
        "Ratio": 0.5,
        "Paid": True,
        "At": 784_111_777_000,
    }
    await receiver.complete_message(message)
    assert (await http.peek_lock(queue, 0)).status == 204


@pytest.mark.req("B1")
async def test_from_amqp_to_http(http: Http, azure_async: Azure, queue: str) -> None:
    sent = ServiceBusMessage(
        "hello",
        message_id="m1",
        correlation_id="c1",
        subject="ordered",
        to="t",
        reply_to="r",
        session_id="s1",
        partition_key="s1",
        reply_to_session_id="s2",
        content_type="text/plain",
        time_to_live=timedelta(seconds=60),
        application_properties={
            "Priority": "High",
            "Count": 5,
            "Ratio": 0.5,
            "Paid": True,
            "two words": "lost",
        },
    )
    await azure_async.sender(queue).send_messages(sent)
    message = await http.peek_lock(queue)
    assert (message.body, message.headers["Content-Type"]) == (b"hello", "text/plain")
    expected = {
        "MessageId": "m1",
        "CorrelationId": "c1",
        "Label": "ordered",
        "To": "t",
        "ReplyTo": "r",
        "SessionId": "s1",
        "PartitionKey": "s1",
        "ReplyToSessionId": "s2",
        "TimeToLive": 60,
        "DeliveryCount": 1,
    }
    assert {key: message.broker[key] for key in expected} == expected
    headers = [message.headers[name] for name in ("Priority", "Count", "Ratio", "Paid")]
    assert headers == ['"High"', "5", "0.5", "true"]

    # What one protocol unlocks the other receives, and its count goes on.
    assert (await http.unlock(message.lock)).status == 200
    receiver = azure_async.receiver(queue)
    again = await take_one(receiver)
    assert again.delivery_count == 1
    (await http.complete(message.lock)).error(404, 40400)
    # The lock of an AMQP receiver is settled over HTTP, by its token.
    done = await http.complete(f"{queue}/messages/{again.sequence_number}/{again.lock_token}")
    assert done.status == 200
    assert await nothing_left(receiver)


@pytest.mark.req("B5")
async def test_receive_and_delete_takes_one_request(http: Http, azure_async: Azure, queue: str) -> None:
    await azure_async.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(3)])
    assert [(await http.take(queue)).body for _ in range(3)] == [b"0", b"1", b"2"]
    assert await nothing_left(azure_async.receiver(queue))


async def test_dead_letters_of_amqp_are_received_over_http(
    http: Http, azure_async: Azure, queue: str
) -> None:
    await http.send(queue, b"poison", {"MessageId": "p"})
    receiver = azure_async.receiver(queue)
    await receiver.dead_letter_message(
        await take_one(receiver), reason="Bad", error_description="really\r\nbad"
    )
    message = await http.peek_lock(f"{queue}/$DeadLetterQueue")
    assert (message.body, message.broker["MessageId"]) == (b"poison", "p")
    assert message.headers["DeadLetterReason"] == '"Bad"'
    assert json.loads(message.headers["DeadLetterErrorDescription"]) == "really\r\nbad"
    assert (await http.unlock(message.lock)).status == 200
    dead = azure_async.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    await dead.complete_message(await take_one(dead))


# Connections


@pytest.mark.req("P29")
async def test_requests_share_a_connection_that_is_kept_alive(broker: Busbar, queue: str) -> None:
    http = Http(broker.port, broker.key)
    for n in range(10):
        assert (await http.send(queue, b"%d" % n)).status == 201
        message = await http.peek_lock(queue)
        assert (await http.complete(message.lock)).status == 200
    (await http.send("missing", b"")).error(404)  # an error does not end it
    assert (await http.take(queue, 0)).status == 204
    assert http.opened == 1

    # And it pays off: the same requests, each on a connection of its own, take longer.
    async def seconds(count: int, **headers: str) -> float:
        began = time.monotonic()
        for _ in range(count):
            answer = await http.request("DELETE", f"{queue}/messages/head?timeout=0", headers=headers)
            assert answer.status == 204
        return time.monotonic() - began

    kept = min([await seconds(50) for _ in range(4)])
    closed = min([await seconds(50, Connection="close") for _ in range(4)])
    assert http.opened >= 200
    assert kept < closed
    await http.close()


async def test_requests_that_come_at_once_are_answered_in_their_order(
    broker: Busbar, http: Http, queue: str
) -> None:
    path = f"{queue}/messages"
    requests = [_request(http, "POST", path, body=b"%d" % n) for n in range(5)]
    requests += [_request(http, "DELETE", f"{path}/head?timeout=5") for _ in range(4)]
    requests.append(_request(http, "DELETE", f"{path}/head?timeout=5", "Connection: close"))
    reader, writer = await asyncio.open_connection("localhost", broker.port)
    for request in requests:
        writer.write(request)
    answers = (await asyncio.wait_for(reader.read(), 10)).split(b"HTTP/1.1 ")[1:]
    writer.close()
    assert [answer[:3] for answer in answers] == [b"201"] * 5 + [b"200"] * 5
    assert [answer[-1:] for answer in answers[5:]] == [b"0", b"1", b"2", b"3", b"4"]


async def test_http_1_0_and_any_spelling_of_the_path(broker: Busbar, http: Http, queue: str) -> None:
    reader, writer = await asyncio.open_connection("localhost", broker.port)
    writer.write(
        _request(http, "POST", f"{queue.upper()}/Messages/", body=b"x").replace(b"HTTP/1.1", b"HTTP/1.0")
    )
    assert b" 201 " in (await asyncio.wait_for(reader.read(), 5)).splitlines()[0]
    writer.close()
    assert (await http.request("DELETE", f"{queue}/MESSAGES/HEAD?timeout=1")).body == b"x"


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busbar]:
    """A namespace with a topic."""
    topic = {"Name": "t", "Subscriptions": [{"Name": "s"}, {"Name": "messages"}]}
    config = {
        "UserConfig": {
            "Namespaces": [{"Name": "n", "Queues": [], "Topics": [topic]}],
            "Logging": {"Type": "File"},
        }
    }
    directory: Path = tmp_path_factory.mktemp("topics")
    server = Busbar(directory / "data", json.dumps(config)).start()
    yield server
    server.stop()


async def test_a_wait_does_not_hold_up_the_end_of_the_broker(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text({"q": {}})).start()
    http = Http(server.port, server.key)
    waiting = asyncio.ensure_future(http.peek_lock("q", 60))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    assert await asyncio.to_thread(server.stop) == 0
    assert time.monotonic() - began < 1.5
    assert (await waiting).status == 204
    await http.close()


async def test_topics_say_that_they_are_not_served_yet(topics: Busbar) -> None:
    http = Http(topics.port, topics.key)
    assert "topics" in (await http.send("t", b"")).error(501)
    assert "topics" in (await http.peek_lock("T/Subscriptions/S", 0)).error(501)
    assert "topics" in (await http.peek_lock("t/subscriptions/messages", 0)).error(501)
    (await http.peek_lock("t/subscriptions/other", 0)).error(404, 40400)
    await http.close()
