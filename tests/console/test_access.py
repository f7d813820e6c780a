"""Who the console answers, and what it says when something is wrong: plain HTTP, as no browser would send it."""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.serving import Busbar, config_text
from tests.console.console_process import Answer, ConsoleProcess, Visitor, console_for, inputs

pytestmark = pytest.mark.timeout(120)
MARKUP = "<script>alert('1')</script>"


@pytest.fixture(scope="module")
def visitor(console: ConsoleProcess) -> Visitor:
    """Signed in by the printed address."""
    return Visitor(console.port).signed_in(console.token)


def form(visitor: Visitor, name: str) -> dict[str, str]:
    """What a browser would send of the form for a new queue."""
    return {**inputs(visitor.get("/queue/new").text), "name": name}


def names(admin: ServiceBusAdministrationClient) -> set[str]:
    return {queue.name for queue in admin.list_queues()}


def is_guarded(answer: Answer) -> bool:
    policy = answer.headers["Content-Security-Policy"]
    return (
        "default-src 'none'" in policy
        and "frame-ancestors 'none'" in policy
        and "unsafe" not in policy
        and answer.headers["X-Frame-Options"] == "DENY"
        and answer.headers["X-Content-Type-Options"] == "nosniff"
        and answer.headers["Cache-Control"] == "no-store"
    )


def test_strangers_see_nothing(
    visitor: Visitor, console: ConsoleProcess, admin: ServiceBusAdministrationClient
) -> None:
    stranger = Visitor(console.port)
    for path in (
        "/",
        "/queue?name=orders",
        "/queue/new",
        "/queue/messages?name=orders",
        "/queue/access?name=orders",
        "/access",
        "/connections",
        "/nowhere",
        "/console.js",
        "/sign-in",
        "/sign-in?token=x",
    ):
        answer = stranger.get(path)
        assert answer.status == 403 and is_guarded(answer), path
        assert "orders" not in answer.text
    assert stranger.post("/queue/new", form(visitor, "by-stranger")).status == 403
    stranger.cookie = visitor.cookie[:-1] + ("a" if visitor.cookie[-1] != "a" else "b")
    assert stranger.get("/").status == 403
    assert "by-stranger" not in names(admin)


def test_the_token_works_once_and_stays_out_of_sight(visitor: Visitor, console: ConsoleProcess) -> None:
    used = Visitor(console.port).get(f"/sign-in?token={console.token}")
    assert used.status == 403 and "Set-Cookie" not in used.headers
    again = visitor.get(f"/sign-in?token={console.token}")  # the browser that used it is let in
    assert (again.status, again.headers["Location"]) == (303, "/")
    assert console.token not in used.text + visitor.get("/").text + console.error_text


def test_the_cookie_is_for_this_console_alone(server: Busbar) -> None:
    with console_for(server.data) as other:
        answer = Visitor(other.port).get(f"/sign-in?token={other.token}")
        value, *attributes = answer.headers["Set-Cookie"].split("; ")
        assert value.startswith(f"busbar-console-{other.port}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
        assert other.token not in answer.text + answer.headers["Set-Cookie"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "0.0.0.0", "["]
)
def test_a_name_that_is_not_loopback_is_refused(visitor: Visitor, console: ConsoleProcess, host: str) -> None:
    answer = visitor.get("/", {"Host": host.format(port=console.port)})
    assert answer.status == 403 and is_guarded(answer)
    assert "orders" not in answer.text


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}"])
def test_loopback_has_several_names(visitor: Visitor, console: ConsoleProcess, host: str) -> None:
    answer = visitor.get("/", {"Host": host.format(port=console.port)})
    assert answer.status == 200 and "orders" in answer.text


