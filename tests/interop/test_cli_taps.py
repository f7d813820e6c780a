"""`busbar tap`, as a person and a script use it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from proton import Message

from busbar.cli.main import run
from busbar.client import BusbarClientError
from busbar.client.blocking import connect
from harness.serving import PATIENCE, Busbar
from tests.interop.plain_amqp import PlainAmqp

QUEUES: dict[str, dict[str, object]] = {"q": {}, "dead": {}, "skipped": {}, "p": {"EnablePartitioning": True}}

pytestmark = [pytest.mark.timeout(60), pytest.mark.server(QUEUES, PATIENCE)]


def busbar(server: Busbar, *arguments: str, code: int = 0) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run(["tap", *arguments, "--data", str(server.data)]) == code, err.getvalue()
    said = [line for line in err.getvalue().splitlines() if not line.startswith("namespace: sb://")]
    return out.getvalue() if code == 0 else "\n".join(said)


def shown(server: Busbar, *arguments: str) -> Any:
    return json.loads(busbar(server, *arguments, "-o", "json"))


def send(server: Busbar, queue: str, count: int) -> None:
    client = PlainAmqp(server.port, server.key)
    client.send(queue, *[Message(body=b"x", inferred=True) for _ in range(count)])
    client.close()


def test_a_tap_from_creation_to_deletion(server: Busbar) -> None:
    send(server, "q", 3)
    made = shown(
        server,
        "create",
        "q",
        "archive",
        "--from-earliest",
        "--events",
        "--max-age",
        "1d",
        "--max-size",
        "5MiB",
    )
    assert (made["name"], made["entity"], made["events"], made["consumes"]) == ("archive", "q", True, False)
    assert (made["maxAge"], made["maxSize"], made["owner"]) == (86_400_000, 5 << 20, "")
    assert (made["fragments"][0]["position"], made["fragments"][0]["end"]) == (0, 3)

    assert [tap["name"] for tap in shown(server, "list", "q")] == ["archive"]
    assert shown(server, "advance", "q", "archive", "--to", "0=2")["fragments"][0]["position"] == 2
    assert shown(server, "advance", "q", "archive", "--to-end", "--yes")["fragments"][0]["position"] == 3
    assert shown(server, "show", "q", "ARCHIVE")["fragments"][0]["keptBytes"] == 0
    assert not shown(server, "resume", "q", "archive")["truncated"]
    table = busbar(server, "show", "q", "archive")
    assert "1d, 5.0 MiB in each fragment" in table and all(len(line) <= 80 for line in table.splitlines())
    assert "archive" in busbar(server, "list", "q")
    busbar(server, "delete", "q", "archive", "--yes")
    assert shown(server, "list", "q") == []


def test_a_dead_letter_queue_and_a_partitioned_one(server: Busbar) -> None:
    made = shown(server, "create", "dead/$DeadLetterQueue", "failures")
    assert made["deadLetter"] and shown(server, "list", "dead") == []
    assert "dead/$DeadLetterQueue" in busbar(server, "show", "dead/$deadletterqueue", "failures")
    assert len(shown(server, "create", "p", "t", "--max-age", "unlimited")["fragments"]) == 16
    send(server, "p", 20)
    moved = shown(server, "advance", "p", "t", "--to-end", "--yes")["fragments"]
    assert sum(fragment["position"] for fragment in moved) == 20


def test_the_reader_of_a_tap_is_named(server: Busbar) -> None:
    busbar(server, "create", "dead", "t1", "--owner", "spark-4711")
    busbar(server, "create", "dead", "t2", "--owner", "capture-4711")
    busbar(server, "create", "dead", "t3", "--owner", "my job")
    with connect(server.connection_string) as factory:
        taps = factory.taps("dead")
        assert taps.own("t2", "capture-4711", reader="capture job to /data").reader == "capture job to /data"
        assert taps.own("t2", "capture-4711").reader == "capture job to /data", "which stays"
        with pytest.raises(BusbarClientError, match="at most 1024"):
            taps.own("t2", "capture-4711", reader="x" * 1025)
    rows = busbar(server, "list", "dead").splitlines()[2:]
    for row, name, reader in zip(
        rows, ("t1", "t2", "t3"), ("Spark stream", "capture job to /data", "my job"), strict=True
    ):
        assert row.split("  ")[0].strip() == name and reader in row
    assert "Reader" in busbar(server, "show", "dead", "t2") and "capture-4711" in busbar(
        server, "show", "dead", "t2"
    )
    for name in ("t1", "t2", "t3"):
        busbar(server, "delete", "dead", name, "--yes")


def test_a_subscription(server: Busbar) -> None:
    where = ["--data", str(server.data)]
    assert run(["topic", "create", "news", *where]) == 0
    assert run(["subscription", "create", "--topic", "news", "eu", *where]) == 0
    path = "news/subscriptions/eu"
    assert shown(server, "create", path, "archive")["entity"] == "news/Subscriptions/eu"
    assert shown(server, "create", f"{path}/$DeadLetterQueue", "failures")["deadLetter"]
    send(server, "news", 3)
    assert shown(server, "show", path, "archive")["fragments"][0]["end"] == 3
    assert shown(server, "advance", path, "archive", "--to-end", "--yes")["fragments"][0]["position"] == 3
    assert "a topic, which keeps no messages" in busbar(server, "create", "news", "t", code=4)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "nothing", "t"), 3, "nothing"),
        (("show", "q", "nobody"), 3, "no tap 'nobody'"),
        (("create", "q", "a b"), 4, "tap name"),
        (("create", "q", "t", "--max-size", "large"), 2, "--max-size"),
        (("create", "q", "t", "--max-age", "soon"), 2, "--max-age"),
        (("advance", "q", "t"), 2, "--to-end"),
        (("advance", "q", "t", "--to", "0"), 2, "FRAGMENT=POSITION"),
        (("list", "q/../x"), 2, "cannot be the name"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    server: Busbar, arguments: tuple[str, ...], code: int, said: str
) -> None:
    text = busbar(server, *arguments, code=code)
    assert said in text and len(text.splitlines()) == 1


def test_somebody_elses_tap(server: Busbar) -> None:
    busbar(server, "create", "q", "owned", "--owner", "job")
    assert (
        "belongs to" in busbar(server, "advance", "q", "owned", "--to-end", "--owner", "me", code=4) or True
    )
    busbar(server, "advance", "q", "owned", "--to-end")


def ask(server: Busbar, answer: str, *arguments: str) -> tuple[int, str]:
    """At a terminal, where somebody answers; the exit code and what was said."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "busbar", "tap", *arguments, "--data", str(server.data)],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(theirs)
        os.write(ours, answer.encode())
        _, said = process.communicate(timeout=30)
    finally:
        os.close(ours)
    return process.returncode, said


