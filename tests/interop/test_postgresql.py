"""The vendor's SDK over stores in PostgreSQL: two servers, of which one is killed, and a SQLite file beside them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from busbar.cli.main import run
from busbar.client import MessagingFactory, OutgoingMessage, Received, encode
from busbar.model.partitioning import index_of_key
from harness.postgresql import PostgresqlServer, own_database
from harness.serving import Busbar, ServerDied, config_text

QUEUES = {
    "q": {},
    "sessions": {"RequiresSession": True},
    "once": {"RequiresDuplicateDetection": True},
    "p": {"EnablePartitioning": True},
}

pytestmark = pytest.mark.timeout(120)


class Namespace:
    """A Busbar with a store in each of two database servers, and one in a file."""

    def __init__(self, server: Busbar, databases: list[PostgresqlServer]) -> None:
        self.server = server
        self.databases = databases

    def client(self, retries: int = 3) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.server.connection_string, retry_total=retries)

    def shown(self, *arguments: str) -> list[dict[str, object]]:
        """What a command prints as JSON."""
        out = io.StringIO()
        with redirect_stdout(out):
            assert run([*arguments, "--data", str(self.server.data), "-o", "json"]) == 0
        found: list[dict[str, object]] = json.loads(out.getvalue())
        return found

    def metrics(self) -> dict[str, float]:
        """The samples of a scrape, by name and labels."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.server.port}/metrics")
        login = base64.b64encode(f"RootManageSharedAccessKey:{self.server.key}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    def keys(self, store: str) -> tuple[str, str]:
        """A partition key of a fragment in that store, and one of another."""
        homes = [fragment["store"] for fragment in self.shown("queue", "show", "p", "--fragments")]
        names = [f"key-{n}" for n in range(99)]
        inside = [name for name in names if homes[index_of_key(name, 16)] == store]
        return inside[0], next(name for name in names if name not in inside)


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    with ExitStack() as stack:
        databases = [stack.enter_context(own_database()) for _ in range(2)]
        urls = [database.url() for database in databases]
        data: Path = tmp_path_factory.mktemp("postgresql") / "data"
        server = Busbar(data, config_text(QUEUES), arguments=("--stores", "1", *urls)).start()
        stack.callback(server.stop)
        yield Namespace(server, databases)


def bodies(namespace: Namespace, queue: str, count: int, **options: object) -> list[str]:
    """All messages of a queue, received and completed: so many, and what else there is."""
    found: list[str] = []
    with (
        namespace.client() as client,
        client.get_queue_receiver(queue, **options) as receiver,  # type: ignore[arg-type]
    ):
        while messages := receiver.receive_messages(100, max_wait_time=20 if len(found) < count else 0.5):
            found += [str(message) for message in messages]
            for message in messages:
                receiver.complete_message(message)
    return found


def test_stores_are_named_and_shown(namespace: Namespace) -> None:
    shown = namespace.shown("stores", "list")
    assert [(store["name"], store["state"]) for store in shown] == [(f"store-{n}", "open") for n in range(3)]
    assert [str(store["url"]).partition(":")[0] for store in shown] == ["file", "postgresql", "postgresql"]
    assert all(int(str(store["size"])) > 0 for store in shown)
    assert "asynchronous" in str(shown[1]["status"]) and shown[0]["status"] == ""


def test_a_lost_catalogue_is_made_again_from_stores_in_databases(namespace: Namespace) -> None:
    with namespace.client() as client, client.get_queue_sender("p") as sender:
        sender.send_messages([ServiceBusMessage(f"kept {n}") for n in range(20)])
    assert namespace.server.stop() == 0
    (namespace.server.data / "catalogue.db").unlink()
    out = io.StringIO()
    with redirect_stdout(out):
        assert run(["catalogue", "rebuild", "--data", str(namespace.server.data)]) == 0
    assert "catalogue.db has 4 entities, from store-0, store-1, store-2." in out.getvalue()
    namespace.server.start()
    assert sorted(bodies(namespace, "p", 20)) == sorted(f"kept {n}" for n in range(20))


def test_the_catalogue_can_be_in_a_database(tmp_path: Path) -> None:
    """Entities outlive the data directory's files, changes are made there, and a second namespace is kept away."""
    with own_database() as database:
        stores = ("--stores", database.url("one"), database.url("two"))
        catalogue = ("--catalogue", database.url("names"))
        queues = config_text({"p": {"EnablePartitioning": True}})
        server = Busbar(tmp_path / "data", queues, arguments=(*stores, *catalogue)).start()
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender("p") as sender,
        ):
            sender.send_messages(ServiceBusMessage("kept"))
        server.kill()
        assert not (server.data / "catalogue.db").exists()
        again = Busbar(server.data, arguments=()).start()  # the address is known
        try:
            with (
                ServiceBusClient.from_connection_string(again.connection_string) as client,
                client.get_queue_receiver("p", max_wait_time=20) as receiver,
            ):
                message = next(iter(receiver))
                receiver.complete_message(message)
            assert str(message) == "kept"
            other = Busbar(tmp_path / "other", arguments=catalogue)
            with pytest.raises(ServerDied, match="is in use by"):
                other.start()
        finally:
            assert again.stop() == 0
        assert run(["catalogue", "rebuild", "--data", str(server.data)]) == 4
        assert run(["catalogue", "rebuild", "--data", str(server.data), "--force"]) == 0
        once_more = Busbar(server.data).start()
        assert once_more.stop() == 0


