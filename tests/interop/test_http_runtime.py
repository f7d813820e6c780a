"""Messages over HTTP: every operation and its answers, waiting, and clients that vanish."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pytest

from harness.serving import Busbar
from tests.interop.http_runtime import Answer, Http
from tests.interop.queue_pool import BRIEF_LOCK, QueuePool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]

# Send, receive, settle


@pytest.mark.req("U23")
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


@pytest.mark.req("U23")
async def test_receive_and_delete(http: Http, queue: str) -> None:
    await http.send(queue, b"once", Content_Type="text/plain;charset=utf-8")
    message = await http.take(queue)
    assert (message.status, message.body) == (200, b"once")
    assert message.headers["Content-Type"] == "text/plain;charset=utf-8"
    assert "LockToken" not in message.broker
    assert "Location" not in message.headers
    assert (await http.take(queue, 0)).status == 204


@pytest.mark.req("U23")
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


@pytest.mark.req("U23")
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


@pytest.mark.req("U23")
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


@pytest.mark.req("U23")
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


@pytest.mark.req("U23")
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
    assert time.monotonic() - began < 4
    began = time.monotonic()
    answer = await http.take(queue, 0.3)
    assert (answer.status, answer.body) == (204, b"")
    assert 0.29 < time.monotonic() - began < 5


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
    gone.sendall(http.raw(method, f"{queue}/messages/head?timeout=30"))
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
        gone.sendall(http.raw("POST", f"{queue}/messages/head?timeout=5") * 2)
        await asyncio.sleep(0.002 * (n % 4))
        gone.close()
    await sending
    found = {(await http.take(queue)).body for _ in range(20)}
    assert found == {b"%d" % n for n in range(20)}
    assert (await http.take(queue, 0)).status == 204


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
