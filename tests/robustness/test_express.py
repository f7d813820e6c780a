"""Express entities, by the syncs of a running server: messages that are consumed in time do not touch the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from harness.amqp_driver import connect
from harness.measured import MeasuredServer, measured_server

EXPRESS: dict[str, object] = {"EnableExpress": True}
QUEUES: dict[str, dict[str, object]] = {
    "durable": {},
    "express": EXPRESS,
    "deleting": EXPRESS,
    "sessions": {**EXPRESS, "RequiresSession": True},
    "partitioned": {**EXPRESS, "EnablePartitioning": True},
    "staying": EXPRESS,
}
ROUNDS = 60


@pytest.fixture(scope="module")
def counted() -> Iterator[MeasuredServer]:
    with measured_server(QUEUES, limits={"express_delay": 1_500}, arguments=("--stores", "1")) as server:
        if server.syncs() is None:
            pytest.skip("there is no C compiler to count syncs with")
        yield server


def syncs(server: MeasuredServer) -> int:
    count = server.syncs()
    assert count is not None
    return count


async def cycles(server: MeasuredServer, queue: str, delete: bool = False) -> int:
    """Send a message and consume it, ROUNDS times. The syncs that this took, without those of the first."""
    connection = await connect(server.busbar.port)
    sender = await connection.sender(queue, in_flight=1, body=b"x")
    receiver = await connection.receiver(queue, credit=1, delete=delete)
    before = 0
    for number in range(ROUNDS + 32):
        if number == 32:
            before = syncs(server)
        await sender.send(1)
        await receiver.settled(number + 1)
    after = syncs(server)
    await connection.close()
    return after - before


@pytest.mark.req("B9")
async def test_messages_that_are_consumed_in_time_are_not_written(counted: MeasuredServer) -> None:
    durable = await cycles(counted, "durable")
    express = await cycles(counted, "express")
    assert durable >= ROUNDS
    assert express <= ROUNDS / 20, f"{express} syncs for {ROUNDS} messages"


@pytest.mark.req("B9")
async def test_nor_are_those_of_partitioned_queues_and_of_receive_and_delete(counted: MeasuredServer) -> None:
    assert await cycles(counted, "deleting", delete=True) <= ROUNDS / 20
    assert await cycles(counted, "partitioned") <= ROUNDS / 20


@pytest.mark.req("B9")
async def test_messages_that_stay_are_written_together_and_once(counted: MeasuredServer) -> None:
    connection = await connect(counted.busbar.port)
    sender = await connection.sender("staying", in_flight=1, body=b"x")
    await sender.send(1)
    before = syncs(counted)
    await sender.send(ROUNDS)
    assert syncs(counted) - before <= ROUNDS / 20, "they are acknowledged from memory"
    await asyncio.sleep(3.5)
    written = syncs(counted) - before
    assert 1 <= written <= ROUNDS / 10, f"{written} syncs for {ROUNDS} messages that stay"
    await asyncio.sleep(2)
    assert syncs(counted) - before == written, "they are written once"
    await connection.close()


@pytest.mark.alone
@pytest.mark.req("B9")
async def test_a_send_takes_no_sync_of_the_disk(counted: MeasuredServer) -> None:
    """The median of a send to an express queue is below that to a durable one."""
    connection = await connect(counted.busbar.port)
    medians = []
    for queue in ("express", "durable"):
        sender = await connection.sender(queue, in_flight=1, body=b"x")
        await sender.send(1)
        times = []
        for _ in range(80):
            began = time.perf_counter()
            await sender.send(1)
            times.append(time.perf_counter() - began)
        medians.append(sorted(times)[40])
    await connection.close()
    assert medians[0] < medians[1], f"{medians[0] * 1000:.2f} ms and {medians[1] * 1000:.2f} ms"
