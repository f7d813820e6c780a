"""Stores are handed over between living brokers under load by the Azure SDK, which repeats nothing here: no client gets an
error, locks of messages and sessions stay, and each session keeps its order.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver

from harness.serving import Busbar, Properties, config_text
from harness.waiting import eventually
from tests.durability.outage_load import keys_by_fragment
from tests.durability.test_store_outage import Operator

KEYS = keys_by_fragment()
SESSIONS = [f"session-{number}" for number in range(8)]
QUEUES: dict[str, Properties] = {
    "p": {"EnablePartitioning": True, "LockDuration": "PT5M"},
    "held": {"EnablePartitioning": True, "LockDuration": "PT5M"},
    "s": {"EnablePartitioning": True, "RequiresSession": True, "LockDuration": "PT5M"},
}


class StrictLoad:
    """Clients for which every error is a fault: nothing is repeated."""

    def __init__(self, server: Busbar) -> None:
        self._server = server
        self._threads: list[threading.Thread] = []
        self.stop = threading.Event()
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
        with client.get_queue_receiver("p", max_wait_time=2) as receiver:
            while not self.stop.is_set() or self.left():
                for message in receiver.receive_messages(20, max_wait_time=0.3):
                    receiver.complete_message(message)
                    self.completed.append(str(message))

    def left(self) -> int:
        return sum(len(self.sent[key]) for key in KEYS) - len(self.completed)

    def work(self, session: str) -> Callable[[str, ServiceBusClient], None]:
        def work(name: str, client: ServiceBusClient) -> None:
            with client.get_queue_receiver("s", session_id=session, max_wait_time=2) as receiver:
                while not self.stop.is_set() or len(self.received[session]) < len(self.sent[session]):
                    for message in receiver.receive_messages(5, max_wait_time=0.3):
                        self.received[session].append(str(message))
                        receiver.complete_message(message)

        return work

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} hangs, {self.faults}"

    def check(self) -> None:
        assert self.faults == []
        assert sorted(self.completed) == sorted(body for key in KEYS for body in self.sent[key])
        for session in SESSIONS:
            assert self.received[session] == self.sent[session], f"{session} has another order"


@contextmanager
def serving(data: Path, *arguments: str) -> Iterator[tuple[Busbar, Operator]]:
    limits = {"balance_delay": 600_000}
    server = Busbar(data, config_text(QUEUES, limits), arguments=arguments).start()
    try:
        yield server, Operator(server)
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


def lock_one_of_each_fragment(receiver: ServiceBusReceiver, client: ServiceBusClient) -> list[object]:
    with client.get_queue_sender("held") as sender:
        for key in KEYS:
            sender.send_messages(ServiceBusMessage(key, partition_key=key))
    locked: list[object] = []
    while len(locked) < len(KEYS):
        locked += receiver.receive_messages(len(KEYS), max_wait_time=5)
    return locked


@pytest.mark.timeout(120)
@pytest.mark.req("P2", "P3", "P14", "S8", "S10", "S15")
def test_stores_change_hands_under_load_and_no_client_notices(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data", "--brokers", "2", "--stores", "4") as (server, operator),
        ExitStack() as stack,
    ):
        load = StrictLoad(server)
        client = stack.enter_context(load.client())
        holder = stack.enter_context(client.get_queue_receiver("held"))
        locked = lock_one_of_each_fragment(holder, client)
        for session in SESSIONS:
            load.begin(f"worker {session}", load.work(session))
        load.begin("sender-0", load.send_keyed)
        load.begin("sender-1", load.send_keyed)
        load.begin("sender-2", load.send_sessions)
        load.begin("receiver-0", load.receive)
        load.begin("receiver-1", load.receive)
        eventually(lambda: load.faults or all(load.at[key] for key in KEYS))
        eventually(lambda: load.faults or all(load.received[session] for session in SESSIONS))
        owners = {view["name"]: view["broker"] for view in operator.ask("GET", "stores")}
        moved_at = time.monotonic()
        for store, owner in [*owners.items(), *owners.items()]:
            other = {"broker-0": "broker-1", "broker-1": "broker-0"}
            now = next(view for view in operator.ask("GET", "stores") if view["name"] == store)["broker"]
            view = operator.ask("POST", f"stores/{store}/move/{other[now]}")
            assert (view["broker"], view["state"]) == (other[now], "open"), owner
        for key in KEYS:
            eventually(lambda key=key: load.faults or load.at[key][-1] > moved_at)  # type: ignore[misc]
        for message in locked:
            holder.complete_message(message)  # type: ignore[arg-type]
        load.end()
        load.check()
        pauses = [b - a for at in load.at.values() for a, b in pairwise(at)]
        print(f"{len(load.completed)} messages, the longest pause of a key is {max(pauses):.3f} s")
        assert {view["name"]: view["broker"] for view in operator.ask("GET", "stores")} == owners