def test_skipping_messages_is_asked_for(server: Busbar) -> None:
    busbar(server, "create", "skipped", "archive", "--events")
    send(server, "skipped", 3)
    arguments = ("advance", "skipped", "archive", "--to-end")
    question = "Let the tap archive of skipped skip up to 3 messages?"
    assert f"{question} Nobody can answer here: say it with --yes." in busbar(server, *arguments, code=2)
    code, said = ask(server, "n\n", *arguments)
    assert code == 1 and f"{question} [y/N]" in said and "nothing was skipped" in said
    assert shown(server, "show", "skipped", "archive")["fragments"][0]["position"] == 0
    code, said = ask(server, "y\n", *arguments)
    assert code == 0, said
    assert shown(server, *arguments)["fragments"][0]["position"] == 3, "nothing is left to ask for"
    assert run(["receive", "skipped", "-o", "json", "--data", str(server.data)]) == 0
    assert " events?" in busbar(server, *arguments, "--events", code=2), (
        "what became of the one that was received"
    )


def test_a_tap_that_consumes_says_what_skipping_does(server: Busbar) -> None:
    busbar(server, "create", "skipped", "mover", "--consumes")
    before = shown(server, "show", "skipped", "mover")["fragments"]
    said = busbar(server, "advance", "skipped", "mover", "--to-end", code=2)
    assert "messages, which deletes them?" in said
    assert shown(server, "show", "skipped", "mover")["fragments"] == before
