"""`busbar serve --brokers N`: several broker processes share the stores and the clients of a namespace.

Which process has what is read from the kernel, not from what Busbar says of itself: who has a store's file open, who has a
client's connection, and who has spent how much processor time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from harness.amqp_driver import ConnectionOver, LinkRefused, LoadConnection, connect
from harness.processes import brokers_of, client_connections, processor_seconds
from harness.promises import require_kept
from harness.serving import Busbar, Properties, config_text
from harness.waiting import eventually
from tests.durability.outage_load import FRAGMENTS, Book, Client, Consumer, keys_by_fragment
from tests.durability.test_store_outage import Operator, drained
from tests.interop.http_runtime import Http

STORES = {f"store-{number}.db" for number in range(4)}
KEYS = keys_by_fragment()
QUEUES: dict[str, Properties] = {
    "p": {"EnablePartitioning": True},
    "load": {"EnablePartitioning": True},
    "kept": {"LockDuration": "PT5M"},
    "s": {"EnablePartitioning": True, "RequiresSession": True},
}
RED = {"Name": "red", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "colour = 'red'"}}}
TOPIC = {
    "Name": "t",
    "Properties": {},
    "Subscriptions": [{"Name": "all", "Properties": {}}, {"Name": "red", "Properties": {}, "Rules": [RED]}],
}


def config() -> str:
    document = json.loads(config_text(QUEUES))
    document["UserConfig"]["Namespaces"][0]["Topics"] = [TOPIC]
    return json.dumps(document)


def stores_open_in(process: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            target = Path(os.readlink(link)).name
        except FileNotFoundError:
            continue  # a connection's, which was closed meanwhile
        if target in STORES:
            found.add(target)
    return found


def process_of(server: Busbar, connection: LoadConnection) -> int:
    """The process that has the other end of a client's connection."""
    return client_connections(server)[connection.local_port]


async def connection_at(server: Busbar, process: int) -> LoadConnection:
    """A connection that is that process's."""
    for _ in range(50):
        connection = await connect(server.port)
        if process_of(server, connection) == process:
            return connection
        await connection.close()
    raise AssertionError(f"no connection came to the process {process}")


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


pytestmark = pytest.mark.server(config=config(), arguments=("--brokers", "4"), checked=True)


def test_brokers_can_be_reached_through_the_announced_ports_alone(server: Busbar) -> None:
    """What they say to each other, and to the controller, is on sockets that nobody can connect to."""
    processes = server.processes()
    assert len(processes) == 5
    ours = {int(target[8:-1]): process for process in processes for target in sockets_in(process)}
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[9]) in ours:
                listening[int(fields[1].rpartition(":")[2], 16)] = ours[int(fields[9])]
    assert server.port in listening and len(listening) == 3, "AMQP, HTTP and TLS"
    assert set(listening.values()) == {server.pid}
    named = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    assert [fields[7:] for fields in named if int(fields[6]) in ours and len(fields) > 7] == []


def sockets_in(process: int) -> Iterator[str]:
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(link)
            if target.startswith("socket:["):
                yield target


@pytest.mark.req("P2")
def test_clients_find_everything_and_fragments_are_handled_by_different_brokers(server: Busbar) -> None:
    brokers = brokers_of(server)
    assert sorted(brokers) == [f"broker-{number}" for number in range(4)]
    owned = {name: stores_open_in(process) for name, process in brokers.items()}
    assert sorted(file for files in owned.values() for file in files) == sorted(STORES)
    assert all(owned.values()), "each has one"
    assert stores_open_in(server.pid) == set()
    views = Operator(server).ask("GET", "fragments/p")
    assert len({view["broker"] for view in views}) == 4
    for view in [*views, *Operator(server).ask("GET", "fragments/t")]:
        assert f"{view['store']}.db" in owned[view["broker"]]
    for store in Operator(server).ask("GET", "stores"):
        assert f"{store['name']}.db" in owned[store["broker"]]
    for _ in range(2):  # each time at another gateway
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            use(client)


@pytest.mark.req("P2")
def test_clients_are_shared_out_and_no_broker_does_the_work_of_the_others(server: Busbar) -> None:
    """Processor time says what each of them had to do for a load, on a machine with any number of cores."""
    brokers = list(brokers_of(server).values())
    before = [processor_seconds(process) for process in (server.pid, *brokers)]
    clients = asyncio.run(load(server, 2_500, connections=8))
    assert {*clients} == {*brokers}, "everyone has some"
    serving, *spent = [
        processor_seconds(process) - then
        for process, then in zip((server.pid, *brokers), before, strict=True)
    ]
    print(f"the brokers spent {', '.join(f'{seconds:.2f} s' for seconds in spent)}, serving {serving:.2f} s")
    assert min(spent) > 0
    assert max(spent) < 0.5 * sum(spent), "a quarter each, were all the same"
    assert serving < 0.1 * sum(spent), "messages do not pass through it"


