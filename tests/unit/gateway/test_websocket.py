"""A WebSocket as a transport: order, bounded buffers in both directions, and an end that cannot be put off."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from busbar.gateway.listening.websocket import CLOSE_WAIT, MAX_OUTGOING, WebSocketTransport

MEGABYTE = 1024 * 1024


class Talker(asyncio.Protocol):
    """Writes numbered kilobytes for as long as it may."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.said = 0
        self.pauses = 0
        self.highest = 0
        self._may = True
        self._transport: WebSocketTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, WebSocketTransport)
        self._transport = transport
        transport.set_write_buffer_limits(high=MEGABYTE, low=MEGABYTE // 4)
        self._talk()

    def _talk(self) -> None:
        assert self._transport is not None
        while self._may and self.said < self._total:
            self._transport.write(self.said.to_bytes(1024, "big"))
            self.said += 1
            self.highest = max(self.highest, self._transport.get_write_buffer_size())
        if self.said == self._total:
            self._transport.close()

    def leave(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def pause_writing(self) -> None:
        self.pauses += 1
        self._may = False

    def resume_writing(self) -> None:
        self._may = True
        self._talk()


async def served(talker: Talker, done: asyncio.Event) -> TestServer:
    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(compress=False, timeout=CLOSE_WAIT)
        await socket.prepare(request)
        transport = WebSocketTransport(socket, request)
        transport.set_protocol(talker)
        pump = asyncio.get_running_loop().create_task(transport.pump())
        talker.connection_made(transport)
        try:
            while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
            await asyncio.gather(pump, return_exceptions=True)
        finally:
            done.set()
        return socket

    app = web.Application()
    app.router.add_get("/", handle)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_a_slow_reader_gets_all_in_order_and_the_buffer_stays_small() -> None:
    talker, done = Talker(20 * 1024), asyncio.Event()
    server = await served(talker, done)
    try:
        async with aiohttp.ClientSession() as session, session.ws_connect(server.make_url("/")) as socket:
            await asyncio.sleep(0.2)  # reads nothing meanwhile
            assert talker.pauses and talker.said < 20 * 1024
            received = bytearray()
            async for frame in socket:
                assert frame.type is aiohttp.WSMsgType.BINARY and len(frame.data) <= MAX_OUTGOING
                received += frame.data
        assert len(received) == 20 * MEGABYTE
        assert all(
            int.from_bytes(received[at : at + 1024], "big") == at // 1024
            for at in range(0, len(received), 1024)
        )
        assert talker.highest <= MEGABYTE + 1024
        await asyncio.wait_for(done.wait(), 2)
    finally:
        await server.close()


async def test_a_client_that_does_not_read_cannot_put_off_the_end() -> None:
    talker, done = Talker(20 * 1024), asyncio.Event()
    server = await served(talker, done)
    _reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    try:
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await asyncio.sleep(0.2)
        assert talker.pauses
        talker.leave()
        await asyncio.wait_for(done.wait(), CLOSE_WAIT + 1)
    finally:
        writer.close()
        await server.close()
