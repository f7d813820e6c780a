"""Several factories and several queues carry more than one: by counts, not by time (bench/factories.py has the rates).

A connection has a limit of its own, and so has a broker process. A factory is a connection, and a queue is in one broker.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from busbar.client import MessagingFactory, OutgoingMessage
from harness.processes import broker_of, brokers_of, client_connections
from harness.serving import BROKERS, PATIENCE, Busbar
from harness.waiting import until
from tests.interop.frame_counter import TRANSFER
from tests.interop.rationed_connections import RationedConnections

BODY = b"x" * 1_000
MESSAGES = 200
"""Of each factory, all under way together."""
ROUNDS, ROUND_BYTES = 5, 20_000
CYCLES = 30
QUEUES = [f"q{number}" for number in range(6)]
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.server(
        {queue: {} for queue in ("one", *QUEUES)},
        # A broker that a test stops for a moment is not replaced.
        PATIENCE | {"broker_ping_timeout": 120_000},
        arguments=("--stores", "2"),
        checked=True,
    ),
]


async def stored_in_rounds(server: Busbar, factories: int) -> int:
    """How many messages the broker has stored after ROUNDS rounds, when so many factories send to one queue."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(RationedConnections(server))
        before = set(client_connections(server))
        senders = []
        for _ in range(factories):
            factory = MessagingFactory(proxy.connection_string, batch_flush_interval=0)
            await stack.enter_async_context(factory)
            senders.append(factory.message_sender("one"))
            await senders[-1].send_messages(OutgoingMessage(b"the link is attached"))
        assert proxy.connections == factories
        at = {port: process for port, process in client_connections(server).items() if port not in before}
        assert len(at) == factories
        brokers = set(brokers_of(server).values()) or {server.pid}
        assert set(at.values()) <= brokers
        assert len(set(at.values())) == min(factories, len(brokers)), "they are shared out among the brokers"
        proxy.stop()
        proxy.clear()
        calls = [
            asyncio.create_task(sender.send_messages(OutgoingMessage(BODY)))
            for sender in senders
            for _ in range(MESSAGES)
        ]
        for _ in range(ROUNDS):
            await proxy.round(ROUND_BYTES)
        passed = proxy.count(TRANSFER)
        await until(lambda: sum(call.done() for call in calls) >= passed, seconds=30)
        stored = sum(call.done() for call in calls)
        proxy.lift()
        await asyncio.gather(*calls)
        assert stored == passed
        return stored


@pytest.mark.req("B4")
@pytest.mark.parametrize("server", ["1", "2"], indirect=True)
async def test_factories_send_as_much_as_their_connections_carry(server: Busbar) -> None:
    stored = {factories: await stored_in_rounds(server, factories) for factories in (1, 2, 4)}
    assert 0 < stored[1] <= ROUNDS * ROUND_BYTES // len(BODY)
    for factories in (2, 4):
        # A frame may be cut by the end of a round: at most one of each connection.
        assert abs(stored[factories] - factories * stored[1]) <= factories
    async with MessagingFactory(server.connection_string) as factory:
        receiver = factory.message_receiver("one", receive_mode="receiveanddelete")
        received = 0
        while messages := await receiver.receive_messages(1_000, 1):
            received += len(messages)
    assert received == (1 + 2 + 4) * (MESSAGES + 1)


async def factory_at(server: Busbar, process: int, stack: AsyncExitStack) -> MessagingFactory:
    """A factory whose connection that process has. Others stay open, so that the next one comes to another process."""
    for _ in range(20):
        before = set(client_connections(server))
        factory = await stack.enter_async_context(await MessagingFactory.connect(server.connection_string))
        if process in [at for port, at in client_connections(server).items() if port not in before]:
            return factory
    raise AssertionError(f"no connection came to the process {process}")


@pytest.mark.req("B10")
@pytest.mark.skipif(bool(BROKERS), reason="it has brokers of its own")
@pytest.mark.parametrize("server", ["2"], indirect=True)
async def test_queues_of_several_brokers_do_not_wait_for_each_other(server: Busbar) -> None:
    """Each queue has a dedicated client. While one broker stands still, the queues of the other carry all their load."""
    brokers = brokers_of(server)
    place = {queue: await asyncio.to_thread(broker_of, server, queue) for queue in QUEUES}
    assert set(place.values()) == set(brokers) and len(brokers) == 2, "the queues are spread"
    load = {broker: CYCLES * list(place.values()).count(broker) for broker in brokers}
    completed: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        clients = {
            queue: (await factory_at(server, brokers[place[queue]], stack)).queue_client(queue)
            for queue in QUEUES
        }

        async def cycle(queue: str) -> None:
            client = clients[queue]
            for number in range(CYCLES):
                await client.send_messages(OutgoingMessage(b"%d" % number))
                (message,) = await client.receive_messages(1, 60)
                assert message.body == b"%d" % number
                await client.complete_message(message)
                completed[place[queue]] += 1

        await asyncio.gather(*map(cycle, QUEUES))
        assert completed == load
        for stopped, process in brokers.items():
            completed.clear()
            os.kill(process, signal.SIGSTOP)
            try:
                cycles = {queue: asyncio.create_task(cycle(queue)) for queue in QUEUES}
                await asyncio.gather(*[cycles[queue] for queue in QUEUES if place[queue] != stopped])
                assert completed == {broker: count for broker, count in load.items() if broker != stopped}
            finally:
                os.kill(process, signal.SIGCONT)
            await asyncio.gather(*cycles.values())
            assert completed == load
