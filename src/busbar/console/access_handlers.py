"""Which address shows the authorization rules of an entity or of the namespace.

Keys are the answer to a POST, so no address shows them.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from busbar.console import access_pages
from busbar.console.access_pages import RIGHTS, access_path
from busbar.console.namespace import AccessRule, Address, EntityType, Namespace, NamespaceFailure
from busbar.console.requests import CSRF, STATUS, address_of, html, read_form


def add_routes(app: web.Application, namespace: Namespace) -> None:
    for kind in (EntityType.QUEUE, EntityType.TOPIC, None):
        handlers = AccessHandlers(namespace, kind)
        base = f"/{kind}/access" if kind is not None else "/access"
        app.router.add_get(base, handlers.list)
        app.router.add_post(base, handlers.keys)
        app.router.add_get(f"{base}/new", handlers.show_new)
        app.router.add_post(f"{base}/new", handlers.new)
        app.router.add_get(f"{base}/renew", handlers.show_renew)
        app.router.add_post(f"{base}/renew", handlers.renew)
        app.router.add_get(f"{base}/delete", handlers.show_delete)
        app.router.add_post(f"{base}/delete", handlers.delete)


class AccessHandlers:
    """The rules of entities of one kind, or of the namespace."""

    def __init__(self, namespace: Namespace, kind: EntityType | None) -> None:
        self._namespace = namespace
        self._rules = namespace.access_rules
        self._kind = kind

    async def list(self, request: web.Request) -> web.StreamResponse:
        return await self._page(request, None)

    async def keys(self, request: web.Request) -> web.StreamResponse:
        name = (await read_form(request)).get("rule", "")
        return await self._page(
            request, await asyncio.to_thread(self._rules.keys, self._owner(request), name)
        )

    async def show_new(self, request: web.Request) -> web.StreamResponse:
        text = access_pages.new_rule_page(
            self._owner(request), "", (), csrf=request[CSRF], place=self._namespace.place
        )
        return html(text)

    async def new(self, request: web.Request) -> web.StreamResponse:
        owner, sent = self._owner(request), await read_form(request)
        name, rights = sent.get("rule", "").strip(), [right for right in RIGHTS if f"right-{right}" in sent]
        try:
            await asyncio.to_thread(self._rules.create, owner, name, rights)
        except NamespaceFailure as failure:
            text = access_pages.new_rule_page(
                owner, name, rights, csrf=request[CSRF], place=self._namespace.place, refusal=failure.text
            )
            return html(text, STATUS[failure.problem])
        raise web.HTTPSeeOther(access_path(owner, done="created"))

    async def show_renew(self, request: web.Request) -> web.StreamResponse:
        text = access_pages.renew_page(
            self._owner(request), _rule(request), csrf=request[CSRF], place=self._namespace.place
        )
        return html(text)

    async def renew(self, request: web.Request) -> web.StreamResponse:
        which = (await read_form(request)).get("which", "")
        renewed = await asyncio.to_thread(self._rules.renew, self._owner(request), _rule(request), which)
        return await self._page(request, renewed)

    async def show_delete(self, request: web.Request) -> web.StreamResponse:
        text = access_pages.rule_removal_page(
            self._owner(request), _rule(request), csrf=request[CSRF], place=self._namespace.place
        )
        return html(text)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        owner = self._owner(request)
        try:
            await asyncio.to_thread(self._rules.delete, owner, _rule(request))
        except NamespaceFailure as failure:
            text = access_pages.rule_removal_page(
                owner, _rule(request), csrf=request[CSRF], place=self._namespace.place, refusal=failure.text
            )
            return html(text, STATUS[failure.problem])
        raise web.HTTPSeeOther(access_path(owner, done="deleted"))

    async def _page(self, request: web.Request, shown: AccessRule | None) -> web.Response:
        owner = self._owner(request)
        entity = await asyncio.to_thread(self._namespace.entity, owner) if owner is not None else None
        rules = await asyncio.to_thread(self._rules.list, owner)
        text = access_pages.access_page(
            entity,
            rules,
            shown=shown,
            done=request.query.get("done", ""),
            csrf=request[CSRF],
            place=self._namespace.place,
        )
        return html(text)

    def _owner(self, request: web.Request) -> Address | None:
        return address_of(self._kind, request) if self._kind is not None else None


def _rule(request: web.Request) -> str:
    return request.query.get("rule", "")
