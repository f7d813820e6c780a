"""Keys and tokens are where they have to be and nowhere else: not in logs, not in answers, not in other files."""

from __future__ import annotations

import http.client
import re
import stat
import time
from urllib.parse import quote, quote_plus, unquote

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from harness.serving import Busbar
from tests.interop.administration import BareHttp, entry
from tests.robustness.bystander import Bystander
from tests.robustness.wire import SENDER, Wire, connected, sas_token

KEY = "c2VydmVyJ3Mgb3duIGtleSwgbm90IGZvciBsb2dz/+A="
OWN = "a2V5IG9mIG9uZSBxdWV1ZSwgbm90IGZvciBsb2dz/+A="
GUESS = "Z3Vlc3MsIGFsc28gYSBzZWNyZXQgb2Ygc29tZWJvZHk="

pytestmark = [
    pytest.mark.req("U20"),
    pytest.mark.server({"q": {}}, key=KEY, environment={"BUSBAR_LOG": "DEBUG"}),
]


def signature_of(token: str) -> str:
    return next(part for part in token.split("&") if part.startswith("sig=")).removeprefix("sig=")


def test_keys_and_tokens_never_reach_a_log(server: Busbar) -> None:
    """Everything is logged; good and bad requests of every kind come; then the log is searched."""
    tokens: list[str] = []
    answers: list[str] = []

    def token(path: str, key: str = KEY, **options: float) -> str:
        tokens.append(sas_token(f"sb://localhost/{path}", key=key, **options))  # type: ignore[arg-type]
        return tokens[-1]

    bare = BareHttp(server)
    rule = (
        '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><Rights><AccessRights>Send'
        f"</AccessRights></Rights><KeyName>own</KeyName><PrimaryKey>{OWN}</PrimaryKey></AuthorizationRule>"
        "</AuthorizationRules>"
    )
    assert bare.request("PUT", "/own", entry(f"QueueDescription {rule}"), token=token(""))[0] == 201
    bad_rule = rule.replace("<AccessRights>Send</AccessRights>", "")
    for method, target, body, shown in (
        ("PUT", "/bad", entry(f"QueueDescription {bad_rule}"), token("")),
        ("PUT", "/bad", f"<entry><{OWN}", token("")),
        ("GET", "/own", "", token("", GUESS)),
        ("GET", "/own", "", token("", lifetime=-100)),
        ("GET", "/own", "", token("other")),
        ("POST", "/own/messages", "x", token("own", GUESS)),
        ("POST", "/q/messages", "x", token("q", lifetime=-100)),
        ("POST", f"/q/messages?key={quote_plus(KEY)}&timeout=x", "x", token("q")),
        ("DELETE", "/q/messages/head?timeout=x", "", token("q")),
    ):
        status, _, text = bare.request(method, target, body, token=shown)
        assert 400 <= status < 500 or (method, status) == ("POST", 201), text
        answers.append(text)
    for data in (
        f"GET / HTTP/1.1\r\nAuthorization: {token('')}\r\nbad\r\n\r\n",
        f"AMQP{KEY}",
        f"{KEY}\r\n\r\n",
    ):
        with Wire(server.port, 2) as wire:
            wire.send(data.encode())
            try:
                answers.append(repr(wire.read(300)))
            except (EOFError, TimeoutError):
                pass

    with connected(server.port) as wire:
        for number, shown in enumerate(
            (token("q"), token("q", GUESS), token("q", lifetime=-9), f"{KEY} {GUESS}", token("elsewhere"))
        ):
            handles = (100 + 2 * number, 101 + 2 * number)
            assert wire.put_token(shown, "sb://localhost/q", handles=handles) in (202, 401)
        wire.attach(0, SENDER, "no-such-queue")
    with Wire(server.port) as wire:
        assert wire.sasl("PLAIN", f"\0RootManageSharedAccessKey\0{GUESS}".encode()) == 1
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusError), client.get_queue_sender("missing") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    with Bystander(server.port, "own", key=KEY) as other:
        other.works()

    deadline = time.monotonic() + 5
    while "amqp:not-found" not in server.error_text and time.monotonic() < deadline:
        time.sleep(0.05)
    log = server.error_text
    for expected in ("token refused", "link refused with amqp:not-found", "answered 401", "answered 400"):
        assert expected in log, "the log was not asked for everything"
    assert "Traceback" not in log
    signatures = [signature_of(shown) for shown in tokens]
    for secret in (KEY, OWN, GUESS, *signatures, *map(unquote, signatures), quote_plus(KEY)):
        assert secret not in log
        assert not [text for text in answers if secret in text]


def test_no_client_can_write_a_line_of_the_log(server: Busbar) -> None:
    """Everything is logged; names, headers, tokens and texts of clients have ends of lines, escapes and formats in them."""
    forged = "x\r\nWARNING FORGED %s%n {0} \x1b[31mred\u2028FORGED"
    seen = len(server.error_text)
    bare = BareHttp(server)
    for method, target in (("GET", f"/{quote(forged, safe='')}"), ("PUT", f"/q?x={quote(forged, safe='')}")):
        assert bare.request(method, target, f"<{forged}", User_Agent="%s%n {0} FORGED")[0] in (400, 404)
    with connected(server.port) as wire:
        named = sas_token(f"sb://localhost/{forged}", name=forged)
        assert wire.put_token(named, f"sb://localhost/{forged}") == 401
        assert wire.put_token(f"SharedAccessSignature sr={forged}", forged, handles=(102, 103)) == 401
        wire.attach(0, SENDER, forged, name=forged)
    with Wire(server.port) as wire:
        assert wire.sasl("PLAIN", f"\0{forged}\0{forged}".encode()) == 1
    deadline = time.monotonic() + 5
    while server.error_text.count("FORGED", seen) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    log = server.error_text[seen:]
    assert log.count("FORGED") >= 4, "some of it is in the log, or this shows nothing"
    assert not [char for char in log if char != "\n" and not char.isprintable()]
    start = re.compile(r"[0-9T:.-]+Z (DEBUG|WARNING|ERROR) busbar\.")
    assert not [line for line in log.splitlines() if "FORGED" in line and not start.match(line)]


def test_the_files_that_hold_secrets_are_private(server: Busbar) -> None:
    """The endpoint file and the store (the keys of entities' rules are in it) are their owner's alone."""
    holding = [
        file
        for file in server.data.rglob("*")
        if file.is_file() and any(secret.encode() in file.read_bytes() for secret in (KEY, OWN))
    ]
    assert holding
    for file in holding:
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_the_keys_of_an_entity_are_shown_to_its_managers_only(server: Busbar) -> None:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    for target in ("/own", "/$Resources/Queues"):
        client.request(
            "GET",
            target,
            headers={"Authorization": sas_token("sb://localhost/own", key=OWN, name="own")},
        )
        answer = client.getresponse()
        assert answer.status == 401
        assert OWN.encode() not in answer.read()
    client.close()
