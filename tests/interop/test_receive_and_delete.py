"""ReceiveAndDelete frame by frame: a message is gone with its one transfer, and nothing can be done with it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from busbar.amqp.types import Array
from busbar.message.lock_token import tag_to_uuid
from harness.amqp_driver import ABANDON, COMPLETE, DEAD_LETTER, DEFER, LoadConnection, connect, payload_of
from harness.serving import Busbar
from harness.transaction_driver import WireSession

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.server(
        {
            "regular": {},
            "partitioned": {"EnablePartitioning": True},
            "express": {"EnableExpress": True},
            "locked": {},
        },
    ),
]
UUID_CODE = 0x98
PAYLOAD = payload_of(b"once")


@pytest_asyncio.fixture
async def client(server: Busbar) -> AsyncIterator[LoadConnection]:
    connection = await connect(server.port, server.key)
    yield connection
    await connection.close()


async def left(client: LoadConnection, queue: str) -> int:
    """How many messages the queue and its dead-letter queue have, in any state."""
    found = 0
    for entity in (queue, f"{queue}/$DeadLetterQueue"):
        requests = await client.requests(f"{entity}/$management")
        found += len(await requests.peek(1))
    return found


@pytest.mark.req("B5")
@pytest.mark.parametrize("queue", ["regular", "partitioned", "express"])
async def test_a_transfer_is_all_it_takes(client: LoadConnection, queue: str) -> None:
    wire = WireSession(client)
    sender, receiver = await wire.sender(queue), await wire.receiver(queue, 3, delete=True)
    for number in range(3):
        await sender.send(PAYLOAD(number))
    deliveries = [await receiver.take() for _ in range(3)]
    assert all(delivery.settled for delivery in deliveries)
    assert await left(client, queue) == 0, "the client has sent nothing since its credit"


@pytest.mark.req("B5")
@pytest.mark.parametrize("queue", ["regular", "partitioned", "express"])
async def test_dispositions_have_no_effect(client: LoadConnection, queue: str) -> None:
    """The message is neither abandoned, nor deferred, nor a dead letter. The link goes on."""
    wire = WireSession(client)
    sender, receiver = await wire.sender(queue), await wire.receiver(queue, 100, delete=True)
    for number, state in enumerate((COMPLETE, ABANDON, DEFER, DEAD_LETTER)):
        await sender.send(PAYLOAD(number))
        delivery = await receiver.take()
        await receiver.settle(delivery, None, state, settled=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await receiver.settle(delivery, None, state)
    await sender.send(PAYLOAD(9))
    await receiver.take()
    assert await left(client, queue) == 0


@pytest.mark.req("B5")
@pytest.mark.parametrize("status", ["completed", "abandoned", "defered", "suspended"])
async def test_the_tag_of_a_delivery_is_no_lock(client: LoadConnection, status: str) -> None:
    """Defer and dead-letter by management request are refused: they need a lock, which only PeekLock gives."""
    wire = WireSession(client)
    sender, receiver = await wire.sender("regular"), await wire.receiver("regular", 1, delete=True)
    await sender.send(PAYLOAD(1))
    token = tag_to_uuid((await receiver.take()).tag)
    management = await wire.management("regular")
    asked: dict[str, object] = {"disposition-status": status, "lock-tokens": Array(UUID_CODE, [token])}
    assert (await management.ask("update-disposition", asked))[:2] == (410, "com.microsoft:message-lock-lost")
    renewed = await management.ask("renew-lock", {"lock-tokens": Array(UUID_CODE, [token])})
    assert renewed[:2] == (410, "com.microsoft:message-lock-lost")
    assert await left(client, "regular") == 0


@pytest.mark.req("B5")
async def test_peek_lock_is_what_a_link_gets_that_asks_for_nothing(client: LoadConnection) -> None:
    wire = WireSession(client)
    sender, receiver = await wire.sender("locked"), await wire.receiver("locked", 1)
    await sender.send(PAYLOAD(1))
    delivery = await receiver.take()
    assert not delivery.settled and await left(client, "locked") == 1
    await receiver.settle(delivery)
    assert await left(client, "locked") == 0
