"""What becomes of open links when their entity or its rules change, how many connections an entity has, and idleness.

Bare AMQP and bare HTTP: an SDK would attach again and hide what happened.
"""

from __future__ import annotations

import time
from http.client import HTTPConnection

import pytest

from harness.serving import BROKERS, Busbar
from tests.interop.administration import BareHttp, entry
from tests.robustness.wire import (
    ATTACH,
    DETACH,
    RECEIVER,
    SENDER,
    Frame,
    Wire,
    connected,
    logged_in,
    message,
    sas_token,
)

LIMITS = {"max_entity_connections": 3 * int(BROKERS or 1), "min_auto_delete_on_idle": 300}
"""Three connections for each gateway."""
ACCEPTED = 0x24
VERSION = "api-version=2021-05"
one_gateway = pytest.mark.skipif(
    bool(BROKERS), reason="several gateways share the limit: tests/durability/test_broker_limits.py"
)

LISTENER = {"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "first key", "SecondaryKey": "second key"}
pytestmark = pytest.mark.server({}, LIMITS, rules=[LISTENER], checked=True)


class Entities:
    """Makes and changes entities over HTTP."""

    def __init__(self, server: Busbar) -> None:
        self._http = BareHttp(server)

    def put(
        self, path: str, inner: str = "", *, change: bool = False, kind: str = "QueueDescription"
    ) -> None:
        headers = {"If_Match": "*"} if change else {}
        body = entry(f"{kind} {inner}")
        status, _, text = self._http.request("PUT", f"/{path}?{VERSION}", body, **headers)
        assert status == (200 if change else 201), text

    def delete(self, path: str) -> None:
        assert self._http.request("DELETE", f"/{path}?{VERSION}")[0] == 200

    def status(self, path: str) -> int:
        return self._http.request("GET", f"/{path}?{VERSION}")[0]

    def accessed(self, path: str) -> str:
        text = self._http.request("GET", f"/{path}?{VERSION}")[2]
        return text.partition("<AccessedAt>")[2].partition("<")[0]

    def send(self, path: str) -> int:
        return self._http.request("POST", f"/{path}/messages", "hello")[0]


@pytest.fixture
def entities(server: Busbar) -> Entities:
    return Entities(server)


def rule(name: str, key: str, *rights: str) -> str:
    """An entity's authorization rule as ATOM has it."""
    words = "".join(f"<AccessRights>{right}</AccessRights>" for right in rights)
    return (
        '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        f"<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights>{words}</Rights>"
        f"<KeyName>{name}</KeyName><PrimaryKey>{key}</PrimaryKey><SecondaryKey>{key}2</SecondaryKey>"
        "</AuthorizationRule></AuthorizationRules>"
    )


def ended(wire: Wire, count: int) -> list[Frame]:
    """The next detaches, whatever comes between."""
    return [wire.until(DETACH) for _ in range(count)]


def test_links_end_with_their_entity(server: Busbar, entities: Entities) -> None:
    entities.put("gone")
    entities.put("stays")
    with logged_in(server.port) as wire, logged_in(server.port) as other:
        wire.attach(0, SENDER, "gone")
        wire.attach(1, RECEIVER, "GONE/$DeadLetterQueue")
        wire.attach(2, SENDER, "gone/$management")
        wire.attach(3, RECEIVER, "gone/$management")
        wire.attach(4, SENDER, "stays")
        other.attach(0, RECEIVER, "gone")
        entities.delete("gone")
        assert {frame.condition for frame in ended(wire, 4) + ended(other, 1)} == {"amqp:not-found"}
        assert wire.send_message(4, 1, message(b"x", "m")).outcome == ACCEPTED
        assert wire.attach(5, SENDER, "gone").condition == "amqp:not-found"
        entities.put("gone")
        assert wire.attach(6, SENDER, "gone").code == ATTACH, "the new one of the same name is another"


def test_links_end_with_what_their_entity_allows(server: Busbar, entities: Entities) -> None:
    entities.put("closing")
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "closing")
        wire.attach(1, RECEIVER, "closing")
        entities.put("closing", "<MaxDeliveryCount>5</MaxDeliveryCount>", change=True)
        assert wire.send_message(0, 1, message(b"x", "m")).outcome == ACCEPTED, "other changes end nothing"
        entities.put("closing", "<Status>SendDisabled</Status>", change=True)
        (detached,) = ended(wire, 1)
        assert (detached.field(0), detached.condition) == (0, "com.microsoft:entity-disabled")
        assert wire.attach(2, SENDER, "closing").condition == "com.microsoft:entity-disabled"
        entities.put("closing", "<Status>Disabled</Status>", change=True)
        (detached,) = ended(wire, 1)
        assert (detached.field(0), detached.condition) == (1, "com.microsoft:entity-disabled")
        entities.put("closing", "<Status>Active</Status>", change=True)
        assert wire.attach(3, SENDER, "closing").code == ATTACH


