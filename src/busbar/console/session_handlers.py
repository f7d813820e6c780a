"""Which address shows which page of message sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from busbar.console import session_pages
from busbar.console.layout import path_of
from busbar.console.message_handlers import WITH_MESSAGES
from busbar.console.namespace import Address, EntityType, Namespace, NamespaceFailure
from busbar.console.requests import CSRF, STATUS, address_of, html, read_form, start_of

LIMIT = 25
"""Sessions of a page: each is a question of its own."""


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = SessionHandlers(namespace)
    for kind in WITH_MESSAGES:
        app.router.add_get(f"/{kind}/sessions", handlers.listing(kind))
        app.router.add_get(f"/{kind}/session", handlers.showing(kind))
        app.router.add_post(f"/{kind}/session/accept", handlers.accept(kind))
        app.router.add_post(f"/{kind}/session/release", handlers.release(kind))
        app.router.add_post(f"/{kind}/session/state", handlers.set_state(kind))


class SessionHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._sessions = namespace.sessions

    def listing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, skip = address_of(kind, request), start_of(request, "skip")
            entity = await asyncio.to_thread(self._namespace.entity, address)
            found = await asyncio.to_thread(self._sessions.range, address, skip, LIMIT)
            return html(
                session_pages.sessions_page(
                    entity, found, skip=skip, limit=LIMIT, place=self._namespace.place
                )
            )

        return handle

    def showing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._show(request, address_of(kind, request))

        return handle

    def accept(self, kind: EntityType) -> Handler:
        return self._changing(kind, "accepted", self._sessions.accept)

    def release(self, kind: EntityType) -> Handler:
        return self._changing(kind, "released", self._sessions.release)

    def set_state(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            state = (await read_form(request)).get("state", "").replace("\r\n", "\n")

            def change(address: Address, id: str) -> None:
                self._sessions.set_state(address, id, state)

            return await self._change(request, kind, "changed", change)

        return handle

    def _changing(self, kind: EntityType, done: str, change: Callable[[Address, str], None]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._change(request, kind, done, change)

        return handle

    async def _change(
        self, request: web.Request, kind: EntityType, done: str, change: Callable[[Address, str], None]
    ) -> web.StreamResponse:
        address, id = address_of(kind, request), request.query.get("id", "")
        try:
            await asyncio.to_thread(change, address, id)
        except NamespaceFailure as failure:
            return await self._show(request, address, failure)
        raise web.HTTPSeeOther(path_of(address, "session", id=id, done=done))

    async def _show(
        self, request: web.Request, address: Address, failure: NamespaceFailure | None = None
    ) -> web.Response:
        found = await asyncio.to_thread(self._sessions.get, address, request.query.get("id", ""))
        text = session_pages.session_page(
            address,
            found,
            done=request.query.get("done", ""),
            csrf=request[CSRF],
            place=self._namespace.place,
            refusal=failure.text if failure else "",
        )
        return html(text, STATUS[failure.problem] if failure else 200)
