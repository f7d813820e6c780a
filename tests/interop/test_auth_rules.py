"""Authorization rules and keys from the command line: in force at once, at all brokers, and after a restart."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Message

from busbar.cli.main import run
from harness.serving import Busbar
from tests.interop.plain_amqp import PlainAmqp

ROOT = "RootManageSharedAccessKey"
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.server({"q": {}}),
]
SERVERS = pytest.mark.parametrize("server", ["1", "2"], indirect=True)


def busbar(*arguments: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run([*arguments]) == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def asked(server: Busbar, *arguments: str) -> Any:
    return json.loads(busbar(*arguments, "-o", "json", "--data", str(server.data))[0])


def refused(server: Busbar, *arguments: str, code: int) -> str:
    return busbar(*arguments, "--data", str(server.data), code=code)[1]


def send(connection_string: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage("one"))


def post(connection_string: str, code: int = 0) -> str:
    """Send over HTTP, which takes the token with each request."""
    return busbar("send", "q", "one", "--connection-string", connection_string, code=code)[1]


@SERVERS
def test_a_rule_of_a_queue(server: Busbar) -> None:
    created = asked(server, "queue", "auth-rule", "create", "q", "sender", "--rights", "send")
    assert (created["name"], created["rights"]) == ("sender", ["Send"]) and "primaryKey" not in created
    keys = asked(server, "queue", "authorization-rule", "keys", "q", "sender")
    assert keys["primaryConnectionString"].endswith("EntityPath=q;UseDevelopmentEmulator=true")
    secret = keys["primaryConnectionString"]
    send(secret)
    assert keys["primaryKey"] not in busbar("queue", "auth-rule", "list", "q", "--data", str(server.data))[0]

    renewed = asked(server, "queue", "auth-rule", "renew", "q", "sender", "--key", "PrimaryKey")
    assert renewed["primaryKey"] != keys["primaryKey"] and renewed["secondaryKey"] == keys["secondaryKey"]
    assert "was refused" in post(secret, code=4)
    post(keys["secondaryConnectionString"])

    assert asked(server, "queue", "auth-rule", "update", "q", "sender", "--rights", "Listen")["rights"] == [
        "Listen"
    ]
    assert "needs the right Send" in post(keys["secondaryConnectionString"], code=4)
    assert "Nobody can answer" in refused(server, "queue", "auth-rule", "delete", "q", "sender", code=2)
    busbar("queue", "auth-rule", "delete", "q", "sender", "--yes", "--data", str(server.data))
    assert asked(server, "queue", "auth-rule", "list", "q") == []


def test_wrong_rules_are_refused(server: Busbar) -> None:
    assert "has no authorization rule 'x'" in refused(server, "queue", "auth-rule", "show", "q", "x", code=3)
    assert "could not be found" in refused(server, "queue", "auth-rule", "list", "nothing", code=3)
    rule = "namespace", "auth-rule"
    assert "'Write' is none of" in refused(server, *rule, "create", "x", "--rights", "Write", code=2)
    assert "which rights?" in refused(server, *rule, "create", "x", code=2)
    assert "no authorization rule with Manage" in refused(server, *rule, "delete", ROOT, "--yes", code=4)
    assert "exists already" not in refused(server, *rule, "create", "a b", "--rights", "Send", code=4)
    assert "already" in refused(server, *rule, "create", ROOT, "--rights", "Send", code=4)


@SERVERS
def test_the_root_key_is_renewed_without_a_restart(server: Busbar) -> None:
    before = asked(server, "namespace", "auth-rule", "keys", ROOT)
    assert before["primaryKey"] == server.key
    plain = PlainAmqp(server.port, server.key)
    sender = plain.connection.create_sender("q")
    sender.send(Message(body=b"1", inferred=True))
    second = PlainAmqp(server.port, before["secondaryKey"])

    after = asked(server, "namespace", "auth-rule", "renew", ROOT, "--key", "primary")
    with pytest.raises(Exception, match="rule that has been changed"):
        sender.send(Message(body=b"2", inferred=True))
    assert second.send("q", Message(body=b"3", inferred=True)) is not None
    for _ in range(4):  # any broker may answer
        assert (
            "refused the key"
            in busbar("queue", "list", "--connection-string", server.connection_string, code=4)[1]
        )
        assert asked(server, "namespace", "keys")["primaryKey"] == after["primaryKey"]
        asked(server, "queue", "list")
    post(after["primaryConnectionString"])
    second.close()

    # Back to the key that other tests of this server have.
    value = ("--key-value", server.key)
    assert asked(server, "namespace", "auth-rule", "renew", ROOT, "--key", "primary", *value)
    post(server.connection_string)


def test_a_rule_of_the_namespace(server: Busbar) -> None:
    asked(server, "namespace", "auth-rule", "create", "all", "--rights", "Manage")
    names = [rule["name"] for rule in asked(server, "namespace", "auth-rule", "list")]
    assert names == [ROOT, "all"]
    secret = asked(server, "namespace", "auth-rule", "keys", "all")["secondaryConnectionString"]
    post(secret)
    busbar("namespace", "auth-rule", "delete", "all", "--yes", "--data", str(server.data))
    assert "was refused" in post(secret, code=4)


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_renewed_keys_are_kept_over_a_restart(own_server: Busbar, way: str) -> None:
    server = own_server
    after = asked(server, "namespace", "auth-rule", "renew", ROOT, "--key", "primary")
    asked(server, "namespace", "auth-rule", "create", "kept", "--rights", "Send")
    kept = asked(server, "namespace", "auth-rule", "keys", "kept")["primaryKey"]
    getattr(server, way)()
    server.start()
    assert after["primaryKey"] in server.connection_string
    post(server.connection_string)
    assert asked(server, "namespace", "auth-rule", "keys", "kept")["primaryKey"] == kept
    assert "was refused" in post(server.connection_string.replace(after["primaryKey"], server.key), code=4)
