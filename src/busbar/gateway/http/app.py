"""Routes a request by its path:

    /health                     200 while the namespace is served; the document names unavailable stores
    /live, /ready               for supervisors and load balancers
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
from busbar.gateway.http.probes import Probes
from busbar.gateway.http.request_spans import HEADER, traced
from busbar.gateway.http.requests import path_of, refuse_large
from busbar.gateway.http.runtime_headers import refuse_undecodable
from busbar.gateway.http.runtime_path import is_runtime
from busbar.gateway.services import GatewayServices
from busbar.model.errors import BusbarError
from busbar.model.limits import Limits

WEBSOCKET = "$servicebus/websocket"

Bridge = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(services: GatewayServices, bridge: Bridge, probes: Probes) -> web.Application:
    """Return the application behind every HTTP connection; `bridge` answers the WebSocket's upgrade."""
    routes = HttpRoutes(services, bridge, probes)
    app = web.Application()
    app.on_response_prepare.append(_sign)
    app.router.add_route("*", r"/{path:[\s\S]*}", routes.handle, expect_handler=routes.expect)
    return app


class HttpRoutes:
    """Passes each request on by its path, and makes a response of every error."""

    def __init__(self, services: GatewayServices, bridge: Bridge, probes: Probes) -> None:
        self._services = services
        self._bridge = bridge
        self._probes = probes
        self._metrics = Metrics(services)
        self._health = Health(services.broker)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        tracer = self._services.tracer
        if tracer is None or HEADER not in request.headers or request.path.strip("/").lower() == WEBSOCKET:
            return await self._answer(request)
        return await traced(tracer, request, self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            _head_complete(request)
            refuse_undecodable(request.headers.items())
            return await self._route(request, path_of(request))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            if isinstance(error, BusbarError):
                self._services.refusals.add(error.condition)
            return error_response(
                error, self._services.tracking, request.remote or "", request.path.strip("/")
            )

    async def _route(self, request: web.Request, path: str) -> web.StreamResponse:
        services, lowered = self._services, path.lower()
        if lowered == "health":
            return await self._health.answer()
        if self._probes.asked_for(request, path):
            return self._probes.answer(path)
        if self._metrics.asked_for(request, path):
            return await self._metrics.handle(request)
        if lowered == WEBSOCKET:
            return await self._bridge(request)
        if lowered.startswith(stores.PREFIX):
            refuse_large(request, services.limits.http_management_body)
            return await stores.handle(request, path, services)
        if is_runtime(path):
            refuse_large(request, message_body_limit(services.limits))
            return await runtime.handle(request, services)
        refuse_large(request, services.limits.http_management_body)
        return await atom.handle(request, services)

    async def expect(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a request whose client waits for "100 Continue" before it sends the body."""
        limits, tracking = self._services.limits, self._services.tracking
        _head_complete(request)
        try:
            refuse_large(request, max(message_body_limit(limits), limits.http_management_body))
        except Exception as error:
            return error_response(error, tracking)
        if request.headers.get("Expect", "").lower() != "100-continue":
            return error_response(web.HTTPExpectationFailed(), tracking)
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # aiohttp would treat these bytes as the beginning of the answer itself.
        request.writer.output_size = 0
        return None


def message_body_limit(limits: Limits) -> int:
    """The limit for a message, or for a batch of messages as JSON, whose escapes may double it."""
    return 2 * limits.max_message_size + limits.max_header_size


def _head_complete(request: web.Request) -> None:
    if isinstance(request.protocol, HttpConnection):
        request.protocol.head_complete()


async def _sign(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER
