"""A client is lost while the catalogue is being changed for it: the change is made, now and for the next start.

Disks are made slow (harness/faults/slow_sync.c), so that every change takes long enough to be interrupted.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, ULong
from harness.serving import Busbar, config_text
from tests.interop.administration import BareHttp, entry
from tests.robustness.wire import ACCEPTED, DISPOSITION, RECEIVER, SENDER, logged_in, performative

SYNC_MS = 400
VERSION = "api-version=2021-05"
MANAGEMENT = "t/Subscriptions/s/$management"

pytestmark = pytest.mark.shim("slow_sync")


def drop_during(server: Busbar, operation: str, body: dict[str, object]) -> None:
    """Ask for a change of rules over AMQP, and vanish when the request has been taken."""
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, MANAGEMENT, name="requests")
        wire.attach(1, RECEIVER, MANAGEMENT, name="replies")
        wire.grant(1, 10)
        request = performative(0x73, ["1", None, MANAGEMENT, None, "replies-end"])
        request += encode_value(Described(ULong(0x74), {"operation": f"com.microsoft:{operation}"}))
        wire.transfer(0, 0, request + encode_value(Described(ULong(0x77), body)))
        assert wire.until(DISPOSITION).outcome == ACCEPTED
        wire.vanish()


def drop_during_put(server: Busbar, path: str, description: str) -> None:
    """The same over HTTP."""
    body = entry(description)
    token = BareHttp(server).token()
    head = f"PUT /{path}?{VERSION} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 10) as http:
        http.sendall(f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode())
        http.settimeout(SYNC_MS / 2000)
        with pytest.raises(TimeoutError):
            http.recv(1)  # so it was taken, and is not answered yet
        http.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def found(server: Busbar) -> tuple[list[str], list[str]]:
    """The names of queues and of the subscription's rules."""
    http = BareHttp(server)
    pages = [
        http.request("GET", f"/{path}?{VERSION}&$top=100")[2]
        for path in ("$Resources/queues", "t/Subscriptions/s/rules")
    ]
    queues, rules = [sorted(re.findall(r"<entry>.*?<title[^>]*>([^<]*)", page, re.DOTALL)) for page in pages]
    return queues, rules


@contextmanager
def slow_disks(slow: Path, http: BareHttp, marker: str) -> Iterator[None]:
    """Until the end of the block; and a change after it, which is answered when those before it are over."""
    slow.touch()
    yield
    slow.unlink()
    assert http.request("PUT", f"/{marker}?{VERSION}", entry("QueueDescription"))[0] == 201


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_a_change_is_made_though_its_client_is_gone(tmp_path: Path, shim: Path, brokers: str) -> None:
    slow = tmp_path / "slow"
    server = Busbar(
        tmp_path / "data",
        config_text({}),
        arguments=("--brokers", brokers, "--stores", "2"),
        environment={"LD_PRELOAD": str(shim), "SLOW_SYNC_MS": str(SYNC_MS), "SLOW_SYNC_FILE": str(slow)},
    ).start()
    try:
        http = BareHttp(server)
        for path, description in (
            ("t", "TopicDescription"),
            ("t/Subscriptions/s", "SubscriptionDescription"),
        ):
            assert http.request("PUT", f"/{path}?{VERSION}", entry(description))[0] == 201
        described = {"sql-filter": {"expression": "colour = 'blue'"}}
        with slow_disks(slow, http, "after-1"):
            drop_during(server, "add-rule", {"rule-name": "blue", "rule-description": described})
        with slow_disks(slow, http, "after-2"):
            drop_during(server, "remove-rule", {"rule-name": "$Default"})
        with slow_disks(slow, http, "after-3"):
            drop_during_put(server, "dropped", "QueueDescription")
        in_force = found(server)
        assert server.stop() == 0
        server.start()
        assert found(server) == in_force == (["after-1", "after-2", "after-3", "dropped"], ["blue"])
        assert "Traceback" not in server.error_text
    finally:
        server.kill()
