"""Spans of HTTP requests, along the HTTP conventions of OpenTelemetry (tracing.py has those of messages).

A request has a span if its header `traceparent` names a trace that is sampled. The span lasts until the request is answered.
The upgrade to a WebSocket has none: what is sent there are messages.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from busbar.gateway.http.runtime_path import is_runtime, target_of
from busbar.gateway.tracing import RequestSpan, Tracer
from busbar.model.errors import BusbarError

HEADER = "traceparent"
OPERATORS = "$busbar/"
ALONE = frozenset(("health", "live", "ready", "metrics"))


async def traced(
    tracer: Tracer, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request, and export its span if it has one."""
    contexts = tracer.header_contexts(request.headers.get(HEADER, ""))
    if not contexts:
        return await handler(request)
    begin = time.time_ns()
    response = await handler(request)
    route = route_of(request.path)
    for trace_id, parent in contexts:
        tracer.export(
            RequestSpan(
                trace_id,
                tracer.new_id(),
                parent,
                request.method,
                route,
                request.path,
                response.status,
                begin,
                time.time_ns(),
            )
        )
    return response


def route_of(path: str) -> str:
    """The path without names of entities and ids, which are many."""
    path = path.strip("/")
    lowered = path.lower()
    if lowered in ALONE:
        return f"/{lowered}"
    if lowered.startswith(OPERATORS):
        return "/".join(["", "$busbar", *lowered.split("/")[1:2]])
    if is_runtime(path):
        try:
            return f"/{{entity}}/{target_of(path).node.value}"
        except BusbarError:
            return "/{entity}/messages"
    return "/{entity}"
