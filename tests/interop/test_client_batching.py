"""Client-side batching of busbar.client at a running broker: the frames that the client sends, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from busbar.client import MessagingFactory, OutgoingMessage, Received, blocking
from harness.serving import Busbar
from tests.interop.frame_counter import DISPOSITION, FLOW, TRANSFER, FrameCounter
from tests.interop.partitioned_queues import Names

KINDS: dict[str, dict[str, object]] = {"regular": {}, "partitioned": {"EnablePartitioning": True}}
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(60),
    pytest.mark.server(
        {f"{kind}-{index}": what for kind, what in KINDS.items() for index in range(12)}, checked=True
    ),
]


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


@pytest.fixture(params=["regular", "partitioned"])
def queue(request: pytest.FixtureRequest, names: Names) -> str:
    return names.take(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def counter(server: Busbar) -> AsyncIterator[FrameCounter]:
    async with FrameCounter(server) as made:
        yield made


def numbered(count: int, size: int = 10) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"x" * size, message_id=str(number)) for number in range(count)]


async def everything(factory: MessagingFactory, queue: str, count: int) -> list[Received]:
    receiver = factory.message_receiver(queue)
    got: list[Received] = []
    while len(got) < count:
        more = await receiver.receive_messages(count - len(got), 10)
        assert more, f"{len(got)} of {count} messages came"
        got += more
    return got


@pytest.mark.req("B6")
async def test_asynchronous_sends_and_completions_share_batches(counter: FrameCounter, queue: str) -> None:
    async with MessagingFactory(counter.connection_string) as factory:
        assert factory.batch_flush_interval == 0.020
        client = factory.queue_client(queue)
        await client.send_messages(OutgoingMessage(b"", message_id="first"))
        counter.clear()
        await asyncio.gather(*[client.send_messages(message) for message in numbered(200)])
        assert counter.count(TRANSFER) == 1
        messages: list[Received] = []
        while len(messages) < 201:
            messages += await client.receive_messages(201, 10)
        counter.clear()
        await asyncio.gather(*[client.complete_message(message) for message in messages])
        assert counter.count(DISPOSITION) <= 2, "one for each run of delivery ids"
        assert await client.receive_messages(1, 0.2) == []


@pytest.mark.req("B6")
async def test_zero_switches_batching_off(counter: FrameCounter, queue: str) -> None:
    async with MessagingFactory(counter.connection_string, batch_flush_interval=0) as factory:
        client = factory.queue_client(queue)
        await client.send_messages(OutgoingMessage(b"", message_id="first"))
        counter.clear()
        await asyncio.gather(*[client.send_messages(message) for message in numbered(20)])
        assert counter.count(TRANSFER) == 20
        messages = await everything(factory, queue, 21)
        counter.clear()
        for message in messages:
            await client.complete_message(message)
        assert counter.count(DISPOSITION) == 21


@pytest.mark.req("B6")
async def test_a_batch_waits_for_its_interval_at_most_and_all_else_not_at_all(
    counter: FrameCounter, server: Busbar, queue: str
) -> None:
    """The answer to the first send is held back, so that the second has a reason to wait for more."""
    loop = asyncio.get_running_loop()
    for interval in (0.020, 0.3):
        async with MessagingFactory(counter.connection_string, batch_flush_interval=interval) as factory:
            client = factory.queue_client(queue)
            await client.send_messages([OutgoingMessage(b"warm", message_id="warm")])
            (warm,) = await client.receive_messages(1, 10)
            await client.peek_messages(1)
            counter.answers.clear()
            counter.clear()
            first = asyncio.create_task(client.send_messages(OutgoingMessage(b"1")))
            while counter.count(TRANSFER) < 1:
                await asyncio.sleep(0.001)
            began = loop.time()
            second = asyncio.create_task(client.send_messages(OutgoingMessage(b"2")))
            third = asyncio.create_task(client.send_messages(OutgoingMessage(b"3")))
            others = [
                asyncio.create_task(client.receive_messages(1, 10)),  # a flow
                asyncio.create_task(client.peek_messages(1)),  # a transfer to the management node
                asyncio.create_task(client.abandon_message(warm)),  # a disposition
            ]
            while counter.count(FLOW) < 1 or counter.count(TRANSFER) < 2 or counter.count(DISPOSITION) < 1:
                await asyncio.sleep(0.0005)
            at_once = loop.time() - began
            while counter.count(TRANSFER) < 3:
                await asyncio.sleep(0.001)
            batched = counter.frames[-1].time - began
            counter.answers.set()
            await asyncio.gather(first, second, third, *others)
            if interval > 0.1:
                assert at_once < interval / 2 < interval - 0.01 <= batched < 2 * interval
            assert batched >= interval - 0.005, "it waited for more"
            messages = others[0].result()
            assert isinstance(messages, list)
            await client.abandon_message(messages[0])
        await drain(server, queue)


async def drain(server: Busbar, queue: str) -> None:
    async with MessagingFactory(server.connection_string) as factory:
        receiver = factory.message_receiver(queue, receive_mode="receiveanddelete")
        while await receiver.receive_messages(100, 0.2):
            pass


@pytest.mark.req("B6")
async def test_one_call_after_the_other_never_waits(counter: FrameCounter, queue: str) -> None:
    """No more is coming when the only caller waits for its answer."""
    async with MessagingFactory(counter.connection_string, batch_flush_interval=5) as factory:
        client = factory.queue_client(queue)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for message in numbered(20):
            await client.send_messages(message)
        for _ in range(20):
            (received,) = await client.receive_messages(1, 10)
            await client.complete_message(received)
        assert loop.time() - began < 4


@pytest.mark.req("B6")
async def test_synchronous_calls_go_at_once_and_alone(counter: FrameCounter, queue: str) -> None:
    """Calls of several threads, while answers are held back: a batch would wait five seconds for more."""
    factory = await asyncio.to_thread(
        lambda: blocking.connect(counter.connection_string, batch_flush_interval=5)
    )
    client = factory.queue_client(queue)
    await asyncio.to_thread(client.send_messages, numbered(2))
    messages: list[Received] = []
    while len(messages) < 2:
        messages += await asyncio.to_thread(client.receive_messages, 2, 10)
    counter.answers.clear()
    counter.clear()
    calls = [
        *[asyncio.create_task(asyncio.to_thread(client.send_messages, message)) for message in numbered(2)],
        *[asyncio.create_task(asyncio.to_thread(client.complete_message, message)) for message in messages],
    ]
    try:
        async with asyncio.timeout(3):
            while counter.count(TRANSFER) < 2 or counter.count(DISPOSITION) < 2:
                await asyncio.sleep(0.01)
        assert not any(call.done() for call in calls)
    finally:
        counter.answers.set()
    await asyncio.gather(*calls)
    await asyncio.to_thread(factory.close)


@pytest.mark.req("B6")
async def test_batches_are_not_made_across_clients(counter: FrameCounter, queue: str) -> None:
    async with MessagingFactory(counter.connection_string) as factory:
        clients = [factory.queue_client(queue) for _ in range(3)]
        for client in clients:
            await client.send_messages(OutgoingMessage(b""))
        counter.clear()
        await asyncio.gather(*[client.send_messages(OutgoingMessage(b"")) for client in clients * 5])
        assert counter.count(TRANSFER) == 3, "one batch for each client"


@pytest.mark.req("B6")
async def test_a_message_that_does_not_fit_opens_the_next_batch(counter: FrameCounter, queue: str) -> None:
    async with MessagingFactory(counter.connection_string) as factory:
        client = factory.queue_client(queue)
        await client.send_messages(OutgoingMessage(b""))
        counter.clear()
        await asyncio.gather(*[client.send_messages(message) for message in numbered(10, 60_000)])
        assert [size // 60_000 for size in counter.delivery_sizes()] == [4, 4, 2], (
            "no batch is larger than a message may be"
        )
        assert len(await everything(factory, queue, 11)) == 11
