"""What the runtime operations over HTTP refuse, and how they say it."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from harness.serving import Busbar
from tests.interop.http_runtime import Http
from tests.interop.queue_pool import QueuePool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]

UNKNOWN_LOCK = str(uuid.UUID(int=0))


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
    for method, path, allowed in (
        ("GET", "/messages", "POST"),
        ("GET", "/messages/head", "DELETE, POST"),
        ("PATCH", f"/messages/1/{UNKNOWN_LOCK}", "DELETE, POST, PUT"),
        ("POST", "", "DELETE, GET, PUT"),
    ):
        answer = await http.request(method, f"{queue}{path}")
        answer.error(405)
        assert answer.headers["Allow"] == allowed
    answer = await http.request("DELETE", "$busbar/stores")
    answer.error(405)
    assert answer.headers["Allow"] == "GET"


async def test_disabled_entities(http: Http) -> None:
    (await http.send("disabled-0", b"")).error(403, 40301)
    (await http.peek_lock("disabled-0", 0)).error(403, 40301)
    (await http.send("send-disabled-0", b"")).error(403, 40301)
    assert (await http.peek_lock("send-disabled-0", 0)).status == 204
    assert (await http.send("receive-disabled-0", b"")).status == 201
    (await http.take("receive-disabled-0", 0)).error(403, 40301)


async def test_what_is_not_allowed(http: Http, queue: str) -> None:
    (await http.peek_lock("sessions-0", 0)).error(403, 40301)
    for sub_queue in ("$DeadLetterQueue", "$Transfer/$DeadLetterQueue"):
        (await http.send(f"{queue}/{sub_queue}", b"")).error(403, 40301)
        assert (await http.peek_lock(f"{queue}/{sub_queue}", 0)).status == 204, "clients receive from it"


async def test_too_large_messages(broker: Busbar, http: Http, queue: str) -> None:
    (await http.send(queue, b"x" * (256 * 1024 + 1))).error(413)
    (await http.send(queue, b"x" * (256 * 1024 - 100), Property='"' + "y" * 200 + '"')).error(413)
    assert (await http.send(queue, b"x" * (256 * 1024 - 200))).status == 201
    # What announces too much is refused before it is sent.
    reader, writer = await asyncio.open_connection("localhost", broker.port)
    head = http.raw("POST", f"{queue}/messages").replace(b"Content-Length: 0", b"Content-Length: 1000000000")
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
