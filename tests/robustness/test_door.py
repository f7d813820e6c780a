"""Strangers at the door: whoever says nothing, says it slowly, or says too much is ended, and the others do not notice."""

from __future__ import annotations

import asyncio
import http.client
import resource
import selectors
import shutil
import socket
import ssl
import subprocess
import time

import pytest

from busbar.amqp.types import Symbol
from busbar.gateway.listening.listener import BACKLOG
from harness.serving import PATIENCE, Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.wire import SASL_HEADER, SASL_INIT, Wire, frame, logged_in, performative

MEGABYTE = 1024 * 1024
LIMITS = {
    "handshake_timeout": 1_500,
    "http_head_timeout": 1_000,
    "http_body_timeout": 1_000,
    "http_idle_timeout": 1_000,
}

pytestmark = [pytest.mark.alone, pytest.mark.server({"q": {}, "bystander": {}}, LIMITS)]


def trust_in(server: Busbar) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(server.data / "tls" / "ca.pem"))


@pytest.fixture(scope="module")
def trust(server: Busbar) -> ssl.SSLContext:
    return trust_in(server)


def closes_within(peer: socket.socket, seconds: float) -> bytes:
    """What the server says before it closes the connection; fails if it does not close in time."""
    deadline = time.monotonic() + seconds
    said = b""
    while True:
        peer.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            data = peer.recv(65536)
        except ConnectionError:
            return said
        if not data:
            return said
        said += data


def open_descriptors(server: Busbar) -> int:
    return len(server.descriptors())


