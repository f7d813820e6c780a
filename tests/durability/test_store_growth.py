"""More messaging stores, more throughput: a partitioned queue is not limited by one of them.

Disks are made slow (harness/faults/slow_sync.c), so that they are what everybody waits for: then the time that the same load
takes says how many of them work at once, on a machine of any speed. test_broker_growth.py does the same for brokers.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from harness.amqp_driver import LoadConnection, connect
from harness.serving import Busbar, config_text
from tests.durability.outage_load import keys_by_fragment

SYNC_MS = 120
CLIENTS, MESSAGES, SIZE = 6, 60, 100_000
"""Of each client; together they are a dozen commits of the largest size."""
KEYS = keys_by_fragment()

pytestmark = [pytest.mark.alone, pytest.mark.shim("slow_sync")]


def keyed(number: int) -> bytes:
    annotations = {Symbol("x-opt-partition-key"): KEYS[number % len(KEYS)]}
    return encode_value(Described(ULong(0x72), annotations)) + encode_value(
        Described(ULong(0x75), bytes(SIZE))
    )


async def load(port: int, queue: str) -> float:
    """Seconds until all messages of all clients are durable."""
    connections: list[LoadConnection] = [await connect(port) for _ in range(CLIENTS)]
    senders = [await connection.sender(queue, keyed, in_flight=MESSAGES) for connection in connections]
    began = time.monotonic()
    await asyncio.gather(*[sender.send(MESSAGES) for sender in senders])
    took = time.monotonic() - began
    assert [(sender.acknowledged, sender.refused) for sender in senders] == [(MESSAGES, [])] * CLIENTS
    for connection in connections:
        await connection.close()
    return took


def seconds_with(stores: int, shim: Path, data: Path) -> dict[str, float]:
    slow = data.with_name(f"{data.name}-slow")
    server = Busbar(
        data,
        config_text({"regular": {}, "partitioned": {"EnablePartitioning": True}}),
        arguments=("--stores", str(stores)),
        environment={
            "LD_PRELOAD": str(shim),
            "SLOW_SYNC_MS": str(SYNC_MS),
            "SLOW_SYNC_FILE": str(slow),
        },
    ).start()
    slow.touch()
    try:
        return {queue: asyncio.run(load(server.port, queue)) for queue in ("regular", "partitioned")}
    finally:
        slow.unlink()
        server.stop()


@pytest.mark.req("P3")
def test_a_partitioned_queue_is_as_fast_as_all_stores_together(shim: Path, tmp_path: Path) -> None:
    one, four = (seconds_with(stores, shim, tmp_path / f"data-{stores}") for stores in (1, 4))
    print(f"seconds with one store: {one}, with four: {four}")
    assert one["partitioned"] > 1.6 * four["partitioned"], "four stores sync at once"
    assert four["regular"] > 1.6 * four["partitioned"], (
        "a regular queue has one store, however many there are"
    )
