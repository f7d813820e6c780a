"""Prefetching with busbar.client at a running broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError

from busbar.client import LockLost, MessagingFactory, OutgoingMessage, Received
from harness.serving import PATIENCE, Busbar
from tests.interop.administration import Administration
from tests.interop.frame_counter import FLOW, FrameCounter
from tests.interop.partitioned_queues import BRIEF_LOCK, Names

BRIEF: dict[str, object] = {"LockDuration": f"PT{BRIEF_LOCK}S"}
PARTITIONED: dict[str, object] = {"EnablePartitioning": True}
KINDS: dict[str, dict[str, object]] = {
    "regular": {},
    "partitioned": PARTITIONED,
    "regular-brief": BRIEF,
    "partitioned-brief": BRIEF | PARTITIONED,
}
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(60),
    pytest.mark.server(
        {f"{kind}-{index}": what for kind, what in KINDS.items() for index in range(12)},
        PATIENCE | {"min_lock_duration": 100},
        checked=True,
    ),
]


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


@pytest.fixture(params=["regular", "partitioned"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue(kind: str, names: Names) -> str:
    return names.take(kind)


@pytest_asyncio.fixture(loop_scope="session")
async def factory(server: Busbar) -> AsyncIterator[MessagingFactory]:
    async with MessagingFactory(server.connection_string) as made:
        yield made


def numbered(count: int, size: int = 10, key: str | None = None) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(b"x" * size, message_id=str(number), partition_key=key) for number in range(count)
    ]


@pytest.mark.req("B8")
async def test_by_default_nothing_is_prefetched(factory: MessagingFactory, queue: str) -> None:
    first, second = factory.queue_client(queue), factory.queue_client(queue)
    assert first.receiver.prefetch_count == 0
    await first.send_messages(numbered(4, key="k"))
    (one,) = await first.receive_messages(1, 10)
    others = await second.receive_messages(10, 10)
    assert [message.message_id for message in [one, *others]] == ["0", "1", "2", "3"]


@pytest.mark.req("B8")
async def test_prefetched_messages_are_locked_in_a_cache_of_their_client(
    factory: MessagingFactory, queue: str
) -> None:
    first = factory.message_receiver(queue, prefetch_count=10)
    second = factory.message_receiver(queue, prefetch_count=10)
    await factory.message_sender(queue).send_messages(numbered(10, key="k"))
    (one,) = await first.receive_messages(1, 10)
    assert one.locked_until > time.time() * 1000 + 50_000, "a minute by default"
    assert await second.receive_messages(10, 0.5) == [], "the others wait in the cache of the first"
    rest: list[Received] = []
    while len(rest) < 9:
        rest += await first.receive_messages(1, 10)
    assert [message.message_id for message in rest] == [str(number) for number in range(1, 10)]
    await asyncio.gather(*[first.complete_message(message) for message in [one, *rest]])


@pytest.mark.req("B8")
async def test_a_cache_is_filled_by_one_request(server: Busbar, queue: str) -> None:
    async with FrameCounter(server) as counter, MessagingFactory(counter.connection_string) as factory:
        await factory.message_sender(queue).send_messages(numbered(64, key="k"))
        counts = []
        for prefetch_count in (0, 64):
            receiver = factory.message_receiver(queue, prefetch_count=prefetch_count)
            await receiver.receive_messages(1, 10)
            counter.clear()
            for _ in range(30):
                assert await receiver.receive_messages(1, 10)
            counts.append(counter.count(FLOW))
        assert counts[0] >= 30 and counts[1] <= 3


@pytest.mark.req("B8")
async def test_a_fetch_has_at_most_256_kilobytes(factory: MessagingFactory, queue: str) -> None:
    """When the size of the messages is known, a fetch does not ask for more of them, however large the cache is."""
    sender = factory.message_sender(queue)
    for _ in range(30):
        await sender.send_messages(numbered(4, 60_000, key="k"))
    receiver = factory.message_receiver(queue, prefetch_count=1000)
    for _ in range(70):  # those of the first fetch, by a guess, and some more
        assert await receiver.receive_messages(1, 10)
    await asyncio.sleep(0.3)
    link = receiver._link
    assert link is not None
    # A fetch, and what is left of the one before.
    assert (link.cached + link.link.credit) * 60_000 <= 2 * 256 * 1024
    other = factory.message_receiver(queue)
    assert await other.receive_messages(1, 10), "the rest is there for others"


@pytest.mark.req("B8")
async def test_a_receiver_with_a_large_cache_does_not_hold_up_another(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    large, small = names.take(kind), names.take(kind)
    sender = factory.message_sender(large)
    for _ in range(40):
        await sender.send_messages(numbered(50, 4_000))
    greedy = factory.message_receiver(large, prefetch_count=10_000)
    client = factory.queue_client(small)
    await client.send_messages(OutgoingMessage(b"quick"))

    async def read() -> int:
        count = 0
        while got := await greedy.receive_messages(100, 0.5):
            count += len(got)
        return count

    reading = asyncio.create_task(read())
    times = []
    for _ in range(5):
        began = time.monotonic()
        (message,) = await client.receive_messages(1, 10)
        await client.abandon_message(message)
        times.append(time.monotonic() - began)
    assert min(times) < 0.5, times
    assert await reading == 2000


@pytest.mark.req("B8")
async def test_completing_a_message_whose_lock_expired_in_the_cache_fails_clearly(
    factory: MessagingFactory, names: Names, kind: str
) -> None:
    queue = names.take(f"{kind}-brief")
    receiver = factory.message_receiver(queue, prefetch_count=10)
    await factory.message_sender(queue).send_messages(numbered(3, key="k"))
    (first,) = await receiver.receive_messages(1, 10)
    await receiver.complete_message(first)
    await asyncio.sleep(BRIEF_LOCK + 0.5)
    (stale,) = await receiver.receive_messages(1, 10)
    assert stale.message_id == "1", "the copy in the cache is received although its lock has expired"
    with pytest.raises(LockLost, match=r"was not completed, since its lock is lost\. It was locked until 20"):
        await receiver.complete_message(stale)
    await receiver.close()
    (again,) = await factory.message_receiver(queue).receive_messages(1, 10)
    assert again.message_id in ("1", "2") and again.delivery_count >= 1


@pytest.mark.req("B8")
async def test_a_lock_lasts_a_minute_by_default_and_five_at_most(server: Busbar) -> None:
    admin = Administration(server, asynchronous=True)
    assert (await admin.create_queue("by-default")).lock_duration == timedelta(minutes=1)
    assert (await admin.create_queue("long", lock_duration=timedelta(minutes=5))).lock_duration == timedelta(
        minutes=5
    )
    with pytest.raises(HttpResponseError, match="LockDuration"):
        await admin.create_queue("too-long", lock_duration=timedelta(minutes=5, seconds=1))
    await admin.raw.close()


@pytest.mark.req("B8")
async def test_the_time_to_live_is_checked_when_the_broker_sends_and_not_in_the_cache(
    factory: MessagingFactory, queue: str
) -> None:
    receiver = factory.message_receiver(queue, prefetch_count=10)
    messages = [
        OutgoingMessage(b"", message_id=str(number), partition_key="k", time_to_live=1_000)
        for number in range(3)
    ]
    await factory.message_sender(queue).send_messages(messages)
    (first,) = await receiver.receive_messages(1, 10)
    await asyncio.sleep(1.3)
    (second,) = await receiver.receive_messages(1, 10)
    assert (first.message_id, second.message_id) == ("0", "1")
    await receiver.complete_message(second)
    await receiver.close()
    assert await factory.message_receiver(queue).receive_messages(1, 0.5) == [], (
        "the broker sends none of them"
    )
