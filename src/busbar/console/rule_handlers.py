"""Which address shows which page of the rules of a subscription."""

from __future__ import annotations

import asyncio

from aiohttp import web

from busbar.console import rule_pages
from busbar.console.layout import path_of
from busbar.console.namespace import Address, EntityType, Namespace, NamespaceFailure, RuleValues
from busbar.console.requests import CSRF, STATUS, address_of, html, read_form


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = RuleHandlers(namespace)
    app.router.add_get("/subscription/rules", handlers.list)
    for action in ("new", "edit", "delete"):
        app.router.add_get(f"/subscription/rule/{action}", getattr(handlers, f"show_{action}"))
        app.router.add_post(f"/subscription/rule/{action}", getattr(handlers, action))


class RuleHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._rules = namespace.rules

    async def list(self, request: web.Request) -> web.StreamResponse:
        address = _subscription(request)
        entity = await asyncio.to_thread(self._namespace.entity, address)
        found = await asyncio.to_thread(self._rules.list, address)
        done = request.query.get("done", "")
        return html(rule_pages.rules_page(entity, found, done=done, place=self._namespace.place))

    async def show_new(self, request: web.Request) -> web.StreamResponse:
        return self._form(request, RuleValues(""), is_new=True)

    async def new(self, request: web.Request) -> web.StreamResponse:
        sent = await read_form(request)
        rule = rule_pages.read_rule(sent, sent.get("rule", ""))
        try:
            await asyncio.to_thread(self._rules.create, _subscription(request), rule)
        except NamespaceFailure as failure:
            return self._form(request, rule, is_new=True, failure=failure)
        raise web.HTTPSeeOther(path_of(_subscription(request), "rules", done="created"))

    async def show_edit(self, request: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(self._rules.get, _subscription(request), _name(request))
        return self._form(request, found, is_new=False)

    async def edit(self, request: web.Request) -> web.StreamResponse:
        rule = rule_pages.read_rule(await read_form(request), _name(request))
        try:
            await asyncio.to_thread(self._rules.update, _subscription(request), rule)
        except NamespaceFailure as failure:
            return self._form(request, rule, is_new=False, failure=failure)
        raise web.HTTPSeeOther(path_of(_subscription(request), "rules", done="changed"))

    async def show_delete(self, request: web.Request) -> web.StreamResponse:
        address = _subscription(request)
        found = await asyncio.to_thread(self._rules.get, address, _name(request))
        return html(
            rule_pages.rule_delete_page(address, found, csrf=request[CSRF], place=self._namespace.place)
        )

    async def delete(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self._rules.delete, _subscription(request), _name(request))
        raise web.HTTPSeeOther(path_of(_subscription(request), "rules", done="deleted"))

    def _form(
        self,
        request: web.Request,
        rule: RuleValues,
        *,
        is_new: bool,
        failure: NamespaceFailure | None = None,
    ) -> web.Response:
        text = rule_pages.rule_page(
            _subscription(request),
            rule,
            is_new=is_new,
            csrf=request[CSRF],
            place=self._namespace.place,
            refusal=failure.text if failure else "",
        )
        return html(text, STATUS[failure.problem] if failure else 200)


def _subscription(request: web.Request) -> Address:
    return address_of(EntityType.SUBSCRIPTION, request)


def _name(request: web.Request) -> str:
    return request.query.get("rule", "")
