"""Management requests made to harm: XML that reaches out or blows up, names that are paths or markup elsewhere.

What the connection itself refuses (floods, lengths, slowness) is in test_acceptor.py.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from harness.peers.process import tree_seconds
from harness.serving import Busbar
from tests.interop.administration import BareHttp, entry
from tests.robustness.bystander import Bystander

pytestmark = pytest.mark.req("U20")

MEGABYTE = 1024 * 1024
SECRET = "the-text-of-a-private-file"


@pytest.fixture
def bare(server: Busbar) -> BareHttp:
    return BareHttp(server)


def with_prolog(prolog: str, reference: str) -> str:
    return f'<?xml version="1.0"?>{prolog}' + entry(
        f"QueueDescription <UserMetadata>{reference}</UserMetadata>"
    )


@contextmanager
def nobody_calls() -> Iterator[str]:
    """An address on which somebody listens, whom nobody may call."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/evil"
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    ("prolog", "reference"),
    [
        ('<!DOCTYPE entry [<!ENTITY e SYSTEM "file://{file}">]>', "&e;"),
        ('<!DOCTYPE entry [<!ENTITY e SYSTEM "{url}">]>', "&e;"),
        ('<!DOCTYPE entry [<!ENTITY e PUBLIC "x" "{url}">]>', "&e;"),
        ('<!DOCTYPE entry SYSTEM "{url}">', "x"),
        ('<!DOCTYPE entry [<!ENTITY % p SYSTEM "{url}"> %p;]>', "x"),
        ("<!DOCTYPE entry [<!ENTITY e '" + "e" * 20_000 + "'>]>", "&e;" * 20_000),
        ('<!DOCTYPE entry [<!ENTITY a "&b;"><!ENTITY b "&a;">]>', "&a;"),
        ("<!DOCTYPE entry>", "x"),
    ],
    ids=["file", "url", "public", "external subset", "parameter", "quadratic", "circular", "plain"],
)
def test_xml_that_declares_anything_is_refused(
    bare: BareHttp,
    server: Busbar,
    bystander: Bystander,
    tmp_path: Path,
    prolog: str,
    reference: str,
    encoding: str,
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    before, spent = server.resident_bytes(), tree_seconds(server.pid)
    with nobody_calls() as url:
        body = with_prolog(prolog.replace("{file}", str(file)).replace("{url}", url), reference)
        status, _, text = bare.request("PUT", "/declared", body.encode(encoding))
    assert status == 400
    assert SECRET not in text
    assert bare.request("GET", "/declared")[0] == 404
    assert tree_seconds(server.pid) - spent < 1, "it cost the server much"
    assert server.resident_bytes() - before < 16 * MEGABYTE


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        ("<a>" * 130_000 + "</a>" * 130_000, {400}),
        (entry("QueueDescription " + "<a>" * 130_000 + "</a>" * 130_000), {201}),  # what is not known is ignored
        ("<entry " + " ".join(f'a{n}=""' for n in range(80_000)) + "/>", {400}),
        ("<entry>" + "<content/>" * 90_000 + "</entry>", {400}),
        (entry("QueueDescription <LockDuration>" + "9" * 900_000 + "</LockDuration>"), {400}),
        (entry("QueueDescription <MaxDeliveryCount>" + "9" * 900_000 + "</MaxDeliveryCount>"), {400}),
        (entry("QueueDescription <LockDuration>PT" + "1" * 5_000 + "S</LockDuration>"), {400}),
        (entry("QueueDescription <UserMetadata>" + "x" * 900_000 + "</UserMetadata>"), {400}),
        ("\0" * 10_000, {400}),
        ("<entry", {400}),
        (b"\xff\xfe<\0e\0n\0", {400}),
        (b'<?xml version="1.0" encoding="utf-7"?><entry/>', {400}),
        (b'<?xml version="1.0" encoding="no-such"?><entry/>', {400}),
    ],
    ids=[
        "deep", "deep inside", "attributes", "siblings", "long duration", "long number", "many seconds", "long text",
        "zeros", "cut", "cut utf-16", "utf-7", "unknown encoding",
    ],
)  # fmt: skip
def test_xml_that_is_large_or_none(
    bare: BareHttp, server: Busbar, bystander: Bystander, body: str | bytes, statuses: set[int]
) -> None:
    before, spent = server.resident_bytes(), tree_seconds(server.pid)
    status, _, text = bare.request("PUT", "/large", body)
    assert status in statuses, text[:500]
    assert len(text) < 4_096, "an error does not repeat what was sent"
    assert tree_seconds(server.pid) - spent < 1, "it cost the server much"
    bare.request("DELETE", "/large")
    bystander.works()
    assert server.resident_bytes() - before < 64 * MEGABYTE


def test_an_include_is_text_like_any_other(bare: BareHttp, bystander: Bystander, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    with nobody_calls() as url:
        include = (
            f'<x:include xmlns:x="http://www.w3.org/2001/XInclude" parse="text" href="file://{file}"/>'
            f'<?xml-stylesheet href="{url}"?>'
        )
        status, _, text = bare.request(
            "PUT", "/included", entry(f"QueueDescription <UserMetadata>{include}</UserMetadata>")
        )
    assert status == 201
    assert SECRET not in text + bare.request("GET", "/included")[2]


# Names


BAD_NAMES = [
    "../../../../etc/passwd",
    "a/../../b",
    "..",
    "a/./b",
    "C:\\windows",
    "a\\..\\b",
    "a\0.db",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]><x/>",
    "a&amp;b",
    "a'; DROP TABLE entities; --",
    "a\r\nX-Evil: 1",
    "\x1b[31mred",
    "a\u202egnp.exe",
    "\ufeffa",
    "аdmin",  # its first letter is Cyrillic
    "a\ud7ffb\U0001f600",
    "%2e%2e%2fa",
    "{{7*7}}",
    "$cbs",
    "$management",
    "a/$management",
    "x" * 5_000,
]


