"""`busbar receive` changes no body and loses no message that was not written out; no message acts on a terminal."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from harness.serving import Busbar

BYTES = bytes(range(256))
HOSTILE = "\x1b]0;owned\x07\x1b[2J \x9b31m \u202e end"


def send(server: Busbar, *messages: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("other") as sender,
    ):
        for message in messages:
            sender.send_messages(message)


def command(server: Busbar, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "busbar", "receive", "other", "--data", str(server.data), *arguments]


def receive(server: Busbar, *arguments: str) -> bytes:
    done = subprocess.run(
        command(server, *arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_a_terminal(server: Busbar, *arguments: str) -> bytes:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(server, *arguments), stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    assert process.wait(60) == 0
    os.close(ours)
    return seen


def test_bytes_go_out_as_they_came(server: Busbar) -> None:
    send(server, ServiceBusMessage(BYTES), ServiceBusMessage(BYTES), ServiceBusMessage(b"\xff"))
    assert receive(server) == BYTES
    assert receive(server, "--max", "2") == BYTES + b"\n\xff\n"


def test_json_has_the_bytes_and_the_kind_of_body(server: Busbar) -> None:
    send(
        server,
        ServiceBusMessage(BYTES),
        ServiceBusMessage("text"),
        AmqpAnnotatedMessage(value_body="a value"),
        AmqpAnnotatedMessage(sequence_body=[["a"], ["b"]]),
    )
    found: list[dict[str, Any]] = json.loads(receive(server, "--max", "4", "-o", "json"))
    assert [one["bodyKind"] for one in found] == ["data", "data", "value", "sequence"]
    assert base64.b64decode(found[0]["bodyBase64"]) == BYTES
    assert [one["body"] for one in found[:3]] == [None, "text", "a value"]


@pytest.mark.parametrize("form", [(), ("-o", "json")])
def test_a_message_does_not_act_on_a_terminal(server: Busbar, form: tuple[str, ...]) -> None:
    send(server, ServiceBusMessage(HOSTILE), ServiceBusMessage(BYTES))
    seen = on_a_terminal(server, "--max", "2", *form).replace(b"\r\n", b"\n")
    text = seen.decode("utf-8")
    assert "end" in text
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize(("output", "form"), [("a closed pipe", ("-o", "json")), ("a full disk", ())])
def test_what_cannot_be_written_is_put_back(server: Busbar, form: tuple[str, ...], output: str) -> None:
    send(server, ServiceBusMessage("precious"))
    if output == "a closed pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open("/dev/full", os.O_WRONLY)
    failed = subprocess.run(
        command(server, *form),
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert failed.returncode == 1
    assert "put back" in failed.stderr and "Exception" not in failed.stderr
    assert receive(server) == b"precious", "at once: it was unlocked"
