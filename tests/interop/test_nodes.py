"""What operators see of the processes of a namespace and of the work of its stores."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from busbar import __version__
from busbar.cli.main import run
from harness.processes import brokers_of
from harness.serving import Busbar
from harness.waiting import eventually
from tests.interop.metrics import scrape

LISTENER = {"Name": "Listen", "Rights": ["Listen"], "PrimaryKey": "to Listen"}
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.server({"p": {"EnablePartitioning": True}}, rules=[LISTENER]),
]
STORES = [f"store-{number}" for number in range(4)]


def busbar(server: Busbar, *arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run([*arguments, "--data", str(server.data)]) == 0
    return out.getvalue()


def shown(server: Busbar, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(busbar(server, what, "-o", "json"))
    return found


def send(server: Busbar, count: int = 32) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("p") as sender,
    ):
        sender.send_messages([ServiceBusMessage(f"{number}") for number in range(count)])
        for number in range(count):
            sender.send_messages(ServiceBusMessage("one", partition_key=f"{number}"))


@pytest.mark.parametrize("server", ["1"], indirect=True)
def test_one_process_is_one_node(server: Busbar) -> None:
    send(server)
    (node,) = shown(server, "nodes")
    assert (node["name"], node["state"], node["process"]) == ("busbar", "up", server.pid)
    assert (node["machine"], node["version"]) == (socket.gethostname(), __version__)
    assert node["stores"] == STORES and node["channels"] == []
    assert node["catalogueVersion"] >= 1 and node["connections"] >= 1, "that of this request"
    for store in shown(server, "stores"):
        assert store["epoch"] >= 1 and store["group"] >= 1
        assert 0 < store["commitP50"] <= store["commitP99"]
    lines = busbar(server, "nodes").splitlines()
    assert len(lines) == 3 and lines[2].split()[:2] == ["busbar", "up"]
    assert "Epoch" in busbar(server, "stores").splitlines()[0]
    samples = scrape(server)
    assert samples['busbar_connections{broker="busbar"}'] >= 1
    assert samples['busbar_catalogue_lag_changes{broker="busbar"}'] == 0
    assert samples['busbar_takeovers_total{store="store-0"}'] == 0


@pytest.mark.parametrize("server", ["2"], indirect=True)
def test_brokers_are_nodes_and_takeovers_are_counted(server: Busbar) -> None:
    send(server)
    controller, *brokers = shown(server, "nodes")
    assert (controller["name"], controller["process"]) == ("controller", server.pid)
    assert {node["name"]: node["process"] for node in brokers} == brokers_of(server)
    for node, other in (brokers, brokers[::-1]):
        assert (node["state"], node["channels"]) == ("up", [other["name"]])
        assert node["catalogueVersion"] == controller["catalogueVersion"]
        assert {figures["store"] for figures in node["figures"]} == {*node["stores"]}
    assert sorted([*brokers[0]["stores"], *brokers[1]["stores"]]) == STORES
    epochs = {store["name"]: store["epoch"] for store in shown(server, "stores")}
    assert all(store["commitP50"] > 0 for store in shown(server, "stores"))

    os.kill(brokers[0]["process"], signal.SIGKILL)
    taken = brokers[0]["stores"]
    eventually(lambda: all(store["state"] == "open" for store in shown(server, "stores")) or None)
    for store in shown(server, "stores"):
        assert store["epoch"] == epochs[store["name"]] + (store["name"] in taken)
    samples = scrape(server)
    for name in STORES:
        assert samples[f'busbar_takeovers_total{{store="{name}"}}'] == (name in taken)
        assert samples[f'busbar_fenced_total{{store="{name}"}}'] == 0
    eventually(lambda: [node["state"] for node in shown(server, "nodes")] == ["up"] * 3 or None)