@pytest.mark.parametrize("key", ["k", "k2"])
def test_an_entitys_own_rule_opens_it_and_only_it(server: Busbar, entities: Entities, key: str) -> None:
    name = f"own-{key}"
    entities.put(name, rule("sender", "k", "Send"))
    entities.put(f"{name}/below")
    with connected(server.port) as wire:
        assert wire.put_token(sas_token(f"sb://h/{name}", key=key, name="sender"), f"sb://h/{name}") == 202
        assert wire.attach(0, SENDER, name).code == ATTACH
        assert wire.attach(1, RECEIVER, name).condition == "amqp:unauthorized-access"
        assert wire.attach(2, SENDER, f"{name}/below").condition == "amqp:unauthorized-access"
        for handle, resource in ((102, f"sb://h/{name}/below"), (104, "sb://h/")):
            token = sas_token(resource, key=key, name="sender")
            assert wire.put_token(token, resource, handles=(handle, handle + 1)) == 401
    bare = BareHttp(server)
    token = sas_token(f"http://h/{name}", key=key, name="sender")
    assert bare.request("POST", f"/{name}/messages", "hello", token=token)[0] == 201
    assert bare.request("POST", f"/{name}/below/messages", "hello", token=token)[0] == 401
    assert bare.request("DELETE", f"/{name}/messages/head?timeout=0", token=token)[0] == 401
    assert bare.request("GET", f"/{name}?{VERSION}", token=token)[0] == 401


@pytest.mark.parametrize(
    "change",
    [rule("sender", "another", "Send"), rule("sender", "k", "Listen"), ""],
    ids=["key", "rights", "gone"],
)
def test_changing_a_rule_ends_what_it_granted(
    server: Busbar, entities: Entities, change: str, request: pytest.FixtureRequest
) -> None:
    name = f"rolled-{request.node.callspec.id}"
    entities.put(name, rule("sender", "k", "Send"))
    with connected(server.port) as wire, logged_in(server.port) as other:
        assert wire.put_token(sas_token(f"sb://h/{name}", key="k", name="sender"), f"sb://h/{name}") == 202
        wire.attach(0, SENDER, name)
        other.attach(0, SENDER, name)
        entities.put(name, change, change=True)
        assert ended(wire, 1)[0].condition == "amqp:unauthorized-access"
        assert wire.attach(1, SENDER, name).condition == "amqp:unauthorized-access"
        assert other.send_message(0, 1, message(b"x", "m")).outcome == ACCEPTED, "that rule was not changed"


@pytest.mark.parametrize("key", ["first key", "second key"])
def test_the_namespace_may_have_more_rules(server: Busbar, entities: Entities, key: str) -> None:
    name = f"listened-{key[:1]}"
    entities.put(name)
    with connected(server.port) as wire:
        assert wire.put_token(sas_token("sb://h/", key=key, name="listener"), f"sb://h/{name}") == 202
        assert wire.attach(0, RECEIVER, name).code == ATTACH
        assert wire.attach(1, SENDER, name).condition == "amqp:unauthorized-access"


@one_gateway
@pytest.mark.req("B12")
def test_an_entity_has_a_limited_number_of_amqp_connections(server: Busbar, entities: Entities) -> None:
    """5,000 by default; 3 here. Senders and receivers of a queue share them."""
    entities.put("crowded")
    entities.put("quiet")
    wires = [logged_in(server.port) for _ in range(4)]
    try:
        assert wires[0].attach(0, SENDER, "crowded").code == ATTACH
        assert wires[1].attach(0, RECEIVER, "crowded").code == ATTACH
        assert wires[2].attach(0, RECEIVER, "Crowded/$DeadLetterQueue").code == ATTACH
        for handle, role in ((0, SENDER), (1, RECEIVER)):
            assert wires[3].attach(handle, role, "crowded").condition == "amqp:resource-limit-exceeded"
        assert wires[3].attach(2, SENDER, "quiet").code == ATTACH
        assert wires[0].attach(1, RECEIVER, "crowded").code == ATTACH, "connections are counted, not links"
        assert entities.send("crowded") == 201
        wires[1].say(DETACH, [0, True])
        wires[1].until(DETACH)
        assert wires[3].attach(3, RECEIVER, "crowded").code == ATTACH
        wires[0].vanish()
        deadline = time.monotonic() + 5
        while wires[1].attach(1, SENDER, "crowded").code != ATTACH:
            assert time.monotonic() < deadline
    finally:
        for wire in wires:
            wire.__exit__()


