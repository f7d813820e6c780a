"""The vendor's SDK over stores in PostgreSQL that several brokers share, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.postgresql import own_database
from harness.serving import Busbar, config_text

QUEUES = {
    "p": {"EnablePartitioning": True},
    "sessions": {"RequiresSession": True, "EnablePartitioning": True},
}

pytestmark = pytest.mark.timeout(120)


def brokers_of(server: Busbar) -> list[int]:
    controller = server.processes()[0]
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(controller)], capture_output=True, text=True)
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.req("P3", "P14", "P25")
def test_the_stores_of_a_killed_broker_are_claimed_by_the_other(tmp_path: Path) -> None:
    with own_database() as first, own_database() as second:
        stores = ("--stores", "1", first.url(), second.url(), first.url("more"))
        server = Busbar(tmp_path / "data", config_text(QUEUES), arguments=("--brokers", "2", *stores)).start()
        try:
            with ServiceBusClient.from_connection_string(server.connection_string) as client:
                use(client, server)
        finally:
            assert server.stop() == 0


def use(client: ServiceBusClient, server: Busbar) -> None:
    sent = {f"m{n}" for n in range(48)}
    with client.get_queue_sender("p") as sender, client.get_queue_sender("sessions") as in_sessions:
        for body in sorted(sent):
            sender.send_messages(ServiceBusMessage(body, partition_key=f"key of {body}"))
        for n in range(6):
            in_sessions.send_messages([ServiceBusMessage(f"{n}-{k}", session_id=f"s{n}") for k in range(3)])
    os.kill(brokers_of(server)[1], signal.SIGKILL)
    received: list[str] = []
    with client.get_queue_receiver("p") as receiver:
        while len(received) < len(sent):
            messages = receiver.receive_messages(50, max_wait_time=20)
            assert messages, f"{len(received)} of {len(sent)} came"
            received += [str(message) for message in messages]
            for message in messages:
                receiver.complete_message(message)
        assert receiver.receive_messages(50, max_wait_time=1) == []
    assert sorted(received) == sorted(sent)
    for n in range(6):
        with client.get_queue_receiver("sessions", session_id=f"s{n}") as receiver:
            found: list[str] = []
            while len(found) < 3 and (messages := receiver.receive_messages(3, max_wait_time=20)):
                found += [str(message) for message in messages]
            assert found == [f"{n}-{k}" for k in range(3)]
    with client.get_queue_sender("p") as sender:
        for body in sorted(sent):
            sender.send_messages(ServiceBusMessage(body, partition_key=f"key of {body}"))
