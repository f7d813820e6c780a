"""Received messages on standard output.

1. Where standard output is no terminal, a body goes out byte by byte. One that is asked for alone (`--max 1`) has no line
   end. Of several, each has one.
2. On a terminal nothing in a message acts on it: control characters, escape sequences and what is no text are shown as
   escapes.
3. JSON has the bytes as base64 with the kind of body, and the text beside them where they are one.
4. What `show` returned from has left this process: it may be completed. Whatever `show` raises, it may not.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from busbar.cli.failure import CommandFailure
from busbar.cli.output import OutputFormat, json_line, json_text, printable

if TYPE_CHECKING:
    from busbar.client.http_requests import HttpReply

SECTION = "Content-Section"
"""The header in which a Busbar returns what the body was in AMQP."""
_KINDS = {"data": "data", "amqp-value": "value", "amqp-sequence": "sequence"}


class ReceivedView:
    """The messages of one command. Use as a context manager."""

    def __init__(self, output: OutputFormat, maximum: int, *, lines: bool = False) -> None:
        """With `lines` JSON has a message a line, without an array around them."""
        self._output = output
        self._lines = lines
        self._maximum = maximum
        self._count = 0

    def __enter__(self) -> ReceivedView:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None and self._output is OutputFormat.JSON and not self._lines:
            self._write(b"\n]\n" if self._count else b"[]\n")

    def show(self, answer: HttpReply) -> None:
        """Write a message to standard output. Raises CommandFailure if it cannot be written."""
        if self._output is OutputFormat.JSON and self._lines:
            self._write(json_line(as_json(answer)).encode() + b"\n")
        elif self._output is OutputFormat.JSON:
            item = "\n".join(f"  {line}" for line in json_text(as_json(answer)).splitlines())
            self._write((",\n" if self._count else "[\n").encode() + item.encode())
        elif sys.stdout.isatty():
            self._write(printable(answer.body.decode("utf-8", "backslashreplace")).encode() + b"\n")
        else:
            self._write(answer.body if self._maximum == 1 else answer.body + b"\n")
        self._count += 1

    def _write(self, data: bytes) -> None:
        try:
            sys.stdout.flush()
            stream = getattr(sys.stdout, "buffer", None)
            if stream is None:
                sys.stdout.write(data.decode("utf-8", "surrogateescape"))
            else:
                stream.write(data)
                stream.flush()
        except OSError as error:
            _forget_output()
            reason = error.strerror or str(error)
            raise CommandFailure(
                f"standard output cannot be written ({reason}); what was not written is put back."
            ) from None


def as_json(answer: HttpReply) -> dict[str, object]:
    from busbar.gateway.http.runtime_headers import is_property_name

    properties = {name: _value(value) for name, value in answer.headers.items() if is_property_name(name)}
    return {
        "body": _text(answer.body),
        "bodyKind": _KINDS.get(answer.headers.get(SECTION, "data"), "data"),
        "bodyBase64": base64.b64encode(answer.body).decode("ascii"),
        "contentType": answer.headers.get("Content-Type"),
        "brokerProperties": broker_properties(answer),
        "properties": properties,
    }


def broker_properties(answer: HttpReply) -> dict[str, object]:
    try:
        found = json.loads(answer.headers.get("BrokerProperties", ""))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CommandFailure("what answered is not a Busbar: the message has no BrokerProperties.")
    return found


def _text(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _value(text: str) -> object:
    """A header as HTTP writes properties: strings in quotes, numbers and truth values bare."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _forget_output() -> None:
    """Drop what is left in the buffer of standard output. Otherwise the process would fail to write it at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