def test_a_change_needs_our_own_form(
    visitor: Visitor, console: ConsoleProcess, admin: ServiceBusAdministrationClient
) -> None:
    fields = form(visitor, "forged")
    foreign = {"Origin": "http://evil.example"}
    attempts = [
        visitor.post("/queue/new", {**fields, "csrf": ""}),
        visitor.post("/queue/new", {**fields, "csrf": "0" * 64}),
        visitor.post("/queue/new", {name: value for name, value in fields.items() if name != "csrf"}),
        visitor.post("/queue/new", fields, foreign),
        visitor.post("/queue/new", fields, {"Origin": "null"}),
        visitor.post("/queue/delete?name=orders", {}),
        visitor.post("/queue/delete?name=orders", {"csrf": fields["csrf"]}, foreign),
        visitor.post("/queue/purge?name=orders", {"typed": "orders", "lane-active": "true"}),
        visitor.post("/queue/send?name=orders", {"body": "x"}),
        visitor.post("/access", {"rule": "RootManageSharedAccessKey"}),
        visitor.post("/access", {"rule": "RootManageSharedAccessKey", "csrf": fields["csrf"]}, foreign),
    ]
    assert [answer.status for answer in attempts] == [403] * len(attempts)
    assert visitor.get("/queue/delete?name=orders").status == 200  # a GET asks, and changes nothing
    assert "forged" not in names(admin) and "orders" in names(admin)

    ours = visitor.post("/queue/new", fields, {"Origin": console.base})
    assert ours.status == 303 and is_guarded(ours)
    assert "forged" in names(admin)


def test_what_others_wrote_is_text(visitor: Visitor, admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("noted", user_metadata=MARKUP)
    refused = visitor.post("/queue/new", form(visitor, MARKUP))
    answers = [
        refused,
        visitor.get("/queue?name=noted"),
        visitor.get(f"/queue?name={MARKUP.replace(' ', '+')}"),
        visitor.get("/subscription/new?topic=%22%3E%3Cscript%3Ealert(1)"),
    ]
    assert [answer.status for answer in answers] == [400, 200, 404, 200]
    for answer in answers:
        assert "<script>alert" not in answer.text
    for answer in answers[:3]:
        assert escape(MARKUP) in answer.text


def test_what_is_not_there(visitor: Visitor) -> None:
    for path in ("/nowhere", "/queue?name=nobody", "/topic?name=orders", "/queue/delete?name=nobody"):
        answer = visitor.get(path)
        assert answer.status == 404 and is_guarded(answer), path
    assert visitor.get("/queue?name=..%2F$namespaceinfo").status == 400
    assert visitor.post("/", form(visitor, "x")).status == 405
    assert visitor.post("/queue/new", {"name": "x" * 100_000}).status == 413
    assert visitor.post("/queue/send?name=orders", {"body": "x" * 5_000_000}).status == 413


def test_no_key_is_shown(visitor: Visitor, console: ConsoleProcess, server: Busbar) -> None:
    paths = ("/", "/queue?name=orders", "/queue/new", "/queue/access?name=orders", "/access", "/connections")
    shown = [visitor.get(path).text for path in paths]
    assert all(server.key not in text for text in [*shown, console.error_text])


def test_nobody_from_outside_can_connect(console: ConsoleProcess) -> None:
    sockets = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert [place for place in sockets if place.endswith(f":{console.port:04X}")] == [
        f"0100007F:{console.port:04X}"
    ]


def test_a_busbar_that_is_away_and_comes_back(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text({"orders": {}})).start()
    try:
        with console_for(server.data) as console:
            visitor = Visitor(console.port).signed_in(console.token)
            fields = form(visitor, "later")
            assert visitor.get("/").status == 200
            server.stop()
            away = visitor.get("/")
            assert away.status == 503 and "busbar serve" in away.text
            assert "data-live" in away.text  # it looks again by itself
            refused = visitor.post("/queue/new", fields)
            assert refused.status == 503 and inputs(refused.text)["name"] == "later"
            server.start()
            assert "orders" in visitor.get("/").text
    finally:
        server.stop()


def busbar_console(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "busbar", "console", "--no-browser", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_keeps_it_from_starting_is_said_in_a_line(
    server: Busbar, console: ConsoleProcess, tmp_path: Path
) -> None:
    taken = busbar_console("--data", str(server.data), "--port", str(console.port))
    assert taken.returncode == 2 and taken.stdout == ""
    namespace, refusal = taken.stderr.splitlines()
    assert namespace.startswith("namespace: ") and f"port {console.port}" in refusal
    nobody = busbar_console("--data", str(tmp_path / "nothing"))
    assert nobody.returncode == 1 and "busbar serve" in nobody.stderr and nobody.stderr.count("\n") == 1
