"""A refused token is in the log once, with time, address, rule and reason, and without the token."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request

import pytest

from tests.robustness.wire import Wire, connected, sas_token
from tests.serving import Busbar, serving


def log_of(server: Busbar, count: int) -> list[str]:
    """At least so many lines."""
    deadline = time.monotonic() + 10
    while True:
        lines = [line for line in server.error_text.splitlines() if "token refused" in line]
        if len(lines) >= count or time.monotonic() > deadline:
            return lines
        time.sleep(0.05)


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
        first, second, third = log_of(server, 3)
        stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 token refused: from 127\.0\.0\.1, rule "
        assert re.search(rf"{stamp}'RootManageSharedAccessKey': 'The token expired \d+ s ago\.'", first)
        assert re.search(rf"{stamp}'RootManageSharedAccessKey': '.*invalid signature", second)
        assert re.search(rf"{stamp}'some\\nrule': 'The user name or the password is wrong", third)
        signatures = re.findall("sig=([^&]+)", f"{expired}&{wrong}")
        assert len(signatures) == 2
        for secret in ("guessed key", *signatures):
            assert secret not in server.error_text


def test_strangers_cannot_fill_the_log() -> None:
    with serving({"q": {}}) as server:
        for number in range(40):
            token = sas_token("sb://localhost/q", name=f"rule-{number}-" + "x" * 400)
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(
                    urllib.request.Request(
                        f"http://127.0.0.1:{server.port}/q", headers={"Authorization": token}
                    ),
                    timeout=20,
                )
        lines = log_of(server, 20)
        assert len(lines) == 20
        assert max(map(len, lines)) < 600