def files_of(server: Busbar) -> set[str]:
    return {
        str(path.relative_to(server.data.parent)) for path in server.data.parent.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_mean_something_elsewhere(
    bare: BareHttp, server: Busbar, bystander: Bystander, name: str
) -> None:
    """Refused on every road, and the answer is whole XML with nothing of theirs in it but text."""
    before = files_of(server)
    path = "/" + quote(name, safe="")
    for method, target, body in (
        ("PUT", path, entry("QueueDescription")),
        ("PUT", path, entry("TopicDescription")),
        ("PUT", f"/topic{path}/subscriptions/{path[1:]}", entry("SubscriptionDescription")),
        ("GET", path, ""),
        ("DELETE", path, ""),
        ("POST", f"{path}/messages", "hello"),
        ("DELETE", f"{path}/messages/head", ""),
    ):
        status, kind, text = bare.request(method, target, body)
        assert status in (400, 404), (method, status, text)
        assert kind == "application/xml; charset=utf-8"
        error = ElementTree.fromstring(text)
        assert [child.tag for child in error] == ["Code", "Detail"]
        assert len(text) < 4_096 or len(name) > 1_000
    assert files_of(server) == before


@pytest.mark.parametrize("name", ["<b>x</b>", "a'b", "../q", "x" * 300])
def test_names_inside_descriptions(bare: BareHttp, bystander: Bystander, name: str) -> None:
    escaped = name.replace("&", "&amp;").replace("<", "&lt;")
    for element in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
        status, _, text = bare.request(
            "PUT", "/forwards", entry(f"QueueDescription <{element}>{escaped}</{element}>")
        )
        assert status in (400, 401, 404), text
        assert "<b>" not in text
        ElementTree.fromstring(text)
    assert bare.request("GET", "/forwards")[0] == 404


MARKUP = """<b>&amp;</b> ]]> "double" 'single' <!-- --> &#x41; \u202e é 😀"""


def test_text_that_looks_like_markup_comes_back_as_text(bare: BareHttp, bystander: Bystander) -> None:
    """A description's free text, a header and a query that an answer repeats."""
    escaped = MARKUP.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert (
        bare.request("PUT", "/marked", entry(f"QueueDescription <UserMetadata>{escaped}</UserMetadata>"))[0]
        == 201
    )
    for target in ("/marked", "/$Resources/Queues"):
        status, _, text = bare.request("GET", target, Host='x"><b>')
        assert status in (200, 400)
        if status == 200:
            assert MARKUP in [element.text for element in ElementTree.fromstring(text).iter()]
        assert "<b>" not in text
    status, _, text = bare.request("GET", "/marked?api-version=%3Cb%3E%0d%0aX-Evil:1")
    assert status == 400 and "<b>" not in text
    bare.request("DELETE", "/marked")


def test_a_message_cannot_write_headers(bare: BareHttp, server: Busbar, bystander: Bystander) -> None:
    """What one client puts into properties comes to another in headers; it stays where it belongs."""
    evil = 'a\\"\\u000d\\u000aX-Evil: 1\\u000d\\u000a\\u000d\\u000a<b>'
    status, _, text = bare.request(
        "POST", "/other/messages", "hello", BrokerProperties=f'{{"Label": "{evil}"}}'
    )
    assert status == 201, text
    status, _, text = bare.request("POST", "/other/messages", "hello", Evil='"a\\r\\nX-Evil: 1"')
    assert status == 201, text
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    for _ in range(2):
        client.request("DELETE", "/other/messages/head?timeout=0", headers={"Authorization": bare.token()})
        answer = client.getresponse()
        assert answer.status == 200
        assert answer.headers.get("X-Evil") is None
        assert answer.read() == b"hello"
    client.close()


@pytest.mark.parametrize(
    ("name", "status"),
    [("Authorization", 401), ("BrokerProperties", 400), ("Content-Type", 400), ("If-Match", 400)],
)
def test_a_header_that_is_not_utf_8_is_a_bad_request(
    bare: BareHttp, server: Busbar, bystander: Bystander, name: str, status: int
) -> None:
    before = len(server.error_text)
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        lines = [b"POST /q/messages HTTP/1.1", b"Host: localhost", b"Content-Length: 1", b"Connection: close"]
        if name != "Authorization":
            lines.append(b"Authorization: " + bare.token().encode())
        value = b"SharedAccessSignature sr=\xff&sig=x&se=1&skn=x" if status == 401 else b"\xff\xfe"
        client.sendall(b"\r\n".join([*lines, name.encode() + b": " + value, b"", b"m"]))
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert "Traceback" not in server.error_text[before:]


def test_a_number_that_no_double_can_have_is_a_bad_request(
    bare: BareHttp, server: Busbar, bystander: Bystander
) -> None:
    before = len(server.error_text)
    status, _, text = bare.request("POST", "/q/messages", "m", Huge="9" * 399)
    assert status == 400 and "more digits" in text
    assert "Traceback" not in server.error_text[before:]
