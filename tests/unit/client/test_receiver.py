"""What a receiver does with calls that wait at the same time, and with messages that no call takes."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from busbar.amqp.link import Link
from busbar.client import ConnectionLost, MessagingFactory, NotInThisMode, OutgoingMessage, Received, encode
from tests.unit.client.scripted_broker import ScriptedBroker


class Source:
    """The broker's end of the one link that a test receives on: sends when the test asks for it."""

    def __init__(self, scripted: ScriptedBroker) -> None:
        self.link: Link | None = None
        self.sent = 0
        self._scripted = scripted
        scripted.attach = self._attach

    def _attach(self, link: Link) -> None:
        if link.sending and link.source is not None and link.source.address == "q":
            self.link = link

    def send(self, count: int, size: int = 10) -> None:
        assert self.link is not None
        for _ in range(count):
            payload = encode(OutgoingMessage(b"x" * size, message_id=str(self.sent)))
            self.sent += 1
            self.link.deliver([self.sent.to_bytes(16, "big")], [payload], False)
        for peer in self._scripted.peers:
            peer.flush()


def ids(messages: list[Received]) -> list[str | None]:
    return [message.message_id for message in messages]


async def settled_turns() -> None:
    await asyncio.sleep(0.05)


async def test_calls_at_the_same_time_all_get_messages(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    source = Source(scripted)
    receiver = await factory.receiver("q")
    calls = [asyncio.create_task(receiver.receive(1, 5)) for _ in range(3)]
    await settled_turns()
    source.send(2)
    first, second = await asyncio.gather(*calls[:2])
    assert ids(first + second) == ["0", "1"] and not calls[2].done()
    source.send(1)
    assert ids(await calls[2]) == ["2"]


async def test_a_cancelled_call_takes_nothing_along(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    source = Source(scripted)
    receiver = await factory.receiver("q")
    first = asyncio.create_task(receiver.receive(1, 5))
    second = asyncio.create_task(receiver.receive(5, 5))
    await settled_turns()
    link = receiver._link
    assert link is not None
    source.send(3)
    while len(link._waiting) == 2:
        await asyncio.sleep(0)
    first.cancel()  # served in this turn, and cancelled before it could run
    with pytest.raises(asyncio.CancelledError):
        await first
    got = ids(await second)
    while len(got) < 3:
        got += ids(await receiver.receive(5, 5))
    assert sorted(map(str, got)) == ["0", "1", "2"]
    waiting = asyncio.create_task(receiver.receive(1, 5))
    await settled_turns()
    waiting.cancel()
    source.send(1)
    assert ids(await receiver.receive(1, 5)) == ["3"]


async def test_all_calls_end_with_the_link(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    Source(scripted)
    receiver = await factory.receiver("q")
    calls = [asyncio.create_task(receiver.receive(1, 30)) for _ in range(3)]
    await settled_turns()
    scripted.hang_up()
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3


async def test_settlements_at_the_same_time(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    source = Source(scripted)
    receiver = await factory.receiver("q")
    await settled_turns()
    source.send(10)
    messages: list[Received] = []
    while len(messages) < 10:
        messages += await receiver.receive(10, 5)
    await asyncio.wait_for(asyncio.gather(*(receiver.complete([message]) for message in messages)), 5)


async def test_a_settlement_without_an_answer_ends(scripted: ScriptedBroker) -> None:
    source = Source(scripted)
    scripted.settle = lambda link, ids: None
    async with MessagingFactory(scripted.connection_string, operation_timeout=0.2) as factory:
        receiver = await factory.receiver("q")
        await settled_turns()
        source.send(1)
        (message,) = await receiver.receive(1, 5)
        with pytest.raises(Exception, match=r"No answer to a settlement for 0\.2 s"):
            await asyncio.wait_for(receiver.complete([message]), 5)


async def test_what_was_deleted_cannot_be_settled(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    source = Source(scripted)
    receiver = await factory.receiver("q", delete=True)
    await settled_turns()
    source.send(1)
    (message,) = await receiver.receive(1, 5)
    for settle in (receiver.complete, receiver.abandon, receiver.defer, receiver.dead_letter):
        with pytest.raises(NotInThisMode, match="PeekLock"):
            await settle([message])


def test_a_message_gets_an_id_if_it_has_none() -> None:
    message = OutgoingMessage(b"x")
    first, again = encode(message), encode(message)
    assert first == again and message.message_id is not None and len(message.message_id) == 32
    assert uuid.UUID(message.message_id).version == 4
    other = OutgoingMessage(b"x")
    encode(other)
    assert other.message_id != message.message_id
    named = OutgoingMessage(b"x", message_id="mine")
    encode(named)
    assert named.message_id == "mine"
