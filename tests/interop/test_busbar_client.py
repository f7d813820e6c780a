"""busbar.client at a real broker, with the vendor's SDK at the other end where that says more."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from busbar.client import (
    NO_RETRY,
    BusbarClientError,
    CannotConnect,
    EntityGone,
    MessagingFactory,
    NotFound,
    OutgoingMessage,
    Receiver,
    Retry,
    SendFailed,
    SettleFailed,
    Unauthorized,
    blocking,
    encode,
)
from harness.serving import Busbar, config_text
from tests.interop.administration import Administration
from tests.interop.azure_sdk import Azure, Farewells, take_one
from tests.interop.partitioned_queues import Names


def outgoing(count: int, **fields: Any) -> list[bytes]:
    return [
        encode(OutgoingMessage(b"%d" % number, message_id=str(number), **fields)) for number in range(count)
    ]


async def received(receiver: Receiver, count: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        more = await receiver.receive(count - len(got), 10)
        assert more, f"{len(got)} of {count} messages came"
        got += more
    return got


KINDS: dict[str, dict[str, object]] = {"regular": {}, "partitioned": {"EnablePartitioning": True}}
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.server(
        {f"{kind}-{index}": what for kind, what in KINDS.items() for index in range(12)}, checked=True
    ),
]


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


@pytest.fixture(params=["regular", "partitioned"])
def either(request: pytest.FixtureRequest, names: Names) -> str:
    """A queue of each kind that no other test uses."""
    return names.take(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def factory(server: Busbar) -> AsyncIterator[MessagingFactory]:
    async with await MessagingFactory.connect(server.connection_string) as made:
        yield made


async def test_everything_sent_is_received_once(factory: MessagingFactory, either: str) -> None:
    sender = await factory.sender(either)
    messages = [
        encode(OutgoingMessage(b"%d" % number, message_id=str(number), partition_key=f"key {number % 37}"))
        for number in range(3000)
    ]
    outcomes = await asyncio.gather(*(sender.send(messages[at : at + 1000]) for at in (0, 1000, 2000)))
    assert sum(outcome.count for outcome in outcomes) == 3000
    receiver = await factory.receiver(either)
    got: list[Any] = []
    while len(got) < 3000:
        batch = await receiver.receive(500, 10)
        await receiver.complete(batch)
        got += batch
    assert sorted(int(message.decode().message_id) for message in got) == list(range(3000))
    assert len({message.sequence_number for message in got}) == 3000
    assert await receiver.receive(1, 0.3) == []
    by_key: dict[object, list[int]] = {}
    for message in sorted(got, key=lambda message: message.sequence_number):
        by_key.setdefault(message.annotations["x-opt-partition-key"], []).append(
            int(message.decode().message_id)
        )
    assert len(by_key) == 37 and all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_all_fields_reach_the_sdk(
    server: Busbar, factory: MessagingFactory, farewells: Farewells, either: str
) -> None:
    sender = await factory.sender(either)
    await sender.send(
        [
            encode(
                OutgoingMessage(
                    b"body",
                    "id",
                    None,
                    "key",
                    "correlation",
                    "subject",
                    "text/plain",
                    "to",
                    "reply",
                    "reply session",
                    60_000,
                    0,
                    {"n": 1, "t": "x", "at": datetime(2026, 1, 2, tzinfo=UTC)},
                )
            )
        ]
    )
    sdk = Azure(server.connection_string, farewells, asynchronous=True)
    message = await take_one(sdk.receiver(either))
    sdk.leave()
    assert b"".join(message.body) == b"body"
    assert (message.message_id, message.partition_key) == ("id", "key")
    assert (message.correlation_id, message.subject) == ("correlation", "subject")
    assert (message.content_type, message.to, message.reply_to) == ("text/plain", "to", "reply")
    assert message.reply_to_session_id == "reply session"
    assert message.time_to_live == timedelta(minutes=1)
    properties = message.application_properties
    assert properties is not None and properties[b"n"] == 1 and properties[b"t"] == b"x"


async def test_every_settlement(factory: MessagingFactory, either: str) -> None:
    sender = await factory.sender(either)
    await sender.send(outgoing(4, partition_key="one"))
    receiver = await factory.receiver(either)
    done, again, aside, dead = await received(receiver, 4)
    assert done.delivery_count == 0 and done.locked_until > done.enqueued_time > 0
    await receiver.complete([done])
    await receiver.defer([aside])
    await receiver.dead_letter([dead], "because", "of this")
    await receiver.abandon([again], {"seen": 1})
    (back,) = await received(receiver, 1)
    assert back.delivery_count == 1 and back.decode().application_properties == {"seen": 1}
    await receiver.complete([back])
    with pytest.raises(SettleFailed) as caught:
        await receiver.complete([back])
    assert caught.value.failed[0][0] == "com.microsoft:message-lock-lost"
    letters = await factory.receiver(either, sub_queue="deadletter")
    (letter,) = await received(letters, 1)
    said = letter.decode()
    assert said.message_id == "3" and said.application_properties == {
        "DeadLetterReason": "because",
        "DeadLetterErrorDescription": "of this",
    }
    await sender.send([letter.bare])  # as it is, without the broker's own annotations
    await letters.complete([letter])
    (redriven,) = await received(receiver, 1)
    assert redriven.decode().message_id == "3" and redriven.sequence_number != letter.sequence_number
    await receiver.complete([redriven])


async def test_what_was_not_fetched_is_given_back(factory: MessagingFactory, either: str) -> None:
    sender = await factory.sender(either)
    await sender.send(outgoing(20))
    async with await factory.receiver(either) as first:
        (one,) = await first.receive(1)
        await first.complete([one])
    second = await factory.receiver(either)
    rest = await received(second, 19)
    assert {message.delivery_count for message in rest} == {0}


async def test_receive_and_delete(factory: MessagingFactory, either: str) -> None:
    sender = await factory.sender(either)
    await sender.send(outgoing(100))
    receiver = await factory.receiver(either, delete=True, credit=10)
    got = await received(receiver, 100)
    assert {message.locked_until for message in got} == {0}


async def test_a_bad_message_is_named_and_the_others_are_stored(
    factory: MessagingFactory, either: str
) -> None:
    sender = await factory.sender(either)
    messages = outgoing(50)
    messages[17] = encode(OutgoingMessage(b"", message_id="x" * 200))
    messages[31] = b"nothing that AMQP knows"
    messages[40] = encode(OutgoingMessage(b"x" * 300_000, message_id="large"))
    with pytest.raises(SendFailed) as caught:
        await sender.send(messages)
    assert set(caught.value.failed) == {17, 31, 40} and caught.value.unknown == ()
    assert caught.value.failed[17][0] == "com.microsoft:argument-out-of-range"
    assert caught.value.failed[31][0] == "amqp:decode-error"
    assert caught.value.failed[40][0] == "amqp:link:message-size-exceeded"
    receiver = await factory.receiver(either, delete=True)
    assert len(await received(receiver, 47)) == 47


async def test_what_a_client_may_not_do(server: Busbar, factory: MessagingFactory) -> None:
    with pytest.raises(NotFound, match="no-such-queue"):
        await factory.sender("no-such-queue")
    with pytest.raises(NotFound, match="no-such-queue"):
        await factory.receiver("no-such-queue")
    wrong = re.sub("SharedAccessKey=[^;]*", "SharedAccessKey=of-somebody-else", server.connection_string)
    async with await MessagingFactory.connect(wrong) as stranger:
        with pytest.raises(Unauthorized) as caught:
            await stranger.sender("regular-0")
        assert "of-somebody-else" not in str(caught.value)
    with pytest.raises(BusbarClientError, match="is not served"):
        taps = await factory.taps("regular-0")
        await taps._exchange("busbar:no-such-operation", {})


async def test_over_tls(server: Busbar, either: str) -> None:
    secure = server.connection_string.replace("UseDevelopmentEmulator=true", "")
    with pytest.raises(BusbarClientError, match="not trusted") as caught:
        await MessagingFactory.connect(secure)
    assert not caught.value.retryable
    authority = server.data / "tls" / "ca.pem"
    async with await MessagingFactory.connect(secure, trust=authority) as factory:
        sender = await factory.sender(either)
        await sender.send(outgoing(500))
        receiver = await factory.receiver(either)
        await receiver.complete(await received(receiver, 500))


async def test_an_entity_that_is_deleted(server: Busbar, factory: MessagingFactory) -> None:
    admin = Administration(server, asynchronous=True)
    await admin.create_queue("short-lived")
    receiver = await factory.receiver("short-lived")
    await admin.delete_queue("short-lived")
    with pytest.raises(EntityGone):
        await receiver.receive(1, 10)
    with pytest.raises(NotFound):
        await receiver.receive(1, 10)
    await admin.raw.close()


async def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text({"q": {}})).start()
    try:
        patient = Retry(patience=30, first=0.05, longest=0.2)
        async with await MessagingFactory.connect(server.connection_string, retry=patient) as factory:
            sender = await factory.sender("q")
            receiver = await factory.receiver("q")
            await sender.send(outgoing(10))
            await received(receiver, 10)
            server.kill()
            with pytest.raises(BusbarClientError) as caught:
                await sender.send(outgoing(1))
            assert caught.value.retryable
            with pytest.raises(CannotConnect):
                await MessagingFactory.connect(server.connection_string, retry=NO_RETRY)
            server.start()
            await sender.send(outgoing(1))
            with pytest.raises(BusbarClientError):
                await receiver.receive(1, 5)  # the locks of before are lost
            again = await received(receiver, 11)
            await receiver.complete(again)
    finally:
        server.stop()


def exercise(connection_string: str, queue: str, count: int) -> list[str]:
    """A program that blocks."""
    with blocking.connect(connection_string, operation_timeout=20) as factory:
        with factory.sender(queue) as sender:
            assert sender.send(outgoing(count)).count == count
        ids: list[str] = []
        with factory.receiver(queue) as receiver:
            while len(ids) < count:
                got = receiver.receive(count, 10)
                receiver.complete(got)
                ids += [str(message.decode().message_id) for message in got]
    return sorted(ids, key=int)


def _forked(connection_string: str, queue: str, factory: blocking.BlockingFactory, results: Any) -> None:
    try:
        factory.sender(queue)
        results.put("the parent's factory was usable")
    except RuntimeError as error:
        results.put(str(error))
    results.put(exercise(connection_string, queue, 50))


async def test_the_blocking_face_also_after_a_fork(server: Busbar, names: Names) -> None:
    first, second = names.take("regular"), names.take("partitioned")
    said = server.connection_string
    expected = [str(number) for number in range(300)]
    assert await asyncio.to_thread(exercise, said, first, 300) == expected

    def fork() -> list[Any]:
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        with blocking.connect(said) as factory:
            process = context.Process(target=_forked, args=(said, second, factory, results))
            process.start()
            got = [results.get(timeout=60), results.get(timeout=60)]
            process.join(20)
            assert exercise(said, first, 10) == expected[:10], "the parent goes on"
        return got

    refusal, ids = await asyncio.to_thread(fork)
    assert "connect again" in refusal and ids == expected[:50]
