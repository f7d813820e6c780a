"""A deep backlog pages from the store: it opens in seconds, and what it needs of memory does not grow with it.

1 million messages of 256 B need at most 20 MB more than 100,000; with BUSBAR_DEEP=1 10 million stay below 300 MB.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

import pytest

from busbar.amqp.types import Array, UInt
from harness.amqp_driver import LoadConnection, connect
from harness.serving import Busbar, config_text
from tests.robustness.backlog import LANE_NAMES, fill_lane

MEGABYTE = 1024 * 1024
DEEP = os.environ.get("BUSBAR_DEEP") == "1"
SHALLOW_COUNT, DEEP_COUNT = 100_000, 10_000_000 if DEEP else 1_000_000
ONE_STORE = ("--stores", "1")
TAKEN = 50_000 if DEEP else 10_000  # of both backlogs, so less than the shallow one has


class Peak:
    def __init__(self, server: Busbar) -> None:
        self._server = server
        self.most = 0

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self._server.resident_bytes())
            await asyncio.sleep(0.02)


async def take_deferred(connection: LoadConnection, count: int) -> None:
    """Receive by sequence number (and delete), from the far end so that no page is taken twice."""
    node = await connection.requests("q/$management")
    for first in range(1, count, 100):
        numbers = Array(0x81, list(range(first, first + 100)))
        reply = await node.ask(
            {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0)},
            {"operation": "com.microsoft:receive-by-sequence-number"},
        )
        assert reply.application_properties["statusCode"] == 200, reply.application_properties


async def consume(server: Busbar, lane: str) -> int:
    """Consume some of the backlog; the most memory used meanwhile."""
    peak = Peak(server)
    watching = asyncio.create_task(peak.watch())
    connection = await connect(server.port)
    if lane == "deferred":
        await take_deferred(connection, TAKEN)
    else:
        address = "q/$DeadLetterQueue" if lane == "dead" else "q"
        receiver = await connection.receiver(address, credit=1_000)
        await receiver.settled(TAKEN)
        assert not receiver.denied
    node = await connection.requests("q/$management")
    if lane != "dead":
        assert await node.peek(SHALLOW_COUNT - 10), "the far end is there too"
    await connection.close()
    watching.cancel()
    return peak.most


CONFIG = config_text({"q": {"MaxSizeInMegabytes": 81_920}}, {"max_size_in_megabytes": 81_920})


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a server that has just made its queue."""
    server = Busbar(tmp_path_factory.mktemp("empty") / "data", CONFIG, arguments=ONE_STORE).start()
    assert server.stop() == 0
    return server.data


def measure(empty: Path, directory: Path, lane: str, count: int) -> tuple[float, int]:
    """Seconds until ready, and the peak of memory."""
    server = Busbar(directory / f"{lane}-{count}", CONFIG, arguments=ONE_STORE)
    shutil.copytree(empty, server.data, ignore=shutil.ignore_patterns("*.reserve"))
    fill_lane(server.data, LANE_NAMES.index(lane), count)
    began = time.monotonic()
    server.start()
    ready = time.monotonic() - began
    try:
        return ready, asyncio.run(asyncio.wait_for(consume(server, lane), 600 if DEEP else 40))
    finally:
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 8, "a deep backlog does not hold up a clean stop"
        shutil.rmtree(server.data)


@pytest.mark.req("U11")
@pytest.mark.parametrize("lane", LANE_NAMES)
def test_memory_does_not_grow_with_the_backlog(empty: Path, tmp_path: Path, lane: str) -> None:
    _, shallow = measure(empty, tmp_path, lane, SHALLOW_COUNT)
    ready, deep = measure(empty, tmp_path, lane, DEEP_COUNT)
    print(
        f"{lane}: {SHALLOW_COUNT:,} messages {shallow / MEGABYTE:.1f} MB, "
        f"{DEEP_COUNT:,} messages {deep / MEGABYTE:.1f} MB, ready in {ready:.2f} s"
    )
    assert deep - shallow < 20 * MEGABYTE
    assert deep < 300 * MEGABYTE
    assert ready < 10
