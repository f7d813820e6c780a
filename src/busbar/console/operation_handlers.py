"""Which address shows which page for operators."""

from __future__ import annotations

import asyncio

from aiohttp import web

from busbar.console.namespace import Namespace
from busbar.console.operation_pages import stores_page, taps_page
from busbar.console.requests import LIMIT, html, start_of


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = OperationHandlers(namespace)
    app.router.add_get("/stores", handlers.stores)
    app.router.add_get("/taps", handlers.taps)


class OperationHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._operation = namespace.operation

    async def stores(self, request: web.Request) -> web.StreamResponse:
        stores = await asyncio.to_thread(self._operation.stores)
        processes = await asyncio.to_thread(self._operation.processes)
        return html(stores_page(stores, processes, place=self._namespace.place))

    async def taps(self, request: web.Request) -> web.StreamResponse:
        skip = start_of(request, "skip")
        found = await asyncio.to_thread(self._operation.taps, skip, LIMIT)
        return html(taps_page(found, skip=skip, limit=LIMIT, place=self._namespace.place))