@one_gateway
@pytest.mark.req("B12")
def test_a_topic_and_each_of_its_subscriptions_have_their_own(server: Busbar, entities: Entities) -> None:
    entities.put("fair", kind="TopicDescription")
    nodes = ["fair/$management"]
    for name in ("one", "two"):
        entities.put(f"fair/Subscriptions/{name}", kind="SubscriptionDescription")
        nodes.append(f"fair/Subscriptions/{name}/$management")
    wires = [logged_in(server.port) for _ in range(10)]
    try:
        for number, wire in enumerate(wires[:9]):
            assert wire.attach(0, SENDER, nodes[number % 3]).code == ATTACH, "three for each of the three"
        for handle, node in enumerate(nodes):
            assert wires[9].attach(handle, RECEIVER, node.upper()).condition == "amqp:resource-limit-exceeded"
            assert wires[handle].attach(1, RECEIVER, node).code == ATTACH, "its other link is counted already"
        wires[1].say(DETACH, [0, True])
        wires[1].say(DETACH, [1, True])
        ended(wires[1], 2)
        assert wires[9].attach(3, SENDER, nodes[1]).code == ATTACH, "one of them has a place now"
        assert wires[9].attach(4, SENDER, nodes[0]).condition == "amqp:resource-limit-exceeded"
        assert wires[9].attach(5, SENDER, nodes[2]).condition == "amqp:resource-limit-exceeded"
    finally:
        for wire in wires:
            wire.__exit__()


@one_gateway
@pytest.mark.req("B12")
def test_http_is_not_counted(server: Busbar, entities: Entities) -> None:
    entities.put("busy")
    token = {"Authorization": BareHttp(server).token()}
    clients = [HTTPConnection("127.0.0.1", server.port, timeout=10) for _ in range(6)]
    wires = [logged_in(server.port) for _ in range(4)]
    try:
        for number, client in enumerate(clients):
            method, path, status = (("POST", "messages", 201), ("DELETE", "messages/head?timeout=1", 200))[
                number % 2
            ]
            client.request(method, f"/busy/{path}", b"x", token)
            answer = client.getresponse()
            answer.read()
            assert answer.status == status
        # All six are still connected.
        for wire in wires[:3]:
            assert wire.attach(0, RECEIVER, "busy/$DeadLetterQueue").code == ATTACH
        assert wires[3].attach(0, RECEIVER, "busy").condition == "amqp:resource-limit-exceeded"
        for client in clients:
            client.request("POST", "/busy/messages", b"x", token)
            answer = client.getresponse()
            answer.read()
            assert answer.status == 201, "a full house is full for AMQP alone"
    finally:
        for client in clients:
            client.close()
        for wire in wires:
            wire.__exit__()


def test_an_idle_queue_is_deleted_but_not_while_a_link_waits(server: Busbar, entities: Entities) -> None:
    idle = "<AutoDeleteOnIdle>PT0.5S</AutoDeleteOnIdle>"
    entities.put("forgotten", idle)
    entities.put("awaited", idle)
    with logged_in(server.port) as wire:
        wire.attach(0, RECEIVER, "awaited")
        deadline = time.monotonic() + 10
        while entities.status("forgotten") == 200:  # being looked at is not being used
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.6)
        assert entities.status("awaited") == 200
        wire.say(DETACH, [0, True])
        wire.until(DETACH)
        while entities.status("awaited") == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert entities.status("forgotten") == entities.status("awaited") == 404


def test_using_an_entity_is_noticed_and_looking_at_it_is_not(server: Busbar, entities: Entities) -> None:
    never = "0001-01-01T00:00:00Z"
    entities.put("looked-at")
    entities.put("attached-to")
    assert entities.accessed("looked-at") == entities.accessed("looked-at") == never
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "attached-to")
        assert entities.accessed("attached-to") != never, "at once, though nothing was sent"
    assert entities.send("looked-at") == 201
    first = entities.accessed("looked-at")
    assert first != never and entities.accessed("looked-at") == first


@pytest.mark.req("B13")
def test_a_topic_has_two_thousand_subscriptions_and_no_more(server: Busbar) -> None:
    bare = BareHttp(server)
    assert bare.request("PUT", f"/wide?{VERSION}", entry("TopicDescription"))[0] == 201
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    body = entry("SubscriptionDescription")
    statuses = []
    for number in range(2_001):
        headers = {"Authorization": bare.token()}  # a busy machine may need longer than one token lasts
        connection.request("PUT", f"/wide/Subscriptions/s{number}?{VERSION}", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        statuses.append(answer.status)
    connection.close()
    assert statuses == [201] * 2_000 + [403]
    assert "2000 subscriptions" in text
    assert "<SubscriptionCount>2000</SubscriptionCount>" in bare.request("GET", f"/wide?{VERSION}")[2]
    for text in ("to all", "again"):
        assert bare.request("POST", "/wide/messages", text)[0] == 201
    for number in (0, 7, 1_000, 1_999):
        for text in ("to all", "again"):
            taken = bare.request("DELETE", f"/wide/Subscriptions/s{number}/messages/head?timeout=5")
            assert (taken[0], taken[2]) == (200, text)
    assert bare.request("DELETE", f"/wide?{VERSION}")[0] == 200
    assert bare.request("GET", f"/wide/Subscriptions/s7?{VERSION}")[0] == 404
