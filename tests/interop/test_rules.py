"""Rules over AMQP: a subscription's `$management`, as it is on the wire. (The SDK for JavaScript uses it in
test_javascript.py; the one for Python manages rules over HTTP.)"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Described, int32, timestamp, ulong

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described as Value
from busbar.amqp.types import UInt, ULong
from harness.serving import Busbar
from tests.interop.administration import BareHttp, entry
from tests.interop.plain_amqp import PlainAmqp
from tests.robustness.wire import (
    ATTACH,
    DETACH,
    DISPOSITION,
    RECEIVER,
    SENDER,
    TRANSFER,
    logged_in,
    message,
)

ACCEPTED = 0x24
VERSION = "api-version=2021-05"
EVERYTHING = {"top": int32(2147483647), "skip": int32(0)}
WHEN = timestamp(1_767_323_045_000)
GUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
RULE, EMPTY_ACTION, SQL_ACTION = 0x13700000004, 0x13700000005, 0x13700000006
SQL, TRUE, FALSE, CORRELATION = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009

RIGHTS = [
    {"Name": right, "Rights": [right], "PrimaryKey": "a key", "SecondaryKey": "another"}
    for right in ("Listen", "Send")
]
pytestmark = [pytest.mark.timeout(60), pytest.mark.server({"queue": {}}, rules=RIGHTS, checked=True)]


@pytest.fixture
def client(server: Busbar) -> Iterator[PlainAmqp]:
    plain = PlainAmqp(server.port, server.key)
    yield plain
    plain.close()


@pytest.fixture
def http(server: Busbar) -> BareHttp:
    return BareHttp(server)


@pytest.fixture(params=["regular", "partitioned"])
def subscription(request: pytest.FixtureRequest, http: BareHttp) -> str:
    """The path of a new subscription of a new topic, of each kind, without its first rule."""
    topic = f"t-{uuid.uuid4().hex}"
    wanted = "<EnablePartitioning>true</EnablePartitioning>" if request.param == "partitioned" else ""
    create(http, topic, f"TopicDescription {wanted}")
    create(http, f"{topic}/Subscriptions/s", "SubscriptionDescription")
    status, _, _ = http.request("DELETE", f"/{topic}/Subscriptions/s/Rules/$Default?{VERSION}")
    assert status == 200
    return f"{topic}/Subscriptions/s"


def create(http: BareHttp, path: str, description: str) -> None:
    status, _, text = http.request("PUT", f"/{path}?{VERSION}", entry(description))
    assert status == 201, text


def add(client: PlainAmqp, subscription: str, name: str, **description: object) -> int:
    body: dict[str, object] = {
        "rule-name": name,
        "rule-description": {key.replace("_", "-"): value for key, value in description.items()},
    }
    return client.manage(subscription, "add-rule", body)[0]


def rules(client: PlainAmqp, subscription: str, **page: int) -> list[list[Any]]:
    """Filter, action, name and time of creation of each rule."""
    asked: dict[str, object] = {**EVERYTHING, **{key: int32(value) for key, value in page.items()}}
    status, body = client.manage(subscription, "enumerate-rules", asked)
    if status == 204:
        return []
    assert status == 200
    descriptions = [rule["rule-description"] for rule in body["rules"]]
    assert all(type(one.descriptor) is ulong and one.descriptor == RULE for one in descriptions)
    return [one.value for one in descriptions]


def names(client: PlainAmqp, subscription: str, **page: int) -> list[str]:
    return [name for _filter, _action, name, _created in rules(client, subscription, **page)]


def plain(value: Any) -> Any:
    """A described list as a tuple of its number and its fields."""
    assert isinstance(value, Described) and type(value.descriptor) is ulong
    fields: Any = value.value
    return (int(value.descriptor), *fields)


@pytest.mark.req("P32")
def test_rules_are_added_and_removed(client: PlainAmqp, http: BareHttp, subscription: str) -> None:
    assert add(client, subscription, "big", sql_filter={"expression": "size > 5"}) == 200
    assert add(client, subscription, "all", sql_filter={"expression": "1=1"}, sql_rule_action=None) == 200
    assert names(client, subscription) == ["all", "big"]
    assert http.request("GET", f"/{subscription}/Rules/big?{VERSION}")[0] == 200, "the same rules everywhere"
    assert client.manage(subscription, "remove-rule", {"rule-name": "BIG"})[0] == 200
    assert names(client, subscription) == ["all"]
    assert http.request("GET", f"/{subscription}/Rules/big?{VERSION}")[0] == 404
    create(http, f"{subscription}/Rules/late", 'RuleDescription <Filter i:type="FalseFilter"/>')
    assert names(client, subscription) == ["all", "late"]


@pytest.mark.parametrize("operation", ["add-rule", "remove-rule"])
def test_a_request_of_an_unknown_transaction_is_refused_and_not_performed(
    server: Busbar, client: PlainAmqp, subscription: str, operation: str
) -> None:
    """It is refused on regular topics too, where rules can be changed in a transaction."""
    assert add(client, subscription, "there", sql_filter={"expression": "size > 5"}) == 200
    description = {"sql-filter": {"expression": "1=1"}}
    name = "new" if operation == "add-rule" else "there"
    request = encode_value(Value(ULong(0x73), ["request-1", None, None, None, "link-end"]))
    request += encode_value(Value(ULong(0x74), {"operation": f"com.microsoft:{operation}"}))
    request += encode_value(Value(ULong(0x77), {"rule-name": name, "rule-description": description}))
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, f"{subscription}/$management")
        wire.attach(1, RECEIVER, f"{subscription}/$management")
        wire.grant(1, 10)
        within = Value(ULong(0x34), [b"transaction"])
        wire.say(TRANSFER, [UInt(0), UInt(0), b"tag", UInt(0), False, False, None, within], request)
        assert wire.until(DISPOSITION).condition == "amqp:transaction:unknown-id"
    assert names(client, subscription) == ["there"]


def test_every_kind_of_filter_and_action(client: PlainAmqp, subscription: str) -> None:
    action = {"expression": "SET seen = TRUE"}
    wanted = {
        "correlation-id": "c", "message-id": "m", "to": "t", "reply-to": None, "label": "l", "session-id": "s",
        "reply-to-session-id": "rs", "content-type": "text/plain",
        "properties": {"text": "x", "count": int32(3), "far": 2**40, "half": 0.5, "ok": True, "at": WHEN, "id": GUID},
    }  # fmt: skip
    assert add(client, subscription, "1", correlation_filter=wanted, sql_rule_action=action) == 200
    assert add(client, subscription, "2", sql_filter={"expression": "1=0"}) == 200
    assert add(client, subscription, "3", sql_filter={"expression": "1=1"}) == 200
    assert add(client, subscription, "4", sql_filter={"expression": "colour = 'red'"}) == 200

    first, second, third, fourth = rules(client, subscription)

    conditions = ["c", "m", "t", None, "l", "s", "rs", "text/plain"]
    assert plain(first[0]) == (CORRELATION, *conditions, wanted["properties"])
    assert type(first[0].value[8]["at"]) is timestamp
    assert plain(first[1]) == (SQL_ACTION, "SET seen = TRUE", 20)
    assert plain(second[0]) == (FALSE,) and plain(third[0]) == (TRUE,)
    assert plain(fourth[0]) == (SQL, "colour = 'red'", 20)
    assert plain(second[1]) == plain(third[1]) == plain(fourth[1]) == (EMPTY_ACTION,)
    assert all(type(rule[3]) is timestamp for rule in (first, second, third, fourth))


def test_pages(client: PlainAmqp, subscription: str) -> None:
    for number in range(5):
        assert add(client, subscription, f"r{number}", sql_filter={"expression": f"n = {number}"}) == 200
    assert names(client, subscription, top=2) == ["r0", "r1"]
    assert names(client, subscription, top=2, skip=2) == ["r2", "r3"]
    assert names(client, subscription, top=2, skip=4) == ["r4"]
    assert names(client, subscription, skip=5) == names(client, subscription, top=0) == []


@pytest.mark.parametrize(
    ("description", "status"),
    [
        ({}, 400),
        ({"sql_filter": {"expression": "size >"}}, 400),
        ({"sql_filter": {"expression": ""}}, 400),
        ({"sql_filter": {}}, 400),
        ({"sql_filter": "1=1"}, 400),
        ({"sql_filter": {"expression": "1=1"}, "correlation_filter": {"to": "t"}}, 400),
        ({"correlation_filter": {}}, 400),
        ({"correlation_filter": {"to": None, "properties": {}}}, 400),
        ({"correlation_filter": {"to": int32(5)}}, 400),
        ({"correlation_filter": {"properties": {"blob": b"bytes"}}}, 400),
        ({"correlation_filter": {"properties": {"when": timestamp(2**62)}}}, 400),
        ({"correlation_filter": {"properties": {"": "nameless"}}}, 400),
        ({"sql_filter": {"expression": "1=1"}, "sql_rule_action": {"expression": "SET"}}, 400),
    ],
)
def test_rules_that_say_nothing_are_refused(
    client: PlainAmqp, http: BareHttp, description: dict[str, Any], status: int
) -> None:
    create(http, topic := f"t-{uuid.uuid4().hex}", "TopicDescription")
    create(http, f"{topic}/Subscriptions/s", "SubscriptionDescription")
    assert add(client, f"{topic}/Subscriptions/s", "bad", **description) == status
    assert names(client, f"{topic}/Subscriptions/s") == ["$Default"]


def test_refusals(client: PlainAmqp, subscription: str) -> None:
    good = {"sql-filter": {"expression": "1=1"}}
    assert add(client, subscription, "one", sql_filter={"expression": "1=1"}) == 200

    def refusal(path: str, operation: str, body: dict[str, object]) -> tuple[int, str]:
        reply = client.request(f"{path}/$management", f"com.microsoft:{operation}", body)
        return reply.properties["statusCode"], reply.properties["errorCondition"]

    again: dict[str, object] = {"rule-name": "One", "rule-description": good}
    unknown: dict[str, object] = {"rule-name": "two"}
    inside: dict[str, object] = {"rule-name": "a/Rules/b", "rule-description": good}
    peek: dict[str, object] = {"from-sequence-number": 0, "message-count": int32(1)}
    topic = subscription.split("/")[0]
    assert refusal(subscription, "add-rule", again) == (409, "com.microsoft:entity-already-exists")
    assert refusal(subscription, "add-rule", inside) == (400, "com.microsoft:argument-error")
    assert refusal(subscription, "remove-rule", unknown) == (404, "amqp:not-found")
    assert refusal(subscription, "enumerate-rules", {"top": int32(-1), "skip": int32(0)})[0] == 400
    # Only subscriptions have rules, and only from them messages are received: that is said, not hidden as "nothing there".
    for elsewhere in ("queue", topic, f"{subscription}/$DeadLetterQueue"):
        assert refusal(elsewhere, "enumerate-rules", dict(EVERYTHING)) == (400, "amqp:not-allowed")
    schedule: dict[str, object] = {"messages": []}
    assert refusal(topic, "peek-message", peek) == (400, "amqp:not-allowed")
    assert refusal(subscription, "schedule-message", schedule) == (400, "amqp:not-allowed")


@pytest.mark.parametrize(("right", "statuses"), [("Listen", [200, 401, 401]), ("Send", [401, 401, 401])])
def test_rights(server: Busbar, subscription: str, right: str, statuses: list[int]) -> None:
    """Listen reads the rules; only Manage changes them."""
    client = PlainAmqp(server.port, "a key", user=right)
    description = {"sql-filter": {"expression": "1=1"}}
    requests: list[tuple[str, dict[str, object]]] = [
        ("enumerate-rules", dict(EVERYTHING)),
        ("add-rule", {"rule-name": "r", "rule-description": description}),
        ("remove-rule", {"rule-name": "r"}),
    ]
    try:
        found = [client.manage(subscription, operation, body)[0] for operation, body in requests]
    finally:
        client.close()
    assert [200 if status == 204 else status for status in found] == statuses


def test_links_end_with_the_topic(server: Busbar, http: BareHttp) -> None:
    create(http, "ending", "TopicDescription")
    create(http, "ending/Subscriptions/s", "SubscriptionDescription")
    with logged_in(server.port) as wire:
        assert wire.attach(0, SENDER, "ending/$management").code == ATTACH
        assert wire.attach(1, SENDER, "Ending/subscriptions/S/$management").code == ATTACH
        assert wire.attach(2, SENDER, "ending/Subscriptions/s/Rules/$Default/$management").condition == (
            "amqp:not-found"
        )
        assert wire.attach(3, SENDER, "ending").code == ATTACH
        assert wire.attach(4, RECEIVER, "ending/Subscriptions/s").code == ATTACH
        assert wire.attach(5, RECEIVER, "ending/Subscriptions/s/$DeadLetterQueue").code == ATTACH
        assert wire.attach(6, RECEIVER, "ending").condition == "amqp:not-allowed"
        assert wire.attach(7, SENDER, "ending/Subscriptions/s").condition == "amqp:not-allowed"
        assert http.request("DELETE", f"/ending?{VERSION}")[0] == 200
        assert [wire.until(DETACH).condition for _ in range(5)] == ["amqp:not-found"] * 5
        assert wire.attach(8, SENDER, "ending/$management").condition == "amqp:not-found"


def test_links_of_a_subscription_end_with_it_alone(server: Busbar, http: BareHttp) -> None:
    create(http, "staying", "TopicDescription")
    for name in ("goes", "stays"):
        create(http, f"staying/Subscriptions/{name}", "SubscriptionDescription")
    with logged_in(server.port) as wire:
        assert wire.attach(0, SENDER, "staying").code == ATTACH
        assert wire.attach(1, RECEIVER, "staying/Subscriptions/goes").code == ATTACH
        assert wire.attach(2, RECEIVER, "staying/Subscriptions/stays").code == ATTACH
        assert http.request("DELETE", f"/staying/Subscriptions/goes?{VERSION}")[0] == 200
        detached = wire.until(DETACH)
        assert (detached.field(0), detached.condition) == (1, "amqp:not-found")
        disabled = entry("SubscriptionDescription <Status>Disabled</Status>")
        path = f"/staying/Subscriptions/stays?{VERSION}"
        assert http.request("PUT", path, disabled, If_Match="*")[0] == 200
        detached = wire.until(DETACH)
        assert (detached.field(0), detached.condition) == (2, "com.microsoft:entity-disabled")
        assert wire.send_message(0, 1, message(b"x", "m")).outcome == ACCEPTED, "the topic's links stay"


def test_a_topic_shows_how_many_filters_it_has(client: PlainAmqp, http: BareHttp, subscription: str) -> None:
    topic = subscription.split("/")[0]

    def counts() -> list[str]:
        text = http.request("GET", f"/{topic}?{VERSION}")[2]
        return re.findall("<(?:Sql|Correlation)FilterCount>(\\d+)<", text)

    assert counts() == ["0", "0"]
    create(
        http, f"{topic}/Subscriptions/other", "SubscriptionDescription"
    )  # brings one that lets all through
    assert add(client, subscription, "sql", sql_filter={"expression": "size > 5"}) == 200
    assert add(client, subscription, "correlation", correlation_filter={"label": "x"}) == 200
    assert counts() == ["2", "1"]
    changed = entry('RuleDescription <Filter i:type="CorrelationFilter"><To>t</To></Filter>')
    assert http.request("PUT", f"/{subscription}/Rules/sql?{VERSION}", changed, If_Match="*")[0] == 200
    assert counts() == ["1", "2"]
    assert http.request("DELETE", f"/{subscription}?{VERSION}")[0] == 200
    assert counts() == ["1", "0"]
