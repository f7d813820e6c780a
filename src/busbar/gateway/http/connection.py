"""One HTTP connection: aiohttp's own protocol, with limits that aiohttp does not have.

    state       begins                      ends
    idle        connected, or answered      the first byte of a request; after `http_idle_timeout` the connection is closed
    head        that first byte             the empty line; after `http_head_timeout` or `http_head_size`, an error
    request     the empty line              the answer has been written

So the time limit for headers counts from their first byte, also for a client that sends one byte at a time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from busbar.gateway.client_names import ClientNames
from busbar.gateway.http.errors import error_body, error_response
from busbar.gateway.http.runtime_origin import HttpOrigin
from busbar.gateway.listening.connection_limiter import ConnectionLimiter, TrackedConnection
from busbar.gateway.refused_tokens import host_of
from busbar.gateway.services import GatewayServices

_log = logging.getLogger(__name__)

SERVER = "Busbar"  # the versions of Python and aiohttp are not disclosed
MAX_HEADERS = 256
MAX_LINE = 16 * 1024
LINGER = 1.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client gets the answer."""
_END_OF_HEAD = b"\r\n\r\n"
HTTP = "HTTP"
"""In place of the container id that an AMQP connection has."""


class HttpConnection(RequestHandler):
    def __init__(self, server: web.Server, limiter: ConnectionLimiter, tracked: TrackedConnection) -> None:
        limits = limiter.limits
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=limits.http_idle_timeout / 1000,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's way to say: none
            max_line_size=min(MAX_LINE, limits.http_head_size),
            max_field_size=limits.http_head_size,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER,
            auto_decompress=False,  # a body is the sender's bytes, and nothing is decompressed
            logger=_log,
        )
        self._limiter = limiter
        self._tracked = tracked
        self._head_limit = limits.http_head_size
        self._head_wait = limits.http_head_timeout / 1000
        self._in_request = False
        self._head_size = 0
        self._head_end = b""
        self._deadline: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the client has disconnected: waits on its behalf end."""
        self._origin: HttpOrigin | None = None
        self._clients: ClientNames | None = None

    @property
    def idle(self) -> bool:
        return not self._in_request

    def origin(self, services: GatewayServices) -> HttpOrigin:
        """The origin of this connection at the broker, from its first runtime request on."""
        if self._origin is None:
            if self.gone.done():
                raise ConnectionResetError("the client has gone")
            self._origin = HttpOrigin(services.broker, self.force_close)
            peername = None if self.transport is None else self.transport.get_extra_info("peername")
            self._clients = services.clients
            self._clients.opened(self._origin.number, HTTP, host_of(peername))
        return self._origin

    def stop_waiting(self) -> None:
        """Answer a request that waits for a message now: the broker stops."""
        if self._origin is not None:
            self._origin.stop()

    def dismiss(self) -> None:
        """Close the connection to make room for others."""
        self.force_close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._in_request:
            super().data_received(data)
            return
        if self._deadline is None:
            self._expect_head()
        # The empty line may come in pieces.
        seen = self._head_end + data
        end = seen.find(_END_OF_HEAD)
        size = self._head_size + (len(data) if end < 0 else end - len(self._head_end))
        if size > self._head_limit:
            self._end(431, f"The headers have more than {self._head_limit} bytes.")
            return
        self._head_size = size
        self._head_end = seen[-3:]
        if end >= 0:
            self.head_complete()
        super().data_received(data)

    def head_complete(self) -> None:
        self._cancel()
        if not self._in_request:
            self._in_request = True
            self._tracked.authenticated()
            self._limiter.http_used(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        self._in_request = False
        self._head_size = 0
        self._head_end = b""
        if self.transport is not None:
            self._limiter.http_used(self)
        return finished

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel()
        if not self.gone.done():
            self.gone.set_result(None)
        if self._origin is not None:
            self._origin.leave()
            if self._clients is not None:
                self._clients.ended(self._origin.number)
        self._tracked.untrack()
        self._limiter.http_closed(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer errors that aiohttp itself raises, in the form of all other errors."""
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            # The client has disconnected, or has a part of an answer already: no error can be sent.
            raise ConnectionError("the client has gone, or has been answered")
        if status == 500 and exc is not None:
            return error_response(exc)
        response = error_body(status, 40000, message or "The request is not HTTP.", str(uuid.uuid4()))
        response.headers["Server"] = SERVER
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        # The client gets its own mistakes as an answer. They are not logged, because any client could fill the log.
        if isinstance(options.get("exc_info"), HttpProcessingError | ConnectionError | asyncio.TimeoutError):
            return
        super().log_exception(*args, **options)

    def _expect_head(self) -> None:
        self._deadline = self._loop.call_later(
            self._head_wait, self._end, 408, f"The headers did not come within {self._head_wait:g} s."
        )

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self, status: int, text: str) -> None:
        """Answer a request that cannot be read, and close the connection."""
        self._cancel()
        transport = self.transport
        if transport is not None:
            reason = {408: "Request Timeout", 431: "Request Header Fields Too Large"}[status]
            body = f"<Error><Code>{status}</Code><Detail>{text}</Detail></Error>"
            transport.write(
                f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
        self.force_close()


class HttpServer:
    """The application, and a connection of it for every HTTP transport."""

    def __init__(self, app: web.Application, limiter: ConnectionLimiter) -> None:
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=2.0)
        self._limiter = limiter

    async def start(self) -> None:
        await self._runner.setup()

    def connection(self, tracked: TrackedConnection) -> HttpConnection:
        server = self._runner.server
        assert server is not None, "start() comes first"
        return HttpConnection(server, self._limiter, tracked)

    async def stop(self) -> None:
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if isinstance(connection, HttpConnection):
                connection.stop_waiting()
        await self._runner.cleanup()
