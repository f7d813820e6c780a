"""Stores of a cluster that an operator adds while it serves clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def check_removal(operator: Operator, data: str) -> None:
    """Drain the store that was added, and remove it when nothing is there any more."""
    refused = call("stores", "remove", "store-3", "--data", data)
    assert refused.returncode != 0 and "Drain it first" in refused.stderr, refused.stderr
    drained = call("stores", "drain", "store-3", "--data", data)
    assert drained.returncode == 0 and "store-3 is drained" in drained.stdout, drained
    operator.create("narrow")
    places = {view["store"] for view in operator.ask("GET", "fragments/narrow")}
    assert places == {f"store-{number}" for number in range(3)}
    refused = call("stores", "remove", "store-3", "--data", data)
    assert refused.returncode != 0 and "holds 4 fragments" in refused.stderr, refused.stderr
    operator.delete("wide")
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
        check_removal(operator, data)
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
