"""`kill -9` of a server right after acknowledgements: what is durable although its entity is express (docs/express.md).

The messages of express entities stay in memory for minutes here. Each test looks at other entities of the same server, which
is killed once. One queue shows that what was in memory alone is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from busbar.client import EVENTS, MessagingFactory, OutgoingMessage, encode
from busbar.model.effects import COMPLETED
from busbar.pages.rows import decode_events, decode_messages
from harness.serving import Busbar, config_text
from tests.interop.forwarding import Forwarding, bodies

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXPRESS: dict[str, object] = {"EnableExpress": True}
QUEUES: dict[str, dict[str, object]] = {
    "lost": EXPRESS,
    "to-durable": {**EXPRESS, "ForwardTo": "durable"},
    "durable": {},
    "to-express": {"ForwardTo": "express"},
    "express": EXPRESS,
    "to-topic": {"ForwardTo": "topic"},
    "dying": {**EXPRESS, "ForwardDeadLetteredMessagesTo": "letters"},
    "letters": EXPRESS,
    "transactions": EXPRESS,
    "via": EXPRESS,
    "destination": EXPRESS,
    "scheduled": EXPRESS,
    "states": {**EXPRESS, "RequiresSession": True},
    "tapped": EXPRESS,
    "recorded": EXPRESS,
}
TOPICS: list[dict[str, object]] = [
    {
        "Name": name,
        "Properties": EXPRESS,
        "Subscriptions": [{"Name": "a", "Properties": to}, {"Name": "b", "Properties": {}}],
    }
    for name, to in (("topic", {}), ("forwarding", {"ForwardTo": "durable-copies"}))
]
QUEUES["durable-copies"] = {}
TEXTS = [f"m{number}" for number in range(10)]


class Before:
    """What clients did before the server was killed."""

    def __init__(self, here: Forwarding) -> None:
        self.here = here
        self.factory = here.factory
        self.pages: dict[str, list[int]] = {}

    async def do(self) -> None:
        """The first message of a fragment is written, with its number. So each entity gets one before the others."""
        for entity in ("to-durable", "to-express", "to-topic", "forwarding", "lost"):
            await self.here.send(entity, TEXTS[0])
        for act in (
            self._dead_letter,
            self._transact,
            self._schedule,
            self._set_state,
            self._tap,
            self._record,
        ):
            await act()
        for entity in ("to-durable", "to-express", "to-topic", "forwarding", "lost"):
            await self.here.send(entity, *TEXTS[1:])

    async def _dead_letter(self) -> None:
        receiver = await self.factory.receiver("dying")
        for text in ("dead", "dead, too"):
            await self.here.send("dying", text)
            await receiver.dead_letter(await receiver.receive(1, 15), "because")
        await receiver.close()

    async def _transact(self) -> None:
        await self.here.send("transactions", "left")
        await self.here.take("transactions", 1)
        await self.here.send("transactions", "taken", "left")
        receiver = await self.factory.receiver("transactions", credit=1)
        taken = await receiver.receive(1, 15)
        sender = await self.factory.sender("transactions")
        async with self.factory.transaction() as transaction:
            await receiver.complete(taken, transaction=transaction)
            await sender.send([encode(OutgoingMessage(b"sent"))], transaction=transaction)
        await receiver.close(release=True)
        through = await self.factory.sender("destination", via="via")
        async with self.factory.transaction() as transaction:
            await through.send([encode(OutgoingMessage(b"moved"))], transaction=transaction)

    async def _schedule(self) -> None:
        await self.here.send("scheduled", "now")
        due = int(time.time() * 1000) + 1_000
        await self.here.send("scheduled", "later", scheduled_enqueue_time=due)

    async def _set_state(self) -> None:
        await self.here.send("states", "in the session", session_id="s", message_id="in the session")
        async with await self.factory.accept_session("states", "s") as session:
            await session.set_state(b"kept")

    async def _tap(self) -> None:
        """A reader of the tap has seen all messages, and a receiver has completed some of them."""
        taps = await self.factory.taps("tapped")
        await taps.create("t", from_earliest=True)
        await self.here.send("tapped", TEXTS[0])
        await self.here.send("tapped", *TEXTS[1:])
        await self.here.take_some("tapped", 4)
        self.pages["tapped"] = await read_tap(self.factory, "tapped")

    async def _record(self) -> None:
        taps = await self.factory.taps("recorded")
        await taps.create("t", from_earliest=True, events=True)
        await self.here.send("recorded", TEXTS[0])
        await self.here.send("recorded", *TEXTS[1:])
        await self.here.take_some("recorded", 4)


async def read_tap(factory: MessagingFactory, queue: str) -> list[int]:
    """The numbers of all messages that a tap shows."""
    taps = await factory.taps(queue)
    end = (await taps.ends()).ends[0]
    found: list[int] = []
    async for page in taps.pages("t", 0, 0, end):
        found += [int(row.n) for row in decode_messages(page.rows)]
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def before(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Before]:
    """The server after the kill, and what was done before it."""
    path: Path = tmp_path_factory.mktemp("express")
    config = config_text(QUEUES, {"express_delay": 600_000}, TOPICS)
    server = Busbar(path / "data", config, arguments=("--stores", "2")).start()
    try:
        async with await MessagingFactory.connect(server.connection_string) as factory:
            done = Before(Forwarding(server, factory))
            await done.do()
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with await MessagingFactory.connect(server.connection_string) as factory:
            done.here = Forwarding(server, factory)
            done.factory = factory
            yield done
    finally:
        assert await asyncio.to_thread(server.stop) == 0


@pytest.mark.req("B9")
async def test_what_was_in_memory_alone_is_gone(before: Before) -> None:
    assert bodies(await before.here.take("lost", 1)) == TEXTS[:1]


@pytest.mark.req("B9")
async def test_what_an_express_queue_forwards_is_there_once_and_in_order(before: Before) -> None:
    assert bodies(await before.here.take("durable", len(TEXTS))) == TEXTS
    await before.here.until("to-durable", "All", 0)


@pytest.mark.req("B9")
async def test_what_is_forwarded_to_an_express_queue_is_there_once_and_in_order(before: Before) -> None:
    assert bodies(await before.here.take("express", len(TEXTS))) == TEXTS
    await before.here.until("to-express", "All", 0)


@pytest.mark.req("B9")
async def test_what_is_forwarded_to_an_express_topic_is_in_all_subscriptions(before: Before) -> None:
    for name in ("a", "b"):
        assert bodies(await before.here.take(f"topic/Subscriptions/{name}", len(TEXTS))) == TEXTS


@pytest.mark.req("B9")
async def test_if_one_subscription_forwards_the_copies_of_all_are_durable(before: Before) -> None:
    assert bodies(await before.here.take("durable-copies", len(TEXTS))) == TEXTS
    assert bodies(await before.here.take("forwarding/Subscriptions/b", len(TEXTS))) == TEXTS


@pytest.mark.req("B9")
async def test_forwarded_dead_letters_are_there(before: Before) -> None:
    assert bodies(await before.here.take("letters", 2)) == ["dead", "dead, too"]


@pytest.mark.req("B9")
async def test_a_transaction_is_done_as_a_whole(before: Before) -> None:
    assert bodies(await before.here.take("transactions", 2)) == ["left", "sent"]
    assert bodies(await before.here.take("destination", 1)) == ["moved"]


@pytest.mark.req("B9")
async def test_a_scheduled_message_is_there(before: Before) -> None:
    assert bodies(await before.here.take("scheduled", 2)) == ["now", "later"]


@pytest.mark.req("B9")
async def test_a_session_state_is_there(before: Before) -> None:
    async with await before.factory.accept_session("states", "s") as session:
        assert await session.get_state() == b"kept"


@pytest.mark.req("B9")
async def test_a_tap_shows_again_what_it_has_shown(before: Before) -> None:
    """Also what receivers had completed before anything was written."""
    assert len(before.pages["tapped"]) == len(TEXTS)
    assert await read_tap(before.factory, "tapped") == before.pages["tapped"]
    assert bodies(await before.here.take("tapped", 6)) == TEXTS[4:]


@pytest.mark.req("B9")
async def test_recorded_events_are_there(before: Before) -> None:
    taps = await before.factory.taps("recorded")
    end = (await taps.ends()).event_ends[0]
    page = await taps.read("t", 0, 0, end, stream=EVENTS)
    assert [event.outcome for event in decode_events(page.rows)].count(COMPLETED) == 4
    assert bodies(await before.here.take("recorded", 6)) == TEXTS[4:]
