"""Which address shows the authorization rules of an entity. Keys are the answer to a POST, so no address shows them."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

from busbar.console.access_pages import access_page
from busbar.console.namespace import EntityType, Namespace
from busbar.console.requests import CSRF, address_of, html, read_form


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = AccessHandlers(namespace)
    for kind in (EntityType.QUEUE, EntityType.TOPIC):
        app.router.add_get(f"/{kind}/access", handlers.listing(kind))
        app.router.add_post(f"/{kind}/access", handlers.keys(kind))


class AccessHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._rules = namespace.access_rules

    def listing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address = address_of(kind, request)
            rules = await asyncio.to_thread(self._rules.list, address)
            return html(access_page(address, rules, csrf=request[CSRF], place=self._namespace.place))

        return handle

    def keys(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, sent = address_of(kind, request), await read_form(request)
            shown = await asyncio.to_thread(self._rules.keys, address, sent.get("rule", ""))
            rules = await asyncio.to_thread(self._rules.list, address)
            return html(
                access_page(address, rules, shown=shown, csrf=request[CSRF], place=self._namespace.place)
            )

        return handle
