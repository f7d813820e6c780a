"""A rule gives what it names and nothing else, whoever holds its key: on links, on `$management` and over HTTP."""

from __future__ import annotations

import pytest

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Array, Described, Int, ULong
from harness.serving import Busbar
from tests.interop.administration import BareHttp, entry
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ACCEPTED,
    ATTACH,
    DETACH,
    RECEIVER,
    SENDER,
    TRANSFER,
    Wire,
    connected,
    message,
    performative,
    sas_token,
)

UNAUTHORIZED = "amqp:unauthorized-access"
KEYS = {"sender": "the key of senders", "listener": "the key of listeners", "manager": "the key of managers"}
RIGHTS = {"sender": ["Send"], "listener": ["Listen"], "manager": ["Manage", "Send", "Listen"]}
QUEUES: dict[str, dict[str, object]] = {"q": {}, "q/inner": {}, "other": {}, "bystander": {}}

RULES = [
    {"Name": name, "Rights": RIGHTS[name], "PrimaryKey": KEYS[name], "SecondaryKey": f"second {name}"}
    for name in KEYS
]
pytestmark = [pytest.mark.req("U18"), pytest.mark.server(QUEUES, {"token_grace": 0}, rules=RULES)]


@pytest.fixture
def bare(server: Busbar) -> BareHttp:
    return BareHttp(server)


def token_of(rule: str, path: str = "", *, key: str = "") -> str:
    return sas_token(f"sb://localhost/{path}", key=key or KEYS[rule], name=rule)


def manage(wire: Wire, queue: str, operation: str, body: dict[str, object]) -> int:
    """The status of a request to the queue's management node."""
    node = f"{queue}/$management"
    assert wire.attach(200, SENDER, node).code == ATTACH
    assert wire.attach(201, RECEIVER, node).code == ATTACH
    wire.grant(201, 10)
    asked = performative(0x73, ["request", None, node, None, "link-end"])
    properties = encode_value(Described(ULong(0x74), {"operation": f"com.microsoft:{operation}"}))
    wire.transfer(200, 1_000, asked + properties + encode_value(Described(ULong(0x77), body)))
    answer = wire.until(TRANSFER).payload
    position = 0
    while position < len(answer):
        section, position = decode_value(answer, position, len(answer))
        if isinstance(section, Described) and section.descriptor == 0x74:
            assert isinstance(section.value, dict)
            return int(section.value["statusCode"])
    raise AssertionError("the reply has no statusCode")


PEEK: dict[str, object] = {"from-sequence-number": 1, "message-count": Int(1)}
CANCEL: dict[str, object] = {"sequence-numbers": Array(0x81, [1])}


def logged_in_as(port: int, rule: str, how: str) -> Wire:
    if how == "token":
        wire = connected(port)
        assert wire.put_token(token_of(rule, "q"), "sb://localhost/q") == 202
        return wire
    wire = Wire(port)
    assert wire.sasl("PLAIN", f"\0{rule}\0{KEYS[rule]}".encode()) == 0
    wire.open()
    wire.begin()
    return wire


@pytest.mark.parametrize("how", ["token", "password"])
def test_who_may_listen_cannot_send(server: Busbar, bystander: Bystander, how: str) -> None:
    with logged_in_as(server.port, "listener", how) as wire:
        refusal = wire.attach(0, SENDER, "q")
        assert (refusal.code, refusal.condition) == (DETACH, UNAUTHORIZED)
        assert wire.attach(1, RECEIVER, "q").code == ATTACH
        assert manage(wire, "q", "cancel-scheduled-message", CANCEL) == 401
    with logged_in_as(server.port, "listener", how) as wire:
        assert manage(wire, "q", "peek-message", PEEK) in (200, 204)


@pytest.mark.parametrize("how", ["token", "password"])
def test_who_may_send_cannot_receive(server: Busbar, bystander: Bystander, how: str) -> None:
    with logged_in_as(server.port, "sender", how) as wire:
        for handle, node in enumerate(("q", "q/$DeadLetterQueue", "Q/$deadletterqueue")):
            assert wire.attach(handle, RECEIVER, node).condition == UNAUTHORIZED
        assert manage(wire, "q", "peek-message", PEEK) == 401
    with logged_in_as(server.port, "sender", how) as wire:
        assert wire.attach(0, SENDER, "q").code == ATTACH
        assert wire.send_message(0, 1, message(b"hello")).outcome == ACCEPTED


def test_rights_do_not_add_up_over_entities(server: Busbar, bystander: Bystander) -> None:
    """Send on one queue and Listen on another is neither on the other one."""
    with connected(server.port) as wire:
        assert wire.put_token(token_of("sender", "q"), "sb://localhost/q") == 202
        assert (
            wire.put_token(token_of("listener", "other"), "sb://localhost/other", handles=(102, 103)) == 202
        )
        assert wire.attach(0, SENDER, "q").code == ATTACH
        assert wire.attach(1, RECEIVER, "other").code == ATTACH
        assert wire.attach(2, RECEIVER, "q").condition == UNAUTHORIZED
        assert wire.attach(3, SENDER, "other").condition == UNAUTHORIZED


