"""A refused token is in the log once, with time, address, rule and reason, and without the token.

Several brokers each have a log of their own on the same standard error, and each is bounded by itself.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest

from harness.serving import Busbar, serving
from tests.robustness.wire import Wire, connected, sas_token


def log_of(server: Busbar, count: int) -> list[str]:
    """At least so many lines of each process that has any."""
    deadline = time.monotonic() + 10
    while True:
        lines = [line for line in server.error_text.splitlines() if "token refused" in line]
        if all(number >= count for number in by_process(lines).values()) or time.monotonic() > deadline:
            return lines
        time.sleep(0.05)


def by_process(lines: list[str]) -> Counter[str]:
    return Counter(process_of(line) for line in lines)


def process_of(line: str) -> str:
    """What a line has between its time and its text: the logger, and the name of the broker if there are several."""
    return line.partition(" ")[2].partition(": ")[0]


def refused_of(line: str) -> str:
    """The rule and the kind of reason: what a process logs once."""
    return re.sub(r"\d+ s ago", "", line.partition(", rule ")[2])


def test_a_refused_token_is_logged_once_without_the_token() -> None:
    expired = sas_token("sb://localhost/q", lifetime=-500)
    wrong = sas_token("sb://localhost/q", key="a wrong key")
    with serving({"q": {}}) as server:
        for _ in range(30):
            with connected(server.port) as wire:
                assert wire.put_token(expired, "sb://localhost/q") == 401
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/q", headers={"Authorization": wrong}
        )
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request, timeout=20)
        with Wire(server.port) as wire:
            assert wire.sasl("PLAIN", b"\0some\nrule\0a guessed key") == 1
        deadline = time.monotonic() + 10
        while "rule 'some" not in server.error_text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        lines = log_of(server, 1)
        once = Counter((process_of(line), refused_of(line)) for line in lines)
        assert set(once.values()) == {1}, "a process says it once"
        first, second, third = {refused_of(line): line for line in lines}.values()
        stamp = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z .*: token refused: from 127\.0\.0\.1, rule "
        assert re.search(rf"{stamp}'RootManageSharedAccessKey': 'The token expired \d+ s ago\.'", first)
        assert re.search(rf"{stamp}'RootManageSharedAccessKey': '.*invalid signature", second)
        assert re.search(rf"{stamp}'some\\nrule': 'The user name or the password is wrong", third)
        signatures = re.findall("sig=([^&]+)", f"{expired}&{wrong}")
        assert len(signatures) == 2
        for secret in ("guessed key", *signatures):
            assert secret not in server.error_text


def test_strangers_cannot_fill_the_log() -> None:
    with serving({"q": {}}) as server:
        processes = max(1, len(server.processes()) - 1)
        for number in range(40 * processes):
            token = sas_token("sb://localhost/q", name=f"rule-{number}-" + "x" * 400)
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(
                    urllib.request.Request(
                        f"http://127.0.0.1:{server.port}/q", headers={"Authorization": token}
                    ),
                    timeout=20,
                )
        lines = log_of(server, 20)
        assert lines and set(by_process(lines).values()) == {20}
        assert max(map(len, lines)) < 600