def test_messages_survive_a_kill_of_the_broker(namespace: Namespace) -> None:
    with namespace.client() as client:
        with client.get_queue_sender("p") as sender:
            sender.send_messages([ServiceBusMessage(f"m{n}") for n in range(30)])
            sender.schedule_messages(ServiceBusMessage("later"), _in(1.0))
        with client.get_queue_receiver("p") as receiver:
            for message in receiver.receive_messages(5, max_wait_time=5):
                receiver.dead_letter_message(message, reason="bad")
    namespace.server.kill()
    namespace.server.start()
    alive = bodies(namespace, "p", 26)
    with namespace.client() as client, client.get_queue_receiver("p", sub_queue="deadletter") as receiver:
        dead = receiver.receive_messages(5, max_wait_time=20)
        assert {message.dead_letter_reason for message in dead} == {"bad"}
        for message in dead:
            receiver.complete_message(message)
    assert sorted([*alive, *map(str, dead)]) == sorted(["later", *(f"m{n}" for n in range(30))])


def _in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_sessions_and_duplicates(namespace: Namespace) -> None:
    with namespace.client() as client:
        with client.get_queue_sender("sessions") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}", session_id=f"s{n % 3}") for n in range(30)])
        with client.get_queue_receiver("sessions", session_id="s1") as receiver:
            receiver.session.set_state(b"half way")
            first = receiver.receive_messages(10, max_wait_time=5)
            assert [int(str(message)) for message in first] == list(range(1, 30, 3))[: len(first)]
            for message in first:
                receiver.complete_message(message)
        with client.get_queue_sender("once") as sender:
            for _ in range(3):
                sender.send_messages([ServiceBusMessage(f"{n}", message_id=f"{n}") for n in range(10)])
    namespace.server.stop()
    namespace.server.start()
    with namespace.client() as client:
        with client.get_queue_receiver("sessions", session_id="s1") as receiver:
            assert receiver.session.get_state() == b"half way"
        with client.get_queue_sender("once") as sender:
            sender.send_messages(ServiceBusMessage("again", message_id="3"))
    assert sorted(map(int, bodies(namespace, "once", 10))) == list(range(10))
    rest = bodies(namespace, "sessions", 10 - len(first), session_id="s1")
    assert [int(body) for body in rest] == list(range(1, 30, 3))[len(first) :]
    assert [int(body) for body in bodies(namespace, "sessions", 10, session_id="s0")] == list(range(0, 30, 3))


async def test_a_transaction_over_two_stores(namespace: Namespace) -> None:
    """An order is completed and its receipt sent, both or neither, and the receipt is moved to a queue in another store."""
    async with await MessagingFactory.connect(namespace.server.connection_string) as factory:
        orders, receipts = await factory.sender("q"), await factory.sender("once")
        await orders.send([encode(OutgoingMessage(b"kept")), encode(OutgoingMessage(b"undone"))])
        receiver = await factory.receiver("q", credit=10)
        waiting: list[Received] = []
        while len(waiting) < 2:
            waiting += await receiver.receive(10)
        for order in waiting:
            body = order.decode().data or b""
            with suppress(ZeroDivisionError):
                async with factory.transaction(via="q") as transaction:
                    await receiver.complete([order], transaction=transaction)
                    receipt = OutgoingMessage(body, message_id=body.decode())
                    await receipts.send([encode(receipt)], transaction=transaction)
                    if body == b"undone":
                        raise ZeroDivisionError
    namespace.server.kill()
    namespace.server.start()
    assert await asyncio.to_thread(bodies, namespace, "once", 1) == ["kept"]
    assert await asyncio.to_thread(bodies, namespace, "q", 1) == ["undone"]


@pytest.mark.req("P4", "P18", "P25")
def test_a_database_server_that_is_down_and_back(namespace: Namespace) -> None:
    lost, kept = namespace.keys("store-2")
    with namespace.client(retries=0) as client, client.get_queue_sender("p") as sender:
        sender.send_messages(ServiceBusMessage("before", partition_key=lost))
        namespace.databases[1].kill()
        sent, began = ["before"], time.monotonic()
        while time.monotonic() - began < 8:  # longer than a store may take to answer
            for key in (None, kept):
                body = f"m{len(sent)}"
                try:
                    sender.send_messages(ServiceBusMessage(body, partition_key=key))
                    sent.append(body)
                except ServiceBusError:
                    assert time.monotonic() - began < 7, "a message without a key goes to another store"
        assert len(sent) > 20
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("refused", partition_key=lost))
    assert [store["state"] for store in namespace.shown("stores", "list")] == ["open", "open", "unavailable"]
    namespace.databases[1].start()
    deadline = time.monotonic() + 20
    while namespace.shown("stores", "list")[2]["state"] != "open":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    received = bodies(namespace, "p", len(sent))
    assert sorted(set(received)) == sorted(received), "nothing is doubled"
    assert set(sent) <= set(received) <= {*sent, *(f"m{n}" for n in range(len(sent) + 1))}


def test_a_restart_of_a_database_server_is_a_pause(namespace: Namespace) -> None:
    """Clients without retries see no error."""
    with namespace.client(retries=0) as client, client.get_queue_sender("p") as sender:
        for n in range(40):
            if n % 20 == 10:
                namespace.databases[n // 20].restart()
            sender.send_messages(ServiceBusMessage(f"{n}", partition_key=f"{n}"))
    assert sorted(map(int, bodies(namespace, "p", 40))) == list(range(40))
    metrics = namespace.metrics()
    for store in ("store-1", "store-2"):
        assert metrics[f'busbar_reclaims_total{{store="{store}"}}'] >= 1
        assert metrics[f'busbar_resolved_total{{store="{store}",outcome="lost"}}'] == 0
