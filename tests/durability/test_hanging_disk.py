"""The disk of one of four messaging stores hangs under load: its calls do not fail, they do not return.

After a patience the store is unavailable like after any other fault. Keyless sends go on, all others are answered in
bounded time, and so is management. When the disk answers again, or Busbar is started again, the store is back: nothing
acknowledged is lost, nothing that was refused for certain is there, nothing completed comes again.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from busbar.catalogue.placement import place
from busbar.cli.failure import CommandFailure
from harness.amqp_driver import connect
from harness.processes import brokers_of
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.outage_load import Book, Client, Consumer, keys_by_fragment
from tests.durability.test_store_outage import OUT, QUEUES, REGULAR, Operator, drained

STORES = [f"store-{number}" for number in range(4)]
LIMITS = {"store_timeout": 500, "broker_ping_timeout": 1_500}
HANG = {1: 0.5, 2: 2.0}
"""By the number of brokers: with several, long enough for one to be ended that does not answer."""

pytestmark = pytest.mark.shim("hanging_disk")


def in_store(store: str) -> str:
    return next(name for name in REGULAR if place(name, 1, STORES) == (store,))


@pytest.mark.req("P4", "P18", "P19")
@pytest.mark.parametrize("brokers", [1, 2])
def test_a_disk_hangs_under_load_and_answers_again(brokers: int, shim: Path, tmp_path: Path) -> None:
    control = tmp_path / "hanging"
    server = Busbar(
        tmp_path / "data",
        config_text(QUEUES, LIMITS),
        arguments=("--brokers", str(brokers)),
        environment={"LD_PRELOAD": str(shim), "HANG_FILE": str(control)},
    ).start()
    try:
        before = brokers_of(server) if brokers > 1 else {}
        asyncio.run(under_load(server, control, HANG[brokers]))
        if brokers > 1:
            assert brokers_of(server) == before, "a disk that hangs is no broker that hangs"
        book = Book()
        asyncio.run(stopped_while_it_hangs(server, control, book))
        if brokers == 1:
            asyncio.run(started_while_it_hangs(server, control, book))
    finally:
        control.unlink(missing_ok=True)
        code = server.stop()
    assert code == 0, server.error_text
    assert "Traceback" not in server.error_text, server.error_text


async def state(operator: Operator, wanted: str, seconds: float = 12) -> None:
    async with asyncio.timeout(seconds):
        while (await asyncio.to_thread(operator.store))["state"] != wanted:
            await asyncio.sleep(0.05)


async def under_load(server: Busbar, control: Path, seconds: float) -> None:
    operator = Operator(server)
    views = await asyncio.to_thread(operator.ask, "GET", "fragments/p")
    lost_share = {view["index"] for view in views if view["store"] == OUT}
    book = Book()
    keyed = [Client(book, f"key-{index}", "p", key) for index, key in enumerate(keys_by_fragment())]
    keyless = [Client(book, f"free-{number}", "p") for number in range(8)]
    regular = [Client(book, name, name) for name in (in_store(OUT), in_store("store-2"))]
    consumers = {client.name: Consumer(book) for client in regular} | {"p": Consumer(book)}
    for queue, consumer in consumers.items():
        await consumer.start(await connect(server.port), queue)
    stop = asyncio.Event()
    connection = await connect(server.port)
    tasks = [asyncio.create_task(client.run(connection, stop)) for client in [*keyed, *keyless, *regular]]
    await asyncio.sleep(0.4)

    hung = time.monotonic()
    await asyncio.to_thread(control.write_text, f"{OUT}.db sync")
    await state(operator, "unavailable")
    since = time.monotonic()
    assert "has not answered" in (await asyncio.to_thread(operator.store))["reason"]
    assert await asyncio.to_thread(operator.availability, "p") == "Limited"
    with pytest.raises(CommandFailure, match=r"failed \(503\)"):
        await asyncio.to_thread(operator.create, "new")
    await asyncio.to_thread(operator.delete, in_store("store-3"))  # it does not need the store that hangs
    await asyncio.sleep(max(0.5, seconds - (time.monotonic() - hung)))
    until = time.monotonic()
    assert all(client.went_on(since, until) for client in keyless)
    assert not any(client.failed(since, until) for client in keyless), "another fragment takes them"
    for index, client in enumerate(keyed):
        assert client.went_on(since, until) == (index not in lost_share), client.name
        assert client.failed(since, until) == (index in lost_share), client.name
    assert regular[0].failed(since, until) and not regular[0].went_on(since, until)
    assert regular[1].went_on(since, until) and consumers["p"].went_on(since, until)

    await asyncio.to_thread(control.unlink)
    await state(operator, "open")
    back = time.monotonic()
    await asyncio.sleep(0.5)
    now = time.monotonic()
    assert all(client.went_on(back, now) for client in [*keyed, *keyless, *regular])
    assert consumers[regular[0].name].went_on(back, now), "receivers need not do anything"
    assert await asyncio.to_thread(operator.availability, "p") == "Available"
    stop.set()
    await asyncio.gather(*tasks)
    await drained(book, 0)
    require_kept("nothing acknowledged is lost", book.lost())
    book.check_order([client.name for client in keyed])
    require_kept("nothing is doubled or comes back", book.faults)
    assert book.slowest < 15, f"an answer took {book.slowest:.1f} s"
    print(
        f"out after {since - hung:.1f} s; {len(book.acknowledged)} acknowledged, {len(book.refused)} refused, "
        f"{len(book.unknown)} unknown, slowest answer {book.slowest:.2f} s"
    )


async def stopped_while_it_hangs(server: Busbar, control: Path, book: Book) -> None:
    """A clean stop does not wait for the disk."""
    queue = in_store(OUT)
    await send_some(server, Client(book, "first", queue))
    await asyncio.to_thread(control.write_text, f"{OUT}.db sync")
    await send_some(server, Client(book, "second", queue), until_failed=True)
    assert book.unknown, "the one that was being made durable"
    began = time.monotonic()
    assert await asyncio.to_thread(server.stop) == 0, server.error_text
    assert f"{OUT} is left as it is" in server.error_text
    assert time.monotonic() - began < 15


async def started_while_it_hangs(server: Busbar, control: Path, book: Book) -> None:
    """Nor does a start. The store comes back when the disk answers."""
    began = time.monotonic()
    await asyncio.to_thread(server.start)
    assert time.monotonic() - began < 20
    operator = Operator(server)
    assert (await asyncio.to_thread(operator.store))["state"] == "unavailable"
    await send_some(server, Client(book, "third", in_store("store-2")))
    await asyncio.to_thread(control.unlink)
    await state(operator, "open")
    for store in (OUT, "store-2"):
        await Consumer(book).start(await connect(server.port), in_store(store))
    await drained(book, 0)
    require_kept("nothing acknowledged is lost", book.lost())
    require_kept("nothing is doubled or comes back", book.faults)


async def send_some(server: Busbar, client: Client, *, until_failed: bool = False) -> None:
    stop = asyncio.Event()
    connection = await connect(server.port)
    task = asyncio.create_task(client.run(connection, stop))
    async with asyncio.timeout(15):
        while not (client.failed_at if until_failed else len(client.at) > 5):
            await asyncio.sleep(0.01)
    stop.set()
    await task
    await connection.close()
