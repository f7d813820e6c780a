"""A messaging store goes out under load on a partitioned topic, and comes back.

Messages without a key go on through the fragments of the other stores, those with a key of a lost fragment are refused, and
every subscription gets the same: all that was acknowledged, once, and of what is unknown as much as the others.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from harness.amqp_driver import connect
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.outage_load import Book, Client, Consumer, keys_by_fragment
from tests.durability.test_store_outage import OUT, WAYS, Operator, drained

pytestmark = pytest.mark.shim("io_error")

SUBSCRIPTIONS = ("one", "two")
BEFORE, OUTAGE, AFTER = 0.5, 1.2, 0.6


def config() -> str:
    document = json.loads(config_text({}))
    document["UserConfig"]["Namespaces"][0]["Topics"] = [
        {
            "Name": "t",
            "Properties": {"EnablePartitioning": True},
            "Subscriptions": [
                {"Name": name, "Properties": {"LockDuration": "PT5S"}} for name in SUBSCRIPTIONS
            ],
        }
    ]
    return json.dumps(document)


@pytest.mark.req("P2", "P4", "P14", "P18", "P25", "P27")
@pytest.mark.parametrize("way", ["taken offline", "input/output errors"])
def test_a_store_of_a_topic_goes_out_and_comes_back(
    way: str,
    shim: Path,
    tmp_path: Path,
) -> None:
    control = tmp_path / "broken"
    environment = {"LD_PRELOAD": str(shim), "IO_ERROR_FILE": str(control)}
    server = Busbar(tmp_path / "data", config(), environment=environment).start()
    try:
        asyncio.run(outage(server, way, control))
    finally:
        code = server.stop()
    assert code == 0, server.error_text
    assert "Traceback" not in server.error_text, server.error_text


async def outage(server: Busbar, way: str, control: Path) -> None:
    break_it, repair_it = WAYS[way]
    operator = Operator(server)
    homes = {}
    for path in ("t", *(f"t/Subscriptions/{name}" for name in SUBSCRIPTIONS)):
        views = await asyncio.to_thread(operator.ask, "GET", f"fragments/{path}")
        homes[path] = [view["store"] for view in views]
    assert len(set(homes["t"])) == 4, "spread over all stores"
    assert all(stores == homes["t"] for stores in homes.values()), (
        "a copy lies where its topic's fragment does"
    )
    lost_share = {index for index, store in enumerate(homes["t"]) if store == OUT}

    sends = Book()
    books = [Book(sends.acknowledged, sends.refused, sends.unknown) for _ in SUBSCRIPTIONS]
    consumers = [Consumer(book) for book in books]
    for name, consumer in zip(SUBSCRIPTIONS, consumers, strict=True):
        await consumer.start(await connect(server.port), f"t/Subscriptions/{name}")
    keyed = [Client(sends, f"key-{index}", "t", key) for index, key in enumerate(keys_by_fragment())]
    keyless = [Client(sends, f"free-{number}", "t") for number in range(2)]
    stop = asyncio.Event()
    connection = await connect(server.port)
    tasks = [asyncio.create_task(client.run(connection, stop)) for client in [*keyed, *keyless]]
    await asyncio.sleep(BEFORE)

    await asyncio.to_thread(break_it, server, operator, control)
    await asyncio.sleep(0.3)  # the first commit finds out
    since = time.monotonic()
    assert (await asyncio.to_thread(operator.store))["state"] == "unavailable"
    for path in homes:
        assert await asyncio.to_thread(operator.availability, path) == "Limited"
    await asyncio.sleep(OUTAGE)
    until = time.monotonic()
    assert all(client.went_on(since, until) for client in keyless)
    assert not any(client.failed(since, until) for client in keyless), "another fragment takes them"
    for index, client in enumerate(keyed):
        assert client.went_on(since, until) == (index not in lost_share), client.name
        assert client.failed(since, until) == (index in lost_share), client.name
    assert all(consumer.went_on(since, until) for consumer in consumers)

    await asyncio.to_thread(repair_it, server, operator, control)
    async with asyncio.timeout(12):
        while (await asyncio.to_thread(operator.store))["state"] != "open":
            await asyncio.sleep(0.1)
    back = time.monotonic()
    await asyncio.sleep(AFTER)
    assert all(client.went_on(back, time.monotonic()) for client in [*keyed, *keyless])
    for path in homes:
        assert await asyncio.to_thread(operator.availability, path) == "Available"
    stop.set()
    await asyncio.gather(*tasks)

    received = []
    for book in books:
        await drained(book, 0)
        require_kept("nothing acknowledged is lost", book.lost())
        book.check_order([client.name for client in keyed])
        received.append({(name, number) for name, numbers in book.seen.items() for number in numbers})
    assert received[0] == received[1], "in all subscriptions or in none"
    for book in (sends, *books):
        require_kept("nothing is doubled or comes back", book.faults)
    assert len(sends.acknowledged) > 300, "there was load"
    print(
        f"{way}: {len(sends.acknowledged)} acknowledged, {len(sends.refused)} refused, {len(sends.unknown)} unknown, "
        f"slowest answer {sends.slowest:.2f} s"
    )
