"""Weaknesses that other brokers were known for, tried here. docs/security.md has the table, and the tests of the others."""

from __future__ import annotations

import gzip
import http.client
import socket
import struct
import time

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol
from harness.serving import Busbar
from tests.interop.administration import BareHttp, entry
from tests.robustness.attacks import attach_with, compound, token_request
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ACCEPTED,
    ATTACH,
    CLOSE,
    DISPOSITION,
    RECEIVER,
    SENDER,
    connected,
    logged_in,
    message,
)

MEGABYTE = 1024 * 1024
BINARY = 0x82
COMPRESSED = 0xC2
"""A binary message whose first reserved bit says that it is compressed."""


def upgraded(server: Busbar, extra: str = "") -> tuple[socket.socket, str]:
    """A WebSocket of a client that has no token, and the head of the answer."""
    client = socket.create_connection(("127.0.0.1", server.port), 10)
    client.sendall(
        "GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: AMQPWSB10\r\n{extra}\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    assert head.startswith(b"HTTP/1.1 101 ")
    return client, head.decode()


def websocket_frame(kind: int, size: int, payload: bytes) -> bytes:
    """One frame that announces `size` bytes, masked with zeros."""
    return bytes((kind, 0xFF)) + struct.pack(">Q", size) + bytes(4) + payload


def is_closed(client: socket.socket) -> bool:
    client.settimeout(5)
    try:
        while client.recv(65_536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


# WebSocket


def test_websocket_messages_of_strangers_are_bounded(server: Busbar, bystander: Bystander) -> None:
    """Sixty that send all but the end of some megabytes: a message is kept until it is whole."""
    size = 4_000_000
    bystander.works(5)
    before = server.resident_bytes()
    clients = [upgraded(server)[0] for _ in range(60)]
    for client in clients:
        try:
            client.sendall(websocket_frame(BINARY, size, bytes(size - 1)))
        except ConnectionError:
            pass  # it was closed by what it announced
    bystander.works()
    grown = server.resident_bytes() - before
    print(f"60 messages of 4 MB: {grown >> 10} KB more")
    assert grown < 60 * MEGABYTE
    assert all(is_closed(client) for client in clients)
    for client in clients:
        client.close()


@pytest.mark.parametrize("size", [0x8000_0000_0000_0001, 0xFFFF_FFFF_FFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF])
def test_a_websocket_frame_of_any_length_ends_only_its_connection(
    server: Busbar, bystander: Bystander, size: int
) -> None:
    before = len(server.error_text)
    client, _ = upgraded(server)
    with client:
        client.sendall(websocket_frame(BINARY, size, b"x"))
        assert is_closed(client)
    assert "Traceback" not in server.error_text[before:]


def test_websocket_compression_is_not_spoken(server: Busbar, bystander: Bystander) -> None:
    client, head = upgraded(server, "Sec-WebSocket-Extensions: permessage-deflate\r\n")
    with client:
        assert "extensions" not in head.lower()
        client.sendall(websocket_frame(COMPRESSED, 8, bytes(8)))
        assert is_closed(client)


# HTTP


def test_bodies_are_not_decompressed(server: Busbar, bystander: Bystander) -> None:
    """A description that grows a thousandfold is none, and a message stays the sender's bytes."""
    bare = BareHttp(server)
    before = server.resident_bytes()
    bomb = gzip.compress(
        entry(f"QueueDescription <UserMetadata>{' ' * 50 * MEGABYTE}</UserMetadata>").encode(), 9
    )
    assert bare.request("PUT", "/bomb", bomb, Content_Encoding="gzip")[0] == 400
    assert bare.request("PUT", "/bomb", bomb, Content_Encoding="deflate")[0] == 400
    small = gzip.compress(bytes(10 * MEGABYTE), 9)
    assert bare.request("POST", "/other/messages", small, Content_Encoding="gzip")[0] == 201
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    client.request("DELETE", "/other/messages/head?timeout=5", headers={"Authorization": bare.token()})
    assert client.getresponse().read() == small
    client.close()
    assert server.resident_bytes() - before < 20 * MEGABYTE


def test_pages_of_others_may_not_read_answers(server: Busbar, bystander: Bystander) -> None:
    """No answer allows another origin, whatever the request asks for."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    for method, path in (("GET", "/health"), ("GET", "/q"), ("OPTIONS", "/q"), ("GET", "/metrics")):
        headers = {"Origin": "https://example.org", "Access-Control-Request-Method": "PUT"}
        client.request(method, path, headers={**headers, "Authorization": BareHttp(server).token()})
        answer = client.getresponse()
        answer.read()
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
    client.close()


# AMQP


def test_arrays_whose_elements_have_no_bytes(server: Busbar, bystander: Bystander) -> None:
    """Many arrays of 4,000 nulls each, of which every one would be allowed, in one frame and before any token."""
    nulls = b"\xf0" + struct.pack(">II", 5, 4_000) + b"\x40"
    listed = compound(0xD0, nulls * 4_000, 4_000)
    bystander.works(5)
    before = server.resident_bytes()
    with connected(server.port) as wire:
        wire.send(attach_with(0, compound(0xD1, b"\xa3\x01a" + listed, 2)))
        assert wire.until(ATTACH, CLOSE).condition == "amqp:decode-error"
    assert server.resident_bytes() - before < 10 * MEGABYTE


@pytest.mark.parametrize("name", ["amqp:data:binaryx", "amqp:dat", "amqp:data:binary:", "AMQP:data:binary"])
def test_a_section_whose_name_only_resembles_one(server: Busbar, bystander: Bystander, name: str) -> None:
    with logged_in(server.port) as wire:
        wire.attach(0, SENDER, "other")
        refused = wire.send_message(0, 0, encode_value(Described(Symbol(name), b"body")))
        assert refused.code == DISPOSITION and refused.condition
        assert wire.send_message(0, 1, message(b"good")).outcome == ACCEPTED


def test_replies_go_to_who_asked(server: Busbar, bystander: Bystander) -> None:
    """A request that names the reply address of another connection is answered there never."""
    with logged_in(server.port, 1) as other, logged_in(server.port) as wire:
        other.attach(0, RECEIVER, "$cbs", name="theirs")
        other.grant(0, 10)
        wire.attach(0, SENDER, "$cbs", name="ask")
        wire.attach(1, RECEIVER, "$cbs", name="answer")
        wire.grant(1, 10)
        wire.transfer(0, 0, token_request("m", "none", "theirs-end"))
        wire.transfer(0, 1, token_request("n", "none", "answer-end"))
        deadline = time.monotonic() + 5
        while b"\xa1\x01n" not in wire.hear().payload:
            assert time.monotonic() < deadline
        with pytest.raises(TimeoutError):
            other.hear()


def test_a_link_of_the_same_name_takes_nothing_over(server: Busbar, bystander: Bystander) -> None:
    """Links are of their connection: another client cannot attach to one by its name, container and all."""
    with logged_in(server.port) as holder, logged_in(server.port) as thief:
        holder.attach(0, SENDER, "other", name="mine")
        thief.attach(0, SENDER, "other", name="mine")
        for wire in (holder, thief):
            assert wire.send_message(0, 0, message(b"x")).outcome == ACCEPTED
    with connected(server.port) as stranger:
        refusal = stranger.attach(0, SENDER, "other", name="mine")
        assert refusal.condition == "amqp:unauthorized-access"


def test_names_that_nothing_has_are_not_remembered(server: Busbar, bystander: Bystander) -> None:
    """A thousand long names over AMQP, each asked for once; what their answers cost is spent by the first hundred."""
    with logged_in(server.port) as wire:
        grown = 0
        for number in range(1_100):
            if number == 100:
                grown = -server.resident_bytes()
            name = f"no-such-{number}-{'x' * 200}"
            assert wire.attach(number % 200, SENDER, name, name=name).condition == "amqp:not-found"
        grown += server.resident_bytes()
        print(f"1,000 names of 200 characters: {grown >> 10} KB more")
        assert grown < 2 * MEGABYTE
