"""Which address shows the connections of clients, and closes one."""

from __future__ import annotations

import asyncio

from aiohttp import web

from busbar.console.connection_pages import SORTS, close_page, connections_page
from busbar.console.namespace import Namespace
from busbar.console.requests import CSRF, LIMIT, html, start_of


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = ConnectionHandlers(namespace)
    app.router.add_get("/connections", handlers.list)
    app.router.add_get("/connection/close", handlers.show_close)
    app.router.add_post("/connection/close", handlers.close)


class ConnectionHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._connections = namespace.connections

    async def list(self, request: web.Request) -> web.StreamResponse:
        asked, entity, skip = (
            request.query.get("sort", ""),
            request.query.get("entity", ""),
            start_of(request, "skip"),
        )
        sort = asked if asked in dict(SORTS) else SORTS[0][0]
        found = await asyncio.to_thread(self._connections.list, entity, sort, skip, LIMIT)
        text = connections_page(
            found,
            entity=entity,
            sort=sort,
            skip=skip,
            limit=LIMIT,
            closed=request.query.get("closed", ""),
            place=self._namespace.place,
        )
        return html(text)

    async def show_close(self, request: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(self._connections.get, request.query.get("id", ""))
        return html(close_page(found, csrf=request[CSRF], place=self._namespace.place))

    async def close(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self._connections.close, request.query.get("id", ""))
        raise web.HTTPSeeOther("/connections?closed=1")
