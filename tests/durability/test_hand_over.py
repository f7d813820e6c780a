"""Stores are handed over between living brokers under load by the Azure SDK, which repeats nothing here: no client gets an
error, locks of messages and sessions stay, and each session keeps its order.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)

from busbar.cli.failure import CommandFailure
from harness.postgresql import own_database
from harness.processes import brokers_of
from harness.serving import Busbar, Properties, config_text
from harness.waiting import eventually
from tests.durability.outage_load import keys_by_fragment
from tests.durability.test_store_outage import Operator

KEYS = keys_by_fragment()
SESSIONS = [f"session-{number}" for number in range(8)]
QUEUES: dict[str, Properties] = {
    "p": {"EnablePartitioning": True},
    "held": {"EnablePartitioning": True},
    "s": {"EnablePartitioning": True, "RequiresSession": True},
}


class StrictLoad:
    """Clients for which every error is a fault: nothing is repeated."""

    receive_seconds: float | None = 0.3

    def __init__(self, server: Busbar) -> None:
        self._server = server
        self._threads: list[threading.Thread] = []
        self.stop = threading.Event()
        self.all_sent = threading.Event()
        self.faults: list[str] = []
        self.sent: dict[str, list[str]] = defaultdict(list)
        """By key or session."""
        self.at: dict[str, list[float]] = defaultdict(list)
        self.completed: list[str] = []
        self.received: dict[str, list[str]] = defaultdict(list)
        """By session, in order."""

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._server.connection_string, retry_total=0)

    def begin(self, name: str, work: Callable[[str, ServiceBusClient], None]) -> None:
        def run() -> None:
            try:
                with self.client() as client:
                    work(name, client)
            except Exception as error:
                self.faults.append(f"{name}: {type(error).__name__}: {error}")

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def send_keyed(self, name: str, client: ServiceBusClient) -> None:
        with client.get_queue_sender("p") as sender:
            for number in range(1_000_000):
                key = KEYS[number % len(KEYS)]
                sender.send_messages(ServiceBusMessage(f"{name} {number}", partition_key=key))
                self.sent[key].append(f"{name} {number}")
                self.at[key].append(time.monotonic())
                if self.stop.is_set():
                    return

    def send_sessions(self, name: str, client: ServiceBusClient) -> None:
        with client.get_queue_sender("s") as sender:
            for number in range(1_000_000):
                session = SESSIONS[number % len(SESSIONS)]
                sender.send_messages(ServiceBusMessage(f"{number}", session_id=session))
                self.sent[session].append(f"{number}")
                if self.stop.is_set():
                    return

    def receive(self, name: str, client: ServiceBusClient) -> None:
        with client.get_queue_receiver("p") as receiver:
            while not self.all_sent.is_set() or self.left():
                for message in receiver.receive_messages(20, max_wait_time=self.receive_seconds):
                    self.complete(receiver, message)
                    self.completed.append(str(message))

    def complete(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        receiver.complete_message(message)

    def left(self) -> int:
        return sum(len(self.sent[key]) for key in KEYS) - len(self.completed)

    def work(self, session: str) -> Callable[[str, ServiceBusClient], None]:
        def work(name: str, client: ServiceBusClient) -> None:
            # Without prefetching, the SDK releases what comes between two calls, also if later messages are under way to it.
            with client.get_queue_receiver(
                "s", session_id=session, max_wait_time=2, prefetch_count=5
            ) as receiver:
                while not self.all_sent.is_set() or len(self.received[session]) < len(self.sent[session]):
                    for message in receiver.receive_messages(5, max_wait_time=0.3):
                        self.received[session].append(str(message))
                        receiver.complete_message(message)

        return work

    def begin_all(self) -> None:
        """Begin clients of both queues, and wait until each has done something with every fragment."""
        for session in SESSIONS:
            self.begin(f"worker {session}", self.work(session))
        self.begin("sender-0", self.send_keyed)
        self.begin("sender-1", self.send_keyed)
        self.begin("sender-2", self.send_sessions)
        self.begin("receiver-0", self.receive)
        self.begin("receiver-1", self.receive)
        self.until_sent(0.0)
        eventually(lambda: self.faults or all(self.received[session] for session in SESSIONS))

    def until_sent(self, since: float) -> None:
        """Wait until something was sent to every fragment since then."""
        eventually(lambda: self.faults or all(self.at[key] and self.at[key][-1] > since for key in KEYS))

    def longest_pause(self) -> float:
        return max(after - before for at in self.at.values() for before, after in pairwise(at))

    def end_sending(self) -> None:
        """Let receivers end when they have got all that senders have sent, the last message included."""
        self.stop.set()
        self._join(thread for thread in self._threads if thread.name.startswith("sender"))
        self.all_sent.set()

    def end(self) -> None:
        self.end_sending()
        self._join(self._threads)

    def _join(self, threads: Iterable[threading.Thread]) -> None:
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} hangs, {self.faults}"

    def check(self) -> None:
        assert self.faults == []
        assert sorted(self.completed) == sorted(body for key in KEYS for body in self.sent[key])
        for session in SESSIONS:
            received, sent = self.received[session], self.sent[session]
            assert received == sent, f"{session} has another order: {received} instead of {sent}"


@contextmanager
def serving(
    data: Path, limits: dict[str, object], *arguments: str, lock: str = "PT5M"
) -> Iterator[tuple[Busbar, Operator]]:
    queues = {name: {**QUEUES[name], "LockDuration": lock} for name in QUEUES}
    server = Busbar(data, config_text(queues, limits), arguments=arguments).start()
    try:
        yield server, Operator(server)
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


def owners(operator: Operator) -> dict[str, str]:
    views = operator.ask("GET", "stores")
    return {view["name"]: view["broker"] for view in views if view["state"] == "open"}


def lock_one_of_each_fragment(
    receiver: ServiceBusReceiver, client: ServiceBusClient
) -> list[ServiceBusReceivedMessage]:
    with client.get_queue_sender("held") as sender:
        for key in KEYS:
            sender.send_messages(ServiceBusMessage(key, partition_key=key))
    locked: list[ServiceBusReceivedMessage] = []
    while len(locked) < len(KEYS):
        locked += receiver.receive_messages(len(KEYS), max_wait_time=5)
    return locked


OTHER = {"broker-0": "broker-1", "broker-1": "broker-0"}


@pytest.mark.timeout(120)
@pytest.mark.req("P2", "P3", "P14", "S8", "S10", "S15")
def test_stores_change_hands_under_load_and_no_client_notices(tmp_path: Path) -> None:
    """Two of them are files, and two are in PostgreSQL. All go to the other broker, and back."""
    with ExitStack() as stack:
        database = stack.enter_context(own_database())
        stores = ("--stores", "2", database.url(), database.url("more"))
        started = serving(tmp_path / "data", {"balance_delay": 600_000}, "--brokers", "2", *stores)
        server, operator = stack.enter_context(started)
        load = StrictLoad(server)
        client = stack.enter_context(load.client())
        holder = stack.enter_context(client.get_queue_receiver("held"))
        locked = lock_one_of_each_fragment(holder, client)
        load.begin_all()
        before = owners(operator)
        moved_at = time.monotonic()
        for store in [*before, *before]:
            to = OTHER[owners(operator)[store]]
            view = operator.ask("POST", f"stores/{store}/move/{to}")
            assert (view["broker"], view["state"]) == (to, "open")
        load.until_sent(moved_at)
        for message in locked:
            holder.complete_message(message)
        load.end()
        load.check()
        print(f"{len(load.completed)} messages, the longest pause of a key is {load.longest_pause():.3f} s")
        assert owners(operator) == before


@pytest.mark.timeout(120)
@pytest.mark.req("P2", "P3")
def test_a_broker_that_was_killed_gets_its_stores_back(tmp_path: Path) -> None:
    with serving(tmp_path / "data", {"balance_delay": 200}, "--brokers", "2", "--stores", "4") as (
        server,
        operator,
    ):
        before = owners(operator)
        killed = brokers_of(server)["broker-1"]
        os.kill(killed, signal.SIGKILL)
        with suppress(CommandFailure):  # the request came to the broker that was killed
            owners(operator)
        eventually(lambda: owners(operator) == dict.fromkeys(before, "broker-0"))
        eventually(lambda: owners(operator) == before)
        assert brokers_of(server)["broker-1"] != killed
        with StrictLoad(server).client() as client, client.get_queue_sender("p") as sender:
            for key in KEYS:
                sender.send_messages(ServiceBusMessage(key, partition_key=key))
        with pytest.raises(
            CommandFailure, match="There is no broker 'broker-7'; there are broker-0, broker-1"
        ):
            operator.ask("POST", "stores/store-0/move/broker-7")
        with pytest.raises(CommandFailure, match="There is no store 'store-9'; there are store-0"):
            operator.ask("POST", "stores/store-9/move/broker-0")
        operator.ask("POST", "stores/store-0/move/broker-1")
        eventually(lambda: [*owners(operator).values()].count("broker-1") == 2)
        assert owners(operator)["store-0"] == "broker-1", "it is pinned, and another one has made room"
