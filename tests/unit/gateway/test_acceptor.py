"""The acceptor on real sockets, with both event loops: what the first bytes decide, and who makes room for whom."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from busbar.app.certificates import own_files, server_context
from busbar.gateway.listening import acceptor as door_module
from busbar.gateway.listening.acceptor import Acceptor
from busbar.gateway.listening.connection_limiter import ConnectionLimiter, TrackedConnection
from busbar.gateway.listening.listener import Listener
from busbar.gateway.listening.protocol_detection import WireProtocol, detect_protocol
from busbar.model.limits import Limits

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Any:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    own_files(directory, ())
    return directory


class Echo(asyncio.Protocol):
    """Stands for whoever takes a connection over; proves itself when it hears "proof"."""

    def __init__(self, speaks: WireProtocol, tracked: TrackedConnection) -> None:
        self._speaks = speaks
        self._tracked = tracked
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if b"proof" in data:
            self._tracked.authenticated()
        self._transport.write(self._speaks.value.encode() + b":" + data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tracked.untrack()


def porch_of(acceptor: Acceptor) -> Listener:
    return Listener(acceptor.limiter.accept_delay, acceptor.accepted, acceptor.limiter.evict_oldest)


@asynccontextmanager
async def opened(data: Path, **limits: int) -> AsyncIterator[tuple[Acceptor, int]]:
    acceptor = Acceptor(ConnectionLimiter(Limits(**limits)), Echo, server_context(own_files(data, ())))
    porch = porch_of(acceptor)
    try:
        yield acceptor, await porch.listen("127.0.0.1", 0)
    finally:
        porch.close()
        acceptor.close()
        await acceptor.limiter.close()
        await asyncio.sleep(0.01)


def trust(data: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(data / "tls" / "ca.pem"))


async def exchange(port: int, *parts: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
    )
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    answer = await asyncio.wait_for(reader.read(4096), 3)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("first", "speaks"),
    [
        (b"AMQP", WireProtocol.AMQP),
        (b"AMQP\x03\x01\x00\x00", WireProtocol.AMQP),
        (b"AM", WireProtocol.NOT_ENOUGH),
        (b"", WireProtocol.NOT_ENOUGH),
        (b"GET /", WireProtocol.HTTP),
        (b"GET", WireProtocol.NOT_ENOUGH),
        (b"DELETE ", WireProtocol.HTTP),
        (b"P", WireProtocol.NOT_ENOUGH),
        (b"PO", WireProtocol.NOT_ENOUGH),
        (b"PX", WireProtocol.NOTHING_KNOWN),
        (b"GETT ", WireProtocol.NOTHING_KNOWN),
        (b"get /", WireProtocol.NOTHING_KNOWN),
        (b"\x16\x03", WireProtocol.NOTHING_KNOWN),
        (b"AMQX", WireProtocol.NOTHING_KNOWN),
    ],
)
def test_what_the_first_bytes_say(first: bytes, speaks: WireProtocol) -> None:
    assert detect_protocol(first) is speaks


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ((b"AMQP\x00\x01",), b"amqp:AMQP\x00\x01"),
        ((b"A", b"M", b"QP"), b"amqp:AMQP"),
        ((b"GET /x",), b"http:GET /x"),
        ((b"DEL", b"ETE /"), b"http:DELETE /"),
        ((b"nonsense",), b"AMQP\x03\x01\x00\x00"),
    ],
)
def test_nothing_is_lost_on_the_way_to_the_successor(
    runner: asyncio.Runner, data: Path, secure: bool, parts: tuple[bytes, ...], answer: bytes
) -> None:
    async def scene() -> None:
        async with opened(data) as (_acceptor, port):
            assert await exchange(port, *parts, tls=trust(data) if secure else None) == answer

    runner.run(scene())


def test_the_books_are_empty_when_all_have_gone(runner: asyncio.Runner, data: Path) -> None:
    async def scene() -> None:
        async with opened(data) as (acceptor, port):
            for tls in (None, trust(data)):
                await exchange(port, b"AMQP", tls=tls)
                await exchange(port, b"nonsense", tls=tls)
            with socket.create_connection(("127.0.0.1", port)) as silent:
                await asyncio.sleep(0.05)
                assert len(acceptor.limiter.silent) == 1
                silent.close()
            await asyncio.sleep(0.1)
            assert (
                not acceptor.limiter.silent
                and not acceptor.limiter.waiting
                and not acceptor.limiter.unauthenticated
            )

    runner.run(scene())


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00", b"AM"])
def test_the_time_to_say_something_is_bounded(runner: asyncio.Runner, data: Path, said: bytes) -> None:
    async def scene() -> None:
        async with opened(data, handshake_timeout=200) as (acceptor, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            try:
                assert await asyncio.wait_for(reader.read(), 2) == b""
            except ConnectionError:
                pass
            writer.close()
            await asyncio.sleep(0.02)
            assert not acceptor.limiter.silent

    runner.run(scene())


def test_the_oldest_silent_guest_makes_room(runner: asyncio.Runner, data: Path) -> None:
    """Three silent tracked fill the room. Newcomers push out the oldest of them, never those that speak."""

    async def scene() -> None:
        async with opened(data, max_silent_connections=3) as (acceptor, port):
            speaking = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in speaking:
                writer.write(b"AMQP")
                await reader.readexactly(9)
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            await asyncio.sleep(0.05)
            answers = await asyncio.gather(*(exchange(port, b"GET /", b"proof") for _ in range(6)))
            assert all(answer.startswith(b"http:GET /") for answer in answers)
            for reader, _writer in silent[:1]:
                assert await asyncio.wait_for(_rest(reader), 2) == b""
            for reader, writer in speaking:
                writer.write(b"still here")
                assert await reader.readexactly(15) == b"amqp:still here"
            assert len(acceptor.limiter.silent) + len(acceptor.limiter.waiting) <= 3
            for _reader, writer in (*speaking, *silent):
                writer.close()

    runner.run(scene())


def test_who_speaks_waits_for_a_place(runner: asyncio.Runner, data: Path) -> None:
    """Two places, twenty honest clients at once: each gets in when another has proven itself; none is turned away."""

    async def scene() -> None:
        async with opened(data, max_unauthenticated_connections=2) as (acceptor, port):

            async def client(tls: ssl.SSLContext | None) -> bytes:
                return await exchange(port, b"AMQP", b"proof", tls=tls)

            answers = await asyncio.gather(*(client(trust(data) if n % 2 else None) for n in range(20)))
            assert all(answer.startswith(b"amqp:AMQP") for answer in answers)
            assert len(acceptor.limiter.unauthenticated) <= 2

    runner.run(scene())


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_handshakes_take_turns(runner: asyncio.Runner, data: Path) -> None:
    """Two places for handshakes, taken by clients that stop in the middle: the third gets its turn all the same."""

    async def scene() -> None:
        async with opened(data, max_tls_handshakes=2) as (_acceptor, port):
            stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _reader, writer in stalled:
                writer.write(b"\x16\x03\x01\x02\x00\x01")
            await asyncio.sleep(0.05)
            answers = await asyncio.gather(*(exchange(port, b"AMQP", tls=trust(data)) for _ in range(6)))
            assert answers == [b"amqp:AMQP"] * 6
            for _reader, writer in stalled:
                writer.close()

    runner.run(scene())


def test_without_a_certificate_tls_is_nobody_we_know(runner: asyncio.Runner) -> None:
    async def scene() -> None:
        acceptor = Acceptor(ConnectionLimiter(Limits()), Echo, None)
        porch = porch_of(acceptor)
        port = await porch.listen("127.0.0.1", 0)
        assert await exchange(port, b"\x16\x03\x01") == b"AMQP\x03\x01\x00\x00"
        porch.close()
        acceptor.close()

    runner.run(scene())


def test_localhost_has_one_port_on_all_its_addresses(runner: asyncio.Runner, data: Path) -> None:
    async def scene() -> None:
        async with opened(data) as (acceptor, _port):
            porch = porch_of(acceptor)
            port = await porch.listen("localhost", 0)
            assert await exchange(port, b"AMQP") == b"amqp:AMQP"
            with pytest.raises(OSError):
                await porch.listen("localhost", port)
            porch.close()

    runner.run(scene())


def test_who_was_accepted_elsewhere_waits_outside_for_room(runner: asyncio.Runner) -> None:
    async def scene() -> None:
        acceptor = Acceptor(ConnectionLimiter(Limits(max_silent_connections=2)), Echo, None)
        pairs = [socket.socketpair() for _ in range(4)]
        for ours, theirs in pairs:
            ours.setblocking(False)
            theirs.setblocking(False)
            acceptor.adopt(theirs)
        assert len(acceptor.limiter.silent) == 2, "nobody is turned out for one who has just come"
        for ours, _ in pairs:
            ours.sendall(b"AMQP")
        loop = asyncio.get_running_loop()
        for ours, _ in pairs:
            assert await asyncio.wait_for(loop.sock_recv(ours, 100), 10) == b"amqp:AMQP"
        for ours, _ in pairs:
            ours.close()
        acceptor.close()

    runner.run(scene())


def test_when_too_many_wait_outside_the_next_is_turned_away(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "BACKLOG", 2)

    async def scene() -> None:
        acceptor = Acceptor(ConnectionLimiter(Limits(max_silent_connections=1)), Echo, None)
        pairs = [socket.socketpair() for _ in range(4)]
        for _, theirs in pairs:
            theirs.setblocking(False)
            acceptor.adopt(theirs)
        assert pairs[3][0].recv(1) == b"", "one is inside, and two wait"
        acceptor.close()
        for ours, _ in pairs:
            ours.close()

    runner.run(scene())
