"""Sessions that clients of a node hold, when the node freezes, and when all its processes are killed at once."""

from __future__ import annotations

import signal
import time

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from harness.serving import Busbar
from harness.waiting import eventually
from tests.durability.test_nodes import SHORT, Cluster, all_open_without, cluster

__all__ = ["cluster"]

HELD = [f"held-{number}" for number in range(2)]

pytestmark = pytest.mark.timeout(120)


def client_of(node: Busbar) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(node.connection_string, retry_total=0)


def free_sessions(node: Busbar) -> list[str]:
    """The sessions that a client of this node gets."""
    found = []
    with client_of(node) as client:
        for session in HELD:
            try:
                with client.get_queue_receiver("s", session_id=session):
                    found.append(session)
            except ServiceBusError:
                continue
    return found


@pytest.mark.req("S8", "S15")
def test_sessions_of_a_killed_node_are_free_and_those_of_a_frozen_one_are_not(cluster: Cluster) -> None:
    """Their locks last for minutes. A frozen node may go on with its clients, and a killed one cannot."""
    cluster.queues = {name: {**SHORT[name], "LockDuration": "PT5M"} for name in SHORT}
    cluster.lease = 1.5
    cluster.start("a", "b")
    eventually(lambda: cluster.loads("a") == {"a.0": 2, "b.0": 2}, "balance")
    here, there = cluster.nodes["a"], cluster.nodes["b"]
    with client_of(there) as client:
        with client.get_queue_sender("s") as sender:
            sender.send_messages([ServiceBusMessage("m", session_id=session) for session in HELD[:1]])
        holders = [client.get_queue_receiver("s", session_id=session).__enter__() for session in HELD]
        assert len(holders) == len(HELD) and free_sessions(here) == []
        cluster.signal("b", signal.SIGSTOP)
        eventually(lambda: all_open_without(cluster, "a", "b"), "its stores are claimed", seconds=30)
        time.sleep(2 * cluster.lease)  # in which a killed node is found
        assert free_sessions(here) == [], "its clients hold them"
        cluster.kill("b")
        killed = time.monotonic()
        eventually(lambda: free_sessions(here) == HELD, "sessions of a killed node are free", seconds=30)
        print(f"sessions were free after {time.monotonic() - killed:.2f} s, with leases of {cluster.lease} s")
    assert "Traceback" not in here.error_text, here.error_text
