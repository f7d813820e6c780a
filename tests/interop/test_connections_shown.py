"""What operators see of the connections of clients, and how they close one."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from proton import Message

from busbar.cli.main import run
from harness.serving import Busbar
from harness.waiting import eventually
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.test_tls import client_options, cloud_string

LISTENER = {"Name": "Listen", "Rights": ["Listen"], "PrimaryKey": "to Listen"}
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    pytest.mark.server({"busy": {}, "quiet": {}}, rules=[LISTENER]),
]


def busbar(server: Busbar, *arguments: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run([*arguments, "--data", str(server.data)]) == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def shown(server: Busbar, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(busbar(server, "connections", "-o", "json", *options)[0])
    return found


@pytest.fixture
def hog(server: Busbar) -> Iterator[PlainAmqp]:
    """A client that has received five messages of the queue "busy", and settles none of them."""
    client = PlainAmqp(server.port, server.key)
    client.send("busy", *[Message(body=f"{number}".encode(), inferred=True) for number in range(5)])
    receiver = client.receiver("busy", 7)
    for _ in range(5):
        client.take(receiver)
    yield client
    client.close()


def test_who_holds_messages_is_shown(server: Busbar, hog: PlainAmqp) -> None:
    options = client_options(server, transport_type=TransportType.AmqpOverWebsocket)
    with (
        ServiceBusClient.from_connection_string(cloud_string(server), **options) as other,
        other.get_queue_sender("quiet") as sender,
    ):
        sender.send_messages(ServiceBusMessage("one"))
        first, second = shown(server, "--sort", "unsettled")

        assert (first["unsettled"], first["credit"], first["linkCount"]) == (5, 2, 1)
        (link,) = first["links"]
        assert (link["role"], link["entity"], link["unsettled"], link["messages"]) == (
            "receiver",
            "busy",
            5,
            5,
        )
        assert first["address"].startswith("127.0.0.1:") and first["container"]
        assert first["keyNames"] == second["keyNames"] == ["RootManageSharedAccessKey"]
        assert (first["tls"], first["websocket"], first["slow"]) == (False, False, False)
        assert (second["tls"], second["websocket"], second["messages"]) == (True, True, 1)
        assert "azsdk-python-servicebus" in second["product"]
        assert {link["entity"] for link in second["links"]} == {"quiet", "$cbs"}

        assert [view["id"] for view in shown(server, "--entity", "QUIET")] == [second["id"]]
        assert [view["id"] for view in shown(server, "--sort", "since", "--top", "1")] == [first["id"]]
        assert [view["id"] for view in shown(server, "--sort", "since", "--skip", "1")] == [second["id"]]
        assert shown(server, "--entity", "nothing") == []
        assert "1 of 2 connections" in busbar(server, "connections", "--top", "1")[1]

    out, _ = busbar(server, "connections", "--entity", "busy")
    head, _, row = out.splitlines()
    assert head.split() == [
        "Id",
        "Address",
        "Rate",
        "Unsettled",
        "Credit",
        "Links",
        "Entity",
        "Client",
        "Key",
        "Since",
    ]
    assert row.split()[:2] == [first["id"], first["address"]] and " busy " in row
    out, _ = busbar(server, "connections", "list", "--links")
    assert any(line.split()[:3] == [first["id"], "receiver", "busy"] for line in out.splitlines())


def test_a_closed_connection_gets_the_reason(server: Busbar, hog: PlainAmqp) -> None:
    plain = PlainAmqp(server.port, server.key)
    connection = plain.connection.conn
    assert connection is not None
    plain.receiver("quiet", 1)
    (closing,) = shown(server, "--entity", "quiet")
    _, err = busbar(server, "connections", "close", closing["id"], "--yes")
    assert f"connection {closing['id']} closed" in err
    with pytest.raises(Exception, match="operator has closed"):  # Proton raises what the broker closed with
        plain.pump(lambda: False)
    condition = connection.remote_condition
    assert condition is not None and condition.name == "amqp:connection:forced"
    assert eventually(lambda: [view["links"][0]["entity"] for view in shown(server)] == ["busy"])


def test_wrong_questions_are_refused(server: Busbar) -> None:
    assert "sorted by 'size'" in busbar(server, "connections", "--sort", "size", code=4)[1]
    assert "1000 can be shown" in busbar(server, "connections", "--top", "1001", code=4)[1]
    assert "no connection 'x-1'" in busbar(server, "connections", "close", "x-1", "--yes", code=3)[1]
    assert "--yes" in busbar(server, "connections", "close", "x-1", code=2)[1]
    listener = server.connection_string.replace("RootManageSharedAccessKey", "Listen").replace(
        server.key, "to Listen"
    )
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert run(["connections", "--connection-string", listener]) == 4
    assert "lacks the claim 'Manage'" in err.getvalue()
