"""`busbar send`, `peek`, `tail`, `purge`, `dead-letters` and `sessions`, as a person and a script use them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest

from busbar.cli.main import run
from busbar.client import OutgoingMessage, blocking
from busbar.client.blocking import BlockingFactory
from harness.serving import PATIENCE, Busbar
from harness.terminal import TerminalProgram

QUEUES: dict[str, dict[str, object]] = {
    **{
        name: {}
        for name in (
            "sent",
            "lines",
            "peeked",
            "emptied",
            "asked",
            "dead",
            "tailed",
            "all",
            "hostile",
            "followed",
            "described",
        )
    },
    "parts": {"EnablePartitioning": True},
    "held": {"RequiresSession": True},
}
TOPICS = [{"Name": "news", "Properties": {}, "Subscriptions": [{"Name": "eu", "Properties": {}}]}]
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202e<b>\u0000"

pytestmark = [pytest.mark.timeout(90), pytest.mark.server(QUEUES, PATIENCE, topics=TOPICS)]


class Command:
    """The command, in this process, with closed input and 80 columns."""

    def __init__(self, server: Busbar) -> None:
        self.server = server

    def __call__(self, *arguments: str, code: int = 0, stdin: bytes | None = None) -> str:
        out, err = io.StringIO(), io.StringIO()
        given = io.TextIOWrapper(io.BytesIO(stdin or b""))
        with (
            mock.patch.dict(os.environ, {"COLUMNS": "80"}),
            mock.patch.object(sys, "stdin", given),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            ended = run([*arguments, "--data", str(self.server.data)])
        assert ended == code, (ended, err.getvalue())
        if code == 0:
            return out.getvalue()
        said = [line for line in err.getvalue().splitlines() if not line.startswith("namespace: sb://")]
        assert said and said[0].startswith("busbar: "), said
        return "\n".join(said)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def on_a_terminal(self, *arguments: str) -> TerminalProgram:
        command = [sys.executable, "-m", "busbar", *arguments, "--data", str(self.server.data)]
        return TerminalProgram(command, columns=80)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "busbar", *arguments, "--data", str(self.server.data)]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "80", "PYTHONUNBUFFERED": "1"},
        )


@pytest.fixture(scope="module")
def busbar(server: Busbar) -> Command:
    return Command(server)


@pytest.fixture(scope="module")
def factory(server: Busbar) -> Iterator[BlockingFactory]:
    with blocking.connect(server.connection_string) as made:
        yield made


def test_a_message_with_hundreds_of_properties_is_received_with_their_names(
    busbar: Command, factory: BlockingFactory
) -> None:
    properties: dict[str, object] = {f"Property{number}": "x" * 100 for number in range(300)}
    with factory.message_sender("described") as sender:
        sender.send_messages(OutgoingMessage(b"", application_properties=properties))
    (shown,) = busbar.json("receive", "described")
    assert shown["properties"] == properties


def dead_letter(factory: BlockingFactory, entity: str, *reasons: str) -> None:
    target = entity.split("/")[0]
    with factory.message_sender(target) as sender:
        sender.send_messages([OutgoingMessage(reason.encode(), message_id=reason) for reason in reasons])
    with factory.message_receiver(entity) as receiver:
        for _ in reasons:
            (got,) = receiver.receive_messages(1, 10)
            receiver.dead_letter_message(got, reason=got.body.decode(), error_description="it was so")


def next_line(stream: IO[str] | None, seconds: float = 20) -> str:
    assert stream is not None
    ready, _, _ = select.select([stream], [], [], seconds)
    assert ready, "nothing was printed"
    return stream.readline()


@pytest.mark.req("U24")
def test_a_message_with_every_field_is_sent_and_shown(busbar: Command, tmp_path: Path) -> None:
    body = tmp_path / "order.json"
    body.write_text('{"items":[1,2]}')
    busbar(
        "send", "sent", "--file", str(body), "--content-type", "application/json", "--session-id", "s",
        "--partition-key", "s", "--reply-to", "answers", "--reply-to-session-id", "rs", "--to", "x",
        "--correlation-id", "c", "--subject", "order", "--message-id", "m1", "--time-to-live", "1h",
        "--property", "n=5", "--property", "ok=true", "--property", 'text="5"',
    )  # fmt: skip
    (shown,) = busbar.json("peek", "sent")
    assert (shown["messageId"], shown["sessionId"], shown["partitionKey"]) == ("m1", "s", "s")
    assert (shown["replyTo"], shown["replyToSessionId"], shown["to"]) == ("answers", "rs", "x")
    assert (shown["correlationId"], shown["subject"], shown["timeToLiveMs"]) == ("c", "order", 3_600_000)
    assert shown["properties"] == {"n": 5, "ok": True, "text": "5"} and shown["state"] == "Active"
    full = busbar("peek", "sent", "--body", "json")
    assert (
        '"items": [\n    1,' in full
        and "Reply to" in full
        and all(len(line) <= 80 for line in full.splitlines())
    )
    assert "7b 22 69 74" in busbar("peek", "sent", "--body", "hex")
    number = busbar("send", "sent", "later", "--schedule", "+3600").strip()
    assert [str(each["sequenceNumber"]) for each in busbar.json("peek", "sent", "--scheduled")] == [number]
    assert busbar.json("peek", "sent", "--deferred") == []


def test_lines_of_standard_input_are_messages(busbar: Command) -> None:
    busbar("send", "lines", "-", "--lines", stdin=b"one\r\ntwo\n\nthree")
    busbar("send", "lines", stdin=b"a\nb\n")
    assert [each["body"] for each in busbar.json("peek", "lines")] == ["one", "two", "three", "a\nb\n"]
    lines = busbar("peek", "lines", "-o", "jsonl").splitlines()
    assert [json.loads(line)["body"] for line in lines][:3] == ["one", "two", "three"]
    rest = busbar.json("peek", "lines", "--from", "2", "--max", "2")
    assert [each["body"] for each in rest] == ["two", "three"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("send", "sent", "x", "--property", "novalue"), 2, "KEY=VALUE"),
        (("send", "sent", "x", "--schedule", "soon"), 2, "is not a time"),
        (("send", "sent", "x", "--time-to-live", "soon"), 2, "--time-to-live"),
        (("send", "sent", "x", "--file", "/nowhere"), 2, "give one of them"),
        (("send", "sent", "--file", "/nowhere/at all"), 2, "No such file"),
        (("send", "sent", "-", "--lines", "--message-id", "m"), 2, "one id"),
        (("send", "nothing", "x"), 3, "nothing"),
        (("send", "held", "x"), 4, "session"),
        (("peek", "nothing"), 3, "nothing"),
        (("peek", "sent", "--deferred", "--scheduled"), 2, "--deferred and --scheduled"),
        (("peek", "sent", "--session-id", "s"), 4, "no message sessions"),
        (("peek", "dead/$DeadLetterQueue", "--scheduled"), 2, "name the entity 'dead'"),
        (("tail", "nothing"), 3, "nothing"),
        (("tail", "news"), 4, "topic"),
        (("purge", "sent"), 2, "--yes"),
        (("purge", "sent", "--all", "--deferred"), 2, "give one of them"),
        (("purge", "nothing", "--yes"), 3, "nothing"),
        (("dead-letters", "nothing"), 3, "nothing"),
        (("dead-letters", "show", "sent", "999"), 3, "no dead letter with the sequence number 999"),
        (("dead-letters", "resubmit", "sent"), 2, "which dead letters?"),
        (("dead-letters", "resubmit", "sent", "--all", "--set", "odd=1"), 2, "--set"),
        (("dead-letters", "resubmit", "news/subscriptions/eu", "--all"), 2, "its topic 'news'"),
        (("dead-letters", "resubmit", "sent", "--all", "--number", "1"), 2, "give one of them"),
        (("dead-letters", "delete", "sent", "--all"), 2, "--yes"),
        (("dead-letters", "delete", "sent", "--number", "7", "--yes"), 3, "no dead letter is selected"),
        (("sessions", "sent"), 4, "no message sessions"),
        (("sessions", "set-state", "held", "s", "x", "--clear"), 2, "give one of them"),
        (("sessions", "hold", "held", "s", "--for", "soon"), 2, "--for"),
        (("receive", "sent", "--follow", "--keep"), 2, "--follow and --keep"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    busbar: Command, arguments: tuple[str, ...], code: int, said: str
) -> None:
    text = busbar(*arguments, code=code)
    assert said in text and len(text.splitlines()) == 1


@pytest.mark.req("U20")
def test_nothing_in_a_message_acts_on_the_terminal(busbar: Command, factory: BlockingFactory) -> None:
    with factory.message_sender("hostile") as sender:
        for body in (HOSTILE.encode(), b"\xff\x1b[2J\x9b"):
            sender.send_messages(
                OutgoingMessage(
                    body, message_id=HOSTILE, subject=HOSTILE, application_properties={HOSTILE: HOSTILE}
                )
            )
    with factory.message_receiver("hostile") as receiver:
        (got,) = receiver.receive_messages(1, 10)
        receiver.dead_letter_message(got, reason=HOSTILE, error_description=HOSTILE)
    number = str(got.sequence_number)
    shown = [
        busbar("peek", "hostile", *options)
        for options in (
            (),
            ("-o", "json"),
            ("-o", "jsonl"),
            ("--body", "text"),
            ("--body", "hex"),
            ("--body", "json"),
        )
    ]
    shown += [busbar("dead-letters", "hostile"), busbar("dead-letters", "show", "hostile", number)]
    shown += [busbar("peek", "hostile", "--dead-letter", "--body", "auto")]
    for text in shown:
        assert text and not [char for char in text if not char.isprintable() and char != "\n"]
    assert json.loads(busbar("dead-letters", "hostile", "-o", "json"))[0]["reason"] == HOSTILE


@pytest.mark.parametrize("queue", ["emptied", "parts", "news/subscriptions/eu"])
@pytest.mark.req("U15")
def test_a_purge_empties_what_it_names(busbar: Command, factory: BlockingFactory, queue: str) -> None:
    dead_letter(factory, queue, "Broken")
    target = queue.split("/")[0]
    busbar("send", target, "-", "--lines", stdin=b"x\n" * 30)
    with factory.message_receiver(queue) as receiver:
        receiver.defer_message(receiver.receive_messages(1, 10)[0])
    report = busbar.json("purge", queue, "--yes")
    assert report["deleted"]["active"] == 29 and report["deleted"]["deferred"] == 1 and report["left"] == 0
    assert busbar.json("peek", queue) == [] and len(busbar.json("peek", queue, "--dead-letter")) == 1
    assert "Deleted" in busbar("purge", f"{queue}/$DeadLetterQueue", "--yes")
    assert busbar.json("peek", queue, "--dead-letter") == []


@pytest.mark.parametrize(("answer", "code"), [("asked\n", 0), ("askd\n", 1), ("\x03", 130)])
def test_a_purge_asks_for_the_name(busbar: Command, answer: str, code: int) -> None:
    busbar("send", "asked", "x")
    with busbar.on_a_terminal("purge", "asked") as program:
        program.wait_for("Type its name to go on")
        program.type(answer)
        assert program.end() == code
    assert "Traceback" not in program.screen.text and "messages deleted" not in program.screen.text
    assert (len(busbar.json("peek", "asked")) == 0) == (code == 0)
    busbar("purge", "asked", "--yes")


def test_rows_on_a_terminal_are_cut_to_its_width(busbar: Command) -> None:
    busbar("send", "peeked", "long " * 100, "--message-id", "m" * 100, "--subject", "s" * 100)
    with busbar.on_a_terminal("peek", "peeked") as program:
        assert program.end() == 0
    assert program.screen.wrapped == 0 and "…" in program.screen.text
    with busbar.on_a_terminal("tail", "peeked", "--max", "1") as program:
        # Nothing tells when the first look was made, so messages are sent until one is shown.
        while "sub" not in program.screen.text:
            busbar("send", "peeked", "long " * 100, "--message-id", "m" * 30, "--subject", "sub")
            with contextlib.suppress(AssertionError):
                program.wait_for("sub", 0.5)
        assert program.end() == 0
    assert program.screen.wrapped == 0 and program.screen.text.endswith("…")


@pytest.mark.req("U12")
def test_dead_letters_are_triaged(busbar: Command, factory: BlockingFactory, tmp_path: Path) -> None:
    dead_letter(factory, "dead", "Broken", "Late", "Broken", "Odd")
    groups = busbar.json("dead-letters", "dead")
    assert [(each["reason"], each["count"]) for each in groups] == [("Broken", 2), ("Late", 1), ("Odd", 1)]
    table = busbar("dead-letters", "dead")
    assert "Broken" in table and "it was so" in table
    found = {
        each["body"]: str(each["sequenceNumber"]) for each in busbar.json("peek", "dead", "--dead-letter")
    }
    shown = busbar("dead-letters", "show", "dead", found["Late"])
    assert "Dead-letter reason" in shown and all(len(line) <= 80 for line in shown.splitlines())
    new = tmp_path / "new"
    new.write_bytes(b"mended")
    report = busbar.json(
        "dead-letters", "resubmit", "dead", "--number", found["Late"], "--body-file", str(new),
        "--set", "subject=again", "--set", "properties.try=2",
    )  # fmt: skip
    assert (report["found"], report["resubmitted"], report["left"]) == (1, 1, 0)
    (copy,) = busbar.json("peek", "dead")
    assert (copy["body"], copy["subject"]) == ("mended", "again")
    assert copy["properties"] == {"original-message-id": "Late", "try": 2}
    assert busbar.json("dead-letters", "delete", "dead", "--reason", "Broken", "--yes")["deleted"] == 2
    assert "Resubmitted" in busbar("dead-letters", "resubmit", "dead", "--all", "--keep-id")
    assert {each["messageId"] for each in busbar.json("peek", "dead") if each["body"] == "Odd"} == {"Odd"}
    assert busbar.json("dead-letters", "dead") == []
    dead_letter(factory, "news/subscriptions/eu", "Broken")
    path = "news/subscriptions/eu"
    assert busbar.json("dead-letters", "resubmit", path, "--all", "--to", "dead")["resubmitted"] == 1
    dead_letter(factory, path, "Broken")
    refused = busbar("dead-letters", "resubmit", path, "--all", "--to", "held", code=4)
    assert "stay in the dead-letter queue" in refused and len(busbar.json("peek", path, "--dead-letter")) == 1


@pytest.mark.req("S6")
def test_sessions_are_shown_held_and_given_a_state(busbar: Command) -> None:
    for name in ("a", "a", "b"):
        busbar("send", "held", "x", "--session-id", name)
    busbar("sessions", "set-state", "held", "b", "half")
    listed = busbar.json("sessions", "held")
    assert [(each["sessionId"], each["messageCount"], each["hasState"]) for each in listed] == [
        ("a", 2, False),
        ("b", 1, True),
    ]
    assert [each["body"] for each in busbar.json("peek", "held", "--session-id", "a")] == ["x", "x"]
    holder = busbar.start("sessions", "hold", "held", "a")
    try:
        said = holder.stderr
        assert (
            said is not None and "namespace" in next_line(said) and "holding session 'a'" in next_line(said)
        )
        (a,) = busbar.json("sessions", "held", "--top", "1")
        assert a["isHeld"] and a["holder"].endswith("at 127.0.0.1")
        assert "Holder" in busbar("sessions", "show", "held", "a") and "127.0.0.1" in busbar(
            "sessions", "held"
        )
        assert "session" in busbar("sessions", "set-state", "held", "a", "x", code=4)
    finally:
        holder.send_signal(signal.SIGINT)
        _, text = holder.communicate(timeout=30)
    assert holder.returncode == 0 and "Traceback" not in text
    assert not busbar.json("sessions", "show", "held", "a")["isHeld"]
    busbar("sessions", "set-state", "held", "a", "x")
    assert "half" in busbar("sessions", "show", "held", "b")
    busbar("sessions", "set-state", "held", "b", "--clear")
    assert busbar.json("sessions", "show", "held", "b")["stateBase64"] is None
    assert busbar.json("purge", "held", "--session-id", "a", "--yes")["deleted"]["active"] == 2


@pytest.mark.parametrize(("queue", "options"), [("tailed", ()), ("all", ("--all",)), ("parts", ("--all",))])
def test_new_messages_are_shown_as_they_come(
    busbar: Command, factory: BlockingFactory, queue: str, options: tuple[str, ...]
) -> None:
    busbar("send", queue, "before")
    process = busbar.start("tail", queue, "-o", "json", *options)
    assert process.stdout is not None
    try:
        seen: list[str] = []
        deadline = time.monotonic() + 30
        # Nothing tells when the first look was made, so messages are sent until one is shown.
        while not seen and time.monotonic() < deadline:
            busbar("send", queue, "now", "--subject", "s")
            if options:  # completed at once, and shown all the same
                with factory.message_receiver(queue, receive_mode="receiveanddelete") as receiver:
                    receiver.receive_messages(10, 5)
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], 0.5)
            if ready:
                seen.append(json.loads(next_line(process.stdout))["body"])
        assert seen == ["now"]
    finally:
        process.send_signal(signal.SIGTERM if options else signal.SIGINT)
        _, text = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in text, text
    assert busbar.json("tap", "list", queue) == []


def test_receive_follows_until_it_is_stopped(busbar: Command) -> None:
    process = busbar.start("receive", "followed", "--follow", "-o", "json")
    try:
        for body in ("one", "two"):
            busbar("send", "followed", body)
            assert json.loads(next_line(process.stdout))["body"] == body
    finally:
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=30)
    assert process.returncode == 0 and text.splitlines()[1:] == [], text
    assert busbar.json("peek", "followed") == []
