"""How much a MessageReceiver asks for, and what becomes of messages that no call takes."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest

from busbar.amqp.link import Link
from busbar.amqp.types import Array
from busbar.client import (
    ConnectionLost,
    LockLost,
    MessagingFactory,
    NotInThisMode,
    OutgoingMessage,
    Received,
    ReceiveMode,
    encode,
)
from tests.unit.client.conftest import BRIEFLY
from tests.unit.client.scripted_broker import ScriptedBroker


class Queue:
    """Messages at the broker: as many as it has credit for go at once."""

    def __init__(self, scripted: ScriptedBroker, size: int = 10) -> None:
        self.waiting = 0
        self.sent = 0
        self.size = size
        self.link: Link | None = None
        self.credits: list[int] = []
        self.drains = 0
        self.answers_drains = True
        self._scripted = scripted
        scripted.attach = self._attach
        scripted.credit = self._credit

    def _attach(self, link: Link) -> None:
        if link.sending and link.source is not None and link.source.address == "q":
            self.link = link

    def _credit(self, link: Link, drain: bool) -> None:
        if link is not self.link:
            return
        if not drain:
            self.credits.append(int(link.credit))
        self._send()
        if drain:
            self.drains += 1
            if self.answers_drains:
                link.drained()

    def put(self, count: int) -> None:
        self.waiting += count
        self._send()
        for peer in self._scripted.peers:
            peer.flush()

    def _send(self) -> None:
        link = self.link
        while link is not None and self.waiting and link.credit > 0:
            self.waiting -= 1
            payload = encode(OutgoingMessage(b"x" * self.size, message_id=str(self.sent)))
            self.sent += 1
            link.deliver([self.sent.to_bytes(16, "big")], [payload], link.snd_settle_mode == 1)

    @property
    def outstanding(self) -> int:
        """The credit that the broker has."""
        return 0 if self.link is None else int(self.link.credit)


def ids(messages: list[Received]) -> list[int]:
    return [int(message.message_id or "") for message in messages]


async def test_without_prefetching_no_more_is_asked_for_than_calls_wait_for(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    receiver = factory.message_receiver("q")
    assert receiver.prefetch_count == 0
    calls = [asyncio.create_task(receiver.receive_messages(1, 5)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert queue.outstanding == 3
    queue.put(10)
    got = await asyncio.gather(*calls)
    assert [ids(messages) for messages in got] == [[0], [1], [2]]
    assert queue.waiting == 7 and queue.outstanding == 0, "the others stay where they are"


async def test_a_call_takes_what_is_there_and_gives_back_the_rest_of_its_credit(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    receiver = factory.message_receiver("q")
    assert await receiver.receive_messages(1, 0.05) == []
    assert queue.outstanding == 0 and queue.drains == 1
    queue.put(3)
    assert ids(await receiver.receive_messages(10, 5)) == [0, 1, 2]
    assert queue.outstanding == 0 and queue.drains == 2
    queue.put(5)
    assert ids(await receiver.receive_messages(5, 5)) == [3, 4, 5, 6, 7]
    assert queue.drains == 2, "nothing was left"


async def test_calls_go_on_after_another_has_ended(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    receiver = factory.message_receiver("q")
    brief = asyncio.create_task(receiver.receive_messages(1, 0.1))
    patient = asyncio.create_task(receiver.receive_messages(2, 5))
    assert await brief == []
    await asyncio.sleep(0.05)
    assert queue.outstanding == 2
    queue.put(2)
    assert ids(await patient) == [0, 1]


async def test_what_comes_for_a_cancelled_call_is_released(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    released: list[int] = []
    scripted.settle = lambda link, numbers: released.extend(numbers)
    receiver = factory.message_receiver("q")
    call = asyncio.create_task(receiver.receive_messages(5, 5))
    await asyncio.sleep(0.05)
    queue.answers_drains = False
    queue.put(1)
    await asyncio.sleep(0.05)  # the call waits for the answer to its drain
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.05)
    assert len(released) == 1


async def test_what_was_deleted_stays_for_the_next_call(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    receiver = factory.message_receiver("q", receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
    call = asyncio.create_task(receiver.receive_messages(5, 5))
    await asyncio.sleep(0.05)
    queue.answers_drains = False
    queue.put(1)
    await asyncio.sleep(0.05)
    call.cancel()
    queue.answers_drains = True
    assert queue.link is not None
    queue.link.drained()
    for peer in scripted.peers:
        peer.flush()
    assert ids(await receiver.receive_messages(5, 5)) == [0]


async def test_a_drain_without_an_answer_ends(scripted: ScriptedBroker) -> None:
    queue = Queue(scripted)
    queue.answers_drains = False
    factory = MessagingFactory(scripted.connection_string, retry=BRIEFLY, operation_timeout=0.2)
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match="drain"):
        await asyncio.wait_for(factory.message_receiver("q").receive_messages(1, 0.1), 10)
    assert time.monotonic() - began < 3
    await factory.close()


async def test_prefetched_messages_wait_in_the_cache(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    receiver = factory.message_receiver("q", prefetch_count=10)
    call = asyncio.create_task(receiver.receive_messages(1, 5))
    await asyncio.sleep(0.05)
    assert queue.credits == [10], "nothing was asked for before the first call"
    queue.put(50)
    assert ids(await call) == [0]
    await asyncio.sleep(0.05)
    link = receiver._link
    assert link is not None and link.cached == 9 and queue.waiting == 40
    for number in range(1, 6):
        assert ids(await receiver.receive_messages(1, 5)) == [number]
    await asyncio.sleep(0.05)
    assert len(queue.credits) == 2, "fetched again when half of the cache was empty"
    got = [number for _ in range(44) for number in ids(await receiver.receive_messages(1, 5))]
    assert got == list(range(6, 50))


async def test_a_fetch_has_at_most_256_kilobytes(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    queue = Queue(scripted, size=32 * 1024)
    receiver = factory.message_receiver("q", prefetch_count=1000)
    queue.waiting = 500
    got = []
    for _ in range(200):
        got += await receiver.receive_messages(1, 5)
    assert ids(got) == list(range(200))
    assert queue.credits[0] == 64, "by a guess"
    assert max(queue.credits[1:]) * 32 * 1024 <= 256 * 1024


async def test_each_receiver_has_its_own_cache(factory: MessagingFactory, scripted: ScriptedBroker) -> None:
    first = factory.message_receiver("q", prefetch_count=4)
    queue = Queue(scripted)
    queue.waiting = 4
    assert ids(await first.receive_messages(1, 5)) == [0]
    second = factory.message_receiver("q", prefetch_count=4)
    assert await second.receive_messages(1, 0.05) == []
    assert ids(await first.receive_messages(10, 5)) == [1, 2, 3]


async def test_completions_of_concurrent_calls_share_a_disposition(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    dispositions: list[int] = []

    def settle(link: Link, numbers: list[int]) -> None:
        dispositions.append(len(numbers))
        link.confirm(numbers, 0x24)

    scripted.settle = settle
    receiver = factory.message_receiver("q")
    queue.waiting = 20
    messages = await receiver.receive_messages(20, 5)
    await asyncio.gather(*[receiver.complete_message(message) for message in messages[:10]])
    assert dispositions == [10]
    for message in messages[10:12]:
        await receiver.complete_at_once(message)
    assert dispositions == [10, 1, 1]


async def test_completing_with_a_lost_lock_is_a_clear_error(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)

    def settle(link: Link, numbers: list[int]) -> None:
        link.deny(numbers[0], "com.microsoft:message-lock-lost", "The lock has expired.")
        link.confirm(numbers[1:], 0x24)

    scripted.settle = settle
    receiver = factory.message_receiver("q", prefetch_count=3)
    queue.waiting = 3
    messages = [(await receiver.receive_messages(1, 5))[0] for _ in range(3)]
    outcomes = await asyncio.gather(
        *[receiver.complete_message(message) for message in messages], return_exceptions=True
    )
    assert isinstance(outcomes[0], LockLost) and "its lock is lost" in outcomes[0].text
    assert outcomes[1:] == [None, None]


async def test_waiting_calls_go_on_with_the_next_connection(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    receiver = factory.message_receiver("q")
    calls = [asyncio.create_task(receiver.receive_messages(1, 5)) for _ in range(3)]
    await asyncio.sleep(0.05)
    scripted.hang_up()
    await asyncio.sleep(0.3)
    queue.put(3)
    got = await asyncio.gather(*calls)
    assert sorted(ids([message for messages in got for message in messages])) == [0, 1, 2]
    assert scripted.connections == 2


async def test_a_message_of_a_lost_connection_is_settled_by_its_lock_token(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    requests: list[tuple[str, object]] = []

    def manage(operation: str, body: dict[str, object]) -> tuple[int, object]:
        requests.append((operation, body["disposition-status"]))
        return 200, {}

    scripted.manage = manage
    receiver = factory.message_receiver("q")
    queue.waiting = 1
    (message,) = await receiver.receive_messages(1, 5)
    scripted.hang_up()
    await asyncio.sleep(0.05)
    await receiver.complete_message(message)
    assert requests == [("com.microsoft:update-disposition", "completed")]


async def test_one_lost_lock_does_not_fail_the_others_of_a_lost_connection(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    requests: list[int] = []

    def manage(operation: str, body: dict[str, object]) -> tuple[int, object]:
        tokens = body["lock-tokens"]
        assert isinstance(tokens, Array)
        requests.append(len(tokens.items))
        lost = UUID(bytes_le=(2).to_bytes(16, "big"))
        return (410, "com.microsoft:message-lock-lost") if lost in tokens.items else (200, {})

    scripted.manage = manage
    receiver = factory.message_receiver("q")
    queue.waiting = 3
    messages = await receiver.receive_messages(3, 5)
    scripted.hang_up()
    await asyncio.sleep(0.05)
    outcomes = await asyncio.gather(
        *[receiver.complete_message(message) for message in messages], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), LockLost, type(None)]
    assert requests == [3, 1, 1, 1]


async def test_what_needs_a_lock_is_refused_with_receive_and_delete(
    factory: MessagingFactory, scripted: ScriptedBroker
) -> None:
    queue = Queue(scripted)
    receiver = factory.message_receiver("q", receive_mode="receiveanddelete")
    queue.waiting = 1
    (message,) = await receiver.receive_messages(1, 5)
    transaction = factory.transaction()
    for refused in (
        receiver.complete_message(message),
        receiver.complete_message(message, transaction=transaction),
        receiver.abandon_message(message),
        receiver.defer_message(message),
        receiver.dead_letter_message(message),
        receiver.renew_message_lock(message),
    ):
        with pytest.raises(NotInThisMode, match="PeekLock"):
            await refused


async def test_an_idle_receiver_gives_back_its_credit(
    factory: MessagingFactory, scripted: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busbar.client.fetch_link.IDLE_SECONDS", 0.2)
    queue = Queue(scripted)
    queue.waiting = 1
    receiver = factory.message_receiver("q", prefetch_count=10)
    assert ids(await receiver.receive_messages(1, 5)) == [0]
    assert queue.outstanding == 9
    waiting = asyncio.create_task(receiver.receive_messages(1, 0.4))
    await asyncio.sleep(0.3)
    assert queue.outstanding == 9, "a call waits"
    assert await waiting == []
    await asyncio.sleep(0.5)
    assert queue.outstanding == 0
    queue.waiting = 1
    assert ids(await receiver.receive_messages(1, 5)) == [1]
