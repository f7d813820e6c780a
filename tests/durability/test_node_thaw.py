"""A node that was frozen while its client listens: it thaws as the owner of messages that others have completed since."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from azure.servicebus import ServiceBusMessage

from harness.amqp_driver import ConnectionOver, connect
from harness.transaction_driver import WireReceiver, WireSession
from harness.waiting import eventually
from tests.durability.test_node_sessions import client_of
from tests.durability.test_nodes import Cluster, all_open_without, cluster
from tests.durability.test_takeover import KEYS

__all__ = ["cluster"]

pytestmark = pytest.mark.timeout(120)


@pytest.mark.req("P2", "P4", "P14", "P25")
def test_a_thawed_node_delivers_nothing_to_a_client_that_listens(cluster: Cluster) -> None:
    """A delivery needs no commit. What the client asks for is in the socket of the frozen node, and the messages are in its
    memory."""
    cluster.lease = 1.5
    cluster.start("a", "b")
    eventually(lambda: cluster.loads("a") == {"a.0": 2, "b.0": 2}, "balance")
    asyncio.run(_listen(cluster))
    for name, node in cluster.nodes.items():
        assert "Traceback" not in node.error_text, (name, node.error_text)


async def _listen(cluster: Cluster) -> None:
    here, there = cluster.nodes["a"], cluster.nodes["b"]
    listening = await connect(there.port, there.key)
    receiver = await WireSession(listening).receiver("p", credit=0)
    await asyncio.to_thread(_send, cluster)
    cluster.signal("b", signal.SIGSTOP)
    receiver.link.grant(len(KEYS))
    listening.flush()
    await asyncio.to_thread(
        eventually, lambda: all_open_without(cluster, "a", "b"), "its stores are claimed", seconds=60
    )
    assert await asyncio.to_thread(_complete_all, cluster) == sorted(KEYS)
    assert not receiver.deliveries
    thawed = time.monotonic()
    cluster.signal("b", signal.SIGCONT)
    with pytest.raises((ConnectionOver, asyncio.CancelledError)):
        await asyncio.wait_for(_all_deliveries(receiver), 60)
    print(f"the client was told after {time.monotonic() - thawed:.2f} s")
    assert not receiver.deliveries, "others have completed them"
    assert here.error_text.count("Traceback") == 0


async def _all_deliveries(receiver: WireReceiver) -> None:
    await receiver.until(lambda: False)


def _send(cluster: Cluster) -> None:
    with client_of(cluster.nodes["a"]) as client, client.get_queue_sender("p") as sender:
        for key in KEYS:
            sender.send_messages(ServiceBusMessage(key, partition_key=key))


def _complete_all(cluster: Cluster) -> list[str]:
    found: list[str] = []
    with client_of(cluster.nodes["a"]) as client, client.get_queue_receiver("p") as receiver:
        while len(found) < len(KEYS):
            for message in receiver.receive_messages(len(KEYS), max_wait_time=20):
                receiver.complete_message(message)
                found.append(str(message))
    return sorted(found)
