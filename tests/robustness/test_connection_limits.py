"""How many AMQP connections a namespace has: the one too many learns why, and HTTP is not counted.

The limits of one entity are in tests/interop/test_entity_changes.py, those of several brokers in
tests/durability/test_broker_limits.py.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from busbar.client import MessagingFactory, QuotaExceeded
from busbar.model.limits import Limits
from harness.amqp_driver import ConnectionOver, LoadConnection, connect
from harness.serving import BROKERS, Busbar
from tests.robustness.wire import (
    ATTACH,
    CLOSE,
    KEY,
    KEY_NAME,
    RECEIVER,
    SENDER,
    Wire,
    connected,
    logged_in,
    message,
    sas_token,
)

MOST = 6
FULL = "amqp:resource-limit-exceeded"
pytestmark = [
    pytest.mark.server({"q": {}, "other": {}}, {"max_connections": MOST, "token_timeout": 2_000}),
    pytest.mark.skipif(bool(BROKERS), reason="several gateways share the limit: test_broker_limits.py"),
]


@pytest.fixture
def full(server: Busbar) -> Iterator[list[Wire]]:
    """The connections of a namespace that has all it may have."""
    deadline = time.monotonic() + 10
    wires: list[Wire] = []
    while len(wires) < MOST:  # those of the test before may still be closing
        assert time.monotonic() < deadline
        try:
            wires.append(logged_in(server.port))
        except (EOFError, OSError):
            time.sleep(0.05)
    yield wires
    for wire in wires:
        wire.vanish()


def refusal(port: int, mechanism: str) -> tuple[str, str]:
    """Condition and text of the close that one more connection gets."""
    with Wire(port) as wire:
        response = f"\0{KEY_NAME}\0{KEY}".encode() if mechanism == "PLAIN" else b""
        assert wire.sasl(mechanism, response) == 0
        wire.open()
        closed = wire.until(CLOSE)
        text = str(getattr(closed.field(0), "value", [None, ""])[1])
        wire.say(CLOSE, [None])
        assert wire.ended()
        return closed.condition, text


@pytest.mark.req("B12")
@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "PLAIN"])
def test_one_connection_too_many_learns_why(server: Busbar, full: list[Wire], mechanism: str) -> None:
    condition, text = refusal(server.port, mechanism)
    assert condition == FULL
    assert f"{MOST} AMQP connections" in text and "HTTP" in text
    assert full[0].attach(0, SENDER, "q").code == ATTACH, "the others go on"
    assert full[0].send_message(0, 0, message(b"x", "m")).outcome == 0x24


@pytest.mark.req("B12")
def test_a_place_that_is_free_again_can_be_had(server: Busbar, full: list[Wire]) -> None:
    assert refusal(server.port, "PLAIN")[0] == FULL
    full.pop().vanish()
    deadline = time.monotonic() + 5
    while True:
        try:
            wire = logged_in(server.port)
            if wire.attach(0, RECEIVER, "other").code == ATTACH:
                break
        except (EOFError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    full.append(wire)
    assert refusal(server.port, "PLAIN")[0] == FULL


@pytest.mark.req("B12")
def test_http_has_room_when_amqp_has_none(server: Busbar, full: list[Wire]) -> None:
    token = {"Authorization": sas_token("http://localhost/other")}
    clients = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=10) for _ in range(2 * MOST)]
    try:
        for number, client in enumerate(clients):
            client.request("POST", "/other/messages", b"%d" % number, token)
            answer = client.getresponse()
            answer.read()
            assert answer.status == 201
        assert refusal(server.port, "PLAIN")[0] == FULL
    finally:
        for client in clients:
            client.close()


@pytest.mark.req("B12")
def test_clients_say_that_the_namespace_is_full(server: Busbar, full: list[Wire]) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as sdk,
        pytest.raises(ServiceBusError, match="AMQP connections"),
        sdk.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))

    async def ours() -> None:
        async with await MessagingFactory.connect(server.connection_string) as factory:
            await factory.sender("q")

    began = time.monotonic()
    with pytest.raises(QuotaExceeded, match="AMQP connections") as caught:
        asyncio.run(ours())
    assert caught.value.condition == FULL
    assert not caught.value.retryable, "a quota is no fault that passes: the program decides"
    assert time.monotonic() - began < 5, "it is not tried again"


def test_a_connection_too_many_that_never_opens_is_closed(server: Busbar, full: list[Wire]) -> None:
    """Also one that has logged in: it has no place, and no more time than a stranger."""
    surplus = [Wire(server.port) for _ in range(20)]
    for wire in surplus:
        assert wire.sasl("PLAIN", f"\0{KEY_NAME}\0{KEY}".encode()) == 0
    began = time.monotonic()
    for wire in surplus:
        wire.socket.settimeout(10)
        assert wire.ended()
        wire.__exit__()
    assert time.monotonic() - began < 8


def test_what_follows_the_open_is_not_looked_at(server: Busbar, full: list[Wire]) -> None:
    """A client that sends all its frames at once, as fast ones do."""

    async def pipelined() -> LoadConnection:
        connection = await connect(server.port)
        await connection.receiver("q", credit=10)
        return connection

    for _ in range(5):
        with pytest.raises(ConnectionOver):
            asyncio.run(asyncio.wait_for(pipelined(), 5))
    assert full[0].attach(5, RECEIVER, "q").code == ATTACH
    with pytest.raises((EOFError, OSError)):
        connected(server.port).attach(0, RECEIVER, "q")


def test_one_that_goes_on_sending_is_cut_off(server: Busbar, full: list[Wire]) -> None:
    with Wire(server.port) as wire:
        assert wire.sasl() == 0
        wire.open()
        wire.until(CLOSE)
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < began + 10:
                wire.say_attach(0, SENDER, "q")
                time.sleep(0.01)
        assert time.monotonic() - began < 5


def test_the_limits_are_the_documented_ones() -> None:
    assert (Limits().max_connections, Limits().max_entity_connections) == (5_000, 5_000)
