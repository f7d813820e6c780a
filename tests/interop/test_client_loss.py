"""busbar.client while connections are cut and the broker is killed: every call ends, nothing acknowledged is lost.

The long campaign with clients of all kinds is tests/durability/test_client_soak.py.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from busbar.client import (
    BusbarClientError,
    MessageContext,
    MessagingFactory,
    OutgoingMessage,
    Retry,
    SendFailed,
)
from harness.promises import require_kept
from harness.serving import PATIENCE, Busbar
from tests.interop.frame_counter import FrameCounter

DEEP = bool(os.environ.get("BUSBAR_DEEP"))
SECONDS = 60 if DEEP else 8
SENDERS = 8
QUEUES: dict[str, dict[str, object]] = {
    kind: properties | {"RequiresDuplicateDetection": True, "LockDuration": "PT3S", "MaxDeliveryCount": 1000}
    for kind, properties in (("regular", {}), ("partitioned", {"EnablePartitioning": True}))
}
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(SECONDS + 120),
    pytest.mark.server(QUEUES, PATIENCE | {"min_lock_duration": 100}),
]


class Load:
    """Senders and a processor of one queue, and what became of each message."""

    def __init__(self, factory: MessagingFactory, queue: str) -> None:
        self.factory = factory
        self.queue = queue
        self.acknowledged: set[str] = set()
        self.unknown: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.completed: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        self._made = 0
        self._stopping = False

    async def _send(self, resend: bool) -> None:
        sender = self.factory.message_sender(self.queue, resend_unanswered=resend)
        while not self._stopping:
            self._made += 1
            message = OutgoingMessage(b"x", message_id=str(self._made))
            try:
                await sender.send_messages(message)
                self.acknowledged.add(str(message.message_id))
            except SendFailed as failed:
                assert not resend or not failed.retryable or failed.unknown, failed
                self.unknown.add(str(message.message_id))
            except BusbarClientError as error:
                self.errors[type(error).__name__] += 1

    async def _handle(self, context: MessageContext) -> None:
        message = context.message
        self.handled[str(message.message_id)] += 1
        await context.complete_message()
        self.completed[message.sequence_number] += 1

    async def _on_error(self, error: BaseException) -> None:
        assert isinstance(error, BusbarClientError), repr(error)
        self.errors[type(error).__name__] += 1

    async def run(self, faults: asyncio.Task[None]) -> None:
        processor = self.factory.processor(
            self.queue, self._handle, on_error=self._on_error, max_concurrent_calls=16, prefetch_count=20
        )
        await processor.start()
        senders = [asyncio.create_task(self._send(number % 2 == 0)) for number in range(SENDERS)]
        await faults
        self._stopping = True
        async with asyncio.timeout(60):
            await asyncio.gather(*senders)
            while not self.acknowledged <= self.handled.keys():
                await asyncio.sleep(0.05)
        await asyncio.wait_for(processor.close(), 60)


async def cutting(counter: FrameCounter, seconds: float) -> None:
    chance, loop = random.Random(7), asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        counter.cut()


async def killing(server: Busbar, seconds: float) -> None:
    chance, loop = random.Random(11), asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(chance.uniform(1.0, 3.0))
        server.kill()
        await asyncio.to_thread(server.start)


@pytest.mark.parametrize("queue", ["regular", "partitioned"])
@pytest.mark.parametrize("fault", ["cut", "kill"])
async def test_every_call_ends_and_nothing_acknowledged_is_lost(
    own_server: Busbar, queue: str, fault: str
) -> None:
    before = len(asyncio.all_tasks())
    retry = Retry(patience=20, first=0.05, longest=0.5)
    async with FrameCounter(own_server) as counter:
        factory = MessagingFactory(counter.connection_string, retry=retry, operation_timeout=30)
        load = Load(factory, queue)
        faults = cutting(counter, SECONDS) if fault == "cut" else killing(own_server, SECONDS)
        await load.run(asyncio.create_task(faults))
        await asyncio.wait_for(factory.close(), 30)
        assert len(load.acknowledged) > 50, load.errors
        require_kept("nothing acknowledged is lost", load.acknowledged - load.handled.keys())
        twice = [message for message, times in load.completed.items() if times > 1]
        require_kept("no message is completed twice", twice)
    await asyncio.sleep(0.2)
    assert len(asyncio.all_tasks()) <= before, [task for task in asyncio.all_tasks() if not task.done()]
