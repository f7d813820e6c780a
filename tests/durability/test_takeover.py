"""One of four brokers is killed under load by the Azure SDK: the others claim its stores at once.

Nothing that was acknowledged is lost, and nothing is completed twice. Each session has one holder and its order. Fragments
of the dead broker are served by the others.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from harness.processes import brokers_of
from harness.promises import require_kept
from harness.serving import Busbar, Properties, config_text
from harness.waiting import eventually
from tests.durability.outage_load import keys_by_fragment
from tests.durability.test_store_outage import Operator

KEYS = keys_by_fragment()
SESSIONS = [f"session-{number}" for number in range(12)]
QUEUES: dict[str, Properties] = {
    "p": {"EnablePartitioning": True, "LockDuration": "PT5S"},  # clients of the dead broker have some locks
    "s": {"EnablePartitioning": True, "RequiresSession": True, "LockDuration": "PT1M"},
}
LONGEST_PAUSE = 20.0
"""Seconds, for a machine that is busy with other work. Most often it is a fraction of one."""


class Book:
    """What clients were told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: dict[str, set[str]] = {queue: set() for queue in QUEUES}
        self.at: dict[str, list[float]] = defaultdict(list)
        """By key: when a send was acknowledged."""
        self.completed: dict[str, set[str]] = {queue: set() for queue in QUEUES}
        self.numbers: dict[str, Counter[int]] = {queue: Counter() for queue in QUEUES}
        """How often each sequence number was completed: a send that is repeated makes another message."""
        self.unsure: dict[str, set[str]] = {queue: set() for queue in QUEUES}
        """Their completion was refused, or has no answer."""
        self.received: dict[str, list[int]] = defaultdict(list)
        """By session: sequence numbers in the order in which they came."""
        self.holders: dict[str, tuple[str, datetime]] = {}
        """By session: who holds it, and until when at most."""
        self.faults: list[str] = []

    def sent(self, queue: str, body: str, key: str) -> None:
        with self._lock:
            self.acknowledged[queue].add(body)
            self.at[key].append(time.monotonic())

    def done(self, queue: str, body: str, number: int) -> None:
        with self._lock:
            self.completed[queue].add(body)
            self.numbers[queue][number] += 1

    def doubtful(self, queue: str, body: str) -> None:
        with self._lock:
            self.unsure[queue].add(body)

    def holds(self, session: str, holder: str, until: datetime) -> None:
        """A holder whose node is frozen cannot leave. Its lock ends all the same."""
        with self._lock:
            other, others_end = self.holders.get(session, (None, until))
            if other is not None and datetime.now(UTC) < others_end:
                self.faults.append(f"{session} is held by {other} until {others_end} and by {holder}")
            self.holders[session] = holder, until

    def leaves(self, session: str, holder: str) -> None:
        with self._lock:
            if self.holders.get(session, ("",))[0] == holder:
                del self.holders[session]

    def left(self, queue: str) -> set[str]:
        return self.acknowledged[queue] - self.completed[queue] - self.unsure[queue]


class Served(Protocol):
    """What has a connection string: a Busbar, or what is in front of several."""

    @property
    def connection_string(self) -> str: ...