def test_a_change_is_in_force_at_every_gateway_when_it_is_answered(server: Busbar) -> None:
    operator = Operator(server)
    asyncio.run(create_and_delete(server, operator))


async def create_and_delete(server: Busbar, operator: Operator) -> None:
    connections = [await connection_at(server, process) for process in brokers_of(server).values()]
    for number in range(5):
        queue = f"new-{number}"
        await asyncio.to_thread(operator.create, queue)
        for connection in connections:
            sender = await connection.sender(queue, in_flight=10, body=b"x")
            await sender.send(10)
            assert (sender.acknowledged, sender.refused) == (10, [])
        receivers = [await connection.receiver(queue, credit=100) for connection in connections]
        async with asyncio.timeout(20):
            while sum(receiver.confirmed for receiver in receivers) < 10 * len(connections):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(operator.delete, queue)
        for connection in connections:
            with pytest.raises(LinkRefused, match="not-found"):
                await connection.sender(queue, in_flight=1, body=b"x")
    for connection in connections:
        await connection.close()


def body(number: int) -> bytes:
    annotations = {Symbol("x-opt-partition-key"): KEYS[number % FRAGMENTS]}
    return encode_value(Described(ULong(0x72), annotations)) + encode_value(
        Described(ULong(0x75), bytes(100))
    )


async def load(server: Busbar, messages: int, connections: int) -> list[int]:
    """Messages of each of so many connections; the processes that these came to."""
    opened = [await connect(server.port) for _ in range(connections)]
    senders = [await connection.sender("load", body, in_flight=100) for connection in opened]
    await asyncio.gather(*[sender.send(messages) for sender in senders])
    assert [(sender.acknowledged, sender.refused) for sender in senders] == [(messages, [])] * connections
    processes = [process_of(server, connection) for connection in opened]
    for connection in opened:
        await connection.close()
    return processes


def use(client: ServiceBusClient) -> None:
    with client.get_queue_sender("p") as sender:
        for key in KEYS[:8]:
            sender.send_messages(ServiceBusMessage(key, partition_key=key))
    with client.get_queue_receiver("p") as receiver:
        assert sorted(take(receiver, 8)) == sorted(KEYS[:8])
    with client.get_queue_sender("s") as sender:
        for key in KEYS[:3]:
            sender.send_messages([ServiceBusMessage(f"{key} {n}", session_id=key) for n in range(3)])
    with client.get_queue_receiver("s", session_id=NEXT_AVAILABLE_SESSION) as receiver:
        id = receiver.session.session_id
        receiver.session.set_state(b"seen")
        assert take(receiver, 3) == [f"{id} {n}" for n in range(3)]
        assert receiver.session.get_state() == b"seen"
    with client.get_topic_sender("t") as sender:
        for colour in ("red", "blue", "red"):
            sender.send_messages(ServiceBusMessage(colour, application_properties={"colour": colour}))
    with client.get_subscription_receiver("t", "all") as receiver:
        assert take(receiver, 3) == ["red", "blue", "red"]
    with client.get_subscription_receiver("t", "red") as receiver:
        assert take(receiver, 2) == ["red", "red"]


def take(receiver: Any, count: int) -> list[str]:
    bodies: list[str] = []
    while len(bodies) < count:
        messages = receiver.receive_messages(count - len(bodies), max_wait_time=20)
        assert messages, bodies
        for message in messages:
            receiver.complete_message(message)
            bodies.append(str(message))
    return bodies


@pytest.mark.req("P2", "P19", "P25")
def test_a_broker_is_killed_under_load_then_all_are_stopped_then_killed(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config(), arguments=("--brokers", "2")).start()
    try:
        asyncio.run(one_is_killed(server))
        brokers = brokers_of(server)
        lock = asyncio.run(lock_one(server, "m1", "m2"))
        for process in brokers.values():  # as a terminal or a supervisor does, to all at once
            os.kill(process, signal.SIGINT)
            os.kill(process, signal.SIGTERM)
        assert server.stop() == 0, server.error_text
        assert not any(alive(process) for process in brokers.values())

        server.start()
        brokers = brokers_of(server)
        asyncio.run(complete(server, lock))
        asyncio.run(lock_one(server))
        server.kill()
        server.start()  # at once, while the brokers end that have lost it
        assert not any(alive(process) for process in brokers.values())
        assert asyncio.run(take_one(server)) == "m2", "a crash ends locks, and nothing else"
        assert "Traceback" not in server.error_text, server.error_text
    finally:
        server.stop()


