"""A connection that the broker closes is gone in time, also if its client reads nothing of what it is told."""

from __future__ import annotations

import socket
import time

import pytest

from harness.serving import Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.wire import ACCEPTED, RECEIVER, SENDER, logged_in, message

pytestmark = pytest.mark.server({"q": {}, "bystander": {}}, {"idle_timeout": 2_000})


def sockets_of(server: Busbar) -> int:
    return sum(target.startswith("socket:") for target in server.descriptors())


def test_a_client_that_stopped_reading_does_not_keep_its_connection(server: Busbar) -> None:
    """It has megabytes waiting for it and falls silent; the broker gives it up, and its bytes with it."""
    before = sockets_of(server)
    with logged_in(server.port) as reader, logged_in(server.port) as writer:
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.attach(0, SENDER, "q")
        reader.attach(0, RECEIVER, "q")
        reader.grant(0, 1_000)
        for number in range(300):
            assert writer.send_message(0, number, message(bytes(50_000))).outcome == ACCEPTED
        writer.socket.close()
        deadline = time.monotonic() + 12
        while sockets_of(server) > before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert sockets_of(server) <= before, "the connection is still there"
    with Bystander(server.port) as other:
        other.works()