class Crowd:
    """Many connections at once, opened without waiting for any."""

    def __init__(self, port: int, count: int) -> None:
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == resource.RLIM_INFINITY or hard > count + 500, (
            f"only {hard} descriptors; {count} are needed"
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.sockets: list[socket.socket] = []
        for number in range(count):
            one = socket.socket()
            one.setblocking(False)
            # Each from its own loopback address in turn: a machine has but 28,000 ports for one pair of addresses.
            one.bind((f"127.0.0.{2 + number % 4}", 0))
            one.connect_ex(("127.0.0.1", port))
            self.sockets.append(one)

    def connected(self) -> int:
        """How many the kernel has brought to the server (some may have been turned out since)."""
        waiting = selectors.DefaultSelector()
        for one in self.sockets:
            waiting.register(one, selectors.EVENT_WRITE)
        count = len(waiting.select(0))
        waiting.close()
        return count

    def say(self, data: bytes) -> None:
        waiting = selectors.DefaultSelector()
        for one in self.sockets:
            waiting.register(one, selectors.EVENT_WRITE)
        deadline = time.monotonic() + 2
        while waiting.get_map() and time.monotonic() < deadline:
            for key, _ in waiting.select(0.1):
                waiting.unregister(key.fileobj)
                try:
                    key.fileobj.send(data)  # type: ignore[union-attr]
                except OSError:
                    pass
        waiting.close()

    def close(self) -> None:
        for one in self.sockets:
            one.close()


def test_ten_thousand_half_open_connections(server: Busbar, bystander: Bystander) -> None:
    """They hold a bounded part of the server; a client that is inside works on, and a new one is let in."""
    before = server.resident_bytes()
    brokers = len(server.processes()) - 1
    # Beside the silent ones, each of several brokers has some waiting outside, as a kernel's queue has them.
    most = 4_200 + brokers * (BACKLOG + 50)
    crowd = Crowd(server.port, 10_000)
    try:
        began = time.monotonic()
        while crowd.connected() < 10_000 and time.monotonic() - began < 15:
            bystander.works()
            assert open_descriptors(server) < most
        assert crowd.connected() == 10_000
        began = time.monotonic()
        with logged_in(server.port, 10):
            assert time.monotonic() - began < 8
        assert server.resident_bytes() - before < 32 * MEGABYTE
    finally:
        crowd.close()
    bystander.works()


@pytest.mark.server({"bystander": {}}, PATIENCE)
async def test_a_crowd_of_honest_clients(own_server: Busbar) -> None:
    """Twice as many as there are places, all at once, as after a restart: everyone gets in. On a busy machine that takes
    longer than strangers have at the other server."""
    login = frame(
        performative(SASL_INIT, [Symbol("PLAIN"), b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE"]), kind=1
    )

    async def client() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", own_server.port)
        writer.write(SASL_HEADER)
        assert await reader.readexactly(8) == SASL_HEADER
        mechanisms = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(mechanisms - 4)
        writer.write(login)
        outcome = int.from_bytes(await reader.readexactly(4), "big")
        assert b"\x00\x53\x44" in await reader.readexactly(outcome - 4)
        return writer

    with Bystander(own_server.port) as bystander:
        for writer in await asyncio.gather(*(client() for _ in range(2_000))):
            writer.close()
        bystander.works()


def test_who_says_nothing_is_ended(server: Busbar, bystander: Bystander) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        assert closes_within(silent, 3) == b""


@pytest.mark.parametrize("beginning", [b"A", b"AMQ", b"GE", b"DELET"])
def test_who_does_not_go_on_is_ended(server: Busbar, beginning: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(beginning)
        assert closes_within(slow, 3) == b""


@pytest.mark.parametrize(
    "noise", [b"\0" * 64, b"SSH-2.0-OpenSSH_9.2\r\n", b"get / http/1.1\r\n\r\n", b"\xff" * 4096]
)
def test_who_speaks_something_else_is_told_what_is_spoken_here(server: Busbar, noise: bytes) -> None:
    """AMQP 2.2: the answer to an unknown beginning is the header of a protocol that is known."""
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(noise)
        assert closes_within(stranger, 1) in (b"AMQP\x03\x01\x00\x00", b"")  # a reset may overtake the answer


# HTTP


def test_headers_that_come_a_byte_at_a_time(server: Busbar, bystander: Bystander) -> None:
    """Slow loris: the time of the first byte counts, not that of the last."""
    peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 100
    began = time.monotonic()
    try:
        for position in range(30):
            for peer in peers:
                try:
                    peer.sendall(head[position * 5 : position * 5 + 5])
                except OSError:
                    pass
            time.sleep(0.06)
            if position % 10 == 0:
                bystander.works()
        for peer in peers:
            closes_within(peer, 1)
        assert time.monotonic() - began < 4
    finally:
        for peer in peers:
            peer.close()


def test_slow_headers_after_a_first_request(server: Busbar) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he")
        said = closes_within(peer, 3)
        assert said.startswith(b"HTTP/1.1 200 ")


def test_an_idle_connection_is_closed(server: Busbar) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert closes_within(peer, 3).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("flood", ["one header", "many headers", "no end", "request line"])
def test_a_flood_of_headers(server: Busbar, bystander: Bystander, flood: str) -> None:
    before = server.resident_bytes()
    head = {
        "one header": b"GET /health HTTP/1.1\r\nX: " + b"a" * 10 * MEGABYTE,
        "many headers": b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * MEGABYTE + b"\r\n",
        "no end": b"GET /health HTTP/1.1\r\n" + b"X-Header-Name: some value\r\n" * 200_000,
        "request line": b"GET /" + b"a" * MEGABYTE + b" HTTP/1.1\r\n\r\n",
    }[flood]
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.settimeout(3)
        try:
            peer.sendall(head)
        except OSError:
            pass
        said = closes_within(peer, 3)
        assert not said or said.split()[1] in (b"400", b"431")
    assert server.resident_bytes() - before < 8 * MEGABYTE


@pytest.mark.parametrize("path", ["/q", "/q/messages", "/health"])
@pytest.mark.parametrize("expect", [False, True])
def test_a_gigabyte_that_is_announced(server: Busbar, bystander: Bystander, path: str, expect: bool) -> None:
    """Refused by its announcement, and not waited for."""
    before = server.resident_bytes()
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        wait = "Expect: 100-continue\r\n" if expect else ""
        peer.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\n{wait}Content-Length: {1 << 30}\r\n\r\n".encode())
        began = time.monotonic()
        first = peer.recv(65536)
        assert time.monotonic() - began < LIMITS["http_body_timeout"] / 1000
        assert first.startswith(b"HTTP/1.1 200 " if path == "/health" and not expect else b"HTTP/1.1 413 ")
        try:
            for _ in range(64):
                peer.sendall(bytes(MEGABYTE))
        except OSError:
            pass
        closes_within(peer, 3)
    assert server.resident_bytes() - before < 8 * MEGABYTE


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /../../etc/passwd HTTP/1.1",
        "GET /a/%2e%2e/b HTTP/1.1",
        "GET /a//b HTTP/1.1",
        "GET /a%00b HTTP/1.1",
        "GET /a%5Cb HTTP/1.1",
        "GET /%ff%fe HTTP/1.1",
        "GET /a%0d%0aX:1 HTTP/1.1",
    ],
)
def test_path_tricks_are_refused(server: Busbar, request_text: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(f"{request_text}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        said = closes_within(peer, 2)
        assert said.startswith(b"HTTP/1.1 400 ") and b"<Code>400</Code>" in said


@pytest.mark.req("U7")
@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        "GET /health HTTP/1.1\r\nX: a\0b\r\n\r\n",
    ],
)
def test_malformed_http_is_refused(server: Busbar, head: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(head.encode())
        said = closes_within(peer, 3)
        assert said.split(b"\r\n")[0].endswith(b" 400 Bad Request") and b"<Code>400</Code>" in said
    assert "Traceback" not in server.error_text


# TLS


def client_hello(trust: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.server({"bystander": {}}, {"handshake_timeout": 4_000})
def test_a_flood_of_handshakes(own_server: Busbar) -> None:
    """1,500 clients begin a handshake and stop. An honest client gets through, and they are ended in time."""
    server, trust = own_server, trust_in(own_server)
    before = server.resident_bytes()
    idle = open_descriptors(server)
    crowd = Crowd(server.port, 1_500)
    try:
        with Bystander(server.port) as bystander:
            crowd.say(client_hello(trust))
            bystander.works()
            began = time.monotonic()
            honest = http.client.HTTPSConnection("localhost", server.port, context=trust, timeout=8)
            honest.request("GET", "/health")
            assert honest.getresponse().status == 200
            assert time.monotonic() - began < 6
            honest.close()
        # The time of each begins when it is accepted. The kernel has kept some back meanwhile.
        deadline = time.monotonic() + 60
        while open_descriptors(server) > idle + 10 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert open_descriptors(server) <= idle + 10
        assert server.resident_bytes() - before < 64 * MEGABYTE
    finally:
        crowd.close()


@pytest.mark.parametrize(
    "noise",
    [b"\x16\x03\x01\x40\x00" + b"\xff" * 400, b"\x16" * 300, b"\x16\x03\x01\x00\x00", b"\x16"],
    ids=["garbage", "sixteens", "empty record", "one byte"],
)
def test_what_looks_like_tls_and_is_not(server: Busbar, bystander: Bystander, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(noise)
        closes_within(stranger, 3)
    assert "Traceback" not in server.error_text


def test_tls_inside_tls_is_refused(server: Busbar, trust: ssl.SSLContext) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port)) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as peer,
    ):
        peer.sendall(client_hello(trust))
        assert closes_within(peer, 2) == b"AMQP\x03\x01\x00\x00"


def test_renegotiation_is_refused(server: Busbar, bystander: Bystander) -> None:
    """TLS 1.2, as openssl's own client asks for it. (TLS 1.3 has no renegotiation.)"""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl's client is not here")
    client = subprocess.Popen(
        [openssl, "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2",
         "-CAfile", str(server.data / "tls" / "ca.pem"), "-msg"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert client.stdin is not None and client.stdout is not None
    lines: list[str] = []
    for line in client.stdout:
        lines.append(line)
        if line.strip() == "---" and "Verify return code: 0 (ok)" in "".join(lines):
            client.stdin.write("R\n")
            client.stdin.flush()
        if "no renegotiation" in line.lower() or "no_renegotiation" in line.lower():
            break
    client.kill()
    client.wait()
    text = "".join(lines).lower()
    assert "renegotiating" in text
    assert "no renegotiation" in text or "no_renegotiation" in text, text[-2000:]
    assert text.count("serverhello,") <= 1


def test_old_tls_is_refused(server: Busbar) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    with pytest.warns(DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", server.port)) as plain,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        old.wrap_socket(plain)


def test_a_wire_after_all_this(server: Busbar) -> None:
    with Wire(server.port, 3) as wire:
        assert wire.sasl() == 0
