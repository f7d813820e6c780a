"""`busbar` as people and scripts use it, against a running Busbar.

Every command runs as a process of its own the first time; what is asked of it after that is about the broker's answers,
and runs in this process, which is ten times as fast.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.main import run
from busbar.cli.management_client import ManagementClient
from busbar.client.administration_xml import TYPE, add, new_description
from busbar.gateway.authority import Authority
from busbar.model.sas import SasRule
from harness.serving import Busbar

KEY = "a+secret/that-is=never-printed"
OTHER_KEY = base64.b64encode(bytes(range(32))).decode()
MANY: dict[str, dict[str, object]] = {f"many-{number:03}": {} for number in range(105)}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Cli:
    """The command, on a data directory or with a connection string."""

    _started: ClassVar[set[tuple[str, ...]]] = set()

    def __init__(self, *where: str, environment: dict[str, str] | None = None) -> None:
        self._where = where
        self._environment = {"COLUMNS": "80", **(environment or {})}

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BUSBAR_CONN")}
        command = [sys.executable, "-m", "busbar", *arguments, *self._where]
        return command, inherited | self._environment

    def __call__(self, *arguments: str, secret: bool = False) -> Result:
        if arguments[1:2] == ("delete",):
            arguments = (*arguments, "--yes")
        if arguments[:2] in self._started:
            result = self._inside(*arguments)
        else:
            result = self.process(*arguments)
            self._started.add(arguments[:2])
        assert "Traceback" not in result.err
        assert secret or KEY not in result.out + result.err
        lines = result.err.splitlines(keepends=True)  # before a change: where
        return replace(result, err="".join(line for line in lines if not line.startswith("namespace: sb://")))

    def process(self, *arguments: str) -> Result:
        command, environment = self.command(*arguments)
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
        return Result(ended.returncode, ended.stdout, ended.stderr)

    def _inside(self, *arguments: str) -> Result:
        command, environment = self.command(*arguments)
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run(command[3:])
        return Result(code, out.getvalue(), err.getvalue())

    def json(self, *arguments: str) -> Any:
        return self(*arguments, "-o", "json").json

    def fails(self, code: int, *arguments: str) -> str:
        """One line that says what to do, and this exit code."""
        result = self(*arguments)
        assert result.code == code, (result.code, result.err)
        assert result.out == ""
        assert result.err.startswith("busbar: ")
        assert result.err.count("\n") == 1
        return result.err


class QuickCli(Cli):
    """For what is about the broker alone: never a process of its own."""

    _started: ClassVar[set[tuple[str, ...]]] = set()
    process = Cli._inside


pytestmark = pytest.mark.server({"target": {}, **MANY}, key=KEY)


@pytest.fixture(scope="module")
def cli(server: Busbar) -> Cli:
    return Cli("--data", str(server.data))


@pytest.mark.req("U24")
def test_a_queue_with_every_property(cli: Cli) -> None:
    created = cli.json(
        *("queue", "create", "every/property"),
        *("--max-size", "2048", "--lock-duration", "30s", "--max-delivery-count", "5"),
        *("--default-message-time-to-live", "P14D", "--enable-session", "false"),
        *("--enable-duplicate-detection", "true", "--duplicate-detection-history-time-window", "PT20M"),
        *("--enable-dead-lettering-on-message-expiration", "true", "--forward-to", "target"),
        *("--auto-delete-on-idle", "unlimited", "--status", "Active", "--enable-batched-operations", "false"),
        *("--enable-express", "false", "--user-metadata", "<mine> & yours"),
    )
    expected = {
        "name": "every/property",
        "maxSizeInMegabytes": 2048,
        "lockDuration": "PT30S",
        "maxDeliveryCount": 5,
        "defaultMessageTimeToLive": "P14D",
        "requiresSession": False,
        "requiresDuplicateDetection": True,
        "duplicateDetectionHistoryTimeWindow": "PT20M",
        "deadLetteringOnMessageExpiration": True,
        "status": "Active",
        "enableBatchedOperations": False,
        "enableExpress": False,
        "userMetadata": "<mine> & yours",
        "enablePartitioning": False,
        "messageCount": 0,
    }
    assert {key: created[key] for key in expected} == expected
    assert created["forwardTo"].endswith("target")

    updated = cli.json(
        "queue", "update", "every/property", "--max-delivery-count", "7", "--status", "disabled"
    )
    changed = {key for key in created if created[key] != updated[key]} - {"updatedAt", "accessedAt"}
    assert changed == {"maxDeliveryCount", "status"}, "what is not named stays"
    assert (updated["maxDeliveryCount"], updated["status"]) == (7, "Disabled")
    without = cli.json("queue", "update", "every/property", "--forward-to", "", "--auto-delete-on-idle", "1h")
    assert (without["forwardTo"], without["autoDeleteOnIdle"]) == (None, "PT1H")

    shown = cli("queue", "show", "--name", "every/property")
    assert shown.code == 0
    assert "Max delivery count                       7\n" in shown.out
    assert "User metadata                            <mine> & yours\n" in shown.out
    assert "Dead letter message count                0\n" in shown.out

    deleted = cli("queue", "delete", "every/property")
    assert (deleted.code, deleted.out, deleted.err) == (0, "", "queue 'every/property' deleted\n")
    assert "queue 'every/property' does not exist" in cli.fails(3, "queue", "show", "every/property")
    cli.fails(3, "queue", "delete", "every/property")
    cli.fails(3, "queue", "update", "every/property", "--status", "Active")


@pytest.mark.req("P12")
@pytest.mark.parametrize("noun", ["queue", "topic"])
def test_partitioning_is_chosen_at_creation_and_stays(cli: Cli, noun: str) -> None:
    name = f"spread-{noun}"
    created = cli.json(noun, "create", name, "--enable-partitioning", "true", "--max-size", "1024")
    assert created["enablePartitioning"] is True
    refusal = cli.fails(4, noun, "update", name, "--enable-partitioning", "false")
    assert "partitioning" in refusal.lower()
    updated = cli.json(noun, "update", name, "--user-metadata", "still partitioned")
    assert updated["enablePartitioning"] is True
    assert updated["maxSizeInMegabytes"] == created["maxSizeInMegabytes"]
    assert cli.json(noun, "show", name)["enablePartitioning"] is True
    assert cli(noun, "delete", name, "--yes").code == 0


@pytest.mark.req("U24")
def test_topics_subscriptions_and_rules(cli: Cli) -> None:
    assert cli.json("topic", "create", "news", "--default-message-time-to-live", "1h")["name"] == "news"
    assert (
        cli.json("topic", "update", "news", "--status", "Active", "--max-size", "2048")["maxSizeInMegabytes"]
        == 2048
    )
    created = cli.json("subscription", "create", "--topic", "news", "eu", "--max-delivery-count", "3")
    assert (created["name"], created["topic"], created["maxDeliveryCount"]) == ("eu", "news", 3)
    at = ("--topic", "news", "--subscription", "eu")

    (default,) = cli.json("rule", "list", *at)
    assert (default["name"], default["filterType"]) == ("$Default", "TrueFilter")
    sql = (
        "--filter-sql-expression",
        "amount > 100 AND region = 'eu'",
        "--action-sql-expression",
        "SET seen = 1",
    )
    created = cli.json("rule", "create", *at, "large", *sql)
    assert created["sqlFilter"] == {"sqlExpression": "amount > 100 AND region = 'eu'"}
    assert created["action"] == {"sqlExpression": "SET seen = 1"}
    equal = ("--correlation-filter", "region=eu", "--correlation-filter", "count:int=5", "--label", "order")
    assert cli("rule", "create", *at, "equal", *equal).code == 0
    shown = cli.json("rule", "show", *at, "equal")
    assert shown["filterType"] == "CorrelationFilter"
    assert shown["correlationFilter"]["label"] == "order"
    assert shown["correlationFilter"]["properties"] == {
        "region": {"type": "string", "value": "eu"},
        "count": {"type": "int", "value": "5"},
    }
    updated = cli.json("rule", "update", *at, "equal", "--action-sql-expression", "SET seen = 2")
    assert updated["correlationFilter"] == shown["correlationFilter"], "what is not named stays"
    assert updated["action"] == {"sqlExpression": "SET seen = 2"}
    updated = cli.json("rule", "update", *at, "large", "--filter-sql-expression", "amount > 5")
    assert updated["sqlFilter"] == {"sqlExpression": "amount > 5"}
    assert updated["action"] == {"sqlExpression": "SET seen = 1"}
    table = cli("rule", "list", *at).out
    assert "every message" in table
    assert "label=order, region=eu, count=5" in " ".join(table.split())
    assert cli("rule", "create", *at, "bare", "--label", "", "--correlation-filter", "n:long=5").code == 0
    bare = cli.json("rule", "update", *at, "bare", "--action-sql-expression", "SET seen = 3")
    assert bare["correlationFilter"]["label"] == "", "an empty property is a condition too"
    assert bare["correlationFilter"]["properties"] == {"n": {"type": "int", "value": "5"}}
    assert cli("rule", "delete", *at, "bare", "--yes").code == 0
    assert cli("rule", "delete", *at, "$Default").code == 0
    assert {rule["name"] for rule in cli.json("rule", "list", *at)} == {"large", "equal"}
    cli.fails(3, "rule", "show", *at, "$Default")

    assert [item["name"] for item in cli.json("subscription", "list", "--topic", "news")] == ["eu"]
    assert (
        cli.json("subscription", "update", "--topic", "news", "eu", "--lock-duration", "2m")["lockDuration"]
        == "PT2M"
    )
    assert cli.json("topic", "show", "news")["subscriptionCount"] == 1
    assert "Dead letter message count" in cli("subscription", "show", "--topic", "news", "eu").out
    row = cli("topic", "list").out.splitlines()[2].split()
    assert row[:3] == ["news", "Active", "1"]
    assert cli("subscription", "delete", "--topic", "news", "eu").code == 0
    assert cli("subscription", "list", "--topic", "news").err == "There are no subscriptions.\n"
    cli.fails(3, "subscription", "list", "--topic", "nowhere")
    # A queue and a topic share one space of names.
    assert "it is a topic: `busbar topic show news`" in cli.fails(3, "queue", "delete", "news")
    assert cli("topic", "delete", "news", "-o", "json") == Result(0, "", "")
    assert cli.json("topic", "list") == []


def test_messages_through_a_topic(server: Busbar) -> None:
    cli = QuickCli("--data", str(server.data))
    topic = "parcels"
    assert cli("topic", "create", topic, "--enable-partitioning", "true").code == 0
    for name in ("all", "heavy"):
        assert cli("subscription", "create", "--topic", topic, name).code == 0
    at = ("--topic", topic, "--subscription", "heavy")
    assert cli("rule", "create", *at, "big", "--filter-sql-expression", "kg > 5").code == 0
    assert cli("rule", "delete", *at, "$Default").code == 0
    for text, weight in (("letter", "1"), ("piano", "300")):
        assert cli("send", topic, text, "--property", f"kg={weight}").code == 0

    def counts(name: str) -> dict[str, int]:
        found: dict[str, int] = cli.json("subscription", "show", "--topic", topic, name)["countDetails"]
        return found

    assert (counts("all")["activeMessageCount"], counts("heavy")["activeMessageCount"]) == (2, 1)
    listed = cli.json("subscription", "list", "--topic", topic)
    assert {one["name"]: one["messageCount"] for one in listed} == {"all": 2, "heavy": 1}
    assert cli.json("topic", "show", topic)["sizeInBytes"] > 0
    (kept,) = cli.json("receive", f"{topic}/subscriptions/heavy", "--keep")
    assert (kept["body"], kept["properties"]) == ("piano", {"kg": 300})
    assert cli("receive", f"{topic}/subscriptions/heavy").out == "piano"
    all_of_it = cli("receive", f"{topic}/subscriptions/all", "--max", "5").out
    assert sorted(all_of_it.split()) == ["letter", "piano"]
    assert cli("receive", f"{topic}/subscriptions/all/$DeadLetterQueue").out == ""
    assert counts("all")["activeMessageCount"] == 0
    assert "but from its subscriptions" in cli.fails(4, "receive", topic)
    assert "but to its topic" in cli.fails(4, "send", f"{topic}/subscriptions/all", "x")
    assert cli("topic", "delete", topic).code == 0


def test_lists_are_asked_for_page_by_page(cli: Cli) -> None:
    names = [queue["name"] for queue in cli.json("queue", "list")]
    assert [name for name in names if name.startswith("many-")] == list(MANY)
    assert [queue["name"] for queue in cli.json("queue", "list", "--skip", "99", "--top", "3")] == names[
        99:102
    ]
    assert len(cli.json("queue", "list", "--top", "101")) == 101


def test_messages_are_counted_and_tables_fit(cli: Cli) -> None:
    long = "long-" + "x" * 100
    assert cli("queue", "create", long).code == 0
    assert cli("send", long, "hello wörld", "--message-id", "m1", "--property", "n=5").code == 0
    assert cli("send", long, "two").code == 0
    assert cli.json("queue", "show", long)["countDetails"]["activeMessageCount"] == 2
    table = cli("queue", "list").out
    assert sum(long in line for line in table.splitlines()) == 1, "a row is a line"
    assert table.splitlines()[0].split() == ["Name", "Status", "Messages", "Dead", "letters", "Size"]
    start = table[table.index("long-") :].splitlines()[0].split()
    assert start[1:4] == ["Active", "2", "0"]

    (kept,) = cli.json("receive", long, "--keep")
    assert kept["body"] == "hello wörld"
    assert kept["properties"] == {"n": 5}
    assert kept["brokerProperties"]["MessageId"] == "m1"
    assert cli("receive", long, "--max", "5").out == "hello wörld\ntwo\n"
    nothing = cli("receive", long)
    assert (nothing.code, nothing.out) == (0, "")
    assert cli("queue", "delete", long).code == 0
    cli.fails(3, "receive", long)


def test_the_namespace_and_its_keys(cli: Cli, server: Busbar) -> None:
    shown = cli.json("namespace", "show")
    assert shown["namespaceType"] == "Messaging"
    assert shown["messagingSku"] in ("Basic", "Standard", "Premium")
    assert shown["endpoint"] == f"sb://127.0.0.1:{server.port}/"
    assert shown["queueCount"] >= len(MANY)
    assert "Messaging sku" in cli("namespace", "show").out
    keys = cli("namespace", "keys", "-o", "json", secret=True).json
    assert keys["primaryKey"] == KEY
    elsewhere = Cli(environment={"BUSBAR_CONNECTION_STRING": keys["primaryConnectionString"]})
    assert elsewhere.json("queue", "show", "target")["name"] == "target"


@pytest.mark.req("U24")
def test_tokens_for_other_tools(cli: Cli, server: Busbar) -> None:
    def send(token: str, queue: str) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/{queue}/messages", b"x", {"Authorization": token}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code

    token = cli("sas", "create-token", "--resource", "many-000", "--expiry", "5m").out.strip()
    assert send(token, "many-000") == 201
    assert send(token, "many-001") == 401
    assert send(cli("sas", "create-token").out.strip(), "many-001") == 201
    assert "the key of the rule 'nobody' is not known" in cli.fails(
        3, "sas", "create-token", "--resource", "target", "--rule", "nobody"
    )


def test_what_has_no_effect_is_said_to_have_none(cli: Cli) -> None:
    ordered = cli("topic", "create", "ordered", "--enable-ordering", "false", "-o", "json")
    assert ordered.json["supportOrdering"] is False
    assert ordered.err == (
        "warning: SupportOrdering false has no effect: a topic that is not partitioned keeps the order of messages in any "
        "case.\n"
    )
    assert cli("topic", "update", "ordered", "--enable-ordering", "true").err == ""
    made = cli("queue", "create", "express", "--enable-express", "true", "-o", "json")
    assert made.json["enableExpress"] is True and made.err == ""
    changed = cli("queue", "update", "express", "--enable-batched-operations", "false", "-o", "json")
    assert changed.json["enableBatchedOperations"] is False and changed.err == ""
    assert cli("queue", "update", "express", "--enable-express", "false").err == ""
    letters = cli("queue", "update", "express", "--forward-dead-lettered-messages-to", "target", "-o", "json")
    assert letters.json["forwardDeadLetteredMessagesTo"].endswith("target") and letters.err == ""


def test_access_rules_of_an_entity_survive_an_update_and_sign_tokens(cli: Cli, server: Busbar) -> None:
    description = new_description("QueueDescription")
    rule = add(add(description, "AuthorizationRules"), "AuthorizationRule")
    rule.set(TYPE, "SharedAccessAuthorizationRule")
    add(rule, "ClaimType", "SharedAccessKey")
    add(rule, "ClaimValue", "None")
    add(add(rule, "Rights"), "AccessRights", "Send")
    add(rule, "KeyName", "sender")
    add(rule, "PrimaryKey", OTHER_KEY)
    add(rule, "SecondaryKey", OTHER_KEY[::-1])
    with ManagementClient(
        find_target(ConnectionOptions(server.connection_string, server.data, None))
    ) as client:
        client.create("guarded", description, "queue 'guarded'")
    # Forwarding is answered as an address and has to be taken back as one.
    forwarding = ("--forward-to", "target")
    shown = cli.json("queue", "update", "guarded", "--user-metadata", "x", *forwarding)
    shown = cli.json("queue", "update", "guarded", "--user-metadata", "y")
    assert shown["forwardTo"].endswith("target")
    assert shown["authorizationRules"] == [{"keyName": "sender", "rights": ["Send"]}]
    assert OTHER_KEY not in str(shown)
    token = cli("sas", "create-token", "--resource", "guarded", "--rule", "sender").out.strip()
    sender = SasRule("sender", (OTHER_KEY,), frozenset(("Send",)))
    assert Authority([sender]).verify_token(token, "", 0).path == "guarded"


@pytest.mark.req("U24")
def test_what_the_broker_refuses(cli: Cli, server: Busbar) -> None:
    assert "target" in cli.fails(4, "queue", "create", "target")
    assert "target" in cli.fails(4, "topic", "create", "target")
    assert cli.fails(4, "queue", "create", "q", "--lock-duration", "1h")
    assert "what is 'it'" in cli.fails(4, "queue", "create", "what is 'it'")
    assert cli.fails(2, "queue", "create", "q", "--lock-duration", "often")

    wrong = server.connection_string.replace(KEY, "another")
    refusal = Cli("--connection-string", wrong).fails(4, "queue", "list")
    assert "refused the key 'RootManageSharedAccessKey'" in refusal
    assert "another" not in refusal


def test_tls_with_the_authority_of_the_instance(server: Busbar) -> None:
    secure = server.connection_string.replace("UseDevelopmentEmulator=true;", "")
    ca = server.data / "tls" / "ca.pem"
    # No data directory here, so nothing says whom to trust.
    stranger = Cli("--connection-string", secure, "--data", str(server.data / "none"))
    assert "is not trusted" in stranger.fails(1, "queue", "show", "target")
    for trusting in (
        Cli("--connection-string", secure, "--data", str(server.data)),
        Cli("--connection-string", secure, "--ca", str(ca)),
        Cli("--connection-string", secure, environment={"SSL_CERT_FILE": str(ca)}),
    ):
        assert trusting.json("queue", "show", "target")["name"] == "target"


def test_deleting_asks_on_a_terminal(cli: Cli) -> None:
    assert cli("queue", "create", "precious").code == 0
    for answer, code, question in (("n\n", 1, True), ("y\n", 0, True)):
        command, environment = cli.command("queue", "delete", "precious")
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            command, env=environment, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        os.close(theirs)
        os.write(ours, answer.encode())
        _, err = process.communicate(timeout=30)
        os.close(ours)
        assert process.returncode == code, err
        assert ("Delete queue 'precious' with 0 messages? [y/N]" in err) is question
        assert ("nothing was deleted" in err) is (code == 1)
    cli.fails(3, "queue", "show", "precious")


def test_the_endpoint_file_comes_and_goes_with_the_instance(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", key=KEY).start()
    cli = Cli("--data", str(server.data))
    file = server.data / "endpoint.json"
    try:
        assert file.stat().st_mode & 0o777 == 0o600
        assert json.loads(file.read_text())["pid"] == server.pid
        assert cli.json("queue", "show", "orders")["name"] == "orders"
        pid = server.pid
        server.kill()
        gone = cli.fails(1, "queue", "list")
        assert f"no Busbar is serving the data directory {server.data}" in gone
        assert f"process {pid} has ended without a clean stop" in gone
        server.start()
        assert cli.json("queue", "show", "orders")["name"] == "orders"
        assert server.stop() == 0
        assert not file.exists()
        assert f"start one with `busbar serve --data {server.data}`" in cli.fails(1, "queue", "list")
    finally:
        server.stop()
