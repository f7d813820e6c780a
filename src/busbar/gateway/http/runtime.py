"""HTTP: the runtime operations."""

from __future__ import annotations

from aiohttp import web

from busbar.gateway.http.namespace import HttpContext
from busbar.model.errors import NotImplementedHere


async def handle(request: web.Request, context: HttpContext) -> web.StreamResponse:
    raise NotImplementedHere("This version of Busbar does not serve the runtime operations over HTTP.")