@pytest.mark.req("P25")
def test_a_broker_that_hangs_is_replaced_and_others_go_on(tmp_path: Path) -> None:
    text = json.loads(config())
    text["Busbar"] = {"Limits": {"broker_ping_timeout": 4_000}}
    server = Busbar(tmp_path / "data", json.dumps(text), arguments=("--brokers", "2")).start()
    try:
        asyncio.run(one_hangs(server))
        assert "broker-1 does not answer" in server.error_text
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


@pytest.mark.req("P25")
def test_a_broker_that_hangs_while_it_starts_is_replaced(tmp_path: Path) -> None:
    """Both have been killed, so that each opens its stores again. One is stopped when it has just opened the first: its
    other stores, its gateway and the other broker have to wait."""
    text = json.loads(config())
    text["Busbar"] = {"Limits": {"broker_ping_timeout": 2_000}}
    server = Busbar(tmp_path / "data", json.dumps(text), arguments=("--brokers", "2")).start()
    try:
        before = {*brokers_of(server).values()}
        for process in before:
            os.kill(process, signal.SIGKILL)
        name, hung = eventually(lambda: started_after(server, before), pause=0.002)
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: not alive(hung), pause=0.05)
        asyncio.run(until_a_send_is_taken_everywhere(server))
        assert f"{name} does not answer" in server.error_text
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


async def until_a_send_is_taken_everywhere(server: Busbar) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(ConnectionOver, ConnectionError):
                await a_send_to_each_fragment(await connect(server.port))
                return


async def a_send_to_each_fragment(connection: LoadConnection) -> None:
    stop = asyncio.Event()
    clients = [Client(Book(), f"keyed-{key}", "p", key) for key in KEYS]
    sending = [asyncio.create_task(client.run(connection, stop)) for client in clients]
    while not all(client.at for client in clients):
        await asyncio.sleep(0.01)
        if any(task.done() for task in sending):
            break
    stop.set()
    await asyncio.gather(*sending)
    await connection.close()


def started_after(server: Busbar, before: set[int]) -> tuple[str, int] | None:
    """A broker that was started after these, once it has a store."""
    for name, process in brokers_of(server).items():
        with suppress(OSError):
            if process not in before and stores_open_in(process):
                return name, process
    return None


async def one_hangs(server: Busbar) -> None:
    before = brokers_of(server)
    connection = await connection_at(server, before["broker-0"])
    views = await asyncio.to_thread(Operator(server).ask, "GET", "fragments/p")
    theirs = next(view["index"] for view in views if view["broker"] == "broker-1")
    os.kill(before["broker-1"], signal.SIGSTOP)
    hung = time.monotonic()
    book = Book()
    keyless, keyed = Client(book, "free", "p"), Client(book, "keyed", "p", KEYS[theirs])
    stop = asyncio.Event()
    tasks = [asyncio.create_task(client.run(connection, stop)) for client in (keyless, keyed)]
    async with asyncio.timeout(60):
        while not (keyless.at and keyed.at):
            await asyncio.sleep(0.02)
        went_on = time.monotonic()
        while brokers_of(server).get("broker-1") in (before["broker-1"], None):
            await asyncio.sleep(0.02)
    print(
        f"others went on {keyless.at[0] - hung:.1f} s after it hung, itself after {keyed.at[0] - hung:.1f} s"
    )
    # A message without a key that had been sent to it goes on when its end is known, and so do the messages with a key of
    # the store that the other one claims then. Neither waits until it is started again.
    assert keyless.at[0] <= went_on and keyed.at[0] <= went_on
    assert brokers_of(server)["broker-0"] == before["broker-0"]
    stop.set()
    await asyncio.gather(*tasks)
    require_kept("nothing is doubled or comes back", book.faults)
    await connection.close()


@asynccontextmanager
async def http(server: Busbar) -> AsyncIterator[Http]:
    client = Http(server.port, server.key)
    yield client
    await client.close()


async def lock_one(server: Busbar, *bodies: str) -> str:
    async with http(server) as client:
        for body in bodies:
            assert (await client.send("kept", body.encode())).status == 201
        return (await client.peek_lock("kept", 20)).lock


