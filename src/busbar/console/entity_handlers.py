"""Which address shows which page of the namespace and of an entity."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

from busbar.console import entity_pages
from busbar.console.forms import CHANGE_FORMS, FORMS, SHOWN, blank, changes, filled, read
from busbar.console.layout import path_of
from busbar.console.namespace import Address, EntityType, Namespace, NamespaceFailure
from busbar.console.overview_page import Overview, Shown, overview_page
from busbar.console.polling import CountPolling
from busbar.console.requests import CSRF, LIMIT, STATUS, address_of, html, read_form, search_of, start_of


def add_routes(app: web.Application, namespace: Namespace, polling: CountPolling) -> None:
    handlers = EntityHandlers(namespace, polling)
    app.router.add_get("/", handlers.overview)
    for kind in EntityType:
        app.router.add_get(f"/{kind}", handlers.showing(kind))
        app.router.add_get(f"/{kind}/new", handlers.creating(kind))
        app.router.add_post(f"/{kind}/new", handlers.create(kind))
        app.router.add_get(f"/{kind}/edit", handlers.editing(kind))
        app.router.add_post(f"/{kind}/edit", handlers.edit(kind))
        app.router.add_get(f"/{kind}/delete", handlers.deleting(kind))
        app.router.add_post(f"/{kind}/delete", handlers.delete(kind))


class EntityHandlers:
    def __init__(self, namespace: Namespace, polling: CountPolling) -> None:
        self._namespace = namespace
        self._polling = polling

    async def overview(self, request: web.Request) -> web.StreamResponse:
        shown = Shown(start_of(request, "queues"), start_of(request, "topics"), LIMIT, search_of(request))
        found = await asyncio.to_thread(self._look, shown)
        polling = self._polling
        return html(overview_page(found, shown, polling.history, polling.now, self._namespace.place))

    def _look(self, shown: Shown) -> Overview:
        namespace, search = self._namespace, shown.search
        return Overview(
            namespace.list(EntityType.QUEUE, shown.queues_from, LIMIT, search=search),
            namespace.list(EntityType.TOPIC, shown.topics_from, LIMIT, search=search),
            namespace.operation.stores(),
        )

    def showing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, namespace = address_of(kind, request), self._namespace
            entity = await asyncio.to_thread(namespace.entity, address)
            fragments = await asyncio.to_thread(namespace.fragments, address)
            subscriptions, skip = None, start_of(request, "skip")
            if kind is EntityType.TOPIC:
                subscriptions = await asyncio.to_thread(
                    namespace.list, EntityType.SUBSCRIPTION, skip, LIMIT, topic=address.name
                )
            text = entity_pages.entity_page(
                entity,
                self._polling.history,
                self._polling.now,
                fragments=fragments,
                subscriptions=subscriptions,
                skip=skip,
                limit=LIMIT,
                done=request.query.get("done", ""),
                place=namespace.place,
            )
            return html(text)

        return handle

    def creating(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            form, topic = FORMS[kind], request.query.get("topic", "")
            text = entity_pages.create_page(
                form, blank(form), topic=topic, csrf=request[CSRF], place=self._namespace.place
            )
            return html(text)

        return handle

    def create(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            sent = await read_form(request)
            form, typed = FORMS[kind], read(FORMS[kind], sent)
            topic = sent.get("topic", "") if kind is EntityType.SUBSCRIPTION else ""
            address = Address(kind, typed.name, topic)
            try:
                await asyncio.to_thread(self._namespace.create, address, typed.values)
            except NamespaceFailure as failure:
                text = entity_pages.create_page(
                    form,
                    typed,
                    topic=address.topic,
                    csrf=request[CSRF],
                    place=self._namespace.place,
                    refusal=failure.text,
                )
                return html(text, STATUS[failure.problem])
            raise web.HTTPSeeOther(path_of(address, done="created"))

        return handle

    def editing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, form = address_of(kind, request), CHANGE_FORMS[kind]
            entity = await asyncio.to_thread(self._namespace.entity, address)
            now = filled(form, address.name, entity.values)
            return html(
                entity_pages.edit_page(form, entity, now, csrf=request[CSRF], place=self._namespace.place)
            )

        return handle

    def edit(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            sent = await read_form(request)
            address, form = address_of(kind, request), CHANGE_FORMS[kind]
            changed = changes(form, sent)
            try:
                if changed:
                    await asyncio.to_thread(self._namespace.update, address, changed)
            except NamespaceFailure as failure:
                text = entity_pages.edit_page(
                    form,
                    address,
                    read(form, sent),
                    {name: value for name, value in sent.items() if name.startswith(SHOWN)},
                    csrf=request[CSRF],
                    place=self._namespace.place,
                    refusal=failure.text,
                )
                return html(text, STATUS[failure.problem])
            raise web.HTTPSeeOther(path_of(address, done="changed") if changed else path_of(address))

        return handle

    def deleting(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            entity = await asyncio.to_thread(self._namespace.entity, address_of(kind, request))
            return html(entity_pages.delete_page(entity, csrf=request[CSRF], place=self._namespace.place))

        return handle

    def delete(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address = address_of(kind, request)
            await asyncio.to_thread(self._namespace.delete, address)
            raise web.HTTPSeeOther(
                path_of(Address(EntityType.TOPIC, address.topic)) if address.topic else "/"
            )

        return handle
