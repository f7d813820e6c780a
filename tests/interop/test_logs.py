"""The log of a running Busbar: lines of JSON, and a level that operators change."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from busbar.cli.main import run
from harness.serving import PATIENCE, Busbar
from harness.waiting import eventually
from tests.interop.http_runtime import sas_token
from tests.interop.metrics import RULES, get

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.server(
        {"q": {}}, PATIENCE, rules=RULES, arguments=("--brokers", "2", "--log-format", "json")
    ),
]


def lines(server: Busbar) -> list[dict[str, Any]]:
    """What is in the log; other lines on standard error are for people."""
    return [json.loads(line) for line in server.error_text.splitlines() if line.startswith("{")]


def cli(server: Busbar, *arguments: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*arguments, "--data", str(server.data)])
    return code, out.getvalue() + err.getvalue()


def attach_to_nothing(server: Busbar, stack: contextlib.ExitStack) -> None:
    """The connection stays, so that the next one goes to the other broker."""
    client = ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)
    stack.enter_context(client)
    stack.enter_context(client.get_queue_sender("q"))
    sender = client.get_queue_sender("absent")
    with pytest.raises(ServiceBusError):
        sender.__enter__()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.mark.req("U28")
def test_the_level_is_changed_while_all_brokers_serve(server: Busbar, stack: contextlib.ExitStack) -> None:
    assert cli(server, "namespace", "log-level") == (0, "warning\n")
    attach_to_nothing(server, stack)
    assert not [line for line in lines(server) if line["level"] == "debug"]
    assert cli(server, "namespace", "log-level", "debug", "-o", "json")[0] == 0
    assert cli(server, "namespace", "log-level") == (0, "debug\n")

    def both_brokers_log() -> bool:
        attach_to_nothing(server, stack)
        processes = {line["process"] for line in lines(server) if line.get("entity") == "absent"}
        return processes == {"broker-0", "broker-1"}

    eventually(both_brokers_log)
    line = next(line for line in lines(server) if line.get("entity") == "absent")
    assert line["address"] == "127.0.0.1" and line["tracking_id"] and line["time"].endswith("Z")
    assert (line["level"], line["logger"]) == ("debug", "busbar.gateway.amqp.connection_links")
    code, text = cli(server, "namespace", "log-level", "verbose")
    assert code != 0 and "'verbose' is not a level" in text
    assert cli(server, "namespace", "log-level", "warning")[0] == 0


def test_only_managers_change_the_level(server: Busbar) -> None:
    listener = sas_token(f"http://localhost:{server.port}/", "to Listen", "Listen")
    assert get(server, "$busbar/log-level", listener)[0] == 401
    assert get(server, "$busbar/log-level", "")[0] == 401
