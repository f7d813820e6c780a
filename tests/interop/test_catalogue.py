"""The catalogue of a namespace: changes while a broker is dead, a lost file, and data of an older version."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from busbar.cli.main import run
from harness.processes import brokers_of
from harness.serving import Busbar, ServerDied, config_text
from tests.interop.administration import Administration

LAYOUT = Path(__file__).with_name("layouts") / "schema_5"

pytestmark = pytest.mark.timeout(120)


def busbar(server: Busbar, *arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run([*arguments, "--data", str(server.data)])
    return code, out.getvalue()


def shown(server: Busbar, *arguments: str) -> Any:
    code, text = busbar(server, *arguments, "-o", "json")
    assert code == 0, text
    return json.loads(text[text.index("[") :])


def unavailable(server: Busbar) -> list[str]:
    return [store["name"] for store in shown(server, "stores", "list") if store["state"] != "open"]


def received(server: Busbar, queue: str, count: int) -> list[str]:
    """The bodies of so many messages, which are completed."""
    found = []
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue, max_wait_time=20) as receiver,
    ):
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
            if len(found) == count:
                return found
    return found


def send(server: Busbar, queue: str, *bodies: str) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for body in bodies:
            sender.send_messages(ServiceBusMessage(body))


@contextlib.contextmanager
def dead_broker(server: Busbar, name: str) -> Iterator[None]:
    """Kill a broker, and kill it again whenever it is restarted."""
    over = threading.Event()
    killed = threading.Event()

    def kill() -> None:
        while not over.wait(0.01):
            process = brokers_of(server).get(name)
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    killed.wait(20)
    try:
        yield
    finally:
        over.set()
        thread.join()


async def created_at_last(admin: Administration, name: str) -> None:
    """Create a queue. In the moment in which a broker dies a change may be taken back, and the client told to try again."""
    deadline = time.monotonic() + 20
    while True:
        try:
            await admin.create_queue(name)
        except HttpResponseError as error:
            assert error.status_code == 503 and time.monotonic() < deadline, error
            await asyncio.sleep(0.2)
        else:
            return


@pytest.mark.req("P26", "P27")
async def test_entities_are_created_changed_and_deleted_while_a_broker_is_dead_or_stores_are_away(
    tmp_path: Path,
) -> None:
    wide = {"EnablePartitioning": True}
    server = Busbar(
        tmp_path / "data", config_text({"p": wide, "doomed": wide}), arguments=("--brokers", "2")
    ).start()
    try:
        admin = Administration(server, asynchronous=False)
        with dead_broker(server, "broker-1"):
            await created_at_last(admin, "r0")
            await admin.update_queue(await admin.get_queue("p"), max_delivery_count=7)
            await admin.delete_queue("doomed")
            send(server, "r0", "hello")
            assert received(server, "r0", 1) == ["hello"]
            while unavailable(server):  # until the other broker has its stores
                await asyncio.sleep(0.1)
            await admin.create_queue("early", enable_partitioning=True)
        assert (await admin.get_queue("p")).max_delivery_count == 7

        for store in ("store-1", "store-3"):
            assert busbar(server, "stores", "offline", store)[0] == 0
        assert unavailable(server) == ["store-1", "store-3"]
        assert (await admin.get_queue("p")).availability_status == "Limited"
        for number in range(1, 4):
            await admin.create_queue(f"r{number}")
        await admin.update_queue(await admin.get_queue("p"), max_delivery_count=8)
        await admin.delete_queue("early")
        with pytest.raises(HttpResponseError) as failed:
            await admin.create_queue("wide", enable_partitioning=True)
        assert failed.value.status_code == 503
        for store in ("store-1", "store-3"):
            assert busbar(server, "stores", "online", store)[0] == 0
        assert (await admin.get_queue("p")).max_delivery_count == 8
        assert (await admin.get_queue("p")).availability_status == "Available"
        await admin.create_queue("wide", enable_partitioning=True)
        assert {queue.name for queue in await admin.list_queues()} == {"p", "r0", "r1", "r2", "r3", "wide"}
    finally:
        server.stop()


async def test_a_lost_catalogue_is_made_again_from_the_stores(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text({"p": {"EnablePartitioning": True}, "r": {}})).start()
    try:
        admin = Administration(server, asynchronous=False)
        await admin.create_topic("t")
        await admin.create_subscription("t", "s")
        await admin.create_queue("doomed")
        await admin.delete_queue("doomed")
        send(server, "p", *map(str, range(16)))
        send(server, "r", "hello")
        code, text = busbar(server, "catalogue", "rebuild")
        assert code == 1 and "Another Busbar" in text
        assert server.stop() == 0
        file = server.data / "catalogue.db"
        file.unlink()
        with pytest.raises(ServerDied, match=r"catalogue\.db is missing.*`busbar catalogue rebuild`"):
            server.start()
        assert not file.exists()

        code, text = busbar(server, "catalogue", "rebuild")
        assert code == 0 and "catalogue.db has 4 entities, from store-0, store-1, store-2, store-3." in text
        code, text = busbar(server, "catalogue", "rebuild")
        assert code == 4 and "--force" in text, "nothing is overwritten"
        server.start()
        assert sorted(received(server, "p", 16)) == sorted(map(str, range(16)))
        assert received(server, "r", 1) == ["hello"]
        assert [each.name for each in await admin.list_subscriptions("t")] == ["s"]
        assert (await admin.get_subscription("t", "s")).max_delivery_count == 10
        with pytest.raises(ResourceNotFoundError):
            await admin.get_queue("doomed")
        assert server.stop() == 0

        file.write_bytes(b"\0" * 4096 + file.read_bytes()[4096:])
        (file.with_name("catalogue.db-wal")).unlink(missing_ok=True)
        with pytest.raises(ServerDied, match=r"the catalogue cannot be used.*`busbar catalogue rebuild`"):
            server.start()
        code, text = busbar(server, "catalogue", "rebuild", "--force")
        assert code == 0 and "The old catalogue is catalogue.db.replaced-" in text
        server.start()
        assert {queue.name for queue in await admin.list_queues()} == {"p", "r"}
    finally:
        server.stop()


async def test_a_data_directory_of_an_older_version_is_opened(tmp_path: Path) -> None:
    """Its stores have copies of the catalogue, as schema 5 had them."""
    server = Busbar(tmp_path / "data", config_text({}))
    server.data.mkdir(mode=0o700)
    for dump in LAYOUT.iterdir():
        file = server.data / dump.with_suffix(".db").name
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.executescript(dump.read_text())
        file.chmod(0o600)
    try:
        server.start()
        admin = Administration(server, asynchronous=False)
        queues = {queue.name: queue for queue in await admin.list_queues()}
        assert {*queues} == {"late0", "Orders", "p"}
        assert (queues["Orders"].user_metadata, queues["Orders"].max_delivery_count) == ("of version 5", 7)
        assert [rule.name for rule in await admin.list_rules("t", "s")] == ["red"]
        assert busbar(server, "tap", "show", "Orders", "tap")[0] == 0
        assert server.stop() == 0
        server.start()
        assert received(server, "orders", 2) == ["body of m1", "body of m2"]
        assert len(received(server, "p", 16)) == 16
        await admin.create_queue("new")
        (fragment,) = shown(server, "queue", "show", "new", "--fragments")
        assert fragment["id"] == 37, "ids go on"
        assert server.stop() == 0
    finally:
        server.stop()
    for number in range(4):
        with contextlib.closing(sqlite3.connect(server.data / f"store-{number}.db")) as database:
            assert database.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (7,)
