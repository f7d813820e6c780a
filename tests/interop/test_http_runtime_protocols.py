"""Two protocols, one namespace: messages go from HTTP to AMQP and back; and what HTTP does with its connections."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from harness.serving import Busbar, config_text
from tests.interop.azure_sdk import Azure, nothing_left, take_one, text_of
from tests.interop.http_runtime import Http

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


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
    requests = [http.raw("POST", path, body=b"%d" % n) for n in range(5)]
    requests += [http.raw("DELETE", f"{path}/head?timeout=5") for _ in range(4)]
    requests.append(http.raw("DELETE", f"{path}/head?timeout=5", "Connection: close"))
    reader, writer = await asyncio.open_connection("localhost", broker.port)
    for request in requests:
        writer.write(request)
    answers = (await asyncio.wait_for(reader.read(), 10)).split(b"HTTP/1.1 ")[1:]
    writer.close()
    assert [answer[:3] for answer in answers] == [b"201"] * 5 + [b"200"] * 5
    assert [answer[-1:] for answer in answers[5:]] == [b"0", b"1", b"2", b"3", b"4"]


async def test_http_1_0_and_any_spelling_of_the_path(broker: Busbar, http: Http, queue: str) -> None:
    reader, writer = await asyncio.open_connection("localhost", broker.port)
    writer.write(http.raw("POST", f"{queue.upper()}/Messages/", body=b"x").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert b" 201 " in (await asyncio.wait_for(reader.read(), 5)).splitlines()[0]
    writer.close()
    assert (await http.request("DELETE", f"{queue}/MESSAGES/HEAD?timeout=1")).body == b"x"


async def test_a_wait_does_not_hold_up_the_end_of_the_broker(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text({"q": {}})).start()
    http = Http(server.port, server.key)
    waiting = asyncio.ensure_future(http.peek_lock("q", 60))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    assert await asyncio.to_thread(server.stop) == 0
    assert time.monotonic() - began < 10
    assert (await waiting).status == 204
    await http.close()
