"""The channel between two brokers breaks, and both live on: they are introduced again, and traffic goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from harness.processes import brokers_of
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.outage_load import FRAGMENTS, Book, Client, Consumer, keys_by_fragment
from tests.durability.test_brokers import connection_at
from tests.durability.test_store_outage import Operator, drained

KEYS = keys_by_fragment()
LAUNCHER = Path(__file__).parent / "serve_broken_channels.py"


@pytest.mark.req("P25")
def test_a_channel_between_living_brokers_breaks_under_load(tmp_path: Path) -> None:
    server = Busbar(
        tmp_path / "data",
        config_text({"p": {"EnablePartitioning": True, "LockDuration": "PT5S"}}),
        arguments=("--brokers", "2"),
        program=(str(LAUNCHER),),
    ).start()
    try:
        asyncio.run(channels_break(server))
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text
    assert "introduced again" in server.error_text


async def channels_break(server: Busbar) -> None:
    before = brokers_of(server)
    views = await asyncio.to_thread(Operator(server).ask, "GET", "fragments/p")
    theirs = {view["index"] for view in views if view["broker"] == "broker-1"}
    book = Book()
    clients = [Client(book, f"key-{index}", "p", key) for index, key in enumerate(KEYS)]
    far = [client for index, client in enumerate(clients) if index in theirs]
    near = [client for index, client in enumerate(clients) if index not in theirs]
    assert len(far) == FRAGMENTS // 2
    connection = await connection_at(server, before["broker-0"])
    consumer = Consumer(book)
    await consumer.start(await connection_at(server, before["broker-0"]), "p")
    stop = asyncio.Event()
    tasks = [asyncio.create_task(client.run(connection, stop)) for client in clients]

    async def until_all_went_on(since: float, wanted: list[Client]) -> None:
        async with asyncio.timeout(20):
            while not all(client.went_on(since, time.monotonic()) for client in wanted):
                await asyncio.sleep(0.02)

    await until_all_went_on(time.monotonic(), clients)
    for broken in (signal.SIGUSR1, signal.SIGUSR2):
        since = time.monotonic()
        os.kill(server.pid, broken)
        async with asyncio.timeout(20):
            while not any(client.failed(since, time.monotonic()) for client in far):
                await asyncio.sleep(0.005)
        # Those at the other broker are refused or unknown for a moment, and go on at this very broker.
        failed = time.monotonic()
        await until_all_went_on(failed, clients)
        assert not any(client.failed(since, time.monotonic()) for client in near)
        print(f"{broken.name}: all went on {time.monotonic() - since:.2f} s after the channels broke")
        received = len(consumer.times)
        async with asyncio.timeout(20):
            while len(consumer.times) < received + 100:  # and its credit is asked for again
                await asyncio.sleep(0.02)
    stop.set()
    await asyncio.gather(*tasks)
    await drained(
        book, 0
    )  # what was lost on the way comes when its lock has ended, so later than others of its key
    assert brokers_of(server) == before, "nobody was started again"
    require_kept("nothing acknowledged is lost", book.lost())
    require_kept("nothing is doubled or comes back", book.faults)
    await connection.close()
