"""Requests over HTTP/1.1 against servers that answer byte for byte what a test wrote."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from busbar.app.certificates import own_files, server_context, tls_directory
from busbar.client import http_requests
from busbar.client.errors import CannotConnect, ConnectionLost
from busbar.client.http_requests import HttpConnections, NotHttp

pytestmark = pytest.mark.asyncio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"


class ScriptedServer:
    """Answers the requests of each connection with the next response of a script; None closes the connection."""

    def __init__(self, script: list[bytes | None]) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            while self.script:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                self.requests.append(head + await reader.readexactly(int(length or 0)))
                answer = self.script.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        writer.close()


@asynccontextmanager
async def answering(*script: bytes | None) -> AsyncIterator[tuple[HttpConnections, ScriptedServer]]:
    scripted = ScriptedServer([*script])
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    connections = HttpConnections("127.0.0.1", server.sockets[0].getsockname()[1], None)
    try:
        yield connections, scripted
    finally:
        await connections.close()
        server.close()


async def test_a_request_is_written_and_its_response_read() -> None:
    async with answering(OK) as (connections, server):
        reply = await connections.request("PUT", "/q?x=1", {"Authorization": "token"}, b"body")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"hello", "text/plain")
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body == b"body"
    lines = head.split(b"\r\n")
    assert lines[0] == b"PUT /q?x=1 HTTP/1.1" and lines[1].startswith(b"Host: 127.0.0.1:")
    assert set(lines[2:]) == {b"Authorization: token", b"Content-Length: 4"}


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            b"abcde",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nTrailer: 1\r\n\r\n", b"a"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"hello"),
        (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\nx", b"x"),
    ],
    ids=["chunked", "trailer", "interim", "empty", "no content", "no reason"],
)
async def test_every_form_of_body_leaves_the_connection_usable(answer: bytes, body: bytes) -> None:
    async with answering(answer, OK) as (connections, server):
        assert (await connections.request("GET", "/", {})).body == body
        assert (await connections.request("GET", "/", {})).body == b"hello"
        assert (server.accepted, connections.opened) == (1, 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=["close", "1.0"],
)
async def test_a_response_that_ends_the_connection_is_followed_by_another(answer: bytes) -> None:
    async with answering(answer, OK) as (connections, server):
        for _ in range(2):
            assert (await connections.request("GET", "/", {})).body == b"hello"
        assert server.accepted == 2


async def test_a_body_up_to_the_end_of_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhel")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"lo")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connections = HttpConnections("127.0.0.1", server.sockets[0].getsockname()[1], None)
    assert (await connections.request("GET", "/", {})).body == b"hello"
    await connections.close()
    server.close()


async def test_an_idle_connection_that_the_server_closed_is_not_used() -> None:
    async with answering(OK, OK) as (connections, server):
        await connections.request("GET", "/", {})
        server.script.insert(0, None)
        idle = connections._idle[0]
        idle._writer.write(b"GET / HTTP/1.1\r\n\r\n")  # the server closes on this
        async with asyncio.timeout(5):
            while idle.is_usable:
                await asyncio.sleep(0.01)
        assert (await connections.request("PUT", "/", {}, b"x")).status == 200
        assert server.accepted == 2, "nothing was sent on the connection that had ended"


@pytest.mark.parametrize(
    "answer",
    [None, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", b"HTTP/1.1 200 OK\r\nConte"],
    ids=["nothing", "half a body", "half a head"],
)
async def test_a_response_that_breaks_off_is_a_lost_connection(answer: bytes | None) -> None:
    async with answering(*([answer, None] if answer else [None])) as (connections, server):
        server.script[:] = server.script[:1]
        with pytest.raises(ConnectionLost) as caught:
            await connections.request("GET", "/", {})
        assert not isinstance(caught.value, CannotConnect), "the request may have been carried out"


@pytest.mark.parametrize(
    "answer",
    [
        b"AMQP\x03\x01\x00\x00\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_and_not_tried_again(answer: bytes) -> None:
    async with answering(answer, OK) as (connections, _):
        with pytest.raises(NotHttp) as caught:
            await connections.request("GET", "/", {})
        assert not caught.value.retryable
        assert (await connections.request("GET", "/", {})).body == b"hello", "on another connection"


async def test_headers_keep_their_names_and_are_found_by_any() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nmyProperty: 1\r\nX: \xe9\r\n\r\n"
    async with answering(answer) as (connections, _):
        headers = (await connections.request("GET", "/", {})).headers
    assert [*headers.items()] == [("Content-Length", "0"), ("myProperty", "1"), ("X", "é")]
    assert headers["MYPROPERTY"] == headers.get("myproperty") == "1"
    assert "y" not in headers


async def test_a_body_without_a_length_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "BODY_BYTES", 8)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n123456789") as (connections, _):
        with pytest.raises(NotHttp, match="more than 8 bytes"):
            await connections.request("GET", "/", {})
    chunks = b"5\r\nabcde\r\n5\r\nabcde\r\n0\r\n\r\n"
    async with answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks) as (
        connections,
        _,
    ):
        with pytest.raises(NotHttp, match="bytes long"):
            await connections.request("GET", "/", {})


async def test_no_server_is_no_connection() -> None:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(CannotConnect, match="cannot be reached: Connection refused\\.") as caught:
            await HttpConnections(host, port, None).request("GET", "/", {})
        assert isinstance(caught.value.__cause__, OSError)


async def test_a_cancelled_request_leaves_no_half_read_connection() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", OK) as (connections, server):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connections.request("GET", "/", {})
        assert (await connections.request("GET", "/", {})).body == b"hello"
        assert server.accepted == 2


async def test_closing_does_not_wait_for_a_peer_that_has_vanished(tmp_path: Path) -> None:
    files = own_files(tmp_path, [])
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with server_context(files).wrap_socket(accepted, server_side=True) as connection:
            connection.recv(65_536)
            connection.sendall(OK)
            over.wait(60)  # and reads nothing: not that the client wants to end TLS, either

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        trusting = ssl.create_default_context(cafile=str(tls_directory(tmp_path) / "ca.pem"))
        connections = HttpConnections("127.0.0.1", listener.getsockname()[1], trusting)
        try:
            assert (await connections.request("GET", "/", {})).body == b"hello"
            async with asyncio.timeout(20):  # asyncio alone would wait for 30 s
                await connections.close()
        finally:
            over.set()
            thread.join()


async def test_requests_at_once_share_a_few_connections() -> None:
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(1)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.01)
                writer.write(OK)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connections = HttpConnections("127.0.0.1", server.sockets[0].getsockname()[1], None)
    replies = await asyncio.gather(*(connections.request("GET", "/", {}) for _ in range(50)))
    assert [reply.body for reply in replies] == [b"hello"] * 50
    assert len(served) == connections.opened == http_requests.MOST_CONNECTIONS
    await connections.close()
    server.close()
    with pytest.raises(ValueError, match="closed"):
        await connections.request("GET", "/", {})
