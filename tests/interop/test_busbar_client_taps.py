"""Taps and writers through busbar.client: read in bulk, ahead, while ordinary receivers take the messages away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from busbar.client import (
    AlreadyExists,
    BatchOver,
    BusbarClientError,
    Ends,
    MessagingFactory,
    NotFound,
    OutgoingMessage,
    Page,
    Received,
    SendFailed,
    TapOwned,
    TapPassed,
    Taps,
    TapSelection,
    Writer,
    blocking,
    encode,
)
from busbar.message.decoded import decode_message
from busbar.pages.rows import decode_events, decode_messages, raw_message
from harness.serving import Busbar
from tests.interop.administration import administrations
from tests.interop.partitioned_queues import Names

KINDS: dict[str, dict[str, object]] = {"regular": {}, "partitioned": {"EnablePartitioning": True}}
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.server(
        {f"{kind}-{index}": what for kind, what in KINDS.items() for index in range(8)}, checked=True
    ),
]


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


@pytest.fixture(params=["regular", "partitioned"])
def either(request: pytest.FixtureRequest, names: Names) -> str:
    return names.take(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def factory(server: Busbar) -> AsyncIterator[MessagingFactory]:
    async with await MessagingFactory.connect(server.connection_string) as made:
        yield made


def outgoing(count: int, prefix: str = "") -> list[bytes]:
    return [
        encode(
            OutgoingMessage(b"%d" % number * 50, message_id=f"{prefix}{number}", partition_key=str(number))
        )
        for number in range(count)
    ]


async def bodies(taps: Taps, name: str | None, after: dict[int, int], ends: Ends) -> list[bytes]:
    """The contents of all messages up to the ends, in pages of a few."""
    found: list[bytes] = []
    for fragment, end in ends.ends.items():
        async for page in taps.pages(name, fragment, after.get(fragment, 0), end, count=100):
            rows = decode_messages(page.rows)
            assert len(rows) == page.count <= 100
            found += [row.content for row in rows]
    return found


async def drain(factory: MessagingFactory, queue: str, count: int) -> None:
    async with await factory.receiver(queue) as receiver:
        done = 0
        while done < count:
            got = await receiver.receive(1000, 10)
            assert got
            await receiver.complete(got)
            done += len(got)


async def test_a_tap_sees_what_receivers_took_away(factory: MessagingFactory, either: str) -> None:
    taps = await factory.taps(either)
    view = await taps.create("archive", from_earliest=True, owner="me")
    assert (view.name, view.entity, view.owner, view.truncated) == ("archive", either, "me", False)
    assert all(fragment.available and fragment.position == 0 for fragment in view.fragments)
    sender = await factory.sender(either)
    await sender.send(outgoing(1000))
    await drain(factory, either, 1000)
    ends = await taps.ends()
    assert ends.entity == either and ends.incarnation == view.incarnation
    assert len(ends.ends) == ends.fragments == (16 if either.startswith("partitioned") else 1)
    seen = await bodies(taps, "archive", {}, ends)
    assert len(seen) == len(set(seen)) == 1000
    assert await bodies(taps, None, {}, ends) == [], "for everybody else they are gone"
    await taps.advance("archive", "me", ends.ends)
    await taps.advance("archive", "me", dict.fromkeys(ends.ends, 0))  # back: nothing changes
    after = await taps.show("archive")
    assert {fragment.index: fragment.position for fragment in after.fragments} == ends.ends
    first = next(index for index, end in ends.ends.items() if end)
    with pytest.raises(TapPassed):
        await taps.read("archive", first, 0, ends.ends[first])
    await taps.delete("archive")
    assert await taps.list() == ()


@pytest.mark.parametrize("kind", ["regular", "partitioned"])
async def test_a_subscription_has_taps_of_its_own(
    server: Busbar, factory: MessagingFactory, kind: str
) -> None:
    """What is written to the topic by a writer that repeats itself is once in each subscription, and in its tap."""
    topic = f"topic-{kind}"
    async with administrations(server) as (_, admin):
        await admin.create_topic(topic, enable_partitioning=kind == "partitioned")
        for name in ("one", "two"):
            await admin.create_subscription(topic, name)
    path = f"{topic}/Subscriptions/one"
    taps = await factory.taps(path)
    view = await taps.create("archive", from_earliest=True, owner="me")
    assert (view.entity, len(view.fragments)) == (path, 16 if kind == "partitioned" else 1)
    for turn in range(2):
        sender = await factory.sender(topic, writer=Writer("query", 1))
        await sender.send(outgoing(300))
        assert (sender.duplicates, sender.doubtful) == (300 * turn, 0)
        await sender.close()
    writes = await factory.taps(topic)
    await writes.commit_writes("query", 1)
    with pytest.raises(BusbarClientError, match="but to its topic"):
        await taps.commit_writes("query", 1)
    with pytest.raises((SendFailed, BatchOver)):
        await (await factory.sender(topic, writer=Writer("query", 0))).send(outgoing(1))
    await drain(factory, path, 300)
    await drain(factory, f"{topic}/Subscriptions/two", 300)
    ends = await taps.ends()
    assert sum(ends.ends.values()) == 300
    assert len(set(await bodies(taps, "archive", {}, ends))) == 300
    other = await factory.taps(f"{topic}/Subscriptions/two")
    assert await other.list() == ()


async def test_the_broker_reports_what_it_dropped(factory: MessagingFactory, either: str) -> None:
    """By the number in each answer, also beside messages that it refuses. Other senders make no difference."""
    writer, other = await factory.sender(either, writer=Writer("job", 0)), await factory.sender(either)
    sent = outgoing(30)
    await writer.send(sent[:20])
    await other.send(sent[:5])
    assert (writer.duplicates, other.duplicates) == (0, 0)
    await writer.send(sent)
    assert writer.duplicates == 20
    # A partitioned queue refuses the first of these, the link the second one.
    mismatch = OutgoingMessage(b"x", message_id="bad", session_id="s", partition_key="k")
    bad = encode(mismatch if either.startswith("partitioned") else OutgoingMessage(bytes(2_000_000)))
    with pytest.raises(SendFailed):
        await writer.send([*sent[:3], bad, *sent[3:5], *sent[5:10]])
    assert writer.duplicates == 30
    ends = await (await factory.taps(either)).ends()
    assert sum(ends.ends.values()) == 35
    for sender in (writer, other):
        await sender.close()


async def test_owners_and_refusals(factory: MessagingFactory, names: Names) -> None:
    taps = await factory.taps(names.take("regular"))
    with pytest.raises(NotFound):
        await taps.show("archive")
    await taps.create("archive")
    with pytest.raises(AlreadyExists):
        await taps.create("archive")
    assert (await taps.own("archive", "one")).owner == "one"
    with pytest.raises(TapOwned):
        await taps.own("archive", "two")
    with pytest.raises(TapOwned):
        await taps.advance("archive", "two", {0: 0})
    assert (await taps.own("archive", "two", take_over=True)).owner == "two"
    with pytest.raises(BusbarClientError) as caught:
        await taps.advance("archive", "two", {0: 1_000_000})
    assert not caught.value.retryable
    assert (await taps.resume("archive", "two")).owner == "two"


async def test_events_and_times(factory: MessagingFactory, names: Names) -> None:
    queue = names.take("regular")
    taps = await factory.taps(queue)
    await taps.create("events", events=True)
    sender = await factory.sender(queue)
    await sender.send(outgoing(5))
    await asyncio.sleep(0.02)
    async with await factory.receiver(queue, credit=5) as receiver:
        got: list[Received] = []
        while len(got) < 5:
            got += await receiver.receive(5)
        await receiver.dead_letter(got[:1], "because")
        await receiver.complete(got[1:])
    ends = await taps.ends()
    page = await taps.read("events", 0, 0, ends.event_ends[0], stream="events")
    events = decode_events(page.rows)
    assert page.count == len(events) == 5 and [event.reason for event in events if event.reason] == [
        "because"
    ]
    last = max(message.enqueued_time for message in got)
    assert await taps.find_time(last + 1) == {0: 5} and await taps.find_time(0) == {0: 0}
    letters = await factory.taps(queue, sub_queue="deadletter")
    assert (await letters.ends()).dead_ends == {0: 1}
    rows = decode_messages((await letters.read(None, 0, 0, 1)).rows)
    assert [row.dead for row in rows] == [1]


async def test_a_writer_that_repeats_itself_writes_once(factory: MessagingFactory, either: str) -> None:
    taps = await factory.taps(either)
    for batch in (1, 1, 1):
        sender = await factory.sender(either, writer=Writer("query", batch))
        await sender.send(outgoing(300))
        await sender.close()
    await taps.commit_writes("query", 1)
    next_batch = await factory.sender(either, writer=Writer("query", 2))
    await next_batch.send(outgoing(10, "second "))
    await taps.commit_writes("query", 2)
    zombie = await factory.sender(either, writer=Writer("query", 1))
    with pytest.raises((SendFailed, BatchOver)) as caught:
        await zombie.send(outgoing(10, "late "))
    assert caught.value.condition == BatchOver.default_condition
    async with await factory.receiver(either, delete=True) as receiver:
        got = 0
        while more := await receiver.receive(1000, 1):
            got += len(more)
    assert got == 310


async def test_the_blocking_face(server: Busbar, names: Names) -> None:
    queue = names.take("partitioned")

    def run() -> None:
        with blocking.connect(server.connection_string) as factory:
            taps = factory.taps(queue)
            taps.create("archive", from_earliest=True, owner="me")
            factory.sender(queue).send(outgoing(2000))
            ends = taps.ends().ends
            count = 0
            for fragment, end in ends.items():
                for page in taps.pages("archive", fragment, 0, end, count=20):
                    count += page.count
            assert count == 2000
            early = taps.pages("archive", 0, 0, ends[0], count=5)
            assert next(early).count == 5
            early.close()  # type: ignore[attr-defined]
            taps.advance("archive", "me", ends)
            assert [tap.name for tap in taps.list()] == ["archive"]

    await asyncio.to_thread(run)


async def test_a_reader_gets_the_messages_and_parts_that_it_selects(
    factory: MessagingFactory, either: str
) -> None:
    taps = await factory.taps(either)
    await taps.create("selective", from_earliest=True)
    messages = [
        encode(
            OutgoingMessage(
                body=b"x" * 1_000,
                message_id=str(number),
                subject="even" if number % 2 == 0 else "odd",
                partition_key="one",
                application_properties={"region": "eu" if number < 5 else "us", "number": number},
            )
        )
        for number in range(10)
    ]
    async with await factory.sender(either) as sender:
        await sender.send(messages)
    (fragment, end), *_ = [(index, end) for index, end in (await taps.ends()).ends.items() if end]

    async def read(**conditions: object) -> tuple[list[str], int, Page]:
        select = TapSelection(**conditions)  # type: ignore[arg-type]
        page = await taps.read("selective", fragment, 0, end, select=select)
        assert page.upto == end
        rows = decode_messages(page.rows)
        return (
            [str(decode_message(raw_message(row.content)).message_id) for row in rows],
            len(page.rows),
            page,
        )

    everything, whole, _ = await read()
    assert everything == [str(number) for number in range(10)]
    found, size, page = await read(subjects=("even",), properties={"region": ("eu",)})
    assert (found, page.count, page.scanned) == (["0", "2", "4"], 3, 10)
    assert size < whole / 3
    found, size, _ = await read(bodies=False)
    assert found == everything and size < whole / 5
    assert (await read(properties={"number": (3, 7)}))[0] == ["3", "7"]
    assert (await read(states=("done",)))[0] == []
    assert (await read(until=1))[0] == []
    with pytest.raises(BusbarClientError, match="'states' has 'nowhere'"):
        await read(states=("nowhere",))
    with pytest.raises(BusbarClientError, match="at most 1000"):
        await read(sessions=tuple(str(number) for number in range(1_001)))
    with pytest.raises(BusbarClientError, match="at most 32"):
        await read(properties={str(number): (1,) for number in range(33)})