def test_the_same_rights_over_http(bare: BareHttp, bystander: Bystander) -> None:
    send = ("POST", "/other/messages", "hello")
    receive = ("DELETE", "/other/messages/head?timeout=0", "")
    lock = ("POST", "/other/messages/head?timeout=0", "")
    reads = [("GET", "/other", ""), ("GET", "/$Resources/Queues", ""), ("GET", "/$namespaceinfo", "")]
    writes = [("PUT", "/new", entry("QueueDescription")), ("DELETE", "/other", "")]
    expected = {
        "sender": {send: {201}},
        "listener": {receive: {200, 204}, lock: {201, 204}},
        "manager": {send: {201}, receive: {200}, lock: {204}, **{read: {200} for read in reads}},
    }
    for rule, allowed in expected.items():
        for request in (send, receive, lock, *reads, *(writes if rule != "manager" else ())):
            status, _, text = bare.request(*request, token=token_of(rule))
            assert status in allowed.get(request, {401}), (rule, request, status, text)
            if status == 401:
                assert "SubCode=40100." in text
    assert bare.request("GET", "/other")[0] == 200
    assert bare.request("GET", "/new")[0] == 404


def test_tokens_that_do_not_open_over_http(bare: BareHttp, bystander: Bystander) -> None:
    good = token_of("manager", "other")
    for token in (
        token_of("manager", "other", key="a guess"),
        token_of("sender", "other", key=KEYS["manager"]),
        token_of("manager", "q"),
        token_of("manager", "othe"),
        token_of("manager", "other/inner"),
        sas_token("sb://localhost/other", key=KEYS["manager"], name="manager", lifetime=-1),
        good.replace("&se=", "&se=9"),
        good.replace("sr=", "sr=x&sr="),
        good.replace("sig=", "sig=&sig="),
        good + "x" * 5_000,
        good.removeprefix("SharedAccessSignature "),
        f"WRAP access_token={good}",
        "Basic cm9vdDpyb290",
        "é",
    ):
        for method, target in (
            ("GET", "/other"),
            ("POST", "/other/messages"),
            ("DELETE", "/other/messages/head"),
        ):
            status, _, text = bare.request(method, target, token=token)
            assert status == 401, (token, status, text)
            assert KEYS["manager"] not in text and token[-60:] not in text
    assert bare.request("GET", "/other", token=good)[0] == 200
    assert bare.request("GET", "/other", token=token_of("manager", key="second manager"))[0] == 200


@pytest.mark.parametrize("host", ["other", "other:80", "q", 'x"><b>', "a" * 300])
def test_a_name_for_the_host_does_not_widen_a_token(bare: BareHttp, bystander: Bystander, host: str) -> None:
    token = sas_token("other", key=KEYS["manager"], name="manager")
    for target in ("/q", "/$Resources/Queues", "/$namespaceinfo"):
        assert bare.request("GET", target, token=token, Host=host)[0] in (400, 401)


# An entity's own rules


def with_rules(*rules: tuple[str, str, str]) -> str:
    """The description of a queue with rules of these names, rights and keys."""
    text = "".join(
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType>'
        f"<Rights>{''.join(f'<AccessRights>{right}</AccessRights>' for right in rights.split())}</Rights>"
        f"<KeyName>{name}</KeyName><PrimaryKey>{key}</PrimaryKey></AuthorizationRule>"
        for name, rights, key in rules
    )
    return entry(f"QueueDescription <AuthorizationRules>{text}</AuthorizationRules>")


OWN = "the key of one queue alone"


def test_a_rule_of_an_entity_ends_with_it(bare: BareHttp, server: Busbar, bystander: Bystander) -> None:
    assert bare.request("PUT", "/own", with_rules(("both", "Send Listen", OWN)))[0] == 201
    assert bare.request("PUT", "/own/inner", entry("QueueDescription"))[0] == 201
    good = sas_token("sb://localhost/own", key=OWN, name="both")
    with connected(server.port) as wire:
        assert wire.put_token(good, "sb://localhost/own") == 202
        assert wire.attach(0, SENDER, "own").code == ATTACH
        assert wire.attach(1, RECEIVER, "own/$DeadLetterQueue").code == ATTACH
        for handle, node in enumerate(("own/inner", "q", "own/inner/$management"), 2):
            assert wire.attach(handle, SENDER, node).condition == UNAUTHORIZED
        for number, path in enumerate(("", "q", "own/inner", "own/..", "/", "own/../q")):
            wide = sas_token(f"sb://localhost/{path}", key=OWN, name="both")
            handles = (110 + 2 * number, 111 + 2 * number)
            audience = f"sb://localhost/{path if '..' not in path else 'q'}"
            assert wire.put_token(wide, audience, handles=handles) == 401, path
            assert bare.request("POST", "/q/messages", "x", token=wide)[0] == 401
        assert wire.send_message(0, 1, message(b"hello")).outcome == ACCEPTED
        assert bare.request("POST", "/own/messages", "x", token=good)[0] == 201
        assert bare.request("GET", "/own", token=good)[0] == 401, (
            "the keys of an entity are shown to managers only"
        )

        # Another key: what the old one allowed ends at once.
        assert bare.request("PUT", "/own", with_rules(("both", "Send Listen", "new")), If_Match="*")[0] == 200
        assert wire.until(DETACH).condition == UNAUTHORIZED
        assert bare.request("POST", "/own/messages", "x", token=good)[0] == 401
        assert wire.put_token(good, "sb://localhost/own", handles=(150, 151)) == 401
    for path in ("/own", "/own/inner"):
        assert bare.request("DELETE", path)[0] == 200


def test_a_rule_without_rights_or_with_half_of_them_is_refused(bare: BareHttp, bystander: Bystander) -> None:
    for rights in ("", "Manage", "Manage Send", "Read", "Send Everything"):
        status, _, text = bare.request("PUT", "/half", with_rules(("rule", rights, OWN)))
        assert (status, OWN in text) == (400, False)
    twice = ("rule", "Send", OWN)
    assert bare.request("PUT", "/half", with_rules(twice, twice))[0] == 400
    assert bare.request("GET", "/half")[0] == 404
