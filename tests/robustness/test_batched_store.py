"""Batched store access, by the syncs of a running server: writes share them, or have one each.

Every client has one operation under way, so that what shares a commit comes from different clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from harness.amqp_driver import connect
from harness.measured import MeasuredServer, measured_server

CLIENTS = 20
MESSAGES = 15
"""Of each client."""
ON: dict[str, object] = {}
OFF: dict[str, object] = {"EnableBatchedOperations": False}
QUEUES = {
    "on": ON,
    "off": OFF,
    "lone": ON,
    "other": ON,
    **{f"on-{number}": ON for number in range(CLIENTS)},
    **{f"off-{number}": OFF for number in range(CLIENTS)},
}


@pytest.fixture(scope="module")
def counted() -> Iterator[MeasuredServer]:
    with measured_server(QUEUES, arguments=("--stores", "1")) as server:
        if server.syncs() is None:
            pytest.skip("there is no C compiler to count syncs with")
        yield server


def syncs(server: MeasuredServer) -> int:
    count = server.syncs()
    assert count is not None
    return count


async def send(port: int, queue: str, count: int) -> None:
    connection = await connect(port)
    sender = await connection.sender(queue, in_flight=1, body=b"x" * 100)
    await sender.send(count)
    assert not sender.refused
    await connection.close()


async def complete(port: int, queue: str, count: int) -> None:
    connection = await connect(port)
    receiver = await connection.receiver(queue, credit=1, single=True)
    await receiver.settled(count)
    assert not receiver.denied
    await connection.close()


async def many(server: MeasuredServer, queues: list[str]) -> tuple[float, float]:
    """Syncs for each message that is sent, and for each that is completed, by a client for each queue."""
    port = server.busbar.port
    total = MESSAGES * len(queues)
    before = syncs(server)
    await asyncio.gather(*[send(port, queue, MESSAGES) for queue in queues])
    between = syncs(server)
    await asyncio.gather(*[complete(port, queue, MESSAGES) for queue in queues])
    return (between - before) / total, (syncs(server) - between) / total


@pytest.mark.req("B7")
async def test_writes_and_deletes_of_one_entity_share_syncs(counted: MeasuredServer) -> None:
    port, total = counted.busbar.port, CLIENTS * MESSAGES
    before = syncs(counted)
    await asyncio.gather(*[send(port, "on", MESSAGES) for _ in range(CLIENTS)])
    between = syncs(counted)
    connections = [await connect(port) for _ in range(CLIENTS)]
    receivers = [await connection.receiver("on", credit=1, single=True) for connection in connections]
    async with asyncio.timeout(60):
        while sum(receiver.confirmed for receiver in receivers) < total:
            await asyncio.sleep(0.01)
    after = syncs(counted)
    for connection in connections:
        await connection.close()
    assert between - before < total / 2, f"{between - before} syncs for {total} messages sent"
    assert after - between < total / 2, f"{after - between} syncs for {total} messages completed"


@pytest.mark.req("B7")
async def test_writes_and_deletes_share_syncs_across_entities(counted: MeasuredServer) -> None:
    sent, completed = await many(counted, [f"on-{number}" for number in range(CLIENTS)])
    assert sent < 0.5, f"{sent:.2f} syncs for each message sent"
    assert completed < 0.5, f"{completed:.2f} syncs for each message completed"


@pytest.mark.req("B7")
async def test_without_it_each_write_and_each_delete_has_a_sync_of_its_own(counted: MeasuredServer) -> None:
    sent, completed = await many(counted, [f"off-{number}" for number in range(CLIENTS)])
    assert sent >= 1, f"{sent:.2f} syncs for each message sent"
    assert completed >= 1, f"{completed:.2f} syncs for each message completed"


@pytest.mark.req("B7")
async def test_without_it_the_writes_of_one_entity_are_not_shared_either(counted: MeasuredServer) -> None:
    before = syncs(counted)
    await asyncio.gather(*[send(counted.busbar.port, "off", MESSAGES) for _ in range(CLIENTS)])
    assert syncs(counted) - before >= CLIENTS * MESSAGES


@pytest.mark.alone
@pytest.mark.req("B7")
async def test_a_lone_write_waits_for_nothing_and_a_receive_neither(counted: MeasuredServer) -> None:
    """The median of a send with batched access is not near the 20 ms for which one may wait."""
    connection = await connect(counted.busbar.port)
    sender = await connection.sender("lone", in_flight=1, body=b"x")
    times = []
    for _ in range(40):
        began = time.perf_counter()
        await sender.send(1)
        times.append(time.perf_counter() - began)
    before = syncs(counted)
    receiver = await connection.receiver("lone", credit=40, decide=lambda _: [])
    await receiver.until(lambda: receiver.received == 40)
    assert syncs(counted) == before, "a receive with a lock writes nothing"
    await connection.close()
    assert sorted(times)[10] < 0.02, f"{sorted(times)[10] * 1000:.1f} ms"
