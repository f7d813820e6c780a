"""TLS that makes the server work for nothing: key updates, renegotiations, handshakes without end, costly key shares."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.peers.process import tree_seconds
from harness.serving import Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.tls_records import (
    APPLICATION_DATA,
    HANDSHAKE,
    HELLO_AGAIN,
    NOT_REQUESTED,
    REQUESTED,
    HandMadeTls,
)

MEGABYTE = 1024 * 1024
FLOOD = 6_000
HELLO = b"AMQP\x03\x01\x00\x00"


pytestmark = [
    pytest.mark.alone,
    pytest.mark.server({"q": {}, "bystander": {}}, {"handshake_timeout": 60_000, "token_timeout": 60_000}),
]


def authority(server: Busbar) -> Path:
    return server.data / "tls" / "ca.pem"


def connected(
    server: Busbar, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, first: bytes = HELLO
) -> HandMadeTls:
    client = HandMadeTls(server.port, authority(server), version)
    client.socket.sendall(client.record(first, APPLICATION_DATA))
    return client


def ended(peer: socket.socket, seconds: float) -> bool:
    """Whether the server ends the connection within this time of silence."""
    peer.settimeout(seconds)
    try:
        while peer.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def flooded(client: HandMadeTls, flood: bytes, bystander: Bystander) -> bool:
    """Send all of it while another client works, reading nothing; whether the server has ended the connection."""

    def send() -> None:
        try:
            client.socket.sendall(flood)
        except OSError:
            pass  # it was ended meanwhile

    sending = threading.Thread(target=send)
    sending.start()
    while sending.is_alive():
        bystander.works()
    sending.join()
    return ended(client.socket, 5)


Make = Callable[[HandMadeTls], bytes]
UPDATES: dict[str, Make] = {
    "answered": lambda client: client.key_update(REQUESTED),
    "not answered": lambda client: client.key_update(NOT_REQUESTED),
    "padded": lambda client: client.key_update(REQUESTED, padding=100),
    "between data": lambda client: client.key_update(REQUESTED) + client.record(b"h", APPLICATION_DATA),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_a_flood_of_key_updates_is_ended(server: Busbar, bystander: Bystander, kind: str) -> None:
    """Each costs the server new keys, and most an answer; 40,000 in a megabyte stalled every client for a second."""
    # A header of HTTP has room for all the data between them.
    client = connected(server, first=b"GET /health HTTP/1.1\r\nX: " if kind == "between data" else HELLO)
    flood = b"".join(UPDATES[kind](client) for _ in range(FLOOD))
    before, spent = server.resident_bytes(), tree_seconds(server.pid)
    assert flooded(client, flood, bystander)
    print(f"{FLOOD} key updates, {kind}: {tree_seconds(server.pid) - spent:.2f} s of the server")
    assert server.resident_bytes() - before < 4 * MEGABYTE


def test_a_flood_of_renegotiations_is_ended(server: Busbar, bystander: Bystander) -> None:
    """TLS 1.2: each is answered with an alert, which waits for a client that does not read."""
    client = connected(server, ssl.TLSVersion.TLSv1_2)
    assert flooded(client, b"".join(client.record(HELLO_AGAIN, HANDSHAKE) for _ in range(FLOOD)), bystander)


def test_some_key_updates_are_taken(server: Busbar, bystander: Bystander) -> None:
    client = connected(server, first=b"GET /health HTTP/1.1\r\n")
    for _ in range(30):
        client.socket.sendall(client.key_update(REQUESTED) + client.key_update(NOT_REQUESTED))
    assert not ended(client.socket, 0.3)
    client.socket.sendall(client.record(b"Host: localhost\r\nConnection: close\r\n\r\n", APPLICATION_DATA))
    client.socket.settimeout(5)
    assert client.socket.recv(65536), "what came under the new keys was not answered"


def test_padded_records_are_data_like_others(server: Busbar) -> None:
    client = connected(server)
    head = b"\0\0\x02\0\x02\x01\0\0"
    for byte in head + bytes(400):  # all but the end of a frame
        client.socket.sendall(client.record(bytes((byte,)), APPLICATION_DATA, padding=50))
    assert not ended(client.socket, 0.3)


# Handshakes


def first_flight(server: Busbar, group: str) -> bytes:
    context = ssl.create_default_context(cafile=str(authority(server)))
    context.set_ecdh_curve(group)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def in_small_records(hello: bytes) -> bytes:
    return b"".join(b"\x16\x03\x01\x00\x10" + hello[at : at + 16] for at in range(5, len(hello) - 16, 16))


STAGES: dict[str, Callable[[bytes], bytes]] = {
    "hello and gone": lambda hello: hello,
    "hello and garbage": lambda hello: hello + b"\x17\x03\x03\x00\x40" + b"g" * 64,
    "hello twice": lambda hello: hello + hello,
    "hello and alert": lambda hello: hello + b"\x15\x03\x03\x00\x02\x02\x28",
    "hello in small records, without its end": in_small_records,
    "garbage": lambda hello: hello[:9] + b"g" * 300,
}


def cost_of(server: Busbar, bystander: Bystander, said: bytes, count: int) -> float:
    """Seconds of the server for clients that say this, and leave when it has answered or ended them."""
    spent = tree_seconds(server.pid)
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", server.port), 5) as peer:
            peer.sendall(said)
            peer.settimeout(0.03)
            try:
                peer.recv(65536)
            except OSError:
                pass
    spent = tree_seconds(server.pid) - spent
    bystander.works()
    return spent


def test_handshakes_that_are_given_up(server: Busbar, bystander: Bystander) -> None:
    """At no stage does one cost much more than one that succeeds, and nothing of it stays."""
    count = 25
    trust = ssl.create_default_context(cafile=str(authority(server)))
    spent = tree_seconds(server.pid)
    for _ in range(count):
        with (
            socket.create_connection(("127.0.0.1", server.port), 5) as plain,
            trust.wrap_socket(plain, server_hostname="localhost") as peer,
        ):
            peer.sendall(b"nothing that is spoken")
            assert ended(peer, 5)
    whole = tree_seconds(server.pid) - spent
    hello = first_flight(server, "X25519")
    before = server.resident_bytes()
    for stage, said in STAGES.items():
        cost = cost_of(server, bystander, said(hello), count)
        print(f"{stage}: {cost / max(whole, 0.01):.1f} of a whole handshake")
        assert cost < 4 * whole + 0.05, stage
    assert server.resident_bytes() - before < 8 * MEGABYTE
    assert "Traceback" not in server.error_text


def test_costly_key_shares_are_refused(server: Busbar, bystander: Bystander) -> None:
    """ffdhe8192 costs 300 times as much as X25519, and the same ClientHello can be sent again and again."""
    usual = cost_of(server, bystander, first_flight(server, "X25519"), 20)
    costly = cost_of(server, bystander, first_flight(server, "ffdhe8192"), 20)
    print(f"20 ClientHellos: X25519 {usual:.2f} s, ffdhe8192 {costly:.2f} s of the server")
    assert costly < 4 * usual + 0.05