async def complete(server: Busbar, lock: str) -> None:
    async with http(server) as client:
        assert (await client.complete(lock)).status == 200, "a clean stop keeps locks"


async def take_one(server: Busbar) -> str:
    async with http(server) as client:
        return (await client.take("kept", 20)).body.decode()


class Fugitive:
    """A client that connects again when its connection is lost."""

    def __init__(self, server: Busbar, book: Book) -> None:
        self.lives: list[Client] = []
        self._server = server
        self._book = book

    async def run(self, connection: LoadConnection, stop: asyncio.Event) -> None:
        while True:
            client = Client(self._book, f"fled-{len(self.lives)}", "p")
            self.lives.append(client)
            try:
                await client.run(connection, stop)
                return
            except ConnectionOver:
                self._book.unknown.add(client.under_way)
                connection = await self._connect_again()

    async def _connect_again(self) -> LoadConnection:
        while True:  # it may be handed to the broker that is just ending
            with suppress(ConnectionOver, ConnectionError):
                return await connect(self._server.port)

    def went_on(self, since: float, until: float) -> bool:
        return any(client.went_on(since, until) for client in self.lives)


async def one_is_killed(server: Busbar) -> None:
    operator = Operator(server)
    views = await asyncio.to_thread(operator.ask, "GET", "fragments/p")
    share = {view["index"] for view in views if view["broker"] == "broker-1"}
    assert len(share) == FRAGMENTS // 2
    book = Book()
    keyed = [Client(book, f"key-{index}", "p", key) for index, key in enumerate(KEYS)]
    keyless = [Client(book, f"free-{number}", "p") for number in range(2)]
    others = [client for index, client in enumerate(keyed) if index not in share]
    before = brokers_of(server)
    consumer = Consumer(book)
    await consumer.start(await connection_at(server, before["broker-0"]), "p")
    stop = asyncio.Event()
    connection = await connection_at(server, before["broker-0"])
    tasks = [asyncio.create_task(client.run(connection, stop)) for client in [*keyed, *keyless]]
    fugitive = Fugitive(server, book)
    tasks.append(asyncio.create_task(fugitive.run(await connection_at(server, before["broker-1"]), stop)))
    await asyncio.sleep(0.6)

    stores = await asyncio.to_thread(operator.ask, "GET", "stores")
    untouched = {store["name"] for store in stores if store["broker"] == "broker-0"}
    since = time.monotonic()
    os.kill(before["broker-1"], signal.SIGKILL)
    async with asyncio.timeout(20):
        while not any(client.failed(since, time.monotonic()) for client in keyed):
            await asyncio.sleep(0.01)
        states = {store["name"]: store for store in await asyncio.to_thread(operator.ask, "GET", "stores")}
        while any(
            store["state"] != "open" for store in await asyncio.to_thread(operator.ask, "GET", "stores")
        ):
            await asyncio.sleep(0.05)
    back = time.monotonic()
    assert all(states[name]["state"] == "open" for name in untouched)
    assert all(client.went_on(since, back) for client in others), "who has another broker goes on"
    assert not any(client.failed(since, back) for client in others)
    assert all(client.went_on(since, back) for client in keyless)
    assert stores_open_in(before["broker-0"]) == STORES, "the other one has claimed them"

    async with asyncio.timeout(20):
        while not all(client.went_on(back, time.monotonic()) for client in [*keyed, *keyless]):
            await asyncio.sleep(0.05)
        while brokers_of(server).get("broker-1") in (before["broker-1"], None):
            await asyncio.sleep(0.05)
        while not fugitive.went_on(back, time.monotonic()):
            await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*tasks)
    await drained(book, 0)
    assert len(fugitive.lives) > 1, "it was at the broker that was killed"
    if book.lost():
        print(await asyncio.to_thread(operator.ask, "GET", "fragments/p"))
        print(sorted(book.lost()), server.error_text)
    require_kept("nothing acknowledged is lost", book.lost())
    assert book.slowest < 5, f"an answer took {book.slowest:.1f} s"
    book.check_order([client.name for client in keyed])
    require_kept("nothing is doubled or comes back", book.faults)
    assert len(book.acknowledged) > 5 * FRAGMENTS, "there was load"
    print(
        f"{len(book.acknowledged)} acknowledged, {len(book.refused)} refused, {len(book.unknown)} unknown; back after "
        f"{back - since:.2f} s, slowest answer {book.slowest:.2f} s"
    )
