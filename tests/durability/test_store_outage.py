"""One of four messaging stores goes out under load, in every way it can, and comes back.

Keyless sends go on; keyed ones fail quickly for the share that is unavailable and go on for all others; receives go on;
management that needs the store fails cleanly; nothing acknowledged is lost and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from busbar.cli.endpoint import ManagementEndpoint
from busbar.cli.entity_kinds import QUEUE
from busbar.cli.failure import CommandFailure
from busbar.cli.management_client import ManagementClient
from busbar.client.administration_xml import new_description, set_text, text_of
from harness.amqp_driver import connect
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.outage_load import FRAGMENTS, Book, Client, Consumer, keys_by_fragment

OUT = "store-1"
REGULAR = [f"r{number}" for number in range(12)]
QUEUES = {"p": {"EnablePartitioning": True, "LockDuration": "PT5S"}, **{name: {} for name in REGULAR}}
BEFORE, OUTAGE, AFTER = 0.6, 2.0, 0.8

pytestmark = pytest.mark.shim("io_error")


class Operator:
    """Management over HTTP."""

    def __init__(self, server: Busbar) -> None:
        self._target = ManagementEndpoint(
            "127.0.0.1", server.port, False, "RootManageSharedAccessKey", server.key
        )

    def ask(self, method: str, path: str) -> Any:
        with ManagementClient(self._target) as client:
            return json.loads(client.expect(method, f"$busbar/{path}", path).body)

    def store(self, name: str = OUT) -> dict[str, Any]:
        return next(store for store in self.ask("GET", "stores") if store["name"] == name)

    def availability(self, queue: str) -> str | None:
        with ManagementClient(self._target) as client:
            return text_of(client.get(queue, queue).description, "EntityAvailabilityStatus")

    def create(self, queue: str) -> None:
        description = new_description(QUEUE.description)
        set_text(description, "EnablePartitioning", "true", QUEUE.elements)
        with ManagementClient(self._target) as client:
            client.create(queue, description, queue)

    def delete(self, queue: str) -> None:
        with ManagementClient(self._target) as client:
            client.delete(queue, queue)


Step = Callable[[Busbar, Operator, Path], None]


def offline(_server: Busbar, operator: Operator, _control: Path) -> None:
    assert operator.ask("POST", f"stores/{OUT}/offline")["state"] == "unavailable"


def online(_server: Busbar, operator: Operator, _control: Path) -> None:
    assert operator.ask("POST", f"stores/{OUT}/online")["state"] == "open"


def break_disk(_server: Busbar, _operator: Operator, control: Path) -> None:
    control.write_text(f"{OUT}.db")


def repair_disk(_server: Busbar, _operator: Operator, control: Path) -> None:
    control.unlink()


def remove_file(server: Busbar, _operator: Operator, _control: Path) -> None:
    for file in server.data.glob(f"{OUT}.db*"):
        file.unlink()


def wait(_server: Busbar, _operator: Operator, _control: Path) -> None:
    """It comes back by itself."""


WAYS: dict[str, tuple[Step, Step]] = {
    "taken offline": (offline, online),
    "input/output errors": (break_disk, repair_disk),
    "a removed file": (remove_file, wait),
}


@pytest.mark.req("P1", "P2", "P4", "P14", "P18", "P19", "P25", "P26", "P27")
@pytest.mark.parametrize("way", WAYS)
def test_a_store_goes_out_and_comes_back(way: str, shim: Path, tmp_path: Path) -> None:
    control = tmp_path / "broken"
    environment = {"LD_PRELOAD": str(shim), "IO_ERROR_FILE": str(control)}
    server = Busbar(tmp_path / "data", config_text(QUEUES), environment=environment).start()
    try:
        asyncio.run(outage(server, way, control))
    finally:
        code = server.stop()
    assert code == 0, server.error_text
    assert "Traceback" not in server.error_text, server.error_text


async def outage(server: Busbar, way: str, control: Path) -> None:
    break_it, repair_it = WAYS[way]
    operator = Operator(server)
    views = await asyncio.to_thread(operator.ask, "GET", "fragments/p")
    assert len({view["store"] for view in views}) == 4, "each fragment lives in one of all stores (P2)"
    lost_share = {view["index"] for view in views if view["store"] == OUT}
    homes = {name: (await asyncio.to_thread(operator.ask, "GET", f"fragments/{name}")) for name in REGULAR}
    assert all(len(found) == 1 for found in homes.values()), "a regular queue lives in one store (P1)"
    regular_out = next(name for name, found in homes.items() if found[0]["store"] == OUT)
    regular_on = next(name for name, found in homes.items() if found[0]["store"] != OUT)

    book = Book()
    keyed = [Client(book, f"key-{index}", "p", key) for index, key in enumerate(keys_by_fragment())]
    keyless = [Client(book, f"free-{number}", "p") for number in range(2)]
    regular = [Client(book, regular_out, regular_out), Client(book, regular_on, regular_on)]
    consumers = {queue: Consumer(book) for queue in ("p", regular_out, regular_on)}
    for queue, consumer in consumers.items():
        await consumer.start(await connect(server.port), queue)
    stop = asyncio.Event()
    connection = await connect(server.port)
    tasks = [asyncio.create_task(client.run(connection, stop)) for client in [*keyed, *keyless, *regular]]
    await asyncio.sleep(BEFORE)

    out_at = time.monotonic()
    await asyncio.to_thread(break_it, server, operator, control)
    await asyncio.sleep(0.3)  # the first commit finds out
    since = time.monotonic()
    shown = await asyncio.to_thread(operator.store)
    assert shown["state"] == "unavailable" and shown["reason"], shown
    assert await asyncio.to_thread(operator.availability, "p") == "Limited"
    states = {
        view["index"]: view["state"] for view in await asyncio.to_thread(operator.ask, "GET", "fragments/p")
    }
    assert {index for index, state in states.items() if state == "unavailable"} == lost_share
    with pytest.raises(CommandFailure, match=r"failed \(503\)"):
        await asyncio.to_thread(operator.create, "new")
    await asyncio.sleep(max(0.0, OUTAGE - (time.monotonic() - out_at)))
    until = time.monotonic()
    assert all(client.went_on(since, until) for client in keyless)
    assert not any(client.failed(since, until) for client in keyless), "another fragment takes them"
    for index, client in enumerate(keyed):
        assert client.went_on(since, until) == (index not in lost_share), client.name
        assert client.failed(since, until) == (index in lost_share), client.name
    assert regular[0].failed(since, until) and not regular[0].went_on(since, until)
    assert regular[1].went_on(since, until)
    assert consumers["p"].went_on(since, until)

    await asyncio.to_thread(repair_it, server, operator, control)
    async with asyncio.timeout(12):
        while (await asyncio.to_thread(operator.store))["state"] != "open":
            await asyncio.sleep(0.1)
    back = time.monotonic()
    await asyncio.sleep(AFTER)
    assert all(client.went_on(back, time.monotonic()) for client in [*keyed, *keyless, *regular])
    assert await asyncio.to_thread(operator.availability, "p") == "Available"
    await asyncio.to_thread(operator.create, "new")
    stop.set()
    await asyncio.gather(*tasks)
    assert book.slowest < 5, f"an answer took {book.slowest:.1f} s"

    lost_messages = (await asyncio.to_thread(operator.store))["lostMessages"]
    await drained(book, lost_messages)
    lost = book.lost()
    assert len(lost) <= lost_messages, sorted(lost)[:10]
    if way != "a removed file":
        assert lost_messages == 0
    book.check_order([client.name for client in keyed])
    require_kept("nothing is doubled or comes back", book.faults)
    assert len(book.acknowledged) > 50 * FRAGMENTS, "there was load"
    print(
        f"{way}: {len(book.acknowledged)} acknowledged, {len(book.refused)} refused, {len(book.unknown)} unknown, "
        f"{len(lost)} lost with the file ({lost_messages} reported), slowest answer {book.slowest:.2f} s"
    )


async def drained(book: Book, lost: int) -> None:
    """Until all that was acknowledged has come, but for what is lost (locks of the outage have to end for some)."""
    deadline = time.monotonic() + 10
    while len(book.lost()) > lost and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