class Load:
    def __init__(self, server: Served, **options: Any) -> None:
        """`options` are those of the clients."""
        self.server = server
        self._options = options
        self.book = Book()
        self.stop = threading.Event()
        self.drain = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, work: Callable[[str, ServiceBusClient], None], name: str) -> None:
        def run() -> None:
            try:
                address = self.server.connection_string
                with ServiceBusClient.from_connection_string(address, **self._options) as client:
                    work(name, client)
            except Exception as error:
                self.book.faults.append(f"{name}: {type(error).__name__}: {error}")

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        """Send nothing more, and wait until all is completed. Workers that wait for a session are not waited for."""
        self.stop.set()
        self._join("sender")
        self.drain.set()
        self._join("receiver")
        eventually(lambda: not self.book.left("s"), seconds=60)

    def _join(self, kind: str) -> None:
        for thread in self._threads:
            if thread.name.startswith(kind):
                thread.join(60)
                assert not thread.is_alive(), f"{thread.name} hangs"

    def send(self, name: str, client: ServiceBusClient) -> None:
        number = 0
        with client.get_queue_sender("p") as plain, client.get_queue_sender("s") as sessions:
            while not self.stop.is_set():
                number += 1
                key, session = KEYS[number % len(KEYS)], SESSIONS[number % len(SESSIONS)]
                for queue, sender, message in (
                    ("p", plain, ServiceBusMessage(f"{name} {number}", partition_key=key)),
                    ("s", sessions, ServiceBusMessage(f"{name} {number}", session_id=session)),
                ):
                    try:
                        sender.send_messages(message)
                    except ServiceBusError:
                        continue  # it may or may not have taken place
                    self.book.sent(queue, f"{name} {number}", key if queue == "p" else session)

    def receive(self, name: str, client: ServiceBusClient) -> None:
        while not self.drain.is_set() or self.book.left("p"):
            try:
                with client.get_queue_receiver("p", max_wait_time=1) as receiver:
                    for message in receiver:
                        self._complete(receiver, "p", message)
            except ServiceBusError:
                time.sleep(0.05)

    def _complete(self, receiver: ServiceBusReceiver, queue: str, message: ServiceBusReceivedMessage) -> None:
        try:
            receiver.complete_message(message)
        except ServiceBusError:
            self.book.doubtful(queue, str(message))
        else:
            self.book.done(queue, str(message), message.sequence_number or 0)

    def work(self, name: str, client: ServiceBusClient) -> None:
        """Accept sessions, and complete what they have."""
        while not self.drain.is_set() or self.book.left("s"):
            session = ""
            try:
                with client.get_queue_receiver(
                    "s", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1
                ) as receiver:
                    session = receiver.session.session_id
                    until = receiver.session.locked_until_utc
                    assert until is not None
                    self.book.holds(session, name, until)
                    try:
                        for _ in range(3):
                            for message in receiver.receive_messages(5, max_wait_time=0.5):
                                self.book.received[session].append(message.sequence_number or 0)
                                self._complete(receiver, "s", message)
                    finally:
                        self.book.leaves(session, name)  # before the link is closed
            except OperationTimeoutError:
                continue  # there is none now
            except ServiceBusError:
                time.sleep(0.05)


def claimed(operator: Operator, victim: str) -> bool:
    """Whether others than that broker have all stores, and serve them."""
    stores = operator.ask("GET", "stores")
    return all(store["state"] == "open" and store["broker"] != victim for store in stores)


@pytest.mark.timeout(300)
@pytest.mark.req("P2", "P4", "P14", "P18", "P19", "P25", "S8", "S15")
def test_a_broker_is_killed_and_the_others_claim_its_stores(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text(QUEUES), arguments=("--brokers", "4")).start()
    try:
        load = Load(server)
        operator = Operator(server)
        victim = operator.ask("GET", "fragments/p")[0]["broker"]
        theirs = {view["index"] for view in operator.ask("GET", "fragments/p") if view["broker"] == victim}
        for number in range(4):
            load.begin(load.send, f"sender-{number}")
            load.begin(load.work, f"worker-{number}")
        for number in range(2):
            load.begin(load.receive, f"receiver-{number}")
        eventually(lambda: all(load.book.at[key] for key in KEYS), seconds=60)
        before = brokers_of(server)
        killed = time.monotonic()
        os.kill(before[victim], signal.SIGKILL)
        eventually(lambda: claimed(operator, victim), seconds=60)
        opened = time.monotonic() - killed
        for key in KEYS:
            eventually(lambda key=key: load.book.at[key][-1] > killed, seconds=60)  # type: ignore[misc]
        pauses = [
            next(at for at in load.book.at[KEYS[index]] if at > killed) - killed for index in sorted(theirs)
        ]
        assert {name for name, process in brokers_of(server).items() if before.get(name) == process} == (
            {*before} - {victim}
        ), "no other broker ended"
        time.sleep(1)
        load.end()
        book = load.book
        print(
            f"all stores were open after {opened:.2f} s, keyed senders went on after {max(pauses):.2f} s; "
            f"{len(book.acknowledged['p'])} and {len(book.acknowledged['s'])} acknowledged"
        )
        require_kept("nothing is doubled or comes back", book.faults)
        for queue in QUEUES:
            require_kept(f"nothing acknowledged is lost in {queue}", book.left(queue))
            twice = [number for number, count in book.numbers[queue].items() if count > 1]
            require_kept(f"nothing is completed twice in {queue}", twice)
        for session, received in book.received.items():
            first = [*dict.fromkeys(received)]
            assert first == sorted(first), f"{session} is out of order"
        assert max(pauses) < LONGEST_PAUSE
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text
