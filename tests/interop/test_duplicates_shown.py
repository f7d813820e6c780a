"""What duplicate detection dropped can be looked at, on regular and on partitioned queues."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.serving import Busbar, serving


def show(server: Busbar, queue: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "busbar", "queue", "show", queue, "--duplicates", *arguments]
    return subprocess.run(
        [*command, "--data", str(server.data)], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("partitioned", [False, True])
def test_dropped_duplicates_are_counted_and_listed(partitioned: bool) -> None:
    properties = {"RequiresDuplicateDetection": True, "EnablePartitioning": partitioned}
    with serving({"once": properties, "plain": {}}) as server:
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            with client.get_queue_sender("once") as sender:
                for name in ("a", "b", "a", "c", "b", "a"):
                    sender.send_messages(ServiceBusMessage(name, message_id=name))
            with client.get_queue_receiver("once") as receiver:
                numbers = {str(each): each.sequence_number for each in receiver.peek_messages(10)}
                while len(numbers) < 3:
                    start = max(number for number in numbers.values() if number) + 1
                    numbers |= {
                        str(each): each.sequence_number
                        for each in receiver.peek_messages(10, sequence_number=start)
                    }
        found = json.loads(show(server, "once", "-o", "json").stdout)
        assert (found["dropped"], found["remembered"]) == (3, 3)
        drops = [(drop["messageId"], drop["original"]) for drop in found["latest"]]
        assert drops == [(name, numbers[name]) for name in ("a", "b", "a")]
        table = show(server, "once")
        assert "3 dropped; 3 ids are remembered." in table.stdout
        refused = show(server, "plain")
        assert refused.returncode == 4 and "does not detect duplicates" in refused.stderr
