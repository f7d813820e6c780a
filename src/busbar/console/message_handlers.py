"""Which address shows which page of messages: lists, one message, sending, purging."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from busbar.console import message_pages, purge_pages
from busbar.console.layout import path_of
from busbar.console.messages import Lane, TypedMessage
from busbar.console.namespace import EntityType, Namespace, NamespaceFailure
from busbar.console.purging import PurgeRuns
from busbar.console.requests import CSRF, LIMIT, STATUS, address_of, html, read_form

if TYPE_CHECKING:
    from collections.abc import Mapping

WITH_MESSAGES = (EntityType.QUEUE, EntityType.SUBSCRIPTION)
SENT_TO = (EntityType.QUEUE, EntityType.TOPIC)


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = MessageHandlers(namespace)
    for kind in WITH_MESSAGES:
        app.router.add_get(f"/{kind}/messages", handlers.listing(kind))
        app.router.add_get(f"/{kind}/message", handlers.showing(kind))
        app.router.add_get(f"/{kind}/purge", handlers.purging(kind))
        app.router.add_post(f"/{kind}/purge", handlers.purge(kind))
    for kind in SENT_TO:
        app.router.add_get(f"/{kind}/send", handlers.writing(kind))
        app.router.add_post(f"/{kind}/send", handlers.send(kind))


def lane_of(request: web.Request, usual: Lane = Lane.ACTIVE) -> Lane:
    asked = request.query.get("lane", "")
    return Lane(asked) if asked in [*Lane] else usual


def number_of(request: web.Request, name: str = "start") -> int:
    """A sequence number of the address; 1 if there is none."""
    text = request.query.get(name, "").strip()
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) <= 19 else 1


class MessageHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._messages = namespace.messages
        self._purges = PurgeRuns(namespace.messages)

    def listing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane, start = address_of(kind, request), lane_of(request), number_of(request)
            session = request.query.get("session") or None
            entity = await asyncio.to_thread(self._namespace.entity, address)
            found = await asyncio.to_thread(self._messages.range, address, lane, start, session, LIMIT)
            text = message_pages.messages_page(
                entity, lane, found, start=start, session=session, place=self._namespace.place
            )
            return html(text)

        return handle

    def showing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane = address_of(kind, request), lane_of(request)
            entity = await asyncio.to_thread(self._namespace.entity, address)
            found = await asyncio.to_thread(self._messages.get, address, lane, number_of(request, "number"))
            as_hex = request.query.get("view", "") == "hex" or not found.is_text
            return html(
                message_pages.message_page(entity, lane, found, as_hex=as_hex, place=self._namespace.place)
            )

        return handle

    def writing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            entity = await asyncio.to_thread(self._namespace.entity, address_of(kind, request))
            text = message_pages.send_page(
                entity,
                TypedMessage(),
                csrf=request[CSRF],
                place=self._namespace.place,
                done="sent" in request.query,
            )
            return html(text)

        return handle

    def send(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, sent = address_of(kind, request), await read_form(request)
            typed = message_pages.read_message(sent, await _file(request))
            try:
                await asyncio.to_thread(self._messages.send, address, typed)
            except NamespaceFailure as failure:
                text = message_pages.send_page(
                    address, typed, csrf=request[CSRF], place=self._namespace.place, refusal=failure.text
                )
                return html(text, STATUS[failure.problem])
            raise web.HTTPSeeOther(path_of(address, "send", sent=1))

        return handle

    def purging(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, place = address_of(kind, request), self._namespace.place
            run = self._purges.get(request.query.get("run", ""))
            if run is not None and run.address == address:
                return html(purge_pages.progress_page(address, run, place=place))
            entity = await asyncio.to_thread(self._namespace.entity, address)
            return html(purge_pages.purge_page(entity, csrf=request[CSRF], place=place))

        return handle

    def purge(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, sent = address_of(kind, request), await read_form(request)
            lanes = [lane for lane in Lane if f"lane-{lane}" in sent]
            refusal = _purge_refusal(sent, address.name, lanes)
            if refusal:
                entity = await asyncio.to_thread(self._namespace.entity, address)
                text = purge_pages.purge_page(
                    entity,
                    lanes=lanes,
                    session=sent.get("session", ""),
                    csrf=request[CSRF],
                    place=self._namespace.place,
                    refusal=refusal,
                )
                return html(text, 400)
            id = self._purges.start(address, lanes, sent.get("session", "") or None)
            raise web.HTTPSeeOther(path_of(address, "purge", run=id))

        return handle


def _purge_refusal(sent: Mapping[str, str], name: str, lanes: list[Lane]) -> str:
    typed = sent.get(purge_pages.TYPED_NAME, "").strip()
    if typed != name:
        return f"“{typed}” is not the name, which is “{name}”. Nothing was deleted."
    return "" if lanes else "Select which messages to delete."


async def _file(request: web.Request) -> bytes | None:
    """The content of a chosen file."""
    field = (await request.post()).get("file")
    if not isinstance(field, web.FileField) or not field.filename:
        return None
    return field.file.read()
