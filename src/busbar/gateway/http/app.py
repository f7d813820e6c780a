"""Routes a request by its path:

    /health                     200 while the namespace is served; the document names unavailable stores
    /metrics                    numbers for Prometheus
    /$servicebus/websocket      the WebSocket: AMQP in binary frames
    /$busbar/...                stores and fragments, for operators
    .../messages...             runtime: send, receive, settle
    anything else               ATOM: management

The fixed words are recognized in any case. If a body announces more bytes than its handler accepts, it is refused before it
is read, also when the client waits for "100 Continue".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from busbar.gateway.http import atom, runtime, stores
from busbar.gateway.http.connection import SERVER, HttpConnection
from busbar.gateway.http.errors import error_response
from busbar.gateway.http.health import Health
from busbar.gateway.http.metrics import Metrics
from busbar.gateway.http.requests import path_of, refuse_large
from busbar.gateway.http.runtime_headers import refuse_undecodable
from busbar.gateway.http.runtime_path import is_runtime
from busbar.gateway.services import GatewayServices
from busbar.model.limits import Limits

WEBSOCKET = "$servicebus/websocket"

Bridge = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(services: GatewayServices, bridge: Bridge) -> web.Application:
    """Return the application behind every HTTP connection; `bridge` answers the WebSocket's upgrade."""

    metrics = Metrics(services)
    health = Health(services.broker)

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            _head_complete(request)
            refuse_undecodable(request.headers.items())
            path = path_of(request)
            lowered = path.lower()
            if lowered == "health":
                return await health.answer()
            if metrics.asked_for(request, path):
                return await metrics.handle(request)
            if lowered == WEBSOCKET:
                return await bridge(request)
            if lowered.startswith(stores.PREFIX):
                refuse_large(request, services.limits.http_management_body)
                return await stores.handle(request, path, services)
            if is_runtime(path):
                refuse_large(request, message_body_limit(services.limits))
                return await runtime.handle(request, services)
            refuse_large(request, services.limits.http_management_body)
            return await atom.handle(request, services)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            return error_response(error, services.tracking)

    async def expect(request: web.Request) -> web.StreamResponse | None:
        _head_complete(request)
        try:
            largest = max(message_body_limit(services.limits), services.limits.http_management_body)
            refuse_large(request, largest)
        except Exception as error:
            return error_response(error, services.tracking)
        if request.headers.get("Expect", "").lower() != "100-continue":
            return error_response(web.HTTPExpectationFailed(), services.tracking)
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # aiohttp would treat these bytes as the beginning of the answer itself.
        request.writer.output_size = 0
        return None

    app = web.Application()
    app.on_response_prepare.append(_sign)
    app.router.add_route("*", r"/{path:[\s\S]*}", handle, expect_handler=expect)
    return app


def message_body_limit(limits: Limits) -> int:
    """The limit for a message, or for a batch of messages as JSON, whose escapes may double it."""
    return 2 * limits.max_message_size + limits.max_header_size


def _head_complete(request: web.Request) -> None:
    if isinstance(request.protocol, HttpConnection):
        request.protocol.head_complete()


async def _sign(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER
