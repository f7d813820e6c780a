"""The same programs of busbar.client against regular and partitioned entities, with one broker and with three."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from busbar.client import (
    BusbarClientError,
    LockLost,
    MessageContext,
    MessagingFactory,
    NotFound,
    NotInThisMode,
    OperationTimeout,
    OutgoingMessage,
    Received,
    ReceiveMode,
    Retry,
    SendFailed,
    SessionCannotBeLocked,
    SessionLockLost,
    blocking,
)
from harness.serving import PATIENCE, Busbar
from tests.interop.frame_counter import FrameCounter
from tests.interop.partitioned_queues import Names

LOCK = 1.5
PARTITIONED: dict[str, object] = {"EnablePartitioning": True}
BRIEF: dict[str, object] = {"LockDuration": f"PT{LOCK}S"}
SESSIONS: dict[str, object] = {"RequiresSession": True} | BRIEF
UNIQUE: dict[str, object] = {"RequiresDuplicateDetection": True}
PROPERTIES = {"plain": {}, "brief": BRIEF, "sessions": SESSIONS, "unique": UNIQUE}
QUEUES: dict[str, dict[str, object]] = {
    f"{kind}-{what}-{index}": properties | (PARTITIONED if kind == "partitioned" else {})
    for kind in ("regular", "partitioned")
    for what, properties in PROPERTIES.items()
    for index in range(5 if what == "plain" else 3)
}
TOPICS: list[dict[str, object]] = [
    {
        "Name": f"{kind}-topic",
        "Properties": PARTITIONED if kind == "partitioned" else {},
        "Subscriptions": [{"Name": "all", "Properties": {}}, {"Name": "audit", "Properties": {}}],
    }
    for kind in ("regular", "partitioned")
]
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.parametrize("server", ["1", "3"], indirect=True),
    pytest.mark.server(
        QUEUES,
        PATIENCE | {"min_lock_duration": 100},
        topics=TOPICS,
        arguments=("--stores", "4"),
        checked=True,
    ),
]


@pytest.fixture(params=["regular", "partitioned"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def names(server: Busbar) -> Names:
    return Names()


@pytest_asyncio.fixture(loop_scope="session")
async def factory(server: Busbar) -> AsyncIterator[MessagingFactory]:
    async with MessagingFactory(server.connection_string) as made:
        yield made


def numbered(count: int, **fields: Any) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"%d" % number, **fields) for number in range(count)]


def texts(messages: list[Received]) -> list[str]:
    return [message.body.decode() for message in messages]


@pytest.mark.req("B2", "B3")
async def test_one_connection_serves_clients_that_are_used_concurrently(
    server: Busbar, names: Names, kind: str
) -> None:
    async with FrameCounter(server) as counter, MessagingFactory(counter.connection_string) as factory:
        queues = [names.take(f"{kind}-plain"), names.take(f"{kind}-brief")]
        clients = [factory.queue_client(queue) for queue in queues]

        async def receive(number: int) -> str:
            client = clients[number % 2]
            (message,) = await client.receive_messages(1, 20)
            await client.complete_message(message)
            return message.body.decode()

        receives = [asyncio.create_task(receive(number)) for number in range(40)]
        await asyncio.sleep(0.3)
        assert not any(call.done() for call in receives), "all of them are under way before the first ends"
        counter.answers.clear()
        sends = [
            asyncio.create_task(clients[number % 2].send_messages(OutgoingMessage(b"%d" % number)))
            for number in range(40)
        ]
        await asyncio.sleep(0.3)
        assert not any(call.done() for call in sends), "the next starts before the last has ended"
        counter.answers.set()
        await asyncio.gather(*sends)
        assert sorted(map(int, await asyncio.gather(*receives))) == [*range(40)]
        for client in clients:  # clients and their links are used again
            await client.send_messages(OutgoingMessage(b"again"))
            (message,) = await client.receive_messages(1, 10)
            await client.complete_message(message)
        assert counter.connections == 1


async def test_every_settlement(factory: MessagingFactory, names: Names, kind: str) -> None:
    queue = names.take(f"{kind}-plain")
    client = factory.queue_client(queue)
    await client.send_messages(numbered(5, partition_key="one"))
    messages: list[Received] = []
    while len(messages) < 5:
        messages += await client.receive_messages(5, 10)
    done, again, aside, dead, left = messages
    await asyncio.gather(
        client.complete_message(done),
        client.abandon_message(again, {"seen": 1}),
        client.defer_message(aside),
        client.dead_letter_message(dead, reason="because", error_description="of this"),
    )
    (back,) = await client.receive_messages(1, 10)
    assert texts([back]) == ["1"] and back.delivery_count == 1 and back.application_properties == {"seen": 1}
    with pytest.raises(LockLost):
        await client.complete_message(done)
    (deferred,) = await client.receive_deferred_messages(aside.sequence_number)
    assert texts([deferred]) == ["2"] and await client.renew_message_lock(deferred) > time.time() * 1000
    await client.complete_message(deferred)
    with pytest.raises(NotFound):
        await client.receive_deferred_messages([aside.sequence_number])
    letters = factory.message_receiver(queue, sub_queue="deadletter")
    (letter,) = await letters.receive_messages(1, 10)
    assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("because", "of this")
    await letters.complete_message(letter)
    assert [message.body for message in await client.peek_messages(10)] == [b"1", b"4"]
    await client.complete_message(back)
    before = left.locked_until
    await asyncio.sleep(0.01)
    assert await client.renew_message_lock(left) > before
    await client.complete_message(left)
    assert await client.receive_messages(1, 0.2) == []


@pytest.mark.req("B5")
async def test_receive_and_delete_takes_one_request_and_refuses_what_needs_locks(
    server: Busbar, names: Names, kind: str
) -> None:
    queue = names.take(f"{kind}-plain")
    async with FrameCounter(server) as counter, MessagingFactory(counter.connection_string) as factory:
        client = factory.queue_client(queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
        assert factory.queue_client(queue).receiver.receive_mode is ReceiveMode.PEEK_LOCK
        await client.send_messages(numbered(2))
        (first,) = await client.receive_messages(1, 10)
        counter.clear()
        (second,) = await client.receive_messages(1, 10)
        assert len(counter.frames) == 1, "a flow, and no disposition"
        assert sorted(texts([first, second])) == ["0", "1"] and second.locked_until == 0
        transaction = factory.transaction()
        await transaction.begin()
        for refused in (
            client.complete_message(second),
            client.complete_message(second, transaction=transaction),
            client.defer_message(second),
            client.dead_letter_message(second),
            client.abandon_message(second),
            client.renew_message_lock(second),
        ):
            with pytest.raises(NotInThisMode):
                await refused
        await transaction.rollback()
        assert await client.peek_messages(1) == []


async def test_scheduled_and_deleted_messages(factory: MessagingFactory, names: Names, kind: str) -> None:
    client = factory.queue_client(names.take(f"{kind}-plain"))
    later = datetime.now(UTC) + timedelta(hours=1)
    numbers = await client.schedule_messages(numbered(3, partition_key="one"), later)
    other = await client.schedule_messages(OutgoingMessage(b"other", partition_key="two"), later)
    peeked = await client.peek_messages(10)
    assert {message.state for message in peeked} == {"scheduled"} and len(peeked) == 4
    await client.cancel_scheduled_messages([*numbers[1:], *other])
    with pytest.raises(NotFound):
        await client.cancel_scheduled_messages(numbers[1])
    soon = datetime.now(UTC) + timedelta(seconds=1)
    await client.schedule_messages(OutgoingMessage(b"soon"), soon)
    (message,) = await client.receive_messages(1, 10)
    assert texts([message]) == ["soon"] and datetime.now(UTC) > soon - timedelta(milliseconds=100)
    await client.complete_message(message)
    await client.send_messages(numbered(100))
    assert await client.delete_messages(30) == 30
    assert await client.purge_messages() == 70
    assert [message.state for message in await client.peek_messages(10, sequence_number=0)] == ["scheduled"]


async def test_a_topic_and_its_subscriptions(factory: MessagingFactory, kind: str) -> None:
    topic = factory.topic_client(f"{kind}-topic")
    subscriptions = [factory.subscription_client(f"{kind}-topic", name) for name in ("all", "audit")]
    await asyncio.gather(*[topic.send_messages(message) for message in numbered(20)])
    for subscription in subscriptions:
        got: list[Received] = []
        while len(got) < 20:
            got += await subscription.receive_messages(20, 10)
        assert sorted(map(int, texts(got))) == [*range(20)]
        await asyncio.gather(*[subscription.complete_message(message) for message in got])


@pytest.mark.req("P17")
async def test_messages_get_ids_which_are_their_keys_where_duplicates_are_detected(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    client = factory.queue_client(names.take(f"{kind}-unique"))
    messages = numbered(20)
    for _ in range(2):
        await asyncio.gather(*[client.send_messages(message) for message in messages])
    got: list[Received] = []
    while len(got) < 20:
        got += await client.receive_messages(20, 10)
    assert sorted(map(int, texts(got))) == [*range(20)], "sent twice with the same id: stored once"
    assert {message.message_id for message in got} == {message.message_id for message in messages}
    fragments = {message.sequence_number >> 48 for message in got}
    assert len(fragments) > 4 if kind == "partitioned" else fragments == {0}
    await asyncio.gather(*[client.complete_message(message) for message in got])
    assert await client.receive_messages(1, 0.2) == []


@pytest.mark.req("S7", "S9")
async def test_a_session_by_its_name_and_the_next_one(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    queue = names.take(f"{kind}-sessions")
    sender = factory.message_sender(queue)
    for name in "ab":
        await sender.send_messages(numbered(3, session_id=name))
    assert sorted(await factory.list_sessions(queue)) == ["a", "b"]
    first = await factory.accept_session(queue, "b")
    second = await factory.accept_session(queue)
    assert (first.session_id, second.session_id) == ("b", "a")
    with pytest.raises(SessionCannotBeLocked):
        await factory.accept_session(queue, "b")
    with pytest.raises(OperationTimeout):
        await factory.accept_session(queue, max_wait_time=0.2)
    got: list[Received] = []
    while len(got) < 3:
        got += await first.receive_messages(3, 10)
    assert texts(got) == ["0", "1", "2"]
    assert await first.get_state() is None
    await first.set_state(b"at 2")
    for _ in range(3):  # longer than the lock lasts
        await asyncio.sleep(LOCK / 2)
        until = await first.renew_lock()
        assert until == first.locked_until > time.time() * 1000
    await asyncio.gather(*[first.complete_message(message) for message in got])
    await first.close()
    with pytest.raises(SessionLockLost):
        await second.renew_lock()  # it was not renewed: its lock has expired
    with pytest.raises(SessionLockLost):
        await second.receive_messages(1, 10)
    again = await factory.accept_session(queue, "b")
    assert await again.get_state() == b"at 2", "the lock ended with the receiver that was closed"
    heir = await factory.accept_session(queue, "a")
    assert texts(await heir.receive_messages(1, 10)) == ["0"]


@pytest.mark.req("S7", "S9")
async def test_handlers_get_the_messages_of_sessions_in_order_and_keep_their_locks(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    queue = names.take(f"{kind}-sessions")
    sender = factory.message_sender(queue)
    for name in "abc":
        await sender.send_messages(numbered(4, session_id=name))
    seen: dict[str, list[str]] = {}
    running: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    errors: list[BaseException] = []

    async def handle(context: MessageContext) -> None:
        message = context.message
        name = str(message.session_id)
        running[name] += 1
        assert running[name] == 1, "one at a time within a session"
        try:
            if name == "a" and message.body == b"1":
                await asyncio.sleep(2 * LOCK)  # longer than the lock lasts: it is renewed
            attempts[f"{name}{message.body.decode()}"] += 1
            if attempts["b2"] == 1 and (name, message.body) == ("b", b"2"):
                raise ValueError("once")
        finally:
            running[name] -= 1
        seen.setdefault(name, []).append(message.body.decode())

    async def on_error(error: BaseException) -> None:
        errors.append(error)

    processor = factory.session_processor(
        queue, handle, on_error=on_error, max_concurrent_sessions=2, session_idle_timeout=0.3
    )
    async with processor:
        async with asyncio.timeout(40):
            while sum(map(len, seen.values())) < 12:
                await asyncio.sleep(0.05)
    assert seen == {name: ["0", "1", "2", "3"] for name in "abc"}
    assert [str(error) for error in errors] == ["once"] and attempts["b2"] == 2
    assert not processor.is_running
    with pytest.raises(OperationTimeout):
        await factory.accept_session(queue, max_wait_time=0.2)


@pytest.mark.req("S7")
async def test_a_processor_works_concurrently_renews_and_stops_cleanly(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    queue = names.take(f"{kind}-brief")
    client = factory.queue_client(queue)
    await client.send_messages(numbered(30))
    running, most, done = 0, 0, []

    async def handle(context: MessageContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(2 * LOCK if context.message.body == b"7" else 0.02)
        if context.message.body == b"9":
            await context.dead_letter_message(reason="nine")
        done.append(context.message.body.decode())
        running -= 1

    async with factory.processor(queue, handle, max_concurrent_calls=5, prefetch_count=3) as processor:
        async with asyncio.timeout(40):
            while len(done) < 25:
                await asyncio.sleep(0.01)
        assert processor.is_running
    assert running == 0 and most == 5, "close waits for the handlers that run"
    left: list[Received] = []
    while len(left) + len(done) < 30:
        got = await client.receive_messages(30, 5)
        assert got, (len(left), sorted(map(int, done)))
        left += got
    assert all(message.delivery_count == 0 for message in left), "what was prefetched is released"
    assert sorted(map(int, done + texts(left))) == [*range(30)]
    letters = factory.message_receiver(queue, sub_queue="deadletter")
    assert "9" not in done or texts(await letters.receive_messages(1, 5)) == ["9"]


@pytest.mark.req("P19")
async def test_a_call_without_an_answer_ends_with_its_operation_timeout(
    server: Busbar, names: Names, kind: str
) -> None:
    queue = names.take(f"{kind}-unique")
    assert MessagingFactory(server.connection_string).operation_timeout == 60
    async with (
        FrameCounter(server) as counter,
        MessagingFactory(
            counter.connection_string, operation_timeout=1, retry=Retry(patience=5, first=0.05)
        ) as factory,
    ):
        client = factory.queue_client(queue)
        await client.send_messages(numbered(2))
        (message,) = await client.receive_messages(1, 10)
        await client.peek_messages(1)
        counter.answers.clear()
        calls = [
            client.send_messages(OutgoingMessage(b"x")),
            client.complete_message(message),
            client.receive_messages(1, 0.1),
            client.peek_messages(1),
            factory.accept_session(queue, max_wait_time=0),
        ]
        began = time.monotonic()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - began < 15
        assert all(isinstance(outcome, BusbarClientError) for outcome in outcomes), outcomes
        assert isinstance(outcomes[0], OperationTimeout | SendFailed)
        counter.answers.set()
        await client.send_messages(OutgoingMessage(b"and it goes on"))


async def test_the_synchronous_face(server: Busbar, names: Names, kind: str) -> None:
    queue, sessions = names.take(f"{kind}-plain"), names.take(f"{kind}-sessions")

    def program() -> None:
        with blocking.connect(server.connection_string) as factory:
            with factory.queue_client(queue) as client:
                client.send_messages(OutgoingMessage(b"one", partition_key="k"))
                client.send_messages(numbered(4, partition_key="k"))
                (one,) = client.receive_messages(1, 10)
                client.complete_message(one)
                rest: list[Received] = []
                while len(rest) < 4:
                    rest += client.receive_messages(4, 10)
                client.renew_message_lock(rest[0])
                client.abandon_message(rest[0])
                client.defer_message(rest[1])
                client.dead_letter_message(rest[2], reason="r")
                (deferred,) = client.receive_deferred_messages([rest[1].sequence_number])
                client.complete_message(deferred)
                with factory.transaction() as transaction:
                    client.complete_message(rest[3], transaction=transaction)
                    client.send_messages(
                        OutgoingMessage(b"reply", partition_key="k"), transaction=transaction
                    )
                later = datetime.now(UTC) + timedelta(hours=1)
                scheduled = client.schedule_messages(numbered(2, partition_key="k"), later)
                client.cancel_scheduled_messages(scheduled[:1])
                assert [message.body for message in client.peek_messages(10)][:2] == [b"0", b"reply"]
                with factory.message_receiver(queue, sub_queue="deadletter") as letters:
                    assert letters.purge_messages() == 1
                seen: list[bytes] = []
                together = threading.Barrier(2, timeout=20)

                def handle(message: Received) -> None:
                    together.wait()  # both handlers run at the same time
                    seen.append(message.body)

                with factory.processor(queue, handle, max_concurrent_calls=2):
                    end = time.monotonic() + 20
                    while len(seen) < 2 and time.monotonic() < end:
                        time.sleep(0.01)
                assert sorted(seen) == [b"0", b"reply"]
            with factory.message_sender(sessions) as sender:
                sender.send_messages(OutgoingMessage(b"s", session_id="s"))
            with factory.accept_session(sessions, max_wait_time=10) as session:
                assert session.session_id == "s" and session.is_locked
                session.set_state(b"state")
                session.renew_lock()
                assert session.get_state() == b"state"
                (message,) = session.receive_messages(1, 10)
                session.complete_message(message)
            assert factory.list_sessions(sessions) == ["s"]

    await asyncio.to_thread(program)
