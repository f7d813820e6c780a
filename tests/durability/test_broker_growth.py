"""More brokers, more throughput: a partitioned queue is not limited by one of them.

Every process is given a slow processor (harness/faults/slow_processor.c), so that brokers are what everybody waits for, and
use little of this machine's: then the time that the same load takes says how many of them work at once, on a machine with
any number of cores. test_store_growth.py does the same for stores.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from harness.amqp_driver import connect
from harness.serving import Busbar, config_text

TIMES_SLOWER = 20
CLIENTS, MESSAGES = 8, 150
"""Senders, and as many receivers; messages of each."""
ROUNDS = 6
"""The best one counts: what else the machine does can only make it worse."""
BODY = bytes(1024)

pytestmark = [pytest.mark.alone, pytest.mark.shim("slow_processor")]


async def load(port: int) -> float:
    """Seconds until all messages of all clients were sent, received and completed."""
    connections = [await connect(port) for _ in range(2 * CLIENTS)]
    senders = [await one.sender("p", in_flight=100, body=BODY) for one in connections[:CLIENTS]]
    receivers = [await one.receiver("p", credit=100) for one in connections[CLIENTS:]]
    began = time.monotonic()
    await asyncio.gather(*[sender.send(MESSAGES) for sender in senders])
    while sum(receiver.confirmed for receiver in receivers) < CLIENTS * MESSAGES:
        assert time.monotonic() < began + 60
        await asyncio.sleep(0.01)
    took = time.monotonic() - began
    assert [(sender.acknowledged, sender.refused) for sender in senders] == [(MESSAGES, [])] * CLIENTS
    for connection in connections:
        await connection.close()
    return took


def seconds_with(brokers: int, shim: Path, data: Path) -> float:
    slow = data.with_name(f"{data.name}-slow")
    environment = {
        "LD_PRELOAD": str(shim),
        "SLOW_PROCESSOR": str(TIMES_SLOWER),
        "SLOW_PROCESSOR_FILE": str(slow),
    }
    queues = config_text({"p": {"EnablePartitioning": True}})
    server = Busbar(data, queues, arguments=("--brokers", str(brokers)), environment=environment).start()
    slow.touch()
    try:
        return min(asyncio.run(load(server.port)) for _ in range(ROUNDS))
    finally:
        slow.unlink()
        server.stop()


@pytest.mark.req("P3")
def test_a_partitioned_queue_is_as_fast_as_all_brokers_together(shim: Path, tmp_path: Path) -> None:
    one, two, four = (seconds_with(brokers, shim, tmp_path / f"data-{brokers}") for brokers in (1, 2, 4))
    print(f"seconds with one broker: {one:.2f}, with two: {two:.2f}, with four: {four:.2f}")
    # Receivers get messages of all brokers. One that crosses costs about as much again as a message alone.
    assert one > 1.05 * two, "two brokers work at once"
    assert one > 1.3 * four, "and so do four"
