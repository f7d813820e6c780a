"""Stores of a cluster that an operator adds while it serves clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.waiting import eventually
from tests.durability.test_nodes import Cluster, cluster
from tests.durability.test_store_outage import Operator

__all__ = ["cluster"]

pytestmark = pytest.mark.timeout(120)


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "busbar", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)


def done(*arguments: str) -> str:
    finished = call(*arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def check_emptying(operator: Operator, client: ServiceBusClient, data: str) -> None:
    """Empty the store as docs/cluster-operations.md describes it, while clients send: nothing is lost, or comes twice."""
    waiting = subprocess.Popen(
        [sys.executable, "-m", "busbar", "stores", "drain", "store-3", "--wait", "--data", data],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    sent = ["wide"]
    with client.get_queue_sender("wide") as old, client.get_queue_receiver("wide-2") as receiver:
        done("queue", "update", "wide", "--forward-to", "wide-2", "--data", data)
        for number in range(64):
            old.send_messages(ServiceBusMessage(f"old {number}", partition_key=f"key-{number}"))
            sent.append(f"old {number}")
        with client.get_queue_sender("wide-2") as new:
            new.send_messages(ServiceBusMessage("new"))
            sent.append("new")
        received: list[str] = []
        while len(received) < len(sent):
            for message in receiver.receive_messages(50, max_wait_time=30):
                receiver.complete_message(message)
                received.append(str(message))
        assert sorted(received) == sorted(sent)
        assert receiver.receive_messages(1, max_wait_time=1) == []
    eventually(lambda: drain(data)["holds"][0]["messages"] == 0, "the movers have deleted what they moved")
    (held,) = drain(data)["holds"]
    assert (held["entity"], held["fragments"]) == ("wide", 4) and waiting.poll() is None
    operator.delete("wide")
    out, progress = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, progress
    assert "in 4 fragments of wide" in progress and "store-3 holds nothing" in out, (progress, out)


def drain(data: str) -> dict[str, Any]:
    (view,) = json.loads(done("stores", "drain", "store-3", "--data", data, "-o", "json"))
    return dict(view)


def check_removal(operator: Operator, client: ServiceBusClient, data: str) -> None:
    """Drain the store that was added, and remove it when nothing is there any more."""
    refused = call("stores", "remove", "store-3", "--data", data)
    assert refused.returncode != 0 and "Drain it first" in refused.stderr, refused.stderr
    drained = done("stores", "drain", "store-3", "--data", data)
    assert "store-3 is drained" in drained and "wide" in drained, drained
    operator.create("wide-2")
    places = {view["store"] for view in operator.ask("GET", "fragments/wide-2")}
    assert places == {f"store-{number}" for number in range(3)}
    refused = call("stores", "remove", "store-3", "--data", data)
    assert refused.returncode != 0 and "holds fragments of 'wide' (4)" in refused.stderr, refused.stderr
    check_emptying(operator, client, data)
    eventually(lambda: call("stores", "remove", "store-3", "--data", data).returncode == 0, "it is emptied")
    assert [store["name"] for store in operator.ask("GET", "stores")] == ["store-0", "store-1", "store-2"]


@pytest.mark.req("P2", "P3")
def test_a_store_is_added_while_clients_work(cluster: Cluster, tmp_path: Path) -> None:
    cluster.lease = 1.5
    new = cluster.urls.pop()
    cluster.start("a", "b")
    node, data = cluster.nodes["a"], str(cluster.nodes["a"].data)
    operator = Operator(cluster.nodes["b"])
    with (
        ServiceBusClient.from_connection_string(node.connection_string, retry_total=0) as client,
        client.get_queue_sender("p") as sender,
        client.get_queue_receiver("p") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        added = call("stores", "add", new, "--data", data, "-o", "json")
        assert added.returncode == 0, added.stderr
        (store,) = json.loads(added.stdout)
        assert (store["name"], store["state"]) == ("store-3", "open")
        sender.send_messages(ServiceBusMessage("after"))  # over the same connection
        found = [message for _ in range(2) for message in receiver.receive_messages(1, max_wait_time=20)]
        assert {str(message) for message in found} == {"before", "after"}
        operator.create("wide")
        places = {view["store"] for view in operator.ask("GET", "fragments/wide")}
        assert places == {f"store-{number}" for number in range(4)}
        with client.get_queue_sender("wide") as wide:
            wide.send_messages(ServiceBusMessage("wide"))
        check_removal(operator, client, data)
    for wrong, text in (
        ("3", "by its address"),
        ("postgresql://busbar@127.0.0.1:1/none", "cannot be reached"),
    ):
        refused = call("stores", "add", wrong, "--data", data)
        assert refused.returncode != 0 and text in refused.stderr, refused.stderr
    elsewhere = call("stores", "add", new, "--data", str(tmp_path))
    assert elsewhere.returncode != 0 and "not the data directory of a node" in elsewhere.stderr
    for name, one in cluster.nodes.items():
        assert "Traceback" not in one.error_text, (name, one.error_text)
