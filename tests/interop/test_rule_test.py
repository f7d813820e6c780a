"""`busbar rule test`: which subscriptions get a message, and why the others do not, against a running Busbar."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from busbar.cli.main import run
from harness.serving import Busbar

pytestmark = [pytest.mark.timeout(60), pytest.mark.server({})]


def rule_test(server: Busbar, *arguments: str, code: int = 0) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run(["rule", "test", *arguments, "--data", str(server.data)]) == code, err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()


def shown(server: Busbar, *arguments: str) -> list[Any]:
    found: list[Any] = json.loads(rule_test(server, *arguments, "-o", "json"))
    return found


def by_name(message: Any) -> dict[str, Any]:
    return {one["name"]: one for one in message["subscriptions"]}


@pytest.fixture(scope="module")
def client(server: Busbar) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        yield client


@pytest.fixture(scope="module")
def admin(server: Busbar) -> Iterator[ServiceBusAdministrationClient]:
    trust = str(server.data / "tls" / "ca.pem")
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=trust
    ) as client:
        yield client


def create(
    admin: ServiceBusAdministrationClient, topic: str, *, partitioned: bool = False, **subscriptions: Any
) -> None:
    admin.create_topic(topic, enable_partitioning=partitioned)
    for name, rules in subscriptions.items():
        admin.create_subscription(topic, name)
        for number, rule in enumerate(rules if isinstance(rules, list) else [rules]):
            selects, action = rule if isinstance(rule, tuple) else (rule, None)
            if selects is not None:
                admin.create_rule(topic, name, f"rule{number}", filter=selects, action=action)
                if number == 0:
                    admin.delete_rule(topic, name, "$Default")


def send(client: ServiceBusClient, topic: str, *messages: ServiceBusMessage) -> None:
    with client.get_topic_sender(topic) as sender:
        for message in messages:
            sender.send_messages(message)


def receive(server: Busbar, topic: str, subscription: str, count: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        entity = f"{topic}/subscriptions/{subscription}"
        assert run(["receive", entity, "--max", str(count), "--data", str(server.data)]) == 0
    assert out.getvalue().split() == ["x"] * count


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_message_that_only_some_subscriptions_got(
    server: Busbar, client: ServiceBusClient, admin: ServiceBusAdministrationClient, partitioned: bool
) -> None:
    topic = f"orders-{partitioned}"
    create(
        admin,
        topic,
        partitioned=partitioned,
        everything=None,
        large=SqlRuleFilter("amount > 100"),
        limited=SqlRuleFilter("amount > @limit", parameters={"limit": 10}),
        named=CorrelationRuleFilter(label="order", properties={"region": "us"}),
        sized=[SqlRuleFilter("weight > 1 AND amount > 1"), SqlRuleFilter("color = 'red'")],
    )
    message = ServiceBusMessage(
        b"x",
        message_id="m1",
        subject="order",
        application_properties={"amount": 50, "region": "eu", "color": "blue"},
    )
    send(client, topic, message)

    (found,) = shown(server, topic, "--message-id", "m1")
    assert (found["messageId"], found["foundIn"], found["changedBy"]) == ("m1", "everything", None)
    reports = by_name(found)
    got = {name for name, report in reports.items() if report["selected"]}
    counts = admin.list_subscriptions_runtime_properties(topic)
    assert got == {one.name for one in counts if one.active_message_count == 1}
    assert got == {"everything", "limited"}
    (rule,) = reports["large"]["rules"]
    assert (rule["verdict"], rule["reason"]) == (
        "false",
        "`amount > 100` is false, where property 'amount' is 50",
    )
    (rule,) = reports["named"]["rules"]
    assert rule["reason"] == "property 'region' is 'eu', not 'us'"
    assert [(rule["verdict"], rule["reason"]) for rule in reports["sized"]["rules"]] == [
        ("unknown", "`weight > 1` is UNKNOWN because property 'weight' is missing"),
        ("false", "`color = 'red'` is false, where property 'color' is 'blue'"),
    ]
    assert "parameter '@limit' is 10" in reports["limited"]["rules"][0]["reason"]

    for name in got:
        receive(server, topic, name, 1)
    said = rule_test(server, topic, "--message-id", "m1", code=3)
    assert "has the message 'm1' any more" in said and "--property" in said


def test_the_last_messages_of_a_tap(
    server: Busbar, client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    create(admin, "tapped", kept=None, even=SqlRuleFilter("number % 2 = 0"))
    assert run(["tap", "create", "tapped/Subscriptions/kept", "archive", "--data", str(server.data)]) == 0
    messages = [
        ServiceBusMessage(b"x", message_id=f"m{number}", application_properties={"number": number})
        for number in range(5)
    ]
    send(client, "tapped", *messages)
    receive(server, "tapped", "kept", 5)
    receive(server, "tapped", "even", 3)

    found = shown(server, "tapped", "--last", "3")
    assert [(message["messageId"], by_name(message)["even"]["selected"]) for message in found] == [
        ("m2", True),
        ("m3", False),
        ("m4", True),
    ]
    assert "`number % 2` is 1" in by_name(found[1])["even"]["rules"][0]["reason"]
    assert [message["messageId"] for message in shown(server, "tapped", "--last", "99")] == [
        f"m{number}" for number in range(5)
    ]


def test_a_message_that_was_there_before_the_tap(
    server: Busbar, client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    create(admin, "older", kept=None)
    send(client, "older", ServiceBusMessage("x", message_id="before"))
    assert run(["tap", "create", "older/Subscriptions/kept", "archive", "--data", str(server.data)]) == 0
    send(client, "older", ServiceBusMessage("x", message_id="behind"))
    for message_id in ("before", "behind"):
        (found,) = shown(server, "older", "--message-id", message_id)
        assert by_name(found)["kept"]["selected"]
    assert [one["messageId"] for one in shown(server, "older", "--last", "9")] == ["before", "behind"]


def test_copies_that_an_action_changed(
    server: Busbar, client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    create(
        admin,
        "changed",
        acting=[
            (SqlRuleFilter("a = 1"), SqlRuleAction("SET a = 2")),
            (SqlRuleFilter("a >= 1"), SqlRuleAction("SET b = 1")),
        ],
        other=SqlRuleFilter("a = 2"),
    )
    send(client, "changed", ServiceBusMessage(b"x", message_id="m", application_properties={"a": 1}))
    (found,) = shown(server, "changed", "--message-id", "m")
    assert found["changedBy"] in ("rule0", "rule1")
    assert "it is not quite what was sent" in rule_test(server, "changed", "--message-id", "m")
    reports = by_name(shown(server, "changed", "--property", "a:int=1")[0])
    assert (reports["acting"]["copies"], reports["other"]["selected"]) == (2, False)


def test_a_message_that_is_described(
    server: Busbar, client: ServiceBusClient, admin: ServiceBusAdministrationClient, tmp_path: Path
) -> None:
    create(
        admin,
        "described",
        late=SqlRuleFilter("at > '2026-01-01' AND sys.Label = 'x' AND wait > 'PT1M'"),
        yes=SqlRuleFilter("flag AND price = 1.5"),
        failing=SqlRuleFilter("price > 'much'"),
    )
    admin.create_subscription("described", "lenient", dead_lettering_on_filter_evaluation_exceptions=False)
    admin.create_rule("described", "lenient", "r", filter=SqlRuleFilter("price > 'much'"))
    admin.delete_rule("described", "lenient", "$Default")
    flags = ["--property", "at:dateTime=2026-06-01T00:00:00Z", "--property", "wait:duration=PT2M"]
    flags += ["--property", "flag:boolean=true", "--property", "price:double=1.5", "--label", "x"]
    reports = by_name(shown(server, "described", *flags)[0])
    assert {name: report["selected"] for name, report in reports.items()} == {
        "late": True,
        "yes": True,
        "failing": False,
        "lenient": False,
    }
    assert (reports["lenient"]["deadLetters"], reports["lenient"]["rules"][0]["verdict"]) == ([], "failed")
    assert reports["failing"]["deadLetters"] == ["Rule 'rule0': a number cannot be compared with a text"]
    table = rule_test(server, "described", *flags)
    assert "it gets a dead letter: Rule 'rule0'" in table
    assert "`price > 'much'` has no result: a number cannot be compared with a text" in table

    file = tmp_path / "messages.json"
    one: dict[str, Any] = {
        "messageId": "a",
        "subject": "x",
        "properties": {"flag": True, "price": 1.5},
        "body": "hello",
    }
    two = {"brokerProperties": {"MessageId": "b", "Label": "y"}, "properties": {"flag": False, "price": None}}
    file.write_text(json.dumps([one, two]))
    found = shown(server, "described", "--file", str(file))
    assert [(message["messageId"], by_name(message)["yes"]["selected"]) for message in found] == [
        ("a", True),
        ("b", False),
    ]
    with mock.patch("sys.stdin", io.StringIO(json.dumps(one))):
        assert by_name(shown(server, "described", "--file", "-")[0])["yes"]["selected"]


def test_what_peek_shows_can_be_tested(
    server: Busbar, client: ServiceBusClient, admin: ServiceBusAdministrationClient
) -> None:
    create(admin, "peeked", all=None, eu=SqlRuleFilter("region = 'eu'"))
    send(client, "peeked", ServiceBusMessage("x", message_id="p", application_properties={"region": "us"}))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["peek", "peeked/subscriptions/all", "-o", "json", "--data", str(server.data)]) == 0
    with mock.patch("sys.stdin", io.StringIO(out.getvalue())):
        (found,) = shown(server, "peeked", "--file", "-")
    assert found["messageId"] == "p" and not by_name(found)["eu"]["selected"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere", "--last", "1"), 3, "nowhere"),
        (("wrong",), 2, "give one of --message-id"),
        (("wrong", "--last", "1", "--message-id", "x"), 2, "give one of --message-id"),
        (("wrong", "--property", "a"), 2, "--property 'a' is not KEY=VALUE"),
        (("wrong", "--property", "a:int=x"), 2, "--property 'a:int=x'"),
        (("wrong", "--property", "a:boolean=perhaps"), 2, "neither true nor false"),
        (("wrong", "--file", "/nonexistent.json"), 2, "cannot be read as JSON"),
        (("wrong", "--last", "1"), 3, "has a message any more"),
        (("wrong", "--label", "x"), 3, "has no subscriptions"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    server: Busbar,
    admin: ServiceBusAdministrationClient,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    with contextlib.suppress(Exception):
        admin.create_topic("wrong")
    text = rule_test(server, *arguments, code=code)
    assert said in text and len(text.splitlines()) == 1
