"""AMQP over a WebSocket: binary frames carry the same bytes as a socket would, cut anywhere.

`WebSocketTransport` is the transport of the AMQP connection. Writes are gathered and sent by one task, in order. If the
client reads too slowly, the connection is paused. While the connection has paused reading, no frame is read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import WSMsgType, web

from busbar.gateway.amqp.connection import GatewayConnection
from busbar.gateway.http.connection import HttpConnection
from busbar.gateway.listening.connection_limiter import ConnectionLimiter
from busbar.gateway.services import GatewayServices

SUBPROTOCOLS = ("AMQPWSB10", "amqp")
FRAMES_AT_ONCE = 4
"""The maximum number of AMQP frames of the largest size in one WebSocket message. A message is kept until its end has come,
also from unauthenticated clients. SDKs send a message for each frame."""
MAX_OUTGOING = 64 * 1024
"""Bytes of one frame: the Python SDK reads frames whole."""
CLOSE_WAIT = 2.0


class WebSocketTransport(asyncio.Transport):
    """A transport over a WebSocket that has been accepted."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        super().__init__()
        self._socket = socket
        self._request = request
        self._protocol: asyncio.BaseProtocol | None = None
        self._buffer = bytearray()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._paused = False
        self._closing = False
        self._something = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "websocket":
            return self._socket
        transport = self._request.transport
        return default if transport is None else transport.get_extra_info(name, default)

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._buffer += data
        self._something.set()
        if not self._paused and len(self._buffer) > self._high and self._protocol is not None:
            self._paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    async def pump(self) -> None:
        """Send what is written, until the end; then close the WebSocket."""
        while True:
            await self._something.wait()
            self._something.clear()
            while self._buffer:
                part = bytes(self._buffer[:MAX_OUTGOING])
                del self._buffer[:MAX_OUTGOING]
                await self._socket.send_bytes(part)  # waits while the client does not read
                if self._paused and len(self._buffer) <= self._low and self._protocol is not None:
                    self._paused = False
                    self._protocol.resume_writing()
            if self._closing:
                await self._socket.close()
                return

    # Reading

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    async def readable(self) -> None:
        await self._readable.wait()

    # The end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._something.set()
            self._readable.set()
            # A client that does not read must not delay the end.
            asyncio.get_running_loop().call_later(CLOSE_WAIT, self._hang_up)

    def abort(self) -> None:
        self._buffer.clear()
        self.close()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


class WebSocketBridge:
    """Answers the upgrade, and lives as long as the AMQP connection inside."""

    def __init__(self, limiter: ConnectionLimiter, service: GatewayServices) -> None:
        self._limiter = limiter
        self._service = service

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            protocols=SUBPROTOCOLS,
            compress=False,
            max_msg_size=FRAMES_AT_ONCE * self._service.limits.max_frame_size,
            timeout=CLOSE_WAIT,
        )
        await socket.prepare(request)  # 400 for what is not an upgrade
        if isinstance(request.protocol, HttpConnection):
            self._limiter.http_closed(request.protocol)  # it is AMQP now, and counted as such
        transport = WebSocketTransport(socket, request)
        tracked = self._limiter.track(transport.abort)
        tracked.start()
        connection = GatewayConnection(tracked, self._service)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        pump = asyncio.get_running_loop().create_task(transport.pump())
        try:
            await _read(socket, transport, connection)
        finally:
            transport.close()
            try:
                async with asyncio.timeout(CLOSE_WAIT):
                    await asyncio.gather(pump, return_exceptions=True)
            except TimeoutError:
                pass
            finally:
                pump.cancel()
                connection.connection_lost(None)
        return socket


async def _read(
    socket: web.WebSocketResponse, transport: WebSocketTransport, connection: GatewayConnection
) -> None:
    while not transport.is_closing():
        await transport.readable()
        frame = await socket.receive()
        if frame.type is not WSMsgType.BINARY:
            return  # closed, broken, too large, or text, which is not AMQP
        if not transport.is_closing():
            connection.data_received(frame.data)
