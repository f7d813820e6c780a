"""`busbar console` in a process of its own, as a user starts it; and a client that speaks plain HTTP to it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

from harness.serving import READY_SECONDS


class ConsoleProcess:
    def __init__(self, data: Path | None, *arguments: str) -> None:
        where = () if data is None else ("--data", str(data))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BUSBAR_CONN")}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "busbar", "console", "--port", "0", "--no-browser"),
                *where,
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=inherited,
        )
        self._errors: list[str] = []
        threading.Thread(target=self._collect, daemon=True).start()
        alarm = threading.Timer(READY_SECONDS, self._process.kill)
        alarm.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        alarm.cancel()
        found = re.fullmatch(
            r"ready (?P<base>http://127\.0\.0\.1:(?P<port>\d+))/sign-in\?token=(?P<token>\S+)\n", line
        )
        assert found is not None, (line, self.error_text)
        self.base, self.port, self.token = found["base"], int(found["port"]), found["token"]

    @property
    def sign_in(self) -> str:
        return f"{self.base}/sign-in?token={self.token}"

    @property
    def error_text(self) -> str:
        return "".join(self._errors)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _collect(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)


@contextmanager
def console_for(data: Path) -> Iterator[ConsoleProcess]:
    console = ConsoleProcess(data)
    try:
        yield console
    finally:
        code = console.stop()
        assert code == 0, console.error_text
        assert "Traceback" not in console.error_text, console.error_text


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str


class Visitor:
    """A program that sends exactly what it is told: what a browser would not is the interesting part."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cookie = ""

    def signed_in(self, token: str) -> Visitor:
        answer = self.get(f"/sign-in?token={token}")
        assert answer.status == 200, answer.text
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        return self

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self._request("GET", path, headers or {}, None)

    def post(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        sent = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        return self._request("POST", path, sent, urlencode(fields).encode())

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        cookie = {"Cookie": self.cookie} if self.cookie else {}
        try:
            connection.request(method, path, body, {**cookie, **headers})
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers.items()), response.read().decode())
        finally:
            connection.close()


class _Inputs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input" and given.get("name") and given.get("type") != "checkbox":
            self.values[given["name"] or ""] = given.get("value") or ""


def inputs(text: str) -> dict[str, str]:
    """The fields of a page's form with what stands in them, hidden ones too."""
    parser = _Inputs()
    parser.feed(text)
    return parser.values
